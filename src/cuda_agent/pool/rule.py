"""The rule of the queue: which task has a device, and how much of its memory. It has no sockets, processes or clock.

A task that uses the device has a *stay*: the bytes that it holds while it waits (its *resting* bytes), and the
additional bytes of its largest step. There are three kinds of steps:

- `host`: imports and compilers, which need no device. They run side by side while cores are free.
- `device`: work on the device that isn't timed. Steps run side by side while the promised bytes fit.
- `clock`: a timing, which has the device alone. On a CPU it excludes `host` steps too, since they compute there.

Two invariants keep the ledger sound. The resting bytes of all stays and the largest step of any of them fit on the
card, so each step can run when no other does, and no task waits forever. The resting bytes and the bytes of all running
steps fit on the card, so no task runs out of memory because of another. A task that is too large for this has the card
alone.

Requests of equal kind are granted by rank, oldest task first. A stay that doesn't fit may be overtaken by smaller ones
until it has waited `PATIENCE_S` seconds. A waiting clock stops new device steps after `JOIN_S` seconds. When the device
is free, all clocks that waited then run one after the other.
"""

from dataclasses import dataclass
from enum import StrEnum

#: The seconds in which device steps may still join others while a clock waits.
JOIN_S = 3.0
#: The seconds in which a stay that doesn't fit may be overtaken. A large task neither idles the device nor waits
#: forever.
PATIENCE_S = 45.0


class Kind(StrEnum):
    """The kind of a request."""

    STAY = "stay"
    HOST = "host"
    DEVICE = "device"
    CLOCK = "clock"


@dataclass(frozen=True)
class Need:
    """The device memory of one task in bytes: while it waits, and the additional bytes of its largest step."""

    resting: int = 0
    step: int = 0


@dataclass
class QueueRequest:
    """A request for a stay or a step. `task` is a unique name of the task. `rank` is the time at which the task began.
    `need.step` is that of the request itself, except for a stay."""

    ticket: int
    kind: Kind
    task: str
    rank: float = 0.0
    need: Need = Need()
    #: when it was asked for, by the clock of `QueueRule`'s callers.
    asked: float = 0.0


class QueueRule:
    """The queue and the ledger of one device. Each method returns the tickets that it grants."""

    def __init__(self, card: int | None, *, host_slots: int = 4, shares_cores: bool = False) -> None:
        """`card` is how many bytes of the device may be promised; with None, memory isn't counted. `host_slots` is the
        number of host steps at a time. With `shares_cores` the device is the CPU, so a host step counts as a device
        step."""
        self._card, self._host_slots, self._shares_cores = card, host_slots, shares_cores
        self._waiting: dict[int, QueueRequest] = {}
        self._granted: dict[int, QueueRequest] = {}
        #: Clocks that waited when the last device step ended.
        self._batch: set[int] = set()
        self._phase_began = 0.0

    @property
    def promised(self) -> int:
        """The bytes that are promised now: the resting bytes of all stays, and those of the running steps."""
        return self._resting() + sum(one.need.step for one in self._running(Kind.DEVICE, Kind.CLOCK))

    def ask(self, request: QueueRequest, now: float) -> list[int]:
        """Adds a request to the queue. A host step on a CPU becomes a device step."""
        if self._shares_cores and request.kind is Kind.HOST:
            request.kind = Kind.DEVICE
        request.asked = now
        self._waiting[request.ticket] = request
        return self._grant(now)

    def leave(self, ticket: int, now: float) -> list[int]:
        """Removes a request that has ended or was given up."""
        self._waiting.pop(ticket, None)
        self._batch.discard(ticket)
        left = self._granted.pop(ticket, None)
        if left is not None and left.kind is Kind.DEVICE and not self._running(Kind.DEVICE):
            self._batch = {one.ticket for one in self._waiting.values() if one.kind is Kind.CLOCK}
        return self._grant(now)

    def change(self, ticket: int, need: Need, now: float) -> tuple[bool, list[int]]:
        """Changes the need of a stay if it fits, and returns whether it does. Running steps aren't counted, because the
        task already holds what it has measured."""
        stay = self._granted[ticket]
        others = [one.need for one in self._running(Kind.STAY) if one is not stay]
        if not self._fits(others, need):
            return False, []
        stay.need = need
        return True, self._grant(now)

    def _grant(self, now: float) -> list[int]:
        granted = self._stays(now) + self._hosts()
        while more := self._steps(now):
            granted += more
            if self._running(Kind.CLOCK):
                break
        return granted

    def _stays(self, now: float) -> list[int]:
        """Grants stays. One that doesn't fit keeps all later ones waiting once its patience is at an end."""
        granted = []
        for request in self._queue(Kind.STAY):
            others = [one.need for one in self._running(Kind.STAY)]
            too_much = self._card is not None and self.promised + request.need.resting > self._card
            if self._fits(others, request.need) and not (others and too_much):
                granted.append(self._begin(request))
            elif request.need.resting > (self._card or 0) or now - request.asked >= PATIENCE_S:
                break
        return granted

    def _hosts(self) -> list[int]:
        free = self._host_slots - len(self._running(Kind.HOST))
        return [self._begin(request) for request in self._queue(Kind.HOST)[: max(0, free)]]

    def _steps(self, now: float) -> list[int]:
        if self._running(Kind.CLOCK):
            return []
        running = self._running(Kind.DEVICE)
        clocks = self._queue(Kind.CLOCK)
        if not running:
            first = [request for request in clocks if request.ticket in self._batch]
            if first or (clocks and not self._queue(Kind.DEVICE)):
                request = (first or clocks)[0]
                self._batch.discard(request.ticket)
                return [self._begin(request)]
            self._phase_began = now
        is_open = not clocks or not running or now - self._phase_began < JOIN_S
        running_tasks = {one.task for one in running}
        granted = []
        for request in self._queue(Kind.DEVICE):
            # A running task gets the step that its other thread needs.
            if not is_open and request.task not in running_tasks:
                continue
            if not self._has_room(request):
                break
            granted.append(self._begin(request))
        return granted

    def _has_room(self, request: QueueRequest) -> bool:
        running = self._running(Kind.DEVICE)
        if self._card is None or not running:
            return True
        return self._resting() + sum(one.need.step for one in running) + request.need.step <= self._card

    def _fits(self, others: list[Need], need: Need) -> bool:
        if self._card is None or not others:
            return True
        every = [*others, need]
        return sum(one.resting for one in every) + max(one.step for one in every) <= self._card

    def _resting(self) -> int:
        return sum(one.need.resting for one in self._running(Kind.STAY))

    def _begin(self, request: QueueRequest) -> int:
        self._granted[request.ticket] = self._waiting.pop(request.ticket)
        return request.ticket

    def _running(self, *kinds: Kind) -> list[QueueRequest]:
        return [one for one in self._granted.values() if one.kind in kinds]

    def _queue(self, kind: Kind) -> list[QueueRequest]:
        """Returns waiting requests, oldest task first; requests of one task keep their order."""
        return sorted((one for one in self._waiting.values() if one.kind is kind), key=lambda request: request.rank)
