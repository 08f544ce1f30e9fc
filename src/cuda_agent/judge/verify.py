"""Trials of one candidate against the reference: fresh inputs, re-drawn weights, poisoned memory. The judge's side.

Trials, in order: `fresh` (as many as asked for, each with new inputs and new weights in the same storage; the last
one in new storage and without poison), `in_place` (other inputs in the same storage, same weights, straight after a
call), and the reference worker's variants of the same shapes (other magnitudes, signs, structure).
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.core.config import Regression
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import StoreError, TaskError
from cuda_agent.core.records import Candidate, Task, TrialReport, VerifyReport
from cuda_agent.judge.buffers import contiguous, synchronize
from cuda_agent.judge.compare import Errors, Measured, all_finite, measure, pool, rule, same_bytes, same_structure
from cuda_agent.judge.guard.operators import FORWARD, LOADING, OperatorLog
from cuda_agent.judge.process import Worker
from cuda_agent.judge.reference import Answer, Places, Reference, Spec, allocate, comparing
from cuda_agent.judge.spent import Spent

Progress = Callable[[str, str], None]
MODEL_FILE = "model_new.py"
REGRESSION = "regression"
#: trials on inputs as the task draws them.
PLAIN = ("fresh", "in_place", "new_storage")


class Secrets:
    """The judge's seeds. From the system's entropy, unless a test fixes them."""

    def __init__(self, seed: int | None) -> None:
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)

    def seed(self) -> int:
        return self._random.getrandbits(47)

    def below(self, count: int) -> int:
        return self._random.randrange(count)


class CandidateProcess:
    """A candidate in its own worker, and the judge's buffers that it maps: inputs, weights, outputs, never answers."""

    def __init__(self, worker: Worker, reference: Reference, *, timeout_s: float) -> None:
        self.worker = worker
        self._reference = reference
        self._timeout_s = timeout_s
        self._places: list[Places] = []
        spec, device = reference.spec, reference.device
        try:
            self.weights = self._allocate("candidate-weights", tuple(spec.state.values()))
            self.outputs = self._allocate("candidate-outputs", [contiguous(meta) for meta in spec.outputs])
            self.inputs = self.new_inputs()
        except BaseException:
            self.close()
            raise
        self.device = device
        self.frozen = False
        self.derive_ms: float | None = None
        self.operators = OperatorLog(device)
        #: digest of the candidate that it holds, and how many it has held.
        self.loaded: str | None = None
        self._loads = 0

    def _allocate(self, purpose: str, metas: Any) -> Places:
        places = allocate(purpose, metas, self._reference.device)
        self._places.append(places)
        return places

    def new_inputs(self) -> Places:
        """Another arena for inputs, in other storage."""
        return self._allocate("candidate-inputs", self._reference.spec.inputs)

    def load(self, candidate: Candidate, library: Path | None) -> None:
        """Puts the snapshot and its library where the worker can read them, and loads both, in the place of what it
        held. Raises WorkerFault, StoreError."""
        package = f"loaded_{self._loads}" if self._loads else ""
        root = self.worker.files / package
        self._loads += 1
        inside = None if library is None else root / library.name
        try:
            for name, text in candidate.files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            if library is not None and inside is not None:
                shutil.copyfile(library, inside)
                inside.chmod(0o555)
        except OSError as error:
            raise StoreError(
                f"Can't write to {tempfile.gettempdir()}: {error.strerror}", "Free some space, or set TMPDIR"
            ) from None
        params = {
            "library": None if inside is None else str(inside),
            "model": str(root / MODEL_FILE),
            "package": package,
            "init": self._reference.spec.init,
        }
        self.ask("load", params)
        self.loaded = candidate.digest

    def load_weights(self) -> None:
        """The reference's weights, through `load_state_dict`. Raises WorkerFault."""
        state = self._reference.spec.state
        if state:
            self.weights.arena.copy_from(self._reference.weights.arena)
        reply = self.ask("set_weights", {"names": list(state), **self.weights.to_wire()}, (self.weights,))
        self.operators.note(reply, LOADING)
        self.frozen = self.frozen or bool(reply.get("frozen"))
        taken = reply.get("derive_ms")
        if isinstance(taken, int | float):
            # The least of several: the first also pays for warming up.
            self.derive_ms = float(taken) if self.derive_ms is None else min(float(taken), self.derive_ms)

    def call(self, inputs: Places, spec: Spec, *, poison: bool, kernels: bool = False) -> dict[str, Any]:
        """One call; its outputs are then in `outputs`. Returns their `spec`, and with `kernels` what ran on the GPU
        (see `worker.kernels`). Raises WorkerFault."""
        _poison(self.outputs)
        params = {
            "inputs": {**inputs.to_wire(), "spec": spec},
            "outputs": self.outputs.to_wire(),
            "poison": poison,
            "kernels": kernels,
        }
        reply = self.ask("call", params, (inputs, self.outputs))
        self.operators.note(reply, FORWARD)
        return reply

    def renew(self) -> None:
        """Inputs and outputs again, after `release`."""
        self.inputs = self.new_inputs()
        self.outputs = self._allocate("candidate-outputs", [contiguous(meta) for meta in self._reference.spec.outputs])

    def changed_weights(self) -> list[str]:
        changed = self.ask("weights_intact", {}).get("changed")
        return [str(name) for name in changed] if isinstance(changed, list) else ["?"]

    def ask(self, op: str, params: dict[str, Any], places: tuple[Places, ...] = ()) -> dict[str, Any]:
        """A request to the candidate; an answer that isn't an object counts as an empty one."""
        for place in places:
            self.worker.attach(place.arena)
        synchronize(self._reference.device)
        reply = self.worker.request(op, params, timeout_s=self._timeout_s)
        return reply if isinstance(reply, dict) else {}

    @property
    def usable(self) -> bool:
        """Whether another candidate of the same task can be loaded into it."""
        return self.worker.alive and self._reference.alive

    def release(self) -> None:
        """Frees the inputs and outputs of verification; timing has its own."""
        self.ask("forget", {})
        for places in self._places:
            if places is not self.weights:
                self.worker.detach(places.arena)
                places.arena.close()
        self._places = [self.weights]

    def rest(self) -> None:
        """Others get the device's memory that its worker holds without need. Raises WorkerFault."""
        self.ask("free", {})

    def close(self) -> None:
        """Ends the worker, then frees its buffers."""
        self.worker.kill()
        for places in self._places:
            places.arena.close()
        self._places.clear()


def _poison(places: Places) -> None:
    import torch

    for tensor in places.tensors():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        elif tensor.dtype is not torch.bool:
            tensor.fill_(torch.iinfo(tensor.dtype).max)


@dataclass
class _Trial:
    """One call, measured; ruled on when eager's errors of all plain trials are known."""

    kind: str
    measured: list[Measured]
    reason: str = ""
    #: how it is tried again.
    again: Regression | None = None


@dataclass
class Verification:
    """Runs the trials of one candidate."""

    task: Task
    reference: Reference
    candidate: CandidateProcess
    secrets: Secrets
    floor: float
    trials: int
    progress: Progress
    #: also those variants that are far from what the task draws.
    wide: bool = False
    #: earlier trials to try again, last.
    regressions: tuple[Regression, ...] = ()
    _weights_seed: int = 0
    #: the trial that is on its way.
    _now: Regression | None = None
    _done: list[_Trial] = field(default_factory=list)
    _dropped: list[str] = field(default_factory=list)
    _oracles: set[str] = field(default_factory=set)
    _finite: bool = True
    #: the candidate's last answer.
    reply: dict[str, Any] = field(default_factory=dict)
    _spent: Spent = field(default_factory=Spent)

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
            oracle=min(self._oracles - {"float64"}, default="float64"),
            frozen=self.candidate.frozen,
            derive_ms=self.candidate.derive_ms,
            dropped_variants=tuple(self._dropped),
            duration_s=time.monotonic() - begin,
            parts_s=dict(self._spent),
        )

    def failing(self) -> Regression | None:
        """The first trial that failed; where none did, the one that was on its way."""
        failed = [trial.again for trial, report in zip(self._done, self._rulings(), strict=True) if not report.passed]
        return failed[0] if failed else self._now

    def observe(self) -> TrialReport:
        """One more trial, in which the candidate's worker records what runs on the GPU; what it sent is in `reply`."""
        with comparing("the verification"):
            self._new_weights()
            self._trial("observed", poison=False, kernels=True)
        return self._rulings()[-1]

    def _plan(self) -> list[Callable[[], bool]]:
        last = self.trials - 1
        plan: list[Callable[[], bool]] = [self._fresh(i == last and last > 0) for i in range(self.trials)]
        plan.insert(1, lambda: self._trial("in_place"))
        spec = self.reference.spec
        plan += [self._variant(kind) for kind in (*spec.variants, *(spec.wide_variants if self.wide else ()))]
        return plan + [self._regression(known) for known in self.regressions]

    def _fresh(self, new_storage: bool) -> Callable[[], bool]:
        def run() -> bool:
            self._new_weights()
            if not new_storage:
                return self._trial("fresh")
            return self._trial("new_storage", inputs=self.candidate.new_inputs(), poison=False)

        return run

    def _variant(self, kind: str) -> Callable[[], bool]:
        return lambda: self._trial(kind, variant=kind)

    def _regression(self, known: Regression) -> Callable[[], bool]:
        def run() -> bool:
            self._new_weights(known.weights_seed)
            spec = self.reference.spec
            if known.variant is not None and known.variant not in (*spec.variants, *spec.wide_variants):
                self._dropped.append(f"{REGRESSION}: this judge knows no variant {known.variant!r}")
                return True
            return self._trial(REGRESSION, variant=known.variant, seed=known.seed)

        return run

    def _new_weights(self, seed: int | None = None) -> None:
        self._weights_seed = self.secrets.seed() if seed is None else seed
        self.reference.draw_weights(self._weights_seed)
        self.candidate.load_weights()

    def _trial(
        self,
        kind: str,
        *,
        variant: str | None = None,
        inputs: Places | None = None,
        poison: bool = True,
        kernels: bool = False,
        seed: int | None = None,
    ) -> bool:
        """False where nothing can save the candidate any more."""
        self.progress("verify", f"trial {len(self._done) + 1}: {kind.replace('_', ' ')}")
        seed = self.secrets.seed() if seed is None else seed
        self._now = Regression(seed=seed, weights_seed=self._weights_seed, variant=variant)
        places = inputs or self.candidate.inputs
        with self._spent.on("reference"):
            spec, dropped = (
                (self.reference.draw_inputs(seed), None)
                if variant is None
                else self.reference.draw_variant(seed, variant)
            )
        if dropped is not None:
            self._dropped.append(dropped)
            return True
        places.arena.copy_from(self.reference.inputs.arena)
        try:
            with self._spent.on("reference"):
                answer = self.reference.answer(spec, self.secrets.seed())
        except TaskError as error:
            if variant is None or not self.reference.alive:
                raise
            self._dropped.append(f"{kind}: {error.cause}")
            return True
        with self._spent.on("comparison"):
            finite = all_finite(answer.eager)
        if variant is not None and self._finite and not finite:
            self._dropped.append(f"{kind}: the reference is not finite")
            return True
        self._finite = self._finite and finite
        self._oracles.add(answer.oracle_kind)
        with self._spent.on("candidate"):
            self.reply = self.candidate.call(places, spec, poison=poison, kernels=kernels)
        with self._spent.on("comparison"):
            trial = self._measure(kind, answer, self.reply.get("spec"))
            trial.reason = trial.reason or self._changed(places)
        trial.again = self._now
        self._done.append(trial)
        return not trial.reason and not any(m.failure or m.beyond > m.excuse for m in trial.measured)

    def _measure(self, kind: str, answer: Answer, output_spec: Any) -> _Trial:
        if not same_structure(output_spec, answer.spec, atol=self.task.atol, rtol=self.task.rtol):
            return _Trial(
                kind, [], "the output is nested differently, or holds other plain values, than the reference's"
            )
        mine = self.candidate.outputs.tensors()
        bounds = {"atol": self.task.atol, "rtol": self.task.rtol}
        return _Trial(
            kind,
            [
                measure(c, e, p, o, **bounds)
                for c, e, p, o in zip(mine, answer.eager, answer.policy, answer.oracle, strict=True)
            ],
        )

    def _changed(self, places: Places) -> str:
        """What the candidate changed that it must not change."""
        masters = self.reference.inputs.arena
        for index, slot in enumerate(places.layout.slots):
            end = (
                places.layout.slots[index + 1].offset if index + 1 < len(places.layout.slots) else places.layout.nbytes
            )
            count = end - slot.offset
            if index in self.reference.spec.mutated or count == 0:
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
        plain = [trial for trial in self._done if trial.kind in PLAIN and trial.measured]
        pooled = (
            [pool([trial.measured[i] for trial in plain]) for i in range(len(self.reference.spec.outputs))]
            if plain
            else []
        )
        return tuple(self._report(trial, pooled) for trial in self._done)

    def _report(self, trial: _Trial, pooled: list[Errors]) -> TrialReport:
        if not trial.measured:
            return TrialReport(kind=trial.kind, passed=False, reason=trial.reason)
        rulings = [rule(m, self.floor, pooled[i] if pooled else None) for i, m in enumerate(trial.measured)]
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
            reason=trial.reason or (where + worst.reason if worst.reason else ""),
        )


def failing(report: VerifyReport) -> tuple[Verdict, str]:
    """The verdict and the reason of a report that didn't pass."""
    trial = next(trial for trial in report.trials if not trial.passed)
    return Verdict.INCORRECT, f"trial {trial.kind.replace('_', ' ')}: {trial.reason}"
