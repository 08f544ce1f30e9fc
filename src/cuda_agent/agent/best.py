"""Best so far: correct first, then the lower latency. Kept on disk, so that a killed run still holds it."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.core.enums import Verdict
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Candidate, Evaluation


class BestRecord(StoredRecord):
    """A candidate with the judge's word on it."""

    file_name = "best.json"
    candidate: Candidate
    evaluation: Evaluation


class Best:
    """`candidate` and `evaluation` belong together. `passes` counts the evaluations that passed: where several
    competed, the winner's time is the luckiest, and it is measured again before it is reported."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.candidate: Candidate | None = None
        self.evaluation: Evaluation | None = None
        self.passes = 0

    @property
    def latency_us(self) -> float | None:
        profile = self.evaluation.profile if self.evaluation else None
        return profile.candidate.latency_us if profile else None

    @property
    def passed(self) -> bool:
        return self.evaluation is not None and self.evaluation.verdict is Verdict.PASSED

    def offer(self, candidate: Candidate, evaluation: Evaluation) -> bool:
        """Keep the candidate if it is better than what is held (among failures: the latest); whether it was kept."""
        passed = evaluation.verdict is Verdict.PASSED and evaluation.profile is not None
        self.passes += passed
        if self.passed:
            if not passed or evaluation.profile is None:
                return False
            held = self.latency_us
            if held is not None and evaluation.profile.candidate.latency_us >= held:
                return False
        self.replace(candidate, evaluation)
        return True

    def replace(self, candidate: Candidate, evaluation: Evaluation) -> None:
        """Hold this one, whatever was held. Raises StoreError."""
        self.candidate, self.evaluation = candidate, evaluation
        BestRecord(candidate=candidate, evaluation=evaluation).write(self._directory)
