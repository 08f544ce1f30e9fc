"""Code of the extraction that runs inside a sandboxed worker."""

from cuda_agent.workers.roles import Role

#: runs the user's whole model with candidates in the place of submodules.
PATCHED = Role("patched", f"{__name__}.patched")
