"""One candidate in its own worker, and what the judge shares with it."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.compiler import write_files
from cuda_agent.judge.guard.operators import FORWARD, LOADING, OperatorLog
from cuda_agent.judge.verify.reference import Places, Reference, allocate
from cuda_agent.workers.buffers import contiguous, synchronize
from cuda_agent.workers.process import Worker
from cuda_agent.workers.requests import A, FreeMemory, Spec, WorkerRequest
from cuda_agent.workers.requests import candidate as requests

MODEL_FILE = "model_new.py"


class CandidateProcess:
    """A candidate in its own worker, and the judge's buffers that it maps: inputs, weights and outputs, never
    answers."""

    def __init__(self, worker: Worker, reference: Reference, *, timeout_s: float) -> None:
        self.worker = worker
        self._reference = reference
        self._timeout_s = timeout_s
        self._places: list[Places] = []
        spec, device = reference.spec, reference.device
        try:
            self.weights = self._allocate("candidate-weights", tuple(spec.state.values()))
            self.outputs = self._allocate("candidate-outputs", [contiguous(meta) for meta in spec.outputs])
            self.inputs = self._new_inputs()
        except BaseException:
            self.close()
            raise
        self.device = device
        self.frozen = False
        self.derive_ms: float | None = None
        self.operators = OperatorLog(device, seeded=spec.seeded)
        #: digest of the candidate that it holds, and how many it has held.
        self.loaded: str | None = None
        self._loads = 0

    def _allocate(self, purpose: str, metas: Any) -> Places:
        places = allocate(purpose, metas, self._reference.device)
        self._places.append(places)
        return places

    def _new_inputs(self) -> Places:
        return self._allocate("candidate-inputs", self._reference.spec.inputs)

    def move_inputs(self) -> None:
        """Replaces the inputs' arena, so that they have new storage. Raises WorkerFault, OutOfMemory."""
        before, self.inputs = self.inputs, self._new_inputs()
        # The new one is mapped while the old one is, so its address differs.
        self.worker.attach(self.inputs.arena)
        self._free(before)

    def load(self, candidate: Candidate, library: Path | None) -> None:
        """Writes the snapshot and its library where the worker can read them, and loads both in place of what it held.
        Raises WorkerFault, StoreError."""
        package = f"loaded_{self._loads}" if self._loads else ""
        root = self.worker.files / package
        self._loads += 1
        inside = write_candidate(candidate, library, root)
        self.ask(
            requests.LoadCandidate(
                library=None if inside is None else str(inside),
                model=str(root / MODEL_FILE),
                init=self._reference.spec.init,
                package=package,
            )
        )
        self.loaded = candidate.digest

    def load_weights(self) -> None:
        """Loads the reference's weights through `load_state_dict`. Raises WorkerFault."""
        state = self._reference.spec.state
        if state:
            self.weights.arena.copy_from(self._reference.weights.arena)
        loaded = self.ask(requests.LoadWeights(names=tuple(state), weights=self.weights.refs), (self.weights,))
        self.operators.note(loaded.dispatch, LOADING)
        self.frozen = self.frozen or loaded.frozen
        # The shortest of several counts, since the first call also warms up.
        self.derive_ms = min(loaded.derive_ms, loaded.derive_ms if self.derive_ms is None else self.derive_ms)

    def call(self, inputs: Places, spec: Spec, rng: int, *, poison: bool, kernels: bool = False) -> requests.CallResult:
        """Calls the candidate once, under the generator seed `rng`. Its outputs are then in `outputs`. Raises
        WorkerFault."""
        _poison(self.outputs)
        request = requests.CallModel(
            inputs=inputs.refs,
            spec=spec,
            outputs=self.outputs.refs,
            poison=poison,
            rng=rng,
            kernels=kernels,
            keeps=not self._reference.spec.large,
        )
        result = self.ask(request, (inputs, self.outputs))
        self.operators.note(result.dispatch, FORWARD, unseen_outputs=result.unseen_outputs)
        return result

    def renew(self) -> None:
        """Makes inputs and outputs again, after `release`."""
        self.inputs = self._new_inputs()
        self.outputs = self._allocate("candidate-outputs", [contiguous(meta) for meta in self._reference.spec.outputs])

    def changed_weights(self) -> list[str]:
        return self.ask(requests.CompareWeights()).changed

    def ask(self, request: WorkerRequest[A], places: tuple[Places, ...] = ()) -> A:
        """Sends a request to the candidate, which maps the places first. Raises WorkerFault."""
        for place in places:
            self.worker.attach(place.arena)
        synchronize(self._reference.device)
        return self.worker.request(request, timeout_s=self._timeout_s)

    @property
    def usable(self) -> bool:
        """Whether another candidate of the same task can be loaded into it."""
        return self.worker.alive and self._reference.alive

    def release(self) -> None:
        """Frees the inputs and outputs of verification, since timing has its own."""
        self.ask(requests.ForgetBuffers())
        for places in [places for places in self._places if places is not self.weights]:
            self._free(places)

    def _free(self, places: Places) -> None:
        self.worker.detach(places.arena)
        places.arena.close()
        self._places.remove(places)

    def rest(self) -> None:
        """Frees device memory that its worker holds without need. Raises WorkerFault."""
        self.ask(FreeMemory())

    def close(self) -> None:
        """Ends the worker, then frees its buffers."""
        self.worker.kill()
        for places in self._places:
            places.arena.close()
        self._places.clear()


def write_candidate(candidate: Candidate, library: Path | None, root: Path) -> Path | None:
    """Writes a snapshot, and its library beside it. Returns the library's copy. Raises StoreError."""
    inside = None if library is None else root / library.name
    try:
        write_files(root, candidate.files)
        if library is not None and inside is not None:
            shutil.copyfile(library, inside)
            inside.chmod(0o555)
    except OSError as error:
        raise StoreError(
            f"Can't write to {tempfile.gettempdir()}: {error.strerror}", "Free some space, or set TMPDIR"
        ) from None
    return inside


def _poison(places: Places) -> None:
    import torch

    for tensor in places.tensors():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        elif tensor.dtype is not torch.bool:
            tensor.fill_(torch.iinfo(tensor.dtype).max)
