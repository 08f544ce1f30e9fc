"""Answers those who ask for turns on the device, and stops and wakes the processes that are aside."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from cuda_agent.bench.lane import GRANTED, HUSH, UNHUSH, Address
from cuda_agent.bench.turns import LOOK_AGAIN_S, How, Turns
from cuda_agent.workspace.process import go_on, pause, stand_still
from cuda_agent.workspace.sockets import bound_socket

#: a process that prepares baselines and is stopped may have kernels on the device: those that one measurement of a
#: compiler launches at once. One that makes its context launches none.
DRAIN_S = 0.15
#: for so long a process that is stopped is waited for: a driver's call goes on until it returns.
_STILL_S, _LOOK_S = 2.0, 0.01
#: of a word and what is asked.
_LONGEST = 2048


@dataclass
class _Turn:
    """What a client has asked for, for what, and what came of it."""

    task: str
    step: str
    how: How
    needed: int
    pids: tuple[int, ...]
    asked: float
    begun: float | None = None
    #: seconds of the hushes that are over; and since when it is hushed.
    hushed_s: float = 0.0
    hushed_since: float | None = None

    def hush(self, now: float) -> None:
        """From now on."""
        if self.hushed_since is None:
            self.hushed_since = now

    def unhush(self, now: float) -> None:
        if self.hushed_since is not None:
            self.hushed_s += now - self.hushed_since
            self.hushed_since = None


class LaneServer:
    """Answers at `path` from a thread of its own, until the `with` block ends; whoever waits then hears of it. `log`:
    a file that gets a line for every turn, with the times by the system's clock. The turns are its thread's from then
    on; others say with `set_room` what there is."""

    def __init__(self, path: Path, turns: Turns | None = None, *, log: Path | None = None) -> None:
        self.address, self.turns = Address(path, secrets.token_bytes(16)), turns or Turns()
        self._room = self.turns.room
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._asked: dict[int, _Turn] = {}
        #: with all that they have started.
        self._stopped: dict[int, frozenset[int]] = {}
        #: when one of those that were stopped may have launched something at the latest.
        self._launched_at = 0.0
        self._log_path = log
        self._log: TextIO | None = None
        self._thread = threading.Thread(target=self._serve, name="lane", daemon=True)
        self._end, self._ended = socket.socketpair()

    def __enter__(self) -> LaneServer:
        # What can't be written is noticed by those who write what matters.
        if self._log_path is not None:
            with suppress(OSError):
                self._log = self._log_path.open("a", buffering=1)
        self._since = time.time() - time.monotonic()
        self._listener = bound_socket(self.address.path)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        self._thread.join()
        for turn in self._asked.values():
            self._let_go_on(turn.pids)
        for open_socket in (self._listener, self._ended, *self._clients.values()):
            open_socket.close()
        self._selector.close()
        if self._log is not None:
            self._log.close()

    def set_room(self, room: int | None) -> None:
        """From now on all who aren't alone may need so many bytes together; nobody loses a turn by that. From any
        thread."""
        self._room = room

    def _serve(self) -> None:
        while True:
            waits = any(turn.begun is None for turn in self._asked.values())
            heard = self._selector.select(LOOK_AGAIN_S if waits else None)
            if not heard:
                self.turns.room = self._room
                self._tell(self.turns.look(time.monotonic()))
            for key, _ in heard:
                if key.fileobj is self._ended:
                    return
                self.turns.room = self._room
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(key.fd)

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._clients[client.fileno()] = client
            self._selector.register(client, selectors.EVENT_READ)

    def _hear(self, ticket: int) -> None:
        """A client's word, or its end; who says anything else is cut off."""
        client = self._clients[ticket]
        try:
            said = client.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        now, word = time.monotonic(), self.address.word
        if said.startswith(word) and ticket not in self._asked:
            asked = json.loads(said[len(word) :])
            pids = tuple(asked["pids"])
            # What can't be stopped must not be beside one that is alone.
            how = How(asked["how"])
            how = How.SHARED if how.is_aside and not _may_stop(pids) else how
            needed, owner, rank = asked["bytes"], asked["owner"], asked["rank"]
            self._asked[ticket] = _Turn(asked["task"], asked["step"], how, needed, pids, now)
            self._tell(self.turns.ask(ticket, how, needed=needed, owner=owner, rank=rank, now=now))
            return
        turn = self._asked.get(ticket)
        if said and turn is not None and turn.begun is not None and not said.strip(HUSH + UNHUSH):
            for at in range(len(said)):
                self._hush(ticket, turn, said[at : at + 1] == HUSH)
            return
        self._selector.unregister(client)
        # Closed after it has left: its number may be the next one's.
        granted = self.turns.leave(ticket, now)
        client.close()
        del self._clients[ticket]
        self._asked.pop(ticket, None)
        if turn is not None:
            turn.unhush(now)
            self._let_go_on(turn.pids)
            self._note(turn, now)
        self._tell(granted)

    def _hush(self, ticket: int, turn: _Turn, hushed: bool) -> None:
        """`hushed`: answered when nobody does anything on the device any more; else everybody goes on."""
        now = time.monotonic()
        if not hushed:
            turn.unhush(now)
        self._tell(self.turns.hush(ticket, hushed, now))
        if hushed:
            self._wait_for_those_who_stop()
            turn.hush(time.monotonic())
            with suppress(OSError):
                self._clients[ticket].send(GRANTED)

    def _wait_for_those_who_stop(self) -> None:
        end = time.monotonic() + _STILL_S
        mine = self._launching()
        launching = frozenset().union(*(below for pid, below in self._stopped.items() if pid in mine))
        others = frozenset().union(*self._stopped.values()) - launching
        while time.monotonic() < end:
            if not stand_still(launching):
                self._launched_at = time.monotonic() + _LOOK_S
            elif stand_still(others):
                break
            time.sleep(_LOOK_S)
        time.sleep(max(0.0, self._launched_at + DRAIN_S - time.monotonic()))

    def _tell(self, granted: list[int]) -> None:
        self._stop_or_go_on()
        now = time.monotonic()
        for ticket in granted:
            self._asked[ticket].begun = now
            # One that has just died leaves by itself.
            with suppress(OSError):
                self._clients[ticket].send(GRANTED)

    def _stop_or_go_on(self) -> None:
        """Processes that are aside, as the rule says."""
        still = [turn for turn in self._asked.values() if turn.begun is not None and self.turns.stops(turn.how)]
        pids = {pid for turn in still for pid in turn.pids}
        self._let_go_on(tuple(self._stopped.keys() - pids))
        if fresh := pids - self._stopped.keys():
            self._stopped |= {pid: pause(pid) for pid in fresh}
            if fresh & self._launching():
                self._launched_at = time.monotonic()

    def _launching(self) -> set[int]:
        """Processes that have turns in which they compute on the device beside others."""
        return {pid for turn in self._asked.values() if turn.how is How.ASIDE for pid in turn.pids}

    def _let_go_on(self, pids: tuple[int, ...]) -> None:
        for pid in self._stopped.keys() & set(pids):
            go_on(self._stopped.pop(pid))

    def _note(self, turn: _Turn, now: float) -> None:
        if self._log is None:
            return
        times = {"asked_s": turn.asked, "begun_s": turn.begun, "left_s": now}
        line: dict[str, Any] = {"task": turn.task, "step": turn.step, "how": turn.how, "bytes": turn.needed}
        line |= {key: None if at is None else round(self._since + at, 3) for key, at in times.items()}
        if turn.how is How.ALONE:
            line["hushed_s"] = round(turn.hushed_s, 3)
        with suppress(OSError):
            self._log.write(json.dumps(line) + "\n")


def _may_stop(pids: Sequence[int]) -> bool:
    """One that has ended need not be stopped."""
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 0)
    except OSError:
        return False
    return True
