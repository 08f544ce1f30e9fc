"""Compares a candidate's output with the reference's. Two bounds must both hold.

*Published*: |c - e| <= atol + rtol·|e| in every element, e = eager at PyTorch's flags. An element beyond it still
passes when |c - o| is at most four times the error that PyTorch has there (`places`), |p - o|, o = oracle, p = eager at
the precision policy. (In low precision eager's own rounding exceeds 1e-2, and under TF32 sums that cancel do.)

*Oracle*: the relative L2 error ||c - o|| / ||o||, over the whole output and over its worst block of 4,096 consecutive
elements, each <= max(4 × the same of p, floor). Where p's error is large, its rows and columns are bounded too, by
eight times their own.

Integers and booleans: `discrete`. Where e isn't finite, c must be the same infinity or NaN, elsewhere finite, or as p
or o are. Everything is computed in parts of at most 2^19 elements (2^24 on a GPU), so that memory stays bounded.
Errors are dimensionless.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cuda_agent.core.enums import Device, Precision
from cuda_agent.judge.verify.answers import Answer, Source
from cuda_agent.judge.verify.discrete import Discrete, rule_discrete
from cuda_agent.judge.verify.eager_bounds import EagerBounds
from cuda_agent.judge.verify.measured import BLOCK, SLACK, EagerDistance, Errors, Measured, Ruling, larger
from cuda_agent.judge.verify.places import TILE, Places
from cuda_agent.workers.buffers import pieces

#: relative error of fast-math intrinsics (`__expf`, `rsqrtf`).
FLOOR = 2e-6
FLOOR_TF32 = 5e-4
EPSILON = {"float64": 2.220446049250313e-16, "float32": 1.1920929e-07, "bfloat16": 0.0078125, "float16": 0.0009765625}
#: elements of a large output that are compared first where a failure is likely.
_FIRST = 1 << 20
#: the largest difference that is no error of an element: a flushed denormal; for float16, whose denormals are not
#: flushed, the distance of two of them.
_NO_ERROR = {"float64": 2.2e-308, "float32": 1.2e-38, "bfloat16": 1.2e-38, "float16": 6.0e-8}
#: what is smaller has a square that is 0 in double.
_LEAST_WITH_SQUARE = 1e-150
#: slack of a row's or a column's error, which scatters more than a block's.
_LINE_SLACK = 2 * SLACK


def error_floor(precision: Precision, device: Device, length: int, products: bool) -> float:
    """Returns the floor of the error budget: fast-math intrinsics, ε√K of float32 sums of K = `length` elements, and
    5e-4 where the policy allows TF32 and the task holds float32 products or convolutions (`products`)."""
    floor = max(FLOOR, EPSILON["float32"] * math.sqrt(length))
    if precision is not Precision.FP32 and device is Device.CUDA and products:
        floor = max(floor, FLOOR_TF32)
    return floor


def all_finite(answer: Answer) -> bool:
    """Whether eager's outputs hold no NaN or infinity."""
    every = (t for piece in answer.pieces(only_eager=True) for t in piece.eager if t.is_floating_point())
    return all(_all([part.isfinite().all() for part in pieces(tensor)]) for tensor in every)


def same_bytes(mine: Any, yours: Any) -> bool:
    """Whether two uint8 tensors of one length, aligned to 8 bytes, are equal."""
    import torch

    whole = mine.numel() // 8 * 8
    words = (pieces(tensor[:whole].view(torch.int64)) for tensor in (mine, yours))
    found = [(x == y).all() for x, y in zip(*words, strict=True)]
    return _all([*found, (mine[whole:] == yours[whole:]).all()])


def _all(found: Sequence[Any]) -> bool:
    """Whether all of these scalar tensors of one device are true. The device is waited for once."""
    import torch

    return not found or bool(torch.stack(list(found)).all())


class OutputComparison(Protocol):
    """The comparison of one output, piece by piece."""

    def add(self, c: Any, e: Any, p: Any, o: Any) -> None:
        """Adds the next flat part of the candidate's, eager's, the policy's and the oracle's output. Each part but the
        last is a multiple of BLOCK elements."""
        ...

    def result(self) -> Measured: ...


def comparison(like: Any, shape: Sequence[int], atol: float, rtol: float) -> OutputComparison:
    """Returns the comparison of an output of this shape. `like` has its type."""
    elements = math.prod(shape)
    dtype = str(like.dtype).removeprefix("torch.")
    if not like.dtype.is_floating_point:
        return Discrete(elements, dtype, equal_only=like.is_complex())
    return _Sums(elements, shape[-1] if shape else 1, dtype, atol, rtol)


def measure(candidate: Any, eager: Any, policy: Any, oracle: Any, *, atol: float, rtol: float) -> Measured:
    """Measures one output tensor. All four tensors have the same shape and lie on the same device in row-major
    order."""
    found = comparison(eager, eager.shape, atol, rtol)
    found.add(*(tensor.reshape(-1) for tensor in (candidate, eager, policy, oracle)))
    return found.result()


def measure_all(answer: Answer, mine: Mapping[str, Source], *, atol: float, rtol: float) -> dict[str, list[Measured]]:
    """Measures several answers of all outputs in one pass over the pieces of the task's answer."""
    found: dict[str, list[OutputComparison]] = {name: [] for name in mine}
    for piece in answer.pieces():
        for index, (begin, *others) in enumerate(
            zip(piece.begins, piece.eager, piece.policy, piece.oracle, strict=True)
        ):
            for name, source in mine.items():
                if len(found[name]) <= index:
                    found[name].append(comparison(others[0], answer.shapes[index], atol, rtol))
                if others[0].numel():
                    found[name][index].add(source(index, begin, others[0]), *others)
    return {name: [one.result() for one in comparisons] for name, comparisons in found.items()}


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limits torch to one thread. The passes are short and their data fits the cache, so that waiting for other threads
    would take longer than the work."""
    import torch

    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


class _Sums:
    """The comparison of floating-point numbers."""

    def __init__(self, elements: int, width: int, dtype: str, atol: float, rtol: float) -> None:
        """`width` is the length of a row."""
        #: root mean square below which a block counts as this large: flushed denormals are no error.
        self._tiny = max(_NO_ERROR[dtype] / _at_least(dtype, FLOOR), _LEAST_WITH_SQUARE)
        self._elements, self._dtype, self._atol, self._rtol = elements, dtype, atol, rtol
        self._begin, self._failure = 0, ""
        self.max_abs = self.max_rel = 0.0
        self._alone = EagerDistance()
        #: elements beyond the published bound.
        self._outside = 0
        self._places = Places(width, EPSILON[dtype], atol, rtol)
        self._squares = {"candidate": 0.0, "policy": 0.0, "norm": 0.0}
        self._worst = {"candidate": 0.0, "policy": 0.0}

    def add(self, c: Any, e: Any, p: Any, o: Any) -> None:
        if self._failure or not e.numel():
            return
        parts = list(zip(*map(pieces, (c, e, p, o)), strict=True))
        with _one_thread():
            # The device is waited for once and not for each part, since other processes may take turns on it.
            found = _numbers([self.piece(*part) for part in parts])
            failures = (self.sum(numbers, *part) for numbers, part in zip(found, parts, strict=True))
            self._failure = next((failure for failure in failures if failure), "")

    def piece(self, c: Any, e: Any, p: Any, o: Any) -> Any:
        """Computes on the device the numbers that `sum` needs of a part. They are NaN or infinite where any value
        isn't finite, since each value is part of a difference."""
        import torch

        o = o.double()
        wide = e.dtype if e.element_size() >= 4 else o.dtype
        from_truth, eager_off = c - o, p - o
        apart, size = c.to(wide).sub(e.to(wide)).abs_(), e.to(wide).abs()
        outside = apart.sub(size, alpha=self._rtol) > self._atol
        beyond = _largest(from_truth * outside)
        max_abs, max_rel = _largest(apart), _largest(apart.div_(size.clamp_min_(self._atol or 1e-30)))
        blocks = self._blocks(from_truth, eager_off, o)
        return torch.stack([scalar.double() for scalar in (beyond, max_abs, max_rel, *blocks)])

    def sum(self, numbers: Sequence[float], c: Any, e: Any, p: Any, o: Any) -> str:
        """Adds one part by the numbers that `piece` computed. Returns the failure that no tolerance excuses, or ""."""
        if not all(map(math.isfinite, numbers)):
            failure = self._not_finite(c, e, p, o)
            if failure:
                return failure
            c, e, p, o = self._known(c, e, p, o.double())
            (numbers,) = _numbers([self.piece(c, e, p, o)])
            numbers = list(map(_largest_where_none, numbers))
        if numbers[0] > 0:
            allowed = self._atol + self._rtol * e.double().abs()
            self._outside += int(((c.double() - e.double()).abs() > allowed).sum())
        self.max_abs, self.max_rel = max(self.max_abs, numbers[1]), max(self.max_rel, numbers[2])
        for name, squares in zip(("norm", "candidate", "policy"), numbers[3:6], strict=True):
            self._squares[name] += squares
        for name, worst in zip(("candidate", "policy"), numbers[6:], strict=True):
            self._worst[name] = max(self._worst[name], worst)
        is_loose = numbers[7] > _loose(self._dtype)
        least = _at_least(self._dtype, FLOOR) / _LINE_SLACK if is_loose else None
        for mine, eager, policy, oracle in zip(*(tensor.split(TILE) for tensor in (c, e, p, o.double())), strict=True):
            # Most tiles are within the published bound.
            if numbers[0] > 0 or is_loose:
                self._places.add(mine, eager, policy, oracle, self._begin, least)
            self._begin += eager.numel()
        return ""

    def _not_finite(self, c: Any, e: Any, p: Any, o: Any) -> str:
        """Returns what is wrong with the infinities and NaNs of `c`, "" where they are those of eager. Where PyTorch's
        own answers differ (algorithms spread a NaN over more places), `c` may be any of them."""
        import torch

        def same(one: Any) -> Any:
            return (c == one) | (torch.isnan(c) & torch.isnan(one))

        finite = torch.isfinite(e)
        wrong = torch.where(finite, ~torch.isfinite(c), ~same(e))
        for other in (p, o) if bool(wrong.any()) else ():
            near = (c - other).abs() <= self._atol + self._rtol * other.abs()
            wrong &= ~torch.where(torch.isfinite(other), near, same(other))
        if bool((wrong & ~finite).any()):
            return "where the reference is infinite or NaN, the output is something else"
        count = int(wrong.sum())
        return f"{count} values are infinite or NaN where the reference is finite" if count else ""

    def _known(self, c: Any, e: Any, p: Any, o: Any) -> tuple[Any, Any, Any, Any]:
        """Returns all four with zeros where any of them isn't finite, and measures what has no oracle by itself."""
        import torch

        finite = torch.isfinite(e)
        known = finite & torch.isfinite(o) & torch.isfinite(p)
        alone = finite & ~known & torch.isfinite(c)
        if bool(alone.any()):
            self._alone = self._alone.plus(_distance(c[alone].double(), e[alone].double(), self._atol, self._rtol))
        c, e, p, o = (torch.where(known, tensor, torch.zeros_like(tensor)) for tensor in (c, e, p, o))
        return c, e, p, o

    def _blocks(self, candidate: Any, policy: Any, oracle: Any) -> list[Any]:
        """Returns the sums of squares of the oracle and of both differences, and the worst block's relative error of
        each."""
        norm, counts = _block_squares(oracle)
        denominator = norm + counts * self._tiny**2
        squares = [_block_squares(difference)[0] for difference in (candidate, policy)]
        worst = [(one / denominator).max().sqrt() for one in squares]
        return [norm.sum(), *(one.sum() for one in squares), *worst]

    def result(self) -> Measured:
        elements = self._elements
        beyond, excuse = self._places.result()
        norm = self._squares["norm"] + elements * self._tiny**2

        def errors(name: str) -> Errors:
            whole = math.sqrt(self._squares[name] / norm) if elements else 0.0
            return Errors(_largest_where_none(whole), self._worst[name])

        return Measured(
            elements=elements,
            max_abs_error=self.max_abs,
            max_rel_error=self.max_rel,
            candidate=errors("candidate"),
            eager=errors("policy"),
            beyond=beyond,
            excuse=excuse,
            dtype=self._dtype,
            failure=self._failure,
            apart=self._outside / max(1, elements),
            line=self._places.line,
            alone=self._alone,
        )


def _distance(c: Any, e: Any, atol: float, rtol: float) -> EagerDistance:
    """Returns how far the candidate is from eager at these elements."""
    apart = c.sub_(e).abs_()
    outside = apart > atol + rtol * e.abs()
    largest = float((apart * outside).max())
    return EagerDistance(e.numel(), int(outside.sum()), largest, float(apart.square().sum()), float(e.square().sum()))


def _largest_where_none(number: float) -> float:
    """Returns infinity for NaN, since a value whose square overflows isn't small."""
    return math.inf if math.isnan(number) else number


def _numbers(pieces: Sequence[Any]) -> list[list[float]]:
    """Copies the values of vectors of one length to the host, in one copy."""
    import torch

    found: list[list[float]] = torch.stack(list(pieces)).tolist() if pieces else []
    return found


def _largest(values: Any) -> Any:
    """Returns max |x| as a scalar tensor."""
    import torch

    return torch.linalg.vector_norm(values, math.inf)


def _block_squares(values: Any) -> tuple[Any, Any]:
    """Returns the sum of squares of each block of BLOCK elements and its number of elements (the last may be
    shorter)."""
    import torch

    whole = values.numel() // BLOCK
    norms = [torch.linalg.vector_norm(values[: whole * BLOCK].view(whole, BLOCK), dim=1)] if whole else []
    rest = values[whole * BLOCK :]
    norms += [torch.linalg.vector_norm(rest).reshape(1)] if rest.numel() else []
    squares = torch.cat(norms).square()
    sizes = torch.full_like(squares, float(BLOCK))
    if rest.numel():
        sizes[-1] = rest.numel()
    return squares, sizes


def first_failures(
    answer: Answer, mine: Mapping[str, Source], own: Sequence[Measured], floor: float, *, atol: float, rtol: float
) -> dict[str, str]:
    """Returns why the first elements of a large output already break a bound, by name; what isn't named must be
    measured whole. `own` is any measurement of the whole outputs, which has eager's errors."""
    piece, found = next(iter(answer.pieces()), None), dict[str, str]()
    if piece is None:
        return found
    for index, parts in enumerate(zip(piece.eager, piece.policy, piece.oracle, strict=True)):
        eager, policy, oracle = (tensor[:_FIRST] for tensor in parts)
        if own[index].elements < 2 * _FIRST or own[index].discrete or not eager.numel():
            continue
        for name in mine.keys() - found.keys():
            part = measure(mine[name](index, 0, eager), eager, policy, oracle, atol=atol, rtol=rtol)
            # The error of a part says nothing about the whole. The error of a block is at most the worst block's.
            block = Errors(0.0, part.candidate.block)
            reason = rule(replace(part, candidate=block, eager=own[index].eager), floor).reason
            if reason:
                found[name] = reason
    return found


def _at_least(dtype: str, floor: float) -> float:
    """Returns the floor for an output of this type. Types of 16 bits round the answer, so their floor is higher."""
    return max(floor, EPSILON[dtype] / 2) if dtype in ("bfloat16", "float16") else floor


def rule(measured: Measured, floor: float, pooled: Errors | None = None, bounds: EagerBounds | None = None) -> Ruling:
    """Applies both bounds, and `bounds` where there is no oracle; without them, the published one.

    `pooled` holds eager's largest errors on this output over all plain trials. They count for an output smaller than
    one block, where eager's error in a single trial may cancel to nearly zero by chance."""
    if measured.discrete:
        return rule_discrete(measured, floor, pooled)
    eager = measured.eager
    if pooled is not None and measured.elements < BLOCK:
        eager = larger(eager, pooled)
    floor = _at_least(measured.dtype, floor)
    scales = [
        (measured.candidate.whole, eager.whole, max(SLACK * eager.whole, floor), "whole output"),
        (measured.candidate.block, eager.block, max(SLACK * eager.block, floor), f"worst block of {BLOCK}"),
    ]
    line, lines_own = measured.line
    if line > max(_LINE_SLACK * lines_own, floor):
        scales = [(line, lines_own, max(_LINE_SLACK * lines_own, floor), "worst row or column")]
    error, own, budget, where = max(scales, key=lambda scale: scale[0] / scale[2])
    reason = measured.failure
    if not reason and measured.beyond > measured.excuse:
        reason = f"max |error| {measured.max_abs_error:.3g} is beyond atol + rtol·|reference|"
        reason += f", and {measured.beyond:.3g} from the oracle, where PyTorch's errors allow {measured.excuse:.3g}"
    if not reason and measured.alone.elements:
        reason = (bounds or EagerBounds(0.0, 0.0, math.inf)).fault(measured.alone)
    over_budget = not reason and error > budget
    if over_budget:
        reason = f"relative error {error:.3g} ({where}) exceeds its budget {budget:.3g}; eager's own is {own:.3g}"
    loose = eager.block > SLACK * max(_loose(measured.dtype), floor)
    return Ruling(not reason, error, own, budget, reason, over_budget, loose)


def _loose(dtype: str) -> float:
    """Returns the error of eager beyond which its budget is far above what the type can do."""
    return max(FLOOR_TF32, 2 * _at_least(dtype, FLOOR))


def same_structure(mine: Any, reference: Any, *, atol: float, rtol: float) -> bool:
    """Whether two output specs nest alike and hold the same plain values. List and tuple count as the same, and numbers
    may differ by the published bound."""
    if not isinstance(mine, dict) or not isinstance(reference, dict):
        return False
    nest = next((kind for kind in ("list", "tuple", "dict") if kind in reference), None)
    if nest is not None:
        theirs = reference[nest]
        ours = mine.get("dict") if nest == "dict" else mine.get("list", mine.get("tuple"))
        if not isinstance(ours, type(theirs)) or len(ours) != len(theirs):
            return False
        if nest == "dict":
            if list(ours) != list(theirs):
                return False
            ours, theirs = ours.values(), theirs.values()
        return all(same_structure(a, b, atol=atol, rtol=rtol) for a, b in zip(ours, theirs, strict=True))
    value, wanted = mine.get("v"), reference.get("v")
    if isinstance(wanted, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value - wanted) <= atol + rtol * abs(wanted)
    mine, reference = ({k: v for k, v in spec.items() if k != "note"} for spec in (mine, reference))
    return bool(mine == reference)
