"""What the promotion gate says."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.record import Record, StoredRecord

#: `skipped`: an earlier gate that failed leaves nothing to look at. `not_applicable`: nothing of the kind exists here.
Status = Literal["passed", "failed", "skipped", "not_applicable"]


class GateResult(Record):
    """One gate: what it found, in one line, and the numbers behind it."""

    name: str
    status: Status
    reason: str
    data: dict[str, Any] = Field(default_factory=dict)
    duration_s: float = 0.0


class Promotion(StoredRecord):
    """All gates of one candidate, in their order. `entry`: the registry's digest of the evidence, where it passed."""

    file_name = "promotion.json"
    task: str
    task_key: str
    candidate_digest: str
    device: Device
    precision: Precision
    gates: tuple[GateResult, ...]
    version: str
    started: str
    duration_s: float
    entry: str | None = None

    @property
    def passed(self) -> bool:
        """Nothing failed, and nothing was left out for a failure."""
        return all(gate.status in ("passed", "not_applicable") for gate in self.gates)

    @property
    def first_failure(self) -> GateResult | None:
        return next((gate for gate in self.gates if gate.status == "failed"), None)
