"""Schedules the reductions of one kernel into passes over a row.

A kernel has two forms. `exact` has plain reductions (sum, max, …) only, so Σ exp(x - max x) needs a pass after the
maximum. It suits rows that stay in registers or caches. `online` computes `expsum` and `m2` in the same pass as the
maximum or the sum, by merging partial states, and likewise the index of a maximum or minimum (`maxplace`, `minplace`).
It suits rows that are read again from memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cuda_agent.core.graph import reached
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import COSTS
from cuda_agent.playbook.coords import Coord
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Group, Kernel, children

#: online reduction -> the plain reduction whose result its state holds too.
_BESIDE = {"expsum": "max", "m2": "sum", "maxplace": "max", "minplace": "min"}
#: the cost, in simple instructions, from which a value is kept for later passes.
KEEP_COST = 8
#: the number of rows that compute the same value from which it is put into memory instead.
_MOST_RECOMPUTED = 64


@dataclass(frozen=True)
class Pass:
    """The reductions that one pass over the row computes, and the nodes that it keeps for later passes."""

    reduces: tuple[int, ...]
    kept: tuple[int, ...] = ()


@dataclass
class _Rebuild:
    """Copies an expression graph node by node through a rule, merging equal nodes."""

    source: tuple[Expr, ...]
    rule: "Callable[[_Rebuild, Expr], int | None]"
    nodes: list[Expr]
    known: dict[Expr, int]
    done: dict[int, int]

    def add(self, expr: Expr) -> int:
        at = self.known.get(expr)
        if at is None:
            at = self.known[expr] = len(self.nodes)
            self.nodes.append(expr)
        return at

    def visit(self, at: int) -> int:
        if at not in self.done:
            moved = self.source[at].mapped(self.visit, self.coord)
            ruled = self.rule(self, moved)
            self.done[at] = self.add(moved) if ruled is None else ruled
        return self.done[at]

    def coord(self, coord: Coord) -> Coord:
        return replace(coord, dynamic=tuple((self.visit(node), coef) for node, coef in coord.dynamic))


def _rebuilt(work: Kernel, rule: Callable[[_Rebuild, Expr], int | None]) -> Kernel:
    state = _Rebuild(work.nodes, rule, [], {}, {})
    # The order of the nodes stays: the launcher's parameters follow the first use of each buffer.
    for at in range(len(work.nodes)):
        state.visit(at)
    stores = tuple(replace(s, node=state.visit(s.node), coord=state.coord(s.coord)) for s in work.stores)
    return replace(work, nodes=tuple(state.nodes), stores=stores)


def exact(work: Kernel) -> Kernel:
    """Returns the kernel with expsum and m2 as plain reductions."""
    count = ir.numel(work.cols)

    def rule(state: _Rebuild, expr: Expr) -> int | None:
        if expr.op != "reduce" or expr.name not in ("expsum", "m2"):
            return None
        body, type_ = expr.args[0], expr.type
        if expr.name == "expsum":
            top = state.add(Expr("reduce", type_, (body,), name="max"))
            term = state.add(Expr("exp", type_, (state.add(Expr("sub", type_, (body, top))),)))
        else:
            total = state.add(Expr("reduce", type_, (body,), name="sum"))
            size = state.add(Expr("const", type_, value=float(count)))
            mean = state.add(Expr("div", type_, (total, size)))
            term = state.add(Expr("square", type_, (state.add(Expr("sub", type_, (body, mean))),)))
        return state.add(Expr("reduce", type_, (term,), name="sum"))

    return _rebuilt(work, rule)


def online(work: Kernel) -> Kernel:
    """Returns the kernel with Σ exp(b - max b) and Σ (b - mean b)² as expsum and m2, also where the task's code spells
    them out, and with indices of extremes as maxplace and minplace."""
    count = ir.numel(work.cols)

    def rule(state: _Rebuild, expr: Expr) -> int | None:
        if expr.op != "reduce" or expr.name not in ("sum", "min") or expr.guards:
            return None
        if expr.name == "min":
            found = _place(state.nodes, state.nodes[expr.args[0]])
            return None if found is None else state.add(replace(expr, args=found[1:], name=found[0]))
        term = state.nodes[expr.args[0]]
        base = _difference(state.nodes, term, count)
        if base is None:
            return None
        return state.add(Expr("reduce", expr.type, (base[1],), name=base[0]))

    return _rounded(_with_companions(_rebuilt(work, rule)))


def _rounded(work: Kernel) -> Kernel:
    """Makes products whose sum of exponentials is taken a `product`, which is always rounded. Otherwise one pass would
    round it and another contract `a·b - max` to one operation. For a·b of a thousand the exponents, and so the results,
    would then differ by 1e-4."""
    bodies = {expr.args[0] for expr in work.nodes if expr.op == "reduce" and expr.name == "expsum"}
    nodes = tuple(
        replace(expr, op="product") if at in bodies and expr.op == "mul" and expr.type == "f32" else expr
        for at, expr in enumerate(work.nodes)
    )
    return replace(work, nodes=nodes)


def _difference(nodes: list[Expr], term: Expr, count: int) -> tuple[str, int] | None:
    """Returns (kind, body) where the term is exp(b - max b) or (b - mean b)²."""
    if term.op == "exp":
        inner, kind = nodes[term.args[0]], "expsum"
    elif term.op == "square" or (term.op == "mul" and term.args[0] == term.args[1]):
        inner, kind = nodes[term.args[0]], "m2"
    else:
        return None
    if inner.op != "sub":
        return None
    body, shift = inner.args[0], nodes[inner.args[1]]
    if kind == "expsum":
        return (kind, body) if shift.op == "reduce" and shift.name == "max" and shift.args == (body,) else None
    if shift.op not in ("mul", "div") or len(shift.args) != 2:
        return None
    total, scale = nodes[shift.args[0]], nodes[shift.args[1]]
    if total.op != "reduce" or total.name != "sum" or total.args != (body,) or scale.op != "const":
        return None
    factor = float(scale.value or 0)
    is_mean = abs(factor * count - 1) < 1e-6 if shift.op == "mul" else factor == count
    return (kind, body) if is_mean else None


def _place(nodes: list[Expr], term: Expr) -> tuple[str, int, int] | None:
    """Returns (kind, body, place) where the term is an index of the body's extreme, as `operators.reductions.place_of`
    builds it: `place` where the body equals its extreme or is NaN, the last index elsewhere."""
    if term.op != "where" or nodes[term.args[2]].op != "const":
        return None
    found, place = nodes[term.args[0]], term.args[1]
    same, nan = (nodes[found.args[0]], nodes[found.args[1]]) if found.op == "or" else (found, None)
    if same.op != "eq":
        return None
    body, extreme = same.args[0], nodes[same.args[1]]
    if extreme.op != "reduce" or extreme.name not in ("max", "min") or extreme.args != (body,) or extreme.guards:
        return None
    is_float = nodes[body].type in ("f32", "f64")
    if is_float != (nan is not None) or (nan is not None and (nan.op != "isnan" or nan.args != (body,))):
        return None
    return f"{extreme.name}place", body, place


def _with_companions(work: Kernel) -> Kernel:
    """Adds the plain reductions that the states of online ones need: the maximum for an expsum, the sum for an m2, the
    extreme for an index."""
    nodes = list(work.nodes)
    for expr in work.nodes:
        if expr.op == "reduce" and expr.name in _BESIDE:
            body = expr.args[0]
            other = Expr("reduce", work.nodes[body].type, (body,), name=_BESIDE[expr.name])
            if other not in nodes:
                nodes.append(other)
    return replace(work, nodes=tuple(nodes))


def companion(work: Kernel, at: int) -> int | None:
    """Returns the online reduction whose state also yields this plain one, or the plain one of an online reduction."""
    expr = work.nodes[at]
    wanted = [_BESIDE[expr.name]] if expr.name in _BESIDE else [a for a, b in _BESIDE.items() if b == expr.name]
    for index, node in enumerate(work.nodes):
        if node.op == "reduce" and node.name in wanted and node.args[:1] == expr.args[:1]:
            return index
    return None


def passes(work: Kernel, *, keep: bool) -> tuple[Pass, ...]:
    """Returns the passes. With `keep`, passes keep costly values for later ones instead of recomputing them."""
    depth: dict[int, int] = {}

    def depth_of(at: int) -> int:
        if at not in depth:
            depth[at] = max((depth_of(child) for child in children(work.nodes[at])), default=0)
            depth[at] += work.nodes[at].op == "reduce"
        return depth[at]

    for at in range(len(work.nodes)):
        depth_of(at)
    reduces = [at for at, expr in enumerate(work.nodes) if expr.op == "reduce"]
    count = max((depth[at] for at in reduces), default=0)
    groups = [tuple(at for at in reduces if depth[at] == level) for level in range(1, count + 1)]
    kept = _kept(work, groups) if keep else [()] * len(groups)
    return tuple(Pass(group, tuple(nodes)) for group, nodes in zip(groups, kept, strict=True))


def _kept(work: Kernel, groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns for each pass the per-column nodes that later passes reuse, without the operands of these."""
    full = work.full()
    roots = [[work.nodes[at].args[0] for at in group] for group in groups]
    roots.append([s.node for s in work.stores if s.full])
    result: list[list[int]] = [[] for _ in groups]
    made: dict[int, int] = {}
    for number, starts in enumerate(roots):
        stack, seen = list(starts), set()
        fresh: list[int] = []
        while stack:
            at = stack.pop()
            if at in seen or at not in full:
                continue
            seen.add(at)
            if at in made and _cost(work, at, full) >= KEEP_COST:
                if at not in result[made[at]]:
                    result[made[at]].append(at)
                continue
            fresh.append(at)
            stack += list(children(work.nodes[at]))
        for at in fresh:
            made.setdefault(at, number)
    return [tuple(sorted(nodes)) for nodes in result]


def _cost(work: Kernel, root: int, full: frozenset[int]) -> int:
    """Returns the cost per column of computing a node."""
    every = reached([root], lambda at: (child for child in children(work.nodes[at]) if child in full))
    ops = [work.nodes[at].op for at in every]
    return sum(COSTS.get(op, 1) for op in ops if op not in ("load", "const", "index"))


def recomputed_by_rows(group: Group) -> str | None:
    """Returns the value nearest to a reduction's result that is costly and that many rows would recompute for each of
    their columns, such as a function of the vector that multiplies all rows of a matrix."""
    frame, values, found = group.frame, group.inliner.values, None
    nodes = group.inliner.nodes
    for (name, at, guards), node in group.inliner.memo.items():
        used = {dim for coord in at for dim, _ in coord.terms}
        if frame.rows is None or not isinstance(values[name], ir.Pointwise) or not used - frame.rows:
            continue
        if guards or any(coord.dynamic for coord in at):
            continue
        times, everything = frame.sizes(frame.rows - used), frame.sizes(frame.dims())
        if times < _MOST_RECOMPUTED or ir.numel(values[name].shape) * _MOST_RECOMPUTED > everything:
            continue
        parts = [nodes[at] for at in reached([node], lambda at: children(nodes[at]))]
        is_pointwise = not any(expr.op in ("reduce", "scan") for expr in parts)
        if is_pointwise and sum(COSTS.get(expr.op, 1) for expr in parts if expr.args) >= KEEP_COST:
            found = name
    return found
