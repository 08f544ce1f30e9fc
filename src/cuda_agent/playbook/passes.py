"""Reductions of one kernel, in the order in which a row can compute them.

Two forms of the same kernel. `exact`: only plain reductions (sum, max, …), so Σ exp(x - max x) needs a pass after the
maximum; for rows that stay in registers or caches. `online`: `expsum` and `m2` run together with the maximum or the sum
in one pass, by merging partial states, and so does the place of a maximum or minimum (`maxplace`, `minplace`); for rows
that are read again from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import COSTS
from cuda_agent.playbook.coords import Coord
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Group, Kernel, children

#: reductions of one pass -> the plain one whose result their state holds too.
_BESIDE = {"expsum": "max", "m2": "sum", "maxplace": "max", "minplace": "min"}
#: what a node must cost to be kept from one pass to the next, in simple instructions.
KEEP_COST = 8
#: rows that would each compute the same again, from which on it is put into memory.
_AGAIN = 64


@dataclass(frozen=True)
class Pass:
    """Reductions that one sweep over the row computes, and the nodes that it keeps for later sweeps."""

    reduces: tuple[int, ...]
    kept: tuple[int, ...] = ()


@dataclass
class _Rebuild:
    """Copies an expression graph node by node through a rule, merging equal nodes."""

    source: tuple[Expr, ...]
    rule: Callable[[_Rebuild, Expr], int | None]
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
            old = self.source[at]
            moved = replace(
                old,
                args=tuple(self.visit(a) for a in old.args),
                coord=self._coord(old.coord),
                guards=tuple(replace(b, coord=self._coord(b.coord)) for b in old.guards),
            )
            ruled = self.rule(self, moved)
            self.done[at] = self.add(moved) if ruled is None else ruled
        return self.done[at]

    def _coord(self, coord: Coord) -> Coord:
        return replace(coord, dynamic=tuple((self.visit(node), coef) for node, coef in coord.dynamic))


def _rebuilt(work: Kernel, rule: Callable[[_Rebuild, Expr], int | None]) -> Kernel:
    state = _Rebuild(work.nodes, rule, [], {}, {})
    # In the order that they have: the launcher's parameters follow the first use of each buffer.
    for at in range(len(work.nodes)):
        state.visit(at)
    stores = tuple(
        replace(
            s,
            node=state.visit(s.node),
            coord=replace(s.coord, dynamic=tuple((state.visit(n), c) for n, c in s.coord.dynamic)),
        )
        for s in work.stores
    )
    return replace(work, nodes=tuple(state.nodes), stores=stores)


def exact(work: Kernel) -> Kernel:
    """Without expsum and m2."""
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
            part = state.add(Expr("const", type_, value=1.0 / count))
            mean = state.add(Expr("mul", type_, (total, part)))
            term = state.add(Expr("square", type_, (state.add(Expr("sub", type_, (body, mean))),)))
        return state.add(Expr("reduce", type_, (term,), name="sum"))

    return _rebuilt(work, rule)


def online(work: Kernel) -> Kernel:
    """Σ exp(b - max b) and Σ (b - mean b)² as expsum and m2, also where they were written out by hand; places of
    extremes as maxplace and minplace."""
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
    """Products whose sum of exponentials is taken become `product`, which is rounded wherever it is computed. One sweep
    would otherwise round it, another contract `a·b - max` to one operation: for a·b of a thousand the exponents then
    differ by 1e-4, and so do the results."""
    bodies = {expr.args[0] for expr in work.nodes if expr.op == "reduce" and expr.name == "expsum"}
    nodes = tuple(
        replace(expr, op="product") if at in bodies and expr.op == "mul" and expr.type == "f32" else expr
        for at, expr in enumerate(work.nodes)
    )
    return replace(work, nodes=nodes)


def _difference(nodes: list[Expr], term: Expr, count: int) -> tuple[str, int] | None:
    """(kind, body) where the term is exp(b - max b) or (b - mean b)²."""
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
    """(kind, body, place) where the term is the place of what equals the extreme of the body, or of NaN, and as large
    as any place elsewhere (`operators.reductions.place_of`)."""
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
    """Add the maximum beside every expsum, the sum beside every m2, the extreme beside every place: their states need
    them."""
    nodes = list(work.nodes)
    for expr in work.nodes:
        if expr.op == "reduce" and expr.name in _BESIDE:
            body = expr.args[0]
            other = Expr("reduce", work.nodes[body].type, (body,), name=_BESIDE[expr.name])
            if other not in nodes:
                nodes.append(other)
    return replace(work, nodes=tuple(nodes))


def companion(work: Kernel, at: int) -> int | None:
    """The expsum, m2 or place whose state also yields this max, sum or min; for those, their max, sum or min."""
    expr = work.nodes[at]
    wanted = [_BESIDE[expr.name]] if expr.name in _BESIDE else [a for a, b in _BESIDE.items() if b == expr.name]
    for index, node in enumerate(work.nodes):
        if node.op == "reduce" and node.name in wanted and node.args[:1] == expr.args[:1]:
            return index
    return None


def passes(work: Kernel, *, keep: bool) -> tuple[Pass, ...]:
    """The reductions by sweeps; with `keep`, which values later sweeps take over instead of computing them again."""
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
    """For each sweep the full-size nodes worth keeping, none below another kept one."""
    full = work.full()
    roots = [[work.nodes[at].args[0] for at in group] for group in groups]
    roots.append([s.node for s in work.stores if s.full])
    result: list[list[int]] = [[] for _ in groups]
    made: dict[int, int] = {}
    for sweep, starts in enumerate(roots):
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
            made.setdefault(at, sweep)
    return [tuple(sorted(nodes)) for nodes in result]


def _cost(work: Kernel, root: int, full: frozenset[int]) -> int:
    seen: set[int] = set()
    stack, total = [root], 0
    while stack:
        at = stack.pop()
        if at in seen or at not in full:
            continue
        seen.add(at)
        expr = work.nodes[at]
        total += 0 if expr.op in ("load", "const", "index") else COSTS.get(expr.op, 1)
        stack += list(children(expr))
    return total


def computed_again(group: Group) -> str | None:
    """The value nearest to the result of a reduction that costs much and that many rows would compute again for each of
    their columns, as where all columns of a matrix meet one vector. None where there is none."""
    frame, values, found = group.frame, group.puller.values, None
    for (name, at, guards), node in group.puller.memo.items():
        used = {dim for coord in at for dim, _ in coord.terms}
        if frame.rows is None or not isinstance(values[name], ir.Pointwise) or not used - frame.rows:
            continue
        if guards or any(coord.dynamic for coord in at):
            continue
        again = ir.numel([frame.size(dim) for dim in frame.rows - used])
        everything = ir.numel([frame.size(dim) for dim in frame.dims()])
        if again < _AGAIN or ir.numel(values[name].shape) * _AGAIN > everything:
            continue
        reached = _reached(group.puller.nodes, node)
        if any(expr.op in ("reduce", "scan") for expr in reached):
            continue
        if sum(COSTS.get(expr.op, 1) for expr in reached if expr.args) >= KEEP_COST:
            found = name
    return found


def _reached(nodes: Sequence[Expr], root: int) -> list[Expr]:
    """All that an expression is made of, itself included."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        at = stack.pop()
        if at not in seen:
            seen.add(at)
            stack += children(nodes[at])
    return [nodes[at] for at in sorted(seen)]
