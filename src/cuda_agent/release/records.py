"""The results of the promotion gate."""

from typing import Any, Literal

from pydantic import Field

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.record import Record, StoredRecord

#: `skipped`: not run, because an earlier gate failed. `not_applicable`: the gate has nothing to check here.
Status = Literal["passed", "failed", "skipped", "not_applicable"]


class GateResult(Record):
    """The result of one gate: its reason in one line, and the data behind it."""

    name: str
    status: Status
    reason: str
    data: dict[str, Any] = Field(default_factory=dict)
    duration_s: float = 0.0


class Promotion(StoredRecord):
    """All gates of one candidate in their order. `entry` is the registry's digest of the evidence where it passed."""

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
        """Whether every gate passed or wasn't applicable."""
        return all(gate.status in ("passed", "not_applicable") for gate in self.gates)

    @property
    def first_failure(self) -> GateResult | None:
        return next((gate for gate in self.gates if gate.status == "failed"), None)
