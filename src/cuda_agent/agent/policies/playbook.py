"""The built-in policy: plans with the playbook's skills and acts through the same tools as a language model would."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from cuda_agent.agent.policy import Brief, PolicyMove
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import NotCovered, PolicyError, TaskError
from cuda_agent.core.records import ToolCall, ToolResult, Turn
from cuda_agent.playbook import Proposal, propose

Results = tuple[ToolResult, ...]
Script = Generator[PolicyMove, Results, None]

#: up to this many settings are tried in all combinations, more by one tunable after the other.
_FULL_GRID = 12
#: a setting replaces the default only when it is this much faster, so that noise doesn't choose.
_GAIN = 0.01
#: profiles of one setting, where foreign load makes the timing void.
_ATTEMPTS = 2


class PlaybookPolicy:
    """A script of moves. Given a history it replays to where that ends, so a run can be taken up again."""

    name = "playbook"

    def __init__(self, brief: Brief) -> None:
        self._script = _Moves(brief).play()
        self._move: PolicyMove | None = None
        self._played = 0

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Raises PolicyError when the script is over."""
        try:
            if self._move is None:
                self._move = next(self._script)
            while self._played < len(history):
                self._move = self._script.send(history[self._played].results)
                self._played += 1
        except StopIteration:
            raise PolicyError("The playbook has no further move", "Start a new run") from None
        return self._move


class _Moves:
    """Read → plan → write → compile → verify → screen → settle → profile → finish."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._count = 0

    def play(self) -> Script:
        yield self._move("Reading the reference.", self._call("Read", path="model.py"))
        try:
            proposal = propose(self._brief.graph(), self._brief.device, self._brief.precision)
        except NotCovered as gap:
            yield self._finish(gap.cause, "not_covered")
            return
        except TaskError as error:
            yield self._finish(f"the reference can't be captured as a graph: {error.cause}", "not_covered")
            return
        yield self._write(proposal)
        (compiled,) = yield self._move("", self._call("Compile"))
        if not compiled.ok:
            yield self._finish(f"the playbook's kernel was not accepted: Compile: {_first_line(compiled)}", "gave_up")
            return
        config = yield from self._tune(proposal.tunables)
        result = yield from self._profile(proposal, config)
        if result.ok:
            yield self._finish(f"{proposal.summary}; {result.data.get('latency_us', 0.0):,.1f} us", "finished")
        else:
            yield self._finish(f"the playbook's kernel was not accepted: {_first_line(result)}", "gave_up")

    def _write(self, proposal: Proposal) -> PolicyMove:
        calls = [self._call("Write", path=path, content=text) for path, text in sorted(proposal.files.items())]
        return self._move(f"Plan: {proposal.summary}", *calls)

    def _tune(self, tunables: Mapping[str, int]) -> Generator[PolicyMove, Results, dict[str, int]]:
        """The fastest setting by the judge's times; what can't be timed keeps its default, 0."""
        best = dict.fromkeys(tunables, 0)
        for group in _groups(tunables):
            settings = [
                {**best, **dict(zip(group, choice, strict=True))}
                for choice in itertools.product(*(range(tunables[name]) for name in group))
            ]
            # The setting held so far comes first: `_fastest` keeps it unless another is clearly faster.
            settings.sort(key=lambda setting: setting != best)
            named = ", ".join(group)
            (result,) = yield self._move(f"Screening {named}.", self._call("Profile", configs=settings))
            best = _fastest(settings, result.data.get("latency_us", []))
        return best

    def _profile(self, proposal: Proposal, config: dict[str, int]) -> Generator[PolicyMove, Results, ToolResult]:
        """The full judged profile of the chosen setting; once more where the timing was void; then, since screening
        times a setting but only compares answers among settings, that of the default."""
        default = dict.fromkeys(config, 0)
        current = default
        for wanted in [config] if config == default else [config, default]:
            if wanted != current:
                yield self._settle(proposal, current, wanted)
                current = wanted
            for _ in range(_ATTEMPTS):
                (result,) = yield self._move("Full judged profile.", self._call("Profile"))
                if result.data.get("verdict") != Verdict.TIMING_VOID.value:
                    break
            if result.ok:
                break
        return result

    def _settle(self, proposal: Proposal, current: dict[str, int], config: dict[str, int]) -> PolicyMove:
        old, new = proposal.config_line(current), proposal.config_line(config)
        return self._move(f"Settling on {config}.", self._call("Edit", path="model_new.py", old=old, new=new))

    def _finish(self, message: str, outcome: str) -> PolicyMove:
        return self._move("", self._call("Finish", message=message, outcome=outcome))

    def _move(self, message: str, *calls: ToolCall) -> PolicyMove:
        return PolicyMove(message=message, calls=calls)

    def _call(self, tool: str, **arguments: Any) -> ToolCall:
        self._count += 1
        return ToolCall(id=f"call-{self._count}", tool=tool, arguments=arguments)


def _groups(tunables: Mapping[str, int]) -> list[tuple[str, ...]]:
    """All tunables at once where the grid is small, else one after the other."""
    free = [name for name, count in tunables.items() if count > 1]
    size = 1
    for name in free:
        size *= tunables[name]
    if not free:
        return []
    return [tuple(free)] if size <= _FULL_GRID else [(name,) for name in free]


def _fastest(settings: list[dict[str, int]], times: list[float | None]) -> dict[str, int]:
    """The first setting (the one held so far) unless another is faster by more than `_GAIN`."""
    timed = [(time, index) for index, time in enumerate(times) if time is not None]
    if not timed:
        return settings[0]
    held = times[0]
    time, index = min(timed)
    return settings[index] if held is None or time < held * (1 - _GAIN) else settings[0]


def _first_line(result: ToolResult) -> str:
    return next((line for line in result.text.splitlines() if line.strip()), "no reason given")
