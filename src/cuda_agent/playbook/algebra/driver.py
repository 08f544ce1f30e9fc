"""Applies all rewrites to a fixed point, then splits off the values that are derived from weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module

from cuda_agent.core.assets import tables
from cuda_agent.core.graph import Graph, Node
from cuda_agent.core.plan import AppliedRule
from cuda_agent.playbook.algebra import library, tidy
from cuda_agent.playbook.algebra.attention import attention_of_products, may_be_written_out, shared_heads
from cuda_agent.playbook.algebra.derive import split_derive
from cuda_agent.playbook.algebra.draft import Draft, Rule, apply, refuse

RULES: tuple[Rule, ...] = tuple(
    getattr(import_module(f"{__package__}.{module}"), name)
    for module, names in tables(__file__).items()
    for name in names.split()
)
_TIDY: tuple[Rule, ...] = tuple(getattr(tidy, name) for name in tables(__file__)["tidy"].split())
#: all rules, with those that only some plans ask for.
EVERY_RULE: tuple[Rule, ...] = (
    *RULES, attention_of_products(lambda draft, node: False), library.projections_side_by_side,
    library.linears_side_by_side, library.expose_bias, library.channels_last,
)  # fmt: skip


@dataclass(frozen=True)
class RewriteResult:
    """`graph` runs in every call. `derive`, where there is one, runs when weights are loaded, in full float32 without
    TF32; its k-th output is the input `derived_k` of `graph`. `applied` are the rules that matched."""

    graph: Graph
    derive: Graph | None
    applied: tuple[AppliedRule, ...]


def rewrite(
    graph: Graph,
    *,
    library_calls: Sequence[Rule] = (),
    is_kept: Callable[[Draft, Node], bool] | None = None,
) -> RewriteResult:
    """Applies every rewrite until none matches, then the rules `library_calls`, one after the other. The result
    computes the same function up to rounding, for finite values. Nodes for which `is_kept` is true are computed by a
    skill as they are, so they aren't rewritten."""
    applied: tuple[AppliedRule, ...] = ()
    rules = RULES
    if is_kept is not None:
        rules = tuple(_sparing(rule, is_kept) for rule in RULES)
        if may_be_written_out(graph):
            # First, since other rules rewrite its products.
            graph, applied = apply(graph, (*_TIDY, attention_of_products(is_kept)))
    rewritten, more = apply(graph, rules)
    applied += more
    for rule in library_calls:
        rewritten, more = apply(rewritten, (rule,))
        applied += more
    derive, main = split_derive(rewritten)
    return RewriteResult(main, derive, applied)


def _sparing(rule: Rule, is_kept: Callable[[Draft, Node], bool]) -> Rule:
    """Returns the rule for all nodes but these."""

    if rule is shared_heads:
        # The node stays what it is.
        return rule

    @wraps(rule)
    def spared(draft: Draft, node: Node) -> str:
        refuse(is_kept(draft, node))
        return rule(draft, node)

    return spared
