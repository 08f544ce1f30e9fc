"""The rule for ATen operators: it reads the dispatcher's records of a candidate's worker.

The records come from the candidate's own process, so they can convict it and never acquit it. An output in memory that
no recorded operator allocated is a violation, and so are missing or truncated records: a candidate that doesn't compute
with torch has no reason to hide from the dispatcher.
"""

from collections import Counter

from cuda_agent.core.assets import word_lists
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Violation
from cuda_agent.workers.requests.candidate import DispatchRecord

LAYER = "dispatch"
FORWARD, LOADING, TIMED = "in forward", "while weights are loaded", "in timed calls"
_MOST = 1000


class OperatorLog:
    """The records of all calls of one candidate. Where the task is `seeded`, `forward` may draw random numbers."""

    def __init__(self, device: Device, *, seeded: bool = False) -> None:
        lists = word_lists(__file__)
        self._allowed = lists["allocate"] | lists["view"] | lists["copy"]
        self._allowed |= lists["cpu vendor"] if device is Device.CPU else set()
        self._allowed |= lists["draw"] if seeded else set()
        self._at_loading = lists["at loading"] | lists["copy"]
        self._found: dict[tuple[str, str], None] = {}
        self._counts: Counter[str] = Counter()

    def note(self, record: DispatchRecord, when: str, *, unseen_outputs: int = 0) -> None:
        """Adds a worker's record. `unseen_outputs`: outputs in memory that no recorded operator made."""
        if not record.intact:
            self._add("missing_records", f"the record of operators {when} broke off")
            return
        operators = {name[:120]: count for name, count in record.operators.items()}
        for name, count in operators.items():
            if not self._is_allowed(name, when):
                self._add("torch_compute", f"{name} {when}, {count} times")
        if when == FORWARD:
            self._counts.update(operators)
            if unseen_outputs:
                said = f"{unseen_outputs} outputs of a call lie in memory that no operator of it allocated"
                self._add("missing_records", said)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the operators that forward reached, over all recorded calls."""
        return dict(sorted(self._counts.items()))

    def violations(self) -> tuple[Violation, ...]:
        return tuple(Violation(rule=rule, layer=LAYER, detail=detail) for rule, detail in self._found)

    def _is_allowed(self, name: str, when: str) -> bool:
        operator, _, converts = name.partition(":")
        space, _, rest = operator.partition(".")
        base = rest.partition(".")[0]
        if when == LOADING and space == "aten" and base in self._at_loading:
            return True
        return space == "aten" and not converts and base in self._allowed

    def _add(self, rule: str, detail: str) -> None:
        if len(self._found) < _MOST:
            self._found[rule, detail[:300]] = None
