"""Rates how natural it is that one operator follows another, and gives the values that each makes.

Seeds are grouped by role, which is finer than their family: `pointwise` has sums of two tensors, logarithms and
comparisons. Weights are given by role; a pair without a weight is never composed. The table `pointless` excludes pairs
whose result is trivial or constant.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

from cuda_agent.core.assets import tables, word_lists
from cuda_agent.tasks.expressions import names_in
from cuda_agent.tasks.records import Seed

#: The time above which roles of arithmetic are preferred.
_SHORT_US = 3000.0
_POSITIVE = frozenset(("probabilities", "positive", "zero or more"))
#: A product of unscaled numbers, whose results are as large as those of a power.
_OWN_PRODUCT = "product with its own transpose"

_TABLES = tables(__file__)
#: The lists of operators; the comments of `affinity.yaml` say what each means.
_NAMES = word_lists(__file__)
_ROLES: dict[str, frozenset[str]] = {name: frozenset(operators.split()) for name, operators in _TABLES["roles"].items()}
_GROUPS: dict[str, list[str]] = _TABLES["groups"]
_FOLLOWS: dict[str, dict[str, float]] = _TABLES["follows"]
_MAKES: dict[str, str] = _TABLES["makes"]
_ACCEPTS: dict[str, list[str]] = _TABLES["accepts"]


def _operators(text: str, groups: Mapping[str, set[str]]) -> set[str]:
    """Returns the operators of a text such as `sqrt @even -abs`, from left to right."""
    found: set[str] = set()
    for word in text.split():
        if word.startswith("-"):
            found.discard(word[1:])
        else:
            found |= groups[word[1:]] if word.startswith("@") else {word}
    return found


def _read() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Returns (the groups, an operator -> the operators that make no sense on its result)."""
    groups: dict[str, set[str]] = {}
    for name, text in _TABLES["pointless"]["groups"].items():
        groups[name] = _operators(text, groups)
    excluded: defaultdict[str, set[str]] = defaultdict(set)
    for first, second in _TABLES["pointless"]["rules"]:
        for operator in _operators(first, groups):
            excluded[operator] |= _operators(second, groups)
    return groups, excluded


_OPERATOR_GROUPS, _POINTLESS = _read()


@cache
def _role(family: str, operator: str, ports: int) -> str:
    for name, operators in _ROLES.items():
        if operator in operators:
            return name
    if "_pad_" in operator or operator == "pad":
        return "padding"
    if family == "pointwise":
        return "binary" if ports > 1 else "math"
    return family


def role(seed: Seed) -> str:
    """Returns the role of the seed in a chain, which is finer than its family."""
    return _role(seed.family, seed.operator, len(seed.ports))


def importance(seed: Seed) -> float:
    """Returns how often a task is built around the seed's role, relative to roles that aren't named."""
    weights = _TABLES["importance" if seed.library == "torch" else "importance_of_layers"]
    return float(weights.get(role(seed), 1.0))


def suits_time(name: str, wanted_us: float) -> float:
    """Returns how well a task of this time is built around this role. Long tasks are built around arithmetic, because
    an operator that only moves memory would need too much of it."""
    longer = max(0.0, math.log(wanted_us / _SHORT_US))
    return 1.0 + longer if name in _GROUPS["arithmetic"] else 1.0 / (1.0 + longer)


def commonness(seed: Seed) -> float:
    """Returns how common the operator is, relative to one that is neither common nor rare."""
    if seed.operator in _NAMES["common"]:
        return 4.0
    if seed.operator in _NAMES["idle"]:
        return 0.0
    if seed.operator in _NAMES["rare"] or seed.family == "special function":
        return 0.25
    return 0.4 if seed.operator.endswith(("3d", "_3d")) else 1.0


def domain(seeds: Sequence[Seed]) -> str:
    """Returns the kind of data in a chain: `image` (of two or three dimensions), `signal` (or with `time first`),
    `heads` of attention, or `rows` of features."""
    names = {name for seed in seeds for name in names_in(seed.ports[0].layout)}
    if any(seed.ports[0].layout.startswith("L ") for seed in seeds):
        return "time first"
    return "image" if {"H", "W"} <= names else "signal" if {"C", "L"} <= names else "heads" if "G" in names else "rows"


def suits(seed: Seed, flowing: str) -> float:
    """Returns how well an operator suits a kind of data. An operator on rows, steps or matrices doesn't suit images or
    signals, nor does one along a dimension or on the last dimension alone. A transposition makes a signal of a
    sequence."""
    own, layout = domain((seed,)), seed.ports[0].layout
    if own != "rows":
        return 1.0 if flowing in ("rows", own) else 0.0
    if flowing in ("rows", "heads") or layout == "*" or seed.operator == "transpose":
        return 1.0
    if role(seed) == "scan":
        return 0.0
    if layout.startswith("* ") and any(item.name == "dim" and "1" in item.choices for item in seed.parameters):
        return 1.0
    return 0.1 if layout.startswith("* ") and role(seed) == "data movement" else 0.0


def affinity(before: Seed, after: Seed) -> float:
    """Returns how natural it is that `after` follows `before`; 0 means never."""
    if before.library != "torch" or after.library != "torch" or after.ports[0].dtype != "float32":
        return 0.0
    first, second = role(before), role(after)
    if first in _GROUPS["last"] or (
        before.operator == after.operator and first not in ("matrix product", "convolution")
    ):
        return 0.0
    made = "matrix_power" if before.name == _OWN_PRODUCT else before.operator
    pointless = after.operator in _POINTLESS.get(made, ())
    if pointless or not _fits(before, after) or _needs_another(before, first, after, second):
        return 0.0
    return float(_FOLLOWS.get(first, {}).get(second, 0.0))


def _needs_another(before: Seed, first: str, after: Seed, second: str) -> bool:
    """Returns whether `after` only follows other operators than `before`."""
    name = after.operator
    if name in _NAMES["of_logits"]:
        return first not in ("matrix product", "convolution", "scaling", "normalization")
    if name in _NAMES["classifying"]:
        return before.operator not in _NAMES["scoring"]
    if name in _NAMES["metric"]:
        return before.operator not in _NAMES["embedding"]
    if name == "linear_cross_entropy":
        return first not in ("normalization", "activation", "indexing")
    if name in _NAMES["stepped"] and not _is_exact(before):
        return True
    return (
        (name == "glu" and first not in _GROUPS["gated"])
        or (first == "padding" and second == "convolution" and not pads(after))
        or (second == "joining" and name not in _NAMES["joins"])
        or (first == "softmax" and second in ("ordering", "indexing", "math") and name not in _NAMES["after_shares"])
        or (second == "recurrent" and first == "matrix product" and before.operator != "linear")
        or (before.operator in ("kron", "block_diag") and len(after.ports) > 1)
        or (first in ("special function", "rare math") and name in _OPERATOR_GROUPS["extremes"])
    )


def pads(seed: Seed) -> bool:
    """Returns whether a convolution's padding can be chosen."""
    is_used = "{padding}" in (seed.constructor or "") + seed.call
    return is_used and any(item.name == "padding" and len(item.choices) > 1 for item in seed.parameters)


def _is_exact(seed: Seed) -> bool:
    """Returns whether any program gives the same result to the last bit."""
    return seed.operator in _NAMES["exact"] or (
        role(seed) in _GROUPS["exact"] and seed.operator not in _NAMES["summing"]
    )


def made_by(seed: Seed) -> str:
    """Returns the kind of values in the seed's output."""
    if role(seed) in _GROUPS["keeping"]:
        return seed.ports[0].values
    return _MAKES.get(seed.operator, "normal")


def _fits(before: Seed, after: Seed) -> bool:
    made, wanted = made_by(before), after.ports[0].values
    if made in _POSITIVE and after.operator in _NAMES["plain_on_positive"] | _NAMES["least"]:
        return False
    if made == "zero or more" and wanted == "positive":
        return after.operator in _NAMES["takes_zero"]
    return made in _ACCEPTS.get(wanted, ())
