"""Bounds of single elements, rows and columns, so that one ill-conditioned place excuses no other.

Ill conditioning follows rows (nearly equal values) or columns (a feature that cancels). So PyTorch's own error at an
element is estimated from its row and its column by geometric means, which few outliers hardly move, and is at most the
largest error of the tile. What follows neither is a rounded value, or a choice (of an expert), that flips at a tie: a
single element, or most of a row. A candidate may have four times as many of each as PyTorch, as with integers
(`discrete`), and single elements spread over rows and columns as PyTorch's are. Rows in a run aren't chance, so of
PyTorch's own only the first and the last of a run count.
"""

from dataclasses import dataclass
from typing import Any

from cuda_agent.judge.verify.measured import SLACK

#: elements of a tile, whose places are judged by themselves.
TILE = 1 << 19
#: the largest part of a row that counts as one, and the least elements of a group of short rows.
_LONGEST, _SHORTEST = 4096, 32
#: the largest error in a row, over their geometric mean, where errors are normal or the rounding of values of several
#: magnitudes.
_SPREAD = 32.0
#: single places that a row or column may have beyond four times PyTorch's own.
_FEW = 16
#: elements without error beyond which the others tell nothing of the tile.
_TELLING = 1 / 16
#: an error is at least such a part of a value's rounding.
_ROUNDING = 1 / 8
#: elements that a mean is pulled to the tile's by.
_PULL = 2.0
#: the least elements of a line with an error of its own, and the least that make it up.
LINE, _MANY = 32, 12.0


@dataclass
class Places:
    """The bounds of the places of one output, tile by tile."""

    width: int
    eps: float
    atol: float
    rtol: float
    #: |c - o| of the worst element beyond the published bound that doesn't flip, and what it is allowed.
    beyond: float = 0.0
    excuse: float = 0.0
    #: relative errors of candidate and PyTorch in the row or column that is worst.
    line: tuple[float, float] = (0.0, 0.0)
    #: elements and rows that flip: the candidate's, and PyTorch's own.
    _flips: tuple[int, int] = (0, 0)
    _own_flips: tuple[int, int] = (0, 0)
    #: the largest error of a flip: the candidate's, with what it would be allowed there, and PyTorch's own.
    _largest: tuple[float, float] = (0.0, 0.0)
    _own_largest: float = 0.0

    def add(self, c: Any, e: Any, p: Any, o: Any, begin: int, least: float | None) -> None:
        """Adds a tile that begins at element `begin`. All are flat and finite, `o` is in float64. With `least`, rows
        and columns are bounded too, by at least such a relative error."""
        import torch

        mine, own = c.double() - o, p.double() - o
        outside = (c.double() - e.double()).abs_() > self.atol + self.rtol * e.double().abs()
        rows, columns = _lines(begin, e.numel(), self.width, e.device)
        scale = _scale(own.abs(), o, rows, columns, self.eps).mul_(_SPREAD)
        most = own.abs().max()
        allowed = SLACK * torch.maximum(own.abs(), scale.clamp(max=most))
        far = own.abs() > self.atol + self.rtol * o.abs()
        over = outside & (mine.abs() > allowed)
        flipped, flips = _flipped(over, rows)
        is_single = over & ~flipped
        own_flipped, own_flips = _flipped(far, rows, by_chance=True)
        own_single = far & (own.abs() > scale) & ~own_flipped
        if bool(over.any()) and _are_spread(is_single, own_single, rows, columns):
            self._flips = self._flips[0] + int(is_single.sum()), self._flips[1] + flips
            self._largest = max(self._largest, _worst(mine.abs(), allowed, over))
            excused = over
        else:
            excused = torch.zeros_like(over)
        self._own_flips = self._own_flips[0] + int(own_single.sum()), self._own_flips[1] + own_flips
        self._own_largest = max(self._own_largest, float((own.abs() * (own_single | own_flipped)).max()))
        worst = _worst(mine.abs(), allowed, outside & ~excused)
        self.beyond, self.excuse = max((self.beyond, self.excuse), worst, key=_share)
        if least is not None:
            mine = mine.masked_fill_((excused | flipped) & bool(excused.any()), 0.0)
            line = worst_line(mine, own, o, begin, self.width, least)
            self.line = max(self.line, line, key=lambda found: found[0] / max(found[1], least))

    def result(self) -> tuple[float, float]:
        """Returns |c - o| of the worst place, and what it is allowed."""
        are_few = all(mine <= SLACK * own for mine, own in zip(self._flips, self._own_flips, strict=True))
        if are_few and self._largest[0] <= SLACK * self._own_largest:
            return self.beyond, self.excuse
        return max((self.beyond, self.excuse), self._largest, key=_share)


def _share(place: tuple[float, float]) -> float:
    """Returns how much of what is allowed an error is."""
    return place[0] / max(place[1], 1e-300)


def _worst(mine: Any, allowed: Any, where: Any) -> tuple[float, float]:
    """Returns the error of the place that is worst among these, and what it is allowed."""
    import torch

    ratio = torch.where(where, mine / allowed.clamp_min(1e-300), 0.0)
    place = int(ratio.argmax())
    return (float(mine[place]), float(allowed[place])) if bool(where[place]) else (0.0, 0.0)


def _flipped(where: Any, rows: Any, *, by_chance: bool = False) -> tuple[Any, int]:
    """Returns which elements lie in rows of which most are set, and the number of such rows; `by_chance` counts no row
    between two others."""
    import torch

    counts = torch.bincount(rows[where], minlength=int(rows[-1]) + 1)
    most = 2 * counts > torch.bincount(rows)
    count = int(most.sum())
    if by_chance:
        count -= int((most[:-2] & most[1:-1] & most[2:]).sum())
    return most[rows], count


def _lines(begin: int, count: int, width: int, device: Any) -> tuple[Any, Any]:
    """Returns the row and the column of each element of a tile. Long rows are cut, and short ones put together."""
    import torch

    place = torch.arange(begin, begin + count, device=device)
    columns = place % width
    if width >= _SHORTEST:
        rows = place // width * -(-width // _LONGEST) + columns // _LONGEST
    else:
        rows = place // (width * -(-_SHORTEST // width))
    # Columns are numbered from 0 on, so that there are few.
    columns = columns if width <= count else place - begin
    return rows - rows[0], columns


def _scale(own: Any, o: Any, rows: Any, columns: Any, eps: float) -> Any:
    """Returns PyTorch's error at each element as its row and column tell it; 0 where few elements tell anything."""
    import torch

    least = _ROUNDING * eps * o.abs()
    # A zero that PyTorch has exactly (ReLU's) says nothing of its neighbours.
    telling = ((own > 0) | (o != 0)).double()
    if float(telling.mean()) < _TELLING:
        return torch.zeros_like(own)
    logs = torch.maximum(own, least).clamp_min(1e-300).log_()
    mean = (logs * telling).sum() / telling.sum()
    logs -= mean
    found = mean.expand_as(logs).clone()
    for lines in (rows, columns):
        count = int(lines.max()) + 1
        sums, weights = (torch.zeros(count, dtype=torch.float64, device=own.device) for _ in range(2))
        sums.index_add_(0, lines, logs * telling)
        weights.index_add_(0, lines, telling)
        pulled = (sums / (weights + _PULL))[lines]
        found += pulled
        logs -= pulled
    return found.exp_()


def _are_spread(mine: Any, own: Any, rows: Any, columns: Any) -> bool:
    """Whether no row and no column holds many more single places than PyTorch's own."""
    import torch

    for lines in (rows, columns):
        counts = [torch.bincount(lines[where], minlength=int(lines.max()) + 1) for where in (mine, own)]
        if bool((counts[0] > SLACK * counts[1] + _FEW).any()):
            return False
    return True


def worst_line(mine: Any, own: Any, o: Any, begin: int, width: int, least: float) -> tuple[float, float]:
    """Returns the relative errors of the candidate and of PyTorch over the row or column where the first is largest,
    relative to the second or to `least`. `mine` and `own` are flat differences from `o`. A line counts as at least as
    large as the median one."""
    import torch

    worst, found = 0.0, (0.0, 0.0)
    if width < 2 or not mine.numel():
        return found
    first = -begin % width
    rows = (mine.numel() - first) // width
    whole = [tensor[first : first + rows * width].view(rows, width) for tensor in (mine, own, o)]
    for dim, length in ((0, rows), (1, width)):
        if length < LINE or whole[0].shape[1 - dim] < 2:
            continue
        lines = [torch.linalg.vector_norm(tensor, dim=dim) for tensor in whole]
        size = torch.maximum(lines[2], lines[2].median()).clamp_min(1e-300)
        errors = [line / size for line in lines[:2]]
        # Where few elements make up an error, its size is chance.
        many = lines[1] ** 4 >= _MANY * torch.linalg.vector_norm(whole[1], ord=4, dim=dim) ** 4
        ratios = torch.where(many, errors[0] / errors[1].clamp_min(least), 0.0)
        place = int(ratios.argmax())
        if float(ratios[place]) > worst:
            worst, found = float(ratios[place]), (float(errors[0][place]), float(errors[1][place]))
    return found
