"""Explains to learners what was done to a task and why it helps, from the plan, the playbook's notes and the times."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from cuda_agent.core.assets import filled
from cuda_agent.core.baselines import Baseline
from cuda_agent.core.enums import Device
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.plain import plain
from cuda_agent.core.plan import AppliedRule, PlannedKernel
from cuda_agent.core.records import ToolCall, Turn
from cuda_agent.report.rows import ReportRow
from cuda_agent.report.units import microseconds, percent, times
from cuda_agent.workspace.skills import skill_notes


@dataclass(frozen=True)
class ExplainedStep:
    """Kernels of one skill, with its title and reason from the playbook's notes."""

    skill: str
    title: str
    kernels: tuple[str, ...]
    why: Markup


@dataclass(frozen=True)
class Rewrite:
    """An identity that was applied before any kernel was written."""

    name: str
    count: int
    identity: str


@dataclass(frozen=True)
class Explanation:
    """`computes` is the first paragraph of the reference's docstring. `words` is the policy's last message, where it
    followed no plan of the playbook."""

    computes: str
    steps: tuple[ExplainedStep, ...]
    rewrites: tuple[Rewrite, ...]
    channels_last: bool
    searched: tuple[str, ...]
    numbers: tuple[str, ...]
    words: str


def explain(row: ReportRow, source: str, turns: Sequence[Turn], limits: Roofline | None) -> Explanation:
    """Explains the best candidate of a run."""
    plan = next((turn.plan for turn in reversed(turns) if turn.plan is not None), None)
    return Explanation(
        computes=plain(_first_sentences(source)),
        steps=() if plan is None else _steps(plan.kernels),
        rewrites=() if plan is None else _rewrites(plan.rewrites),
        channels_last=plan is not None and plan.channels_last,
        searched=tuple(_searched(turns)),
        numbers=tuple(_numbers(row, limits)),
        words=plain(_last_words(turns)) if plan is None else "",
    )


def _last_words(turns: Sequence[Turn]) -> str:
    for turn in reversed(turns):
        for call in turn.calls:
            if call.tool == "Finish":
                return str(call.arguments.get("message", ""))
        if turn.message:
            return turn.message
    return ""


def _steps(kernels: Sequence[PlannedKernel]) -> tuple[ExplainedStep, ...]:
    """Kernels by skill, in the order in which they run."""
    notes = {skill.name: skill for skill in skill_notes()}
    by_skill: dict[str, list[str]] = {}
    for kernel in kernels:
        if kernel.skill in notes:
            by_skill.setdefault(kernel.skill, []).append(plain(kernel.name))
    return tuple(
        ExplainedStep(skill, notes[skill].title, tuple(named), _prose(notes[skill].why))
        for skill, named in by_skill.items()
    )


def _prose(text: str) -> Markup:
    """Returns a paragraph of Markdown as HTML, with code and bold type."""
    line = str(escape(" ".join(text.split())))
    line = re.sub(r"`([^`]+)`", r"<code>\1</code>", line)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", line))


def _rewrites(applied: Sequence[AppliedRule]) -> tuple[Rewrite, ...]:
    if not applied:
        return ()
    from cuda_agent.playbook.algebra.driver import EVERY_RULE

    # A rule's docstring states its identity.
    known = {rule.__name__: " ".join((rule.__doc__ or "").split()) for rule in EVERY_RULE}
    counts = Counter(one.rule for one in applied if one.rule in known)
    return tuple(Rewrite(rule, count, known[rule]) for rule, count in counts.items())


def _searched(turns: Sequence[Turn]) -> Iterator[str]:
    """Yields, for each search, how many settings were timed and what the fastest gained."""
    for turn in turns:
        for call, result in zip(turn.calls, turn.results, strict=False):
            tried, named = _settings(call)
            measured = result.data.get("latency_us")
            if not tried or not isinstance(measured, list):
                continue
            timed = [value for value in measured if isinstance(value, int | float)]
            what = f"{tried} setting{'s' if tried > 1 else ''} of {named}" if named else "the plan as it is"
            if not timed:
                yield f"{what}: none could be timed, the default stayed."
                continue
            first, best = measured[0], min(timed)
            yield f"{what}: the fastest took {microseconds(best)} µs{_gain(first, best) if tried > 1 else ''}."


def _gain(first: object, best: float) -> str:
    """Compares the fastest setting with the one before."""
    if not isinstance(first, int | float) or not best:
        return ""
    gain = first / best
    return ", no better than the one before" if gain < 1.01 else f", {times(gain)} as fast as the one before"


def _settings(call: ToolCall) -> tuple[int, str]:
    """How many settings a screening had, and the names of those that varied."""
    configs = call.arguments.get("configs") if call.tool == "Profile" else None
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        return 0, ""
    names = [name for name in (configs[0] if configs else {}) if len({str(c.get(name)) for c in configs}) > 1]
    return len(configs), plain(", ".join(map(str, names)))


def _first_sentences(source: str) -> str:
    """Returns the first paragraph of the reference's docstring."""
    try:
        text = ast.get_docstring(ast.parse(source)) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return " ".join(text.split("\n\n")[0].split())[:600]


def _numbers(row: ReportRow, limits: Roofline | None) -> list[str]:
    """Returns sentences on memory, kernels, bandwidth and precision."""
    found, profile = row.evaluation, row.profile
    if found is None or profile is None:
        return []
    text = filled(
        Path(__file__).parent / "assets" / "numbers.txt.j2",
        profile=profile,
        kernels=found.kernels,
        work=row.task.work,
        ours=row.ours,
        reached=row.gb_s(row.ours) or 0.0,
        share=row.memory_share(limits),
        limits=limits,
        on_cpu=found.device is Device.CPU,
        strongest=Baseline.parse(profile.matched),
        microseconds=microseconds,
        percent=percent,
        times=times,
    )
    return text.splitlines()
