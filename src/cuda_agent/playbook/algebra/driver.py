"""All rewrites to a fixed point, then the split into what is derived from weights and what runs in every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from cuda_agent.core.graph import Graph, Node
from cuda_agent.core.plan import AppliedRule
from cuda_agent.playbook.algebra import expose, fold, layout, lower, products, recurrent, tidy
from cuda_agent.playbook.algebra.derive import split_derive
from cuda_agent.playbook.algebra.draft import Draft, Rule, apply

RULES: tuple[Rule, ...] = (*tidy.RULES, *lower.RULES, *recurrent.RULES, *products.RULES, *fold.RULES)


@dataclass(frozen=True)
class RewriteResult:
    """`graph` runs in every call; `derive`, when there is one, when weights are loaded: its k-th output is `graph`'s
    input `derived_k`. `derive` must be computed in full float32, without TF32. `applied`: the rules
    that matched."""

    graph: Graph
    derive: Graph | None
    applied: tuple[AppliedRule, ...]


def rewrite(
    graph: Graph,
    *,
    expose_biases: bool = False,
    channels_last: bool = False,
    whole: Callable[[Draft, Node], bool] | None = None,
) -> RewriteResult:
    """Apply every rewrite until none matches. The result computes the same function up to rounding, for finite
    values. `whole`: nodes that a skill computes as they are, so they aren't lowered."""
    rewritten, applied = apply(graph, RULES if whole is None else tuple(_sparing(rule, whole) for rule in RULES))
    if expose_biases:
        rewritten, more = apply(rewritten, expose.RULES)
        applied += more
    if channels_last:
        rewritten, more = apply(rewritten, layout.RULES)
        applied += more
    derive, main = split_derive(rewritten)
    return RewriteResult(main, derive, applied)


def _sparing(rule: Rule, whole: Callable[[Draft, Node], bool]) -> Rule:
    """The rule, for all nodes but these."""

    @wraps(rule)
    def spared(draft: Draft, node: Node) -> str | None:
        return None if whole(draft, node) else rule(draft, node)

    return spared
