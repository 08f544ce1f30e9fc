"""Who has the device next: many at once, one alone, and those who are stopped meanwhile. The rule of `lane`, without
processes and sockets."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

#: while somebody waits to be alone, others may still join those who share for so long after the first of them began.
JOIN_S = 3.0
#: who has no room may be overtaken for so long by those who have; who shares the device already waits no longer for
#: room.
OVERTAKEN_S = 10.0
#: while anybody waits, somebody looks again after so long in which nothing happened.
LOOK_AGAIN_S = 0.5


class How(StrEnum):
    """What a turn is for."""

    SHARED = "shared"
    ALONE = "alone"
    ASIDE = "aside"
    #: aside, one at a time: making contexts, which a driver does one after the other anyway, and whoever takes memory
    #: meanwhile waits behind all that want one.
    WAKING = "waking"
    #: no use of the device: what keeps cores busy, imports and compilers, so many at a time that the first soon are
    #: done.
    HOST = "host"

    @property
    def is_aside(self) -> bool:
        return self in _ASIDE


_ALL, _ASIDE = (How.SHARED, How.ASIDE, How.WAKING), (How.ASIDE, How.WAKING)
#: of the device.
_USES = (How.SHARED, How.ALONE, How.ASIDE, "idle")


class _Need(NamedTuple):
    """Of a ticket; since when."""

    owner: int
    needed: int
    since: float


@dataclass
class Turns:
    """The rule, without sockets. Turns come in phases: all that wait to be alone, one after the other, then all that
    wait to share, together; so the length of a phase is shared by many. Who is aside has the device whenever nobody is
    alone, and no phase waits for it; who makes a context has it also beside one that is alone, but while that says
    `hush`: it has something on the clock. Of those who wait, the smallest `rank` comes first: tasks that were begun
    first, so that few are under way and none waits long near its end. Tickets are any numbers.

    `room`: bytes that all turns that aren't alone may need together, those of one owner, too; one that needs more comes
    beside those that need nothing. It may change at any time. An owner that shares the device may wait for another turn
    of its own before it leaves; so where it has no room, that one comes as soon as no other owner needs any, and after
    `OVERTAKEN_S` at the latest. `host_share`: how many work on the host at a time, whoever has the device. `seconds`:
    for how long the device was used alone, shared, only by those who are aside, and by nobody."""

    join_s: float = JOIN_S
    room: int | None = None
    host_share: int = 4
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_USES, 0.0))

    def __post_init__(self) -> None:
        self._alone: int | None = None
        self._hushed = False
        self._sharing: set[int] = set()
        self._aside: set[int] = set()
        self._waking: int | None = None
        self._on_host: set[int] = set()
        self._want_host: dict[int, None] = {}
        self._ranks: dict[int, float] = {}
        self._want_alone: dict[int, None] = {}
        #: for one that wants to share or to be aside: which.
        self._want_some: dict[int, How] = {}
        #: those of the present phase that are still to be alone.
        self._batch: set[int] = set()
        self._needs: dict[int, _Need] = {}
        self._shared_since = 0.0
        self._since: float | None = None

    def stops(self, how: How) -> bool:
        """Whether those who have such a turn are to stand still."""
        return self._alone is not None and (how is How.ASIDE or (how is How.WAKING and self._hushed))

    def ask(
        self, ticket: int, how: How, *, needed: int = 0, owner: int | None = None, rank: float = 0.0, now: float
    ) -> list[int]:
        """Somebody wants the device, and `needed` bytes of it; returns the tickets that have it from now on."""
        self._account(now)
        self._ranks[ticket] = rank
        self._needs[ticket] = _Need(ticket if owner is None else owner, needed, now)
        if how is How.ALONE:
            self._want_alone[ticket] = None
        elif how is How.HOST:
            self._want_host[ticket] = None
        else:
            self._want_some[ticket] = how
        return self._grant(now)

    def leave(self, ticket: int, now: float) -> list[int]:
        """Somebody is done, or gave up waiting; returns the tickets that have the device from now on."""
        self._account(now)
        was_shared = bool(self._sharing)
        self._sharing.discard(ticket)
        self._aside.discard(ticket)
        self._on_host.discard(ticket)
        self._want_host.pop(ticket, None)
        self._want_some.pop(ticket, None)
        self._want_alone.pop(ticket, None)
        self._needs.pop(ticket, None)
        self._batch.discard(ticket)
        self._ranks.pop(ticket, None)
        if self._alone == ticket:
            self._alone, self._hushed = None, False
        if self._waking == ticket:
            self._waking = None
        if was_shared and not self._sharing:
            self._batch = set(self._want_alone)
        return self._grant(now)

    def hush(self, ticket: int, hushed: bool, now: float) -> list[int]:
        """Who is alone has something on the clock, or no longer; returns the tickets that have the device from now
        on."""
        self._account(now)
        if self._alone == ticket:
            self._hushed = hushed
        return self._grant(now)

    def look(self, now: float) -> list[int]:
        """Time has passed, or there is other room; returns the tickets that have the device from now on."""
        self._account(now)
        return self._grant(now)

    def _account(self, now: float) -> None:
        if self._since is not None:
            self.seconds[self._state()] += now - self._since
        self._since = now

    def _state(self) -> str:
        if self._alone is not None:
            return How.ALONE
        return How.SHARED if self._sharing else How.ASIDE if self._aside else "idle"

    def _grant(self, now: float) -> list[int]:
        return self._let_on_host() + self._give_device(now)

    def _let_on_host(self) -> list[int]:
        granted = self._ranked(self._want_host)[: max(0, self.host_share - len(self._on_host))]
        for ticket in granted:
            del self._want_host[ticket]
            self._on_host.add(ticket)
        return granted

    def _give_device(self, now: float) -> list[int]:
        if self._alone is not None:
            return [] if self._hushed else self._let_in(now, (How.WAKING,))
        if self._sharing:
            is_open = not self._want_alone or now - self._shared_since < self.join_s
            return self._let_in(now, _ALL if is_open else _ASIDE)
        ready = self._ranked(ticket for ticket in self._want_alone if ticket in self._batch)
        if not ready and self._want_some:
            granted = self._let_in(now)
            # Where only those who are aside have no room, nobody need wait for them.
            if granted or not self._want_alone:
                return granted
        if not ready:
            self._batch = set(self._want_alone)
            ready = self._ranked(self._want_alone)
        if not ready:
            return []
        self._alone = ready[0]
        self._batch.discard(self._alone)
        del self._want_alone[self._alone]
        return [self._alone]

    def _let_in(self, now: float, hows: Container[How] = _ALL) -> list[int]:
        """Of those who want such turns as many as there is room for, but at least one. Nobody is overtaken for long."""
        granted: list[int] = []
        blocked = False
        for ticket in self._ranked(self._want_some):
            how = self._want_some[ticket]
            if how not in hows or (how is How.WAKING and self._waking is not None):
                continue
            is_late = now - self._needs[ticket].since >= OVERTAKEN_S
            if not self._may_come(ticket, blocked=blocked, is_late=is_late):
                blocked = blocked or is_late
                continue
            del self._want_some[ticket]
            if how is How.SHARED and not self._sharing:
                self._shared_since = now
            if how is How.WAKING:
                self._waking = ticket
            (self._aside if how.is_aside else self._sharing).add(ticket)
            granted.append(ticket)
        return granted

    def _ranked(self, tickets: Iterable[int]) -> list[int]:
        """By rank; of equal ones who came first."""
        return sorted(tickets, key=self._ranks.__getitem__)

    def _may_come(self, ticket: int, *, blocked: bool, is_late: bool) -> bool:
        """`blocked`: somebody before it has been overtaken long enough."""
        owner, needed, _ = self._needs[ticket]
        there = self._sharing | self._aside
        mine = {other for other in there if self._needs[other].owner == owner}
        used = self._bytes(there)
        if needed == 0 or used == self._bytes(mine):
            return True
        if not blocked and (self.room is None or used + needed <= self.room):
            return True
        # Who shares may wait for what is to go on aside; not the other way round.
        return is_late and bool(mine & self._sharing)

    def _bytes(self, tickets: Iterable[int]) -> int:
        return sum(self._needs[ticket].needed for ticket in tickets)
