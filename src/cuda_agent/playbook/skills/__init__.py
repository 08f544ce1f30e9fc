"""Skills, a folder each: notes, templates, and in `skill.py` the code that says where it applies.

Skills don't import each other; `shared` is what they have in common.
"""

from cuda_agent.workspace.skills import FOLDERS

__path__ = FOLDERS
