"""Maps all spellings of an operator to one word: `nn.LogSoftmax`, `F.log_softmax`, `torch.log_softmax` and
`x.log_softmax` are all `logsoftmax`. The words and their groups are in `spelling.yaml`."""

import re

from cuda_agent.core.assets import inverted, tables

_TABLES = tables(__file__)
_ALIASES = inverted(_TABLES["aliases"])
_ANY_DIMENSION, _PADS = _TABLES["any_dimension"].split(), _TABLES["pads"].split()
PASSES = frozenset(_TABLES["passes"].split())
WEIGHTED = frozenset(_TABLES["weighted"].split())
STATEFUL = WEIGHTED.union(_TABLES["stateful"].split())
ARITHMETIC = frozenset(_TABLES["arithmetic"].split())
SOURCES = frozenset(_TABLES["sources"].split())
OPERATORS: dict[str, str] = _TABLES["operators"]


def canonical(name: str) -> str:
    """Returns the word of a dotted name: `torch.nn.functional.max_pool2d` and `torch.nn.MaxPool2d` -> `maxpool2d`."""
    parts = name.split(".")
    if "aten" in parts[:-1]:
        parts = parts[: parts.index("aten") + 2]
    word = parts[-1].lower().replace("_", "").removeprefix("lazy")
    word = word.removesuffix("loss") or word
    if word[:-2] in _ANY_DIMENSION and re.fullmatch(r"\dd", word[-2:]):
        word = word[:-2]
    return "pad" if word in _PADS else _ALIASES.get(word, word)
