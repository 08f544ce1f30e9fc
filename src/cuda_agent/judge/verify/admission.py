"""Decides whether a task can be judged: it must repeat its answers, and its state dict must determine them. Finds the
weights on which null answers fail."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cuda_agent.core.enums import Signal
from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import RANDOM, Graph, base_name
from cuda_agent.core.records import Task
from cuda_agent.judge.verify.answers import Answer, EagerAlone, Source, eager_against_oracle, eager_copy, parts_of
from cuda_agent.judge.verify.compare import first_failures, measure_all, rule
from cuda_agent.judge.verify.measured import SLACK, Errors, Measured
from cuda_agent.judge.verify.reference import comparing
from cuda_agent.judge.verify.trials import Secrets
from cuda_agent.workers.buffers import pieces
from cuda_agent.workers.requests import Spec

_ZEROS = "all zeros"
SIGNAL_NOTES = {
    Signal.SCALED: "the inputs' signal survives only on scaled weights, on which it was timed too",
    Signal.NONE: "the task's answer is a constant within the tolerance, so it pays nothing and is never promoted",
}
#: a task is refused only when so many answers to other inputs pass.
_OTHERS = 5
#: the bound of a timed output is at most so many times that of a verified one (see `timedcheck`).
TIMED = 8.0


def random_operators(graph: Graph) -> tuple[str, ...]:
    """Returns the graph's operators that draw random numbers."""
    return tuple(sorted({n.op for n in graph.nodes if base_name(n.op) in RANDOM}))


class Answering(Protocol):
    """The source of a task's answers: the judge's `Reference`, or a worker that asks itself."""

    def draw_weights(self, seed: int | None, *, scaled: bool | None = None) -> None: ...

    def draw_inputs(self, seed: int) -> Spec: ...

    def answer(self, spec: Spec, rng: int, *, oracle: bool = True, twin: int | None = None) -> Answer: ...


def check_answers(
    task: Task,
    reference: Answering,
    secrets: Secrets,
    floor: float,
    *,
    changed: Sequence[str] = (),
    seeded: bool = False,
) -> Signal:
    """Returns the weights on which null answers fail. Raises TaskError where the task is stochastic or has random state
    outside the state dict. `changed` are the parameters and buffers that `forward` changes. A `seeded` task must repeat
    its answer under the same state of torch's generators only. Raises DeviceError where memory is short."""
    with comparing("the check of the task's answers"):
        answers = Answers(task, reference, secrets, floor, seeded=seeded)
        answers.check_repeats(changed)
        answers.check_state()
        return answers.signal()[0]


class Answers:
    """A task's answers to the same inputs and to others, and the conditions that must hold between them."""

    def __init__(
        self, task: Task, reference: Answering, secrets: Secrets, floor: float, *, seeded: bool = False
    ) -> None:
        """Requests all answers. Raises TaskError where the task fails."""
        self._task, self._floor, self._secrets, self._reference = task, floor, secrets, reference
        self._scaled = False
        #: what was measured of the present answers: eager against the oracle under "", and null answers; and why the
        #: first elements of null answers don't pass.
        self._measured: dict[str, list[Measured]] = {}
        weights, here, shared = secrets.seed(), secrets.seed(), secrets.seed()

        def rng() -> int:
            return shared if seeded else secrets.seed()

        reference.draw_weights(weights, scaled=False)
        self._ask_other: Callable[[], list[Any]] = lambda: _eager(reference, secrets.seed(), rng())
        self._ask: Callable[[], Answer] = lambda: reference.answer(reference.draw_inputs(here), rng())
        self.other = self._ask_other()
        again = _eager(reference, here, rng())
        spec = reference.draw_inputs(here)
        twin = reference.answer(spec, rng(), oracle=False, twin=secrets.seed())
        self._twin_agrees = self._same(again, twin)
        self.answer: Answer | None = self._ask()
        self._repeats = self._same(again, self.answer)

    def check_repeats(self, changed: Sequence[str] = ()) -> None:
        """Raises TaskError where the same inputs and weights give another answer, because of the state that `forward`
        changes or of random numbers."""
        if not self._repeats and changed:
            names = ", ".join(changed[:3])
            raise TaskError(
                f"{self._task.name}: Model gives another answer to the same inputs, since forward changes {names}",
                "Return new state instead of storing it",
            )
        if not self._repeats:
            raise TaskError(
                f"{self._task.name}: Model gives another answer to the same inputs and weights (it is stochastic)",
                "Remove random operators from forward",
            )

    def check_state(self) -> None:
        """Raises TaskError where a model with the same state dict gives another answer."""
        if not self._twin_agrees:
            raise TaskError(
                f"{self._task.name}: Model's answer depends on random values that its state dict doesn't hold",
                "Register them as parameters or buffers",
            )

    def signal(self) -> tuple[Signal, str]:
        """Returns the weights on which null answers fail, and a null answer that passes where there are none. Raises
        TaskError where null answers pass only because eager itself is far from the oracle.

        Weights on which they also fail at the bound of timed outputs come first."""
        passing = doubt = ""
        for times, found in itertools.product((TIMED, 1.0), (Signal.OWN, Signal.SCALED)):
            null = self._always_passing(times, scaled=found is Signal.SCALED)
            if null is None:
                return found, ""
            passing, doubt = passing or null, doubt or self._doubt(null)
        if doubt:
            raise TaskError(
                f"{self._task.name}: {doubt}, so that neither shows what is right",
                "Change what makes rounding errors large: differences of equal numbers, floor, comparisons",
            )
        return Signal.NONE, passing

    def _doubt(self, null: str) -> str:
        """Returns how eager and the oracle differ where a null answer passes for that reason alone, else ""."""
        assert self.answer is not None
        found = self._measured.get(null, [])
        alone = [replace(measured, eager=Errors(0.0, 0.0), excuse=0.0, line=(0.0, 0.0)) for measured in found]
        excuses = all(rule(m, self._floor).passed for m in found) and not all(
            rule(m, self._floor).passed for m in alone
        )
        return eager_against_oracle(self.answer, **self._bounds) if excuses or self._is_noise() else ""

    def _is_noise(self) -> bool:
        """Whether eager is so far from the oracle in every output that zeros are in its budget."""
        return all(not one.discrete and SLACK * one.eager.whole >= 1 for one in self._own())

    def check_nulls(self) -> Signal:
        """Returns `signal`. Raises TaskError where it is none."""
        found, null = self.signal()
        if found is Signal.NONE:
            raise TaskError(
                f"{self._task.name}: {null} would pass for the answer, so a candidate can't be told from doing nothing",
                "Let the output depend on the inputs beyond the tolerance, or tighten the task's atol and rtol",
            )
        return found

    def _always_passing(self, times: float, *, scaled: bool) -> str | None:
        """Returns a null answer that passes a floor so many times higher. An answer to other inputs must pass for
        several draws of them, since two draws may happen to be alike."""
        if scaled is not self._scaled:
            self._reference.draw_weights(self._secrets.seed(), scaled=scaled)
            self._scaled = scaled
            self._ask_all()
        null = self._passing_null(times)
        for _ in range(_OTHERS - 1):
            if null in (None, _ZEROS):
                break
            self._ask_all()
            null = self._passing_null(times)
        return null

    def _ask_all(self) -> None:
        self.drop()
        self.other = self._ask_other()
        self.answer = self._ask()

    def _passing_null(self, times: float) -> str | None:
        if self._is_noise():
            return _ZEROS
        nulls, floor = _nulls(self.other), times * self._floor
        assert self.answer is not None
        found = first_failures(self.answer, nulls, self._own(), floor, **self._bounds)
        left = (name for name in nulls if name not in found)
        return next((name for name in left if self._failure(name, nulls[name], floor) is None), None)

    @property
    def _bounds(self) -> dict[str, float]:
        return {"atol": self._task.atol, "rtol": self._task.rtol}

    def _own(self) -> list[Measured]:
        """Returns eager's distances from the oracle."""
        return self._measure("", lambda _output, _begin, like: like)

    def _measure(self, name: str, mine: Source) -> list[Measured]:
        assert self.answer is not None
        if name not in self._measured:
            self._measured |= measure_all(self.answer, {name: mine}, **self._bounds)
        return self._measured[name]

    def _failure(self, name: str, mine: Source, floor: float) -> str | None:
        rulings = (rule(measured, floor) for measured in self._measure(name, mine))
        return next((ruling.reason for ruling in rulings if not ruling.passed), None)

    def drop_other(self) -> None:
        """Frees the answer to other inputs, which `failure` doesn't need."""
        self.other = []

    def drop(self) -> None:
        """Frees all answers; `failure` then needs a new `answer` to the last inputs."""
        self.drop_other()
        self.answer = None
        self._measured.clear()

    def failure(self, mine: list[Any]) -> str | None:
        """Returns why these outputs don't pass as the answer, None where they do."""
        self._measured.pop("given", None)
        return self._failure("given", parts_of(mine), self._floor)

    def _same(self, mine: list[Any], answer: Answer) -> bool:
        """Compares eager with itself. Neither the oracle nor eager's own error excuses a difference."""
        same = parts_of(mine)
        parts = (
            (index, begin, part)
            for piece in answer.pieces(only_eager=True)
            for index, (begin, part) in enumerate(zip(piece.begins, piece.eager, strict=True))
        )
        if all(same(index, begin, part).equal(part) for index, begin, part in parts):
            return True
        found = measure_all(EagerAlone(answer), {"": same}, **self._bounds)[""]
        return all(rule(measured, self._floor).passed for measured in found)


def _nulls(other: list[Any]) -> dict[str, Source]:
    """Returns answers that need no computation, by name."""

    def constant(tensor: Any) -> Any:
        if not tensor.is_floating_point():
            return tensor.flatten()[0].item() if tensor.numel() else 0
        # A sum in another type copies the whole of it.
        parts = [(part.nan_to_num(0.0, 0.0, 0.0).double().sum(), part.isfinite().sum()) for part in pieces(tensor)]
        total, count = (float(sum(numbers)) for numbers in zip(*parts, strict=True))
        return total / count if count else math.nan

    constants = [constant(tensor) for tensor in other]
    return {
        _ZEROS: lambda _output, _begin, like: like.new_zeros(like.shape),
        # The mean is that of the answer to other inputs: where an answer is a single number, its own mean is the
        # answer.
        "a constant": lambda output, _begin, like: like.new_full(like.shape, constants[output]),
        "the answer to other inputs": parts_of(other),
    }


def _eager(reference: Answering, seed: int, rng: int) -> list[Any]:
    """Copies eager's answer to the inputs under `seed`."""
    spec = reference.draw_inputs(seed)
    return eager_copy(reference.answer(spec, rng, oracle=False))
