"""The best candidate so far: correctness first, then latency. It is on disk, so a killed run keeps it."""

import os
from pathlib import Path

from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import StoreError
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Candidate, Evaluation

_PREVIOUS = "previous-best.json"


class BestRecord(StoredRecord):
    """A candidate with its evaluation. `number` counts the best candidates of a run."""

    file_name = "best.json"
    number: int = 0
    candidate: Candidate
    evaluation: Evaluation


class Best:
    """`candidate` and `evaluation` belong together. `passes` counts the evaluations that passed. If several competed,
    the winner's time is the luckiest one, so it is measured again before it is reported. The previous best candidate
    stays on disk, because a tool that is killed after it offered a candidate is run again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.candidate: Candidate | None = None
        self.evaluation: Evaluation | None = None
        self.passes = 0
        self.number = 0

    @property
    def latency_us(self) -> float | None:
        profile = self.evaluation.profile if self.evaluation else None
        return profile.candidate.latency_us if profile else None

    @property
    def is_rough(self) -> bool:
        """Whether the timing rounds ended before the ratios were known to ±1 %."""
        profile = self.evaluation.profile if self.evaluation else None
        return profile is not None and profile.stop == "decided"

    @property
    def passed(self) -> bool:
        return self.evaluation is not None and self.evaluation.verdict is Verdict.PASSED

    def offer(self, candidate: Candidate, evaluation: Evaluation) -> bool:
        """Keeps the candidate if it is better than the held one. Among failures the latest is kept. Returns whether it
        was kept."""
        time_us, held_us = evaluation.latency_us, self.latency_us
        self.passes += time_us is not None
        if self.passed and (time_us is None or (held_us is not None and time_us >= held_us)):
            return False
        self.replace(candidate, evaluation)
        return True

    def replace(self, candidate: Candidate, evaluation: Evaluation) -> None:
        """Holds this candidate in place of any other. Raises StoreError."""
        self.candidate, self.evaluation = candidate, evaluation
        self.number += 1
        path = self._directory / BestRecord.file_name
        if path.exists():
            os.replace(path, self._directory / _PREVIOUS)
        BestRecord(number=self.number, candidate=candidate, evaluation=evaluation).write(self._directory)

    def recall(self, number: int, passes: int) -> None:
        """Takes up the best candidate with this number again. Raises StoreError when it is lost."""
        self.number, self.passes = number, passes
        self.candidate = self.evaluation = None
        if number == 0:
            return
        for name in (BestRecord.file_name, _PREVIOUS):
            path = self._directory / name
            if path.exists():
                record = BestRecord.from_json(path.read_text(), where=str(path))
                if record.number == number:
                    self.candidate, self.evaluation = record.candidate, record.evaluation
                    return
        raise StoreError(f"{self._directory} has lost its best candidate", "Restore best.json")
