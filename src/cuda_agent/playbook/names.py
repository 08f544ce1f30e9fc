"""Names of graph values in generated sources. A name that would hide one of C++ or of the templates is changed."""

import re

from cuda_agent.core.assets import word_lists

#: keywords of C++ and CUDA, and names that the templates declare.
_TAKEN = word_lists(__file__)["TAKEN"]
#: the templates' numbered names, and the launchers' parameters, functions and settings.
_LIKE_OURS = re.compile(
    r"(a|all|b|base|bf|carry|count|dim|e|early|extent|f|first|h|i|keep|kept|m|mean|n|o|p|part|parts|q|r|row|s|state"
    r"|t|tile|top|turned|v|w|x|y|E|T|State|TILES)\d+(_\w+)?"
    r"|\w+_p|(f|config|launch|register)_\w+|U?INT\d+_(MIN|MAX)|__\w+|_[A-Z]\w*|_mm_\w+"
)


def cpp_name(value: str) -> str:
    """Returns a graph value's name as a C++ and Python identifier. Different identifiers stay different."""
    name = re.sub(r"\W", "_", value)
    if name[:1].isdigit():
        return f"_{name}"
    bare = name.rstrip("_")
    return f"{name}_" if bare in _TAKEN or _LIKE_OURS.fullmatch(bare) else name
