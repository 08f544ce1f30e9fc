"""The rule of the broker: who has a device, and how much of its memory. Pure: no sockets, no processes, no clock.

A task that uses the device has a *stay*: bytes that it holds while it waits (its *resting* bytes), and the bytes that
its largest step needs besides. Steps come in three kinds:

- `host`: imports and compilers, which need no device. They run side by side while cores are free.
- `device`: work on the device that isn't timed. Steps run side by side while the promised bytes fit.
- `clock`: a timing, which has the device alone. On a CPU it excludes `host` steps too, since they compute there.

Two invariants keep the ledger sound. The resting bytes of all stays and the largest step of any of them fit on the
card, so that each step can run when no other does, and no task waits for ever. The resting bytes and the bytes of all
running steps fit on the card, so that no task finds too little memory because of another. A task that is too large for
that beside others has the card alone.

Requests of equal kind are granted by rank, oldest task first. A clock that waits stops new device steps after `join_s`
seconds; when the device is free, all clocks that waited then run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

#: seconds in which device steps may still join others while a clock waits.
JOIN_S = 3.0


class Kind(StrEnum):
    """What a request is for."""

    STAY = "stay"
    HOST = "host"
    DEVICE = "device"
    CLOCK = "clock"


@dataclass(frozen=True)
class Need:
    """Bytes of device memory of one task: while it waits, and of its largest step besides."""

    resting: int = 0
    step: int = 0


@dataclass
class Request:
    """`task` is any name that is unique among tasks. `rank` is the time at which the task began. `need.step` is that of
    the request itself, except for a stay."""

    ticket: int
    kind: Kind
    task: str
    rank: float = 0.0
    need: Need = Need()


class Rule:
    """The queue and the ledger of one device. Each method returns the tickets that are granted from now on."""

    def __init__(
        self, card: int | None, *, host_slots: int = 4, shares_cores: bool = False, join_s: float = JOIN_S
    ) -> None:
        """`card`: bytes of the device that may be promised; None: memory isn't counted. `host_slots`: host steps at a
        time. `shares_cores`: the device is the CPU, so that a host step counts as a device step."""
        self._card, self._host_slots, self._shares_cores, self._join_s = card, host_slots, shares_cores, join_s
        self._waiting: dict[int, Request] = {}
        self._granted: dict[int, Request] = {}
        #: clocks that waited when the last device step ended.
        self._batch: set[int] = set()
        self._phase_began = 0.0

    @property
    def promised(self) -> int:
        """Bytes that are promised now: resting bytes of all stays, and those of the running steps."""
        return self._resting() + sum(one.need.step for one in self._running(Kind.DEVICE, Kind.CLOCK))

    def ask(self, request: Request, now: float) -> list[int]:
        """A request joins the queue. A host step on a CPU becomes a device step."""
        if self._shares_cores and request.kind is Kind.HOST:
            request.kind = Kind.DEVICE
        self._waiting[request.ticket] = request
        return self._grant(now)

    def leave(self, ticket: int, now: float) -> list[int]:
        """A request has ended, or is given up."""
        self._waiting.pop(ticket, None)
        self._batch.discard(ticket)
        left = self._granted.pop(ticket, None)
        if left is not None and left.kind is Kind.DEVICE and not self._running(Kind.DEVICE):
            self._batch = {one.ticket for one in self._waiting.values() if one.kind is Kind.CLOCK}
        return self._grant(now)

    def change(self, ticket: int, need: Need, now: float) -> tuple[bool, list[int]]:
        """A stay needs something else than was promised. Returns whether that is promised: if not, nothing changes. The
        steps that run now aren't counted, since the task holds what it has measured already."""
        stay = self._granted[ticket]
        others = [one.need for one in self._running(Kind.STAY) if one is not stay]
        if not self._fits(others, need):
            return False, []
        stay.need = need
        return True, self._grant(now)

    def is_short(self) -> bool:
        """Whether a task waits for memory to stay."""
        return any(one.kind is Kind.STAY for one in self._waiting.values())

    # ------------------------------------------------------------ the rule

    def _grant(self, now: float) -> list[int]:
        granted = self._stays() + self._hosts()
        while more := self._steps(now):
            granted += more
            if self._running(Kind.CLOCK):
                break
        return granted

    def _stays(self) -> list[int]:
        """The first that doesn't fit keeps all after it waiting, so that a large task isn't overtaken for ever."""
        granted = []
        for request in self._queue(Kind.STAY):
            others = [one.need for one in self._running(Kind.STAY)]
            too_much = self._card is not None and self.promised + request.need.resting > self._card
            if not self._fits(others, request.need) or (others and too_much):
                break
            granted.append(self._begin(request))
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
        is_open = not clocks or not running or now - self._phase_began < self._join_s
        at_work = {one.task for one in running}
        granted = []
        for request in self._queue(Kind.DEVICE):
            # A task that is at work isn't kept from the step that its other thread needs.
            if not is_open and request.task not in at_work:
                continue
            if not self._has_room(request):
                break
            granted.append(self._begin(request))
        return granted

    def _has_room(self, request: Request) -> bool:
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

    def _begin(self, request: Request) -> int:
        self._granted[request.ticket] = self._waiting.pop(request.ticket)
        return request.ticket

    def _running(self, *kinds: Kind) -> list[Request]:
        return [one for one in self._granted.values() if one.kind in kinds]

    def _queue(self, kind: Kind) -> list[Request]:
        """Oldest task first; requests of one task in their order."""
        return _by_rank(one for one in self._waiting.values() if one.kind is kind)


def _by_rank(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: request.rank)
