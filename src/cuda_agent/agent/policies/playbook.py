"""The built-in policy. It plans with the playbook's skills and acts through the same tools as a language model."""

import itertools
import math
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.agent.policy import Brief
from cuda_agent.agent.tools.judged import MAX_CONFIGS
from cuda_agent.agent.winners import Winner
from cuda_agent.core.enums import Precision, Verdict
from cuda_agent.core.errors import NotCovered, PolicyError, TaskError
from cuda_agent.core.graph import Graph
from cuda_agent.core.plan import KernelPlan
from cuda_agent.core.records import PolicyMove, ToolCall, ToolResult, Turn
from cuda_agent.playbook import Proposal, proposals

Results = tuple[ToolResult, ...]
Script = Generator[PolicyMove, Results, None]
#: settings that were timed, the current one first, with their times in microseconds.
_Screened = list[tuple[dict[str, int], float | None]]

#: up to this many combinations of settings, all are tried.
_FULL_GRID = 12
#: a setting replaces the default only if it is faster by this share, so that noise doesn't choose.
_GAIN = 0.01


class PlaybookPolicy:
    """A script of moves. It replays a history to its end, so a run can be resumed. A run that another version of the
    playbook started continues from an empty workspace."""

    name = "playbook"

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._script = _Moves(brief).play()
        self._move: PolicyMove | None = None
        self._played = 0

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Raises PolicyError when the script is over."""
        try:
            if self._move is None:
                self._move = next(self._script)
            while self._played < len(history):
                turn = history[self._played]
                if turn.calls != self._move.calls:
                    self._script = _Moves(self._brief).play(cleared=True)
                    self._move, self._played = next(self._script), len(history)
                    break
                self._move = self._script.send(turn.results)
                self._played += 1
        except StopIteration:
            raise PolicyError("The playbook has no further move", "Start a new run") from None
        return self._move


@dataclass(frozen=True)
class _Tuned:
    """A plan with its fastest setting. `latency_us` is None if nothing was screened or could be timed."""

    proposal: Proposal
    config: dict[str, int]
    latency_us: float | None


@dataclass(frozen=True)
class _Tried:
    """The result of trying plans. `held`: the plan in the workspace. `said`: the judge's last words. `chosen`: the plan
    that passed. `wrong`: whether a plan was refused for its values."""

    held: Proposal
    said: str
    chosen: Proposal | None = None
    config: Mapping[str, int] = field(default_factory=dict)
    latency_us: float = 0.0
    wrong: bool = False


class _Moves:
    """Read → plan → (write → compile → screen) for each plan → settle → profile → finish. If the judge finds every plan
    wrong, the same is done once more with plans whose products are in full float32."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._count = 0

    def play(self, *, cleared: bool = False) -> Script:
        """Yields the moves. `cleared`: another version's files are removed first."""
        if cleared:
            yield self._move("Clearing another version's plan.", self._call("Bash", command="rm -rf kernels/*"))
        yield self._move("Reading the reference.", self._call("Read", path="model.py"))
        try:
            graph = self._brief.graph()
            plans = proposals(graph, self._brief.device, self._brief.precision)
        except NotCovered as gap:
            yield self._finish(gap.cause, "not_covered")
            return
        except TaskError as error:
            yield self._finish(f"there is no graph of the reference: {error}", "not_covered")
            return
        tried = yield from self._search(plans)
        if tried.chosen is None and tried.wrong:
            precise = self._more_precise(graph, plans)
            if precise:
                tried = yield from self._try(precise, before=tried.held)
        if tried.chosen is None:
            cause = f"the playbook's own kernel was not accepted, which is a failure of the playbook: {tried.said}"
            yield self._finish(cause, "gave_up")
        else:
            plan = tried.chosen.plan
            yield self._finish(f"{plan.summary}; {tried.latency_us:,.1f} us", "finished", plan)

    def _search(self, plans: Sequence[Proposal]) -> Generator[PolicyMove, Results, _Tried]:
        """Profiles the winner of an earlier search, and searches if there is none or it doesn't pass now. Keeps what
        passed."""
        known = self._brief.winners
        winner = known.find(plans) if known is not None else None
        held: Proposal | None = None
        if winner is not None:
            held = winner.plan
            compiled = yield from self._build(held)
            if compiled.ok:
                result, config = yield from self._profile(_Tuned(held, winner.config, winner.latency_us))
                if result.ok:
                    return _Tried(held, "", held, config, result.data.get("latency_us", 0.0))
        tried = yield from self._try(plans, before=held)
        if known is not None and tried.chosen is not None:
            known.keep(plans, Winner(tried.chosen, dict(tried.config), tried.latency_us))
        return tried

    def _more_precise(self, graph: Graph, plans: Sequence[Proposal]) -> list[Proposal]:
        """Returns the plans without TF32 or 16-bit operands that differ from `plans`."""
        if self._brief.precision is Precision.FP32:
            return []
        try:
            found = proposals(graph, self._brief.device, Precision.FP32)
        except NotCovered:
            return []
        return [plan for plan in found if all(plan.files != other.files for other in plans)]

    def _try(self, plans: Sequence[Proposal], before: Proposal | None = None) -> Generator[PolicyMove, Results, _Tried]:
        """Builds and screens all plans, then profiles until one passes. `before` is the plan in the workspace."""
        compiled = yield from self._build(plans[0], before)
        if not compiled.ok:
            return _Tried(plans[0], f"Compile: {compiled.first_line}")
        first = yield from self._tune(plans[0], timed=len(plans) > 1)
        ranked, held = yield from self._try_others(first, plans[1:])
        wrong = False
        for chosen in ranked:
            if chosen.proposal is not held:
                yield from self._build(chosen.proposal, before=held)
                held = chosen.proposal
            result, config = yield from self._profile(chosen)
            if result.ok:
                return _Tried(held, "", held, config, result.data.get("latency_us", 0.0))
            wrong = wrong or result.data.get("verdict") == Verdict.INCORRECT.value
        return _Tried(held, result.first_line, wrong=wrong)

    def _try_others(
        self, first: _Tuned, others: Sequence[Proposal]
    ) -> Generator[PolicyMove, Results, tuple[list[_Tuned], Proposal]]:
        """Returns the plans in the order to profile them, and the plan that is in the workspace. Plans that screened
        clearly faster than the default come before it."""
        ranked, held = [first], first.proposal
        for plan in others:
            compiled = yield from self._build(plan, before=held)
            held = plan
            if compiled.ok:
                tuned = yield from self._tune(plan, timed=True)
                if _is_faster(tuned.latency_us, ranked[0].latency_us):
                    ranked.insert(0, tuned)
        return ranked, held

    def _build(self, proposal: Proposal, before: Proposal | None = None) -> Generator[PolicyMove, Results, ToolResult]:
        """Writes a plan in place of another and compiles it."""
        stale = sorted(set(before.files) - set(proposal.files)) if before is not None else []
        if stale:
            yield self._move("Clearing the other plan.", self._call("Bash", command=f"rm -f {shlex.join(stale)}"))
        yield self._write(proposal)
        (compiled,) = yield self._move("", self._call("Compile"))
        return compiled

    def _write(self, proposal: Proposal) -> PolicyMove:
        calls = [self._call("Write", path=path, content=text) for path, text in sorted(proposal.files.items())]
        plan = proposal.plan
        layout = ", channels last" if plan.channels_last else ""
        return PolicyMove(message=f"Plan{layout}: {plan.summary}", calls=tuple(calls), plan=plan)

    def _tune(self, proposal: Proposal, *, timed: bool) -> Generator[PolicyMove, Results, _Tuned]:
        """Finds the fastest setting by the judge's times. A tunable that can't be timed keeps its default, 0. `timed`:
        a time is measured even if there is nothing to choose.

        A large grid takes two screenings: each tunable by itself, then the fastest values together, and together with
        one of them left out."""
        default = dict.fromkeys(proposal.tunables, 0)
        free = {name: count for name, count in proposal.tunables.items() if count > 1}
        if not free and not timed:
            return _Tuned(proposal, default, None)
        if math.prod(free.values()) <= _FULL_GRID:
            whole = yield from self._screen(", ".join(free) or "the plan", _grid(default, free))
            return _Tuned(proposal, *_fastest(whole))
        found: _Screened = []
        # The tunables alternate, so each has had some settings when a screening runs out of time.
        turns = range(1, max(free.values()))
        for part in _parts([{**default, name: k} for k in turns for name, count in free.items() if k < count]):
            found += yield from self._screen("each tunable", [default, *part])
        best = _best_of_each(found, default)
        changed = [name for name in best if best[name] != default[name]]
        if len(changed) < 2:
            return _Tuned(proposal, best, next((time for setting, time in reversed(found) if setting == best), None))
        together = yield from self._screen("them together", [best, *({**best, name: 0} for name in changed)])
        return _Tuned(proposal, *_fastest(together))

    def _screen(self, named: str, settings: list[dict[str, int]]) -> Generator[PolicyMove, Results, _Screened]:
        (result,) = yield self._move(f"Screening {named}.", self._call("Profile", configs=settings))
        times = [*result.data.get("latency_us", []), *[None] * len(settings)]
        return list(zip(settings, times, strict=False))

    def _profile(self, chosen: _Tuned) -> Generator[PolicyMove, Results, tuple[ToolResult, dict[str, int]]]:
        """Profiles the chosen setting fully, and the default if that fails. Screening times a setting, but compares its
        answers only with those of other settings. Returns the last answer and its setting."""
        proposal, config = chosen.proposal, chosen.config
        default = dict.fromkeys(config, 0)
        current = default
        for wanted in [config] if config == default else [config, default]:
            if wanted != current:
                old, new = proposal.config_line(current), proposal.config_line(wanted)
                yield self._move(f"Settling on {wanted}.", self._call("Edit", path="model_new.py", old=old, new=new))
                current = wanted
            (result,) = yield self._move("Full judged profile.", self._call("Profile", precise=True))
            if result.ok:
                break
        return result, current

    def _finish(self, message: str, outcome: str, plan: KernelPlan | None = None) -> PolicyMove:
        return PolicyMove(calls=(self._call("Finish", message=message, outcome=outcome),), plan=plan)

    def _move(self, message: str, *calls: ToolCall) -> PolicyMove:
        return PolicyMove(message=message, calls=calls)

    def _call(self, tool: str, **arguments: Any) -> ToolCall:
        self._count += 1
        return ToolCall(id=f"call-{self._count}", tool=tool, arguments=arguments)


def _is_faster(time: float | None, other: float | None) -> bool:
    """Whether it is faster by more than `_GAIN`. A time is better than none."""
    if time is None or other is None:
        return other is None and time is not None
    return time < other * (1 - _GAIN)


def _fastest(screened: _Screened) -> tuple[dict[str, int], float | None]:
    """Returns the fastest setting and its time. Another setting than the first must be faster by more than `_GAIN`."""
    best = min(screened, key=lambda one: math.inf if one[1] is None else one[1])
    return best if _is_faster(best[1], screened[0][1]) else screened[0]


def _best_of_each(screened: _Screened, default: Mapping[str, int]) -> dict[str, int]:
    """Returns the fastest value of each tunable, among settings that differ from the default only there."""
    best = {}
    for name in default:
        mine = [one for one in screened if all(one[0][other] == default[other] for other in default if other != name)]
        best[name] = _fastest(mine)[0][name]
    return best


def _grid(default: Mapping[str, int], free: Mapping[str, int]) -> list[dict[str, int]]:
    """Returns all combinations of settings, the default first."""
    choices = itertools.product(*(range(count) for count in free.values()))
    return [{**default, **dict(zip(free, choice, strict=True))} for choice in choices]


def _parts(settings: list[dict[str, int]]) -> Iterator[list[dict[str, int]]]:
    """Yields as many settings at a time as one screening takes besides the default."""
    for start in range(0, len(settings), MAX_CONFIGS - 1):
        yield settings[start : start + MAX_CONFIGS - 1]
