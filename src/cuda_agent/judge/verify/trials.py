"""Runs trials of one candidate against the reference: fresh inputs, re-drawn weights, poisoned memory.

Trials, in order: `fresh` (the configured number, each with new inputs and new weights in the same storage; the last one
in new storage and without poison; each second one is `other_weights`, see `scaling`), `in_place` (other inputs in the
same storage with the same weights, right after a call), `changed_elements` (those inputs but for a few elements), and
the reference worker's other variants of the same shapes, in a secret order.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from cuda_agent.core.config import JudgeOptions, Regression
from cuda_agent.core.enums import OracleWay, Verdict
from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import OutputErrors, Task, TrialReport, VerifyReport
from cuda_agent.judge.verify.answers import Source, parts_of
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.compare import all_finite, measure_all, rule, same_bytes, same_structure
from cuda_agent.judge.verify.discrete import far_apart
from cuda_agent.judge.verify.eager_bounds import PLAIN, EagerBounds, eager_bounds
from cuda_agent.judge.verify.measured import Errors, Measured, Ruling, pool
from cuda_agent.judge.verify.reference import Places, Reference, TakenAnswer, comparing
from cuda_agent.workers.requests import Spec
from cuda_agent.workers.requests.candidate import CallResult
from cuda_agent.workers.requests.reference import CHANGED_ELEMENTS, NOT_FINITE, SPECIAL
from cuda_agent.workers.stopwatch import Stopwatch

Progress = Callable[[str, str], None]
REGRESSION = "regression"
#: kinds of trials on inputs as the task draws them.
#: the kind of those whose weights are scaled where those of `PLAIN` aren't, and the reverse.
OTHER_WEIGHTS = "other_weights"


class Secrets:
    """The judge's seeds. They come from the system's entropy, unless a test fixes them."""

    def __init__(self, seed: int | None) -> None:
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)

    def seed(self) -> int:
        return self._random.getrandbits(47)

    def shuffled(self, kinds: Sequence[str]) -> list[str]:
        """Returns these kinds of trials in a secret order."""
        return self._random.sample(kinds, len(kinds))


class JudgedTask(Protocol):
    """The part of a session with which a candidate is verified."""

    task: Task
    options: JudgeOptions
    secrets: Secrets
    progress: Progress

    @property
    def reference(self) -> Reference: ...


@dataclass
class _Trial:
    """One call, measured. It is decided when eager's errors of all plain trials are known."""

    kind: str
    measured: list[Measured]
    reason: str = ""
    #: seeds with which it is tried again.
    again: Regression | None = None


@dataclass
class Verification:
    """Runs the trials of one candidate: those of the session's options, or so many fresh ones."""

    session: JudgedTask
    candidate: CandidateProcess
    floor: float
    trials: int | None = None
    #: how the weights that are loaded were drawn.
    _weights: Regression = field(default_factory=lambda: Regression(seed=0, weights_seed=0))
    #: the trial that runs.
    _now: Regression | None = None
    _done: list[_Trial] = field(default_factory=list)
    _dropped: list[str] = field(default_factory=list)
    _oracles: set[str] = field(default_factory=set)
    _ways: set[OracleWay] = field(default_factory=set)
    _finite: bool = True
    #: the candidate's last answer.
    result: CallResult | None = None
    _spent: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self.reference = self.session.reference

    def run(self) -> VerifyReport:
        """All trials; stops after the first that no pooling of errors could save. Raises WorkerFault (the candidate's
        fault), TaskError (the reference's), DeviceError where memory is short."""
        begin = time.monotonic()
        with comparing("the verification"):
            for step in self._plan():
                if not step():
                    break
        reports = self._rulings()
        return VerifyReport(
            passed=bool(reports) and all(report.passed for report in reports),
            trials=reports,
            oracle=min(self._oracles - {"float64", ""}, default="float64"),
            oracle_way=max(self._ways, key=list(OracleWay).index, default=OracleWay.WHOLE),
            frozen=self.candidate.frozen,
            derive_ms=self.candidate.derive_ms,
            dropped_variants=tuple(self._dropped),
            duration_s=time.monotonic() - begin,
            parts_s=dict(self._spent),
        )

    def failing(self) -> Regression | None:
        """The first failed trial, or the one that ran."""
        failed = [trial.again for trial, report in zip(self._done, self._rulings(), strict=True) if not report.passed]
        return failed[0] if failed else self._now

    def observe(self) -> TrialReport:
        """Runs one more trial, in which the candidate's worker records what runs on the GPU. It is in `result`."""
        with comparing("the verification"):
            self._new_weights()
            self._trial("observed", poison=False, kernels=True)
        return self._rulings()[-1]

    def _plan(self) -> list[Callable[[], bool]]:
        options = self.session.options
        trials = options.trials if self.trials is None else self.trials
        last = trials - 1
        plan: list[Callable[[], bool]] = [partial(self._fresh, i, i == last and last > 0) for i in range(trials)]
        spec = self.reference.spec
        kinds = [*spec.variants, *(spec.wide_variants if options.variants == "wide" else ())]
        plan.insert(1, partial(self._trial, "in_place"))
        if CHANGED_ELEMENTS in kinds:
            kinds.remove(CHANGED_ELEMENTS)
            plan.insert(2, self._changed_elements)
        plan += [partial(self._trial, kind, variant=kind) for kind in self.session.secrets.shuffled(kinds)]
        return plan + [partial(self._regression, known) for known in options.regressions]

    def _fresh(self, index: int, new_storage: bool) -> bool:
        if new_storage:
            self._new_weights()
            return self._trial("new_storage", moved=True, poison=False)
        other = index % 2 == 1 and bool(self.reference.spec.state)
        self._new_weights(scaled=self.reference.scaled != other)
        return self._trial(OTHER_WEIGHTS if other else "fresh")

    def _changed_elements(self) -> bool:
        before = self._now.seed if self._now else None
        return self._trial(CHANGED_ELEMENTS, variant=CHANGED_ELEMENTS, seed=before)

    def _regression(self, known: Regression) -> bool:
        self._new_weights(known.weights_seed, scaled=known.scaled)
        spec = self.reference.spec
        if known.variant is not None and known.variant not in (*spec.variants, *spec.wide_variants):
            self._dropped.append(f"{REGRESSION}: this judge knows no variant {known.variant!r}")
            return True
        return self._trial(REGRESSION, variant=known.variant, seed=known.seed)

    def _new_weights(self, seed: int | None = None, *, scaled: bool | None = None) -> None:
        seed = self.session.secrets.seed() if seed is None else seed
        scaled = self.reference.scaled if scaled is None else scaled
        self._weights = Regression(seed=0, weights_seed=seed, scaled=scaled)
        self.reference.draw_weights(seed, scaled=scaled)
        self.candidate.load_weights()

    def _trial(
        self,
        kind: str,
        *,
        variant: str | None = None,
        moved: bool = False,
        poison: bool = True,
        kernels: bool = False,
        seed: int | None = None,
    ) -> bool:
        """Runs a trial. Returns False where nothing can save the candidate."""
        self.session.progress("verify", f"trial {len(self._done) + 1}: {kind.replace('_', ' ')}")
        seed = self.session.secrets.seed() if seed is None else seed
        self._now = self._weights.model_copy(update={"seed": seed, "variant": variant})
        is_optional = variant is not None or kind == OTHER_WEIGHTS
        with self._spent.on("reference"):
            spec, dropped = self.reference.draw_variant(seed, variant)
        if dropped is not None:
            self._dropped.append(dropped)
            return True
        if moved:
            self.candidate.move_inputs()
        places, rng = self.candidate.inputs, self.session.secrets.seed()
        places.arena.copy_from(self.reference.inputs.arena)
        try:
            with self._spent.on("reference"):
                answer = self.reference.answer(spec, rng)
        except TaskError as error:
            if not is_optional or not self.reference.alive:
                raise
            self._dropped.append(f"{kind}: {error.cause}")
            return True
        with self._spent.on("comparison"):
            finite = all_finite(answer)
        if variant not in NOT_FINITE:
            if is_optional and self._finite and not finite:
                self._dropped.append(f"{kind}: the reference is not finite")
                return True
            self._finite = self._finite and finite
        # Memory in which an answer lay doesn't become the candidate's, and its call has room.
        self.reference.rest()
        with self._spent.on("candidate"):
            self.result = self.candidate.call(places, spec, rng, poison=poison, kernels=kernels)
        with self._spent.on("comparison"):
            changed = self._changed(places)
            trial = self._measure(kind, answer, self.result.spec, free_nan=variant == SPECIAL)
            trial.reason = trial.reason or changed
            if kind in PLAIN:
                trial.reason = trial.reason or next(filter(None, map(far_apart, trial.measured)), "")
        self.reference.rest()
        self._oracles.add(answer.oracle_kind)
        self._ways |= {answer.way}
        trial.again = self._now
        self._done.append(trial)
        return not trial.reason and not any(m.failure or m.beyond > m.excuse for m in trial.measured)

    def _measure(self, kind: str, answer: TakenAnswer, output_spec: Spec, *, free_nan: bool) -> _Trial:
        """Measures the candidate's outputs. With `free_nan` they may be anything where eager's are NaN: honest kernels
        use `fmaxf`, which drops NaN."""
        if not same_structure(output_spec, answer.spec, atol=self.session.task.atol, rtol=self.session.task.rtol):
            return _Trial(
                kind, [], "the output is nested differently, or holds other plain values, than the reference's"
            )
        mine = parts_of(self.candidate.outputs.tensors())
        mine = _with_nan_of(mine) if free_nan else mine
        bounds = {"atol": self.session.task.atol, "rtol": self.session.task.rtol}
        return _Trial(kind, measure_all(answer, {"": mine}, **bounds)[""])

    def _changed(self, places: Places) -> str:
        """Returns what the candidate changed without permission."""
        masters = self.reference.inputs.arena
        for index, slot in enumerate(places.layout.slots):
            end = (
                places.layout.slots[index + 1].offset if index + 1 < len(places.layout.slots) else places.layout.nbytes
            )
            count = end - slot.offset
            if count == 0:
                continue
            if not same_bytes(places.arena.raw(slot.offset, count), masters.raw(slot.offset, count)):
                return f"forward changed its input {index} in place"
        mine, theirs = self.candidate.weights, self.reference.weights
        count = mine.layout.nbytes
        if self.reference.spec.state and not same_bytes(mine.arena.raw(0, count), theirs.arena.raw(0, count)):
            return "forward changed a weight in place"
        changed = self.candidate.changed_weights()
        return f"forward changed the weight {changed[0]!r}" if changed else ""

    def _rulings(self) -> tuple[TrialReport, ...]:
        plain = self._pooled(PLAIN)
        pooled = {OTHER_WEIGHTS: self._pooled((*PLAIN, OTHER_WEIGHTS))}
        own = [self._report(trial, plain) for trial in self._done if trial.kind in PLAIN]
        bounds = eager_bounds(self.session.task, own, self.floor)
        return tuple(
            self._report(trial, pooled.get(trial.kind, plain), [] if trial.kind in PLAIN else bounds)
            for trial in self._done
        )

    def _pooled(self, kinds: Sequence[str]) -> list[Errors]:
        """Returns eager's largest errors on each output over the trials of these kinds."""
        trials = [trial.measured for trial in self._done if trial.kind in kinds and trial.measured]
        return [pool(list(measured)) for measured in zip(*trials, strict=True)]

    def _report(self, trial: _Trial, pooled: list[Errors], bounds: Sequence[EagerBounds] = ()) -> TrialReport:
        if not trial.measured:
            return TrialReport(kind=trial.kind, passed=False, reason=trial.reason)
        rulings = [
            rule(m, self.floor, pooled[i] if pooled else None, bounds[i] if bounds else None)
            for i, m in enumerate(trial.measured)
        ]
        worst_index = max(
            range(len(rulings)), key=lambda i: (not rulings[i].passed, rulings[i].error / rulings[i].budget)
        )
        worst = rulings[worst_index]
        where = f"output {worst_index}: " if len(rulings) > 1 and worst.reason else ""
        return TrialReport(
            kind=trial.kind,
            passed=worst.passed and not trial.reason,
            max_abs_error=max(m.max_abs_error for m in trial.measured),
            max_rel_error=max(m.max_rel_error for m in trial.measured),
            candidate_error=worst.error,
            eager_error=worst.eager_error,
            budget=worst.budget,
            loose=any(ruling.loose for ruling in rulings),
            over_budget=worst.over_budget and not trial.reason,
            outputs=tuple(map(_errors, trial.measured, rulings)),
            reason=trial.reason or (where + worst.reason if worst.reason else ""),
        )


def _errors(measured: Measured, ruling: Ruling) -> OutputErrors:
    # A trial can't know a share of integers below one value.
    least = 1 / max(1, measured.elements) if measured.discrete else 0.0
    return OutputErrors(
        candidate_error=ruling.error,
        eager_error=ruling.eager_error,
        max_abs_error=measured.max_abs_error,
        apart=max(measured.apart, least),
    )


def _with_nan_of(source: Source) -> Source:
    """Returns the parts of an answer with NaN where eager's have it."""

    def parts(index: int, begin: int, eager: Any) -> Any:
        mine = source(index, begin, eager)
        return mine.masked_fill(eager.isnan(), math.nan) if eager.is_floating_point() else mine

    return parts


def failing(report: VerifyReport) -> tuple[Verdict, str]:
    """The verdict and the reason of a report that didn't pass."""
    trial = next(trial for trial in report.trials if not trial.passed)
    return Verdict.INCORRECT, f"trial {trial.kind.replace('_', ' ')}: {trial.reason}"
