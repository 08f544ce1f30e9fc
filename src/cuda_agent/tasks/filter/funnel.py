"""How many candidates are left after each rule, in all and by origin: from a folder's files alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field

from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.tasks.records import DatasetTask, Finding, Measurement, Rule


class Stage(Record):
    """One rule: candidates that were asked (all rules before it were kept) and those that broke it."""

    rule: Rule
    asked: int
    broke: int

    @property
    def left(self) -> int:
        return self.asked - self.broke


class Flow(Record):
    """Candidates of one origin, or all. `unknown`: not asked yet."""

    candidates: int
    unknown: int
    stages: tuple[Stage, ...]

    @property
    def kept(self) -> int:
        return self.stages[-1].left if self.stages else 0


class Funnel(StoredRecord):
    """`examples`: a few details of each rule that was broken."""

    file_name = "funnel.json"
    all: Flow
    by_origin: dict[str, Flow] = Field(default_factory=dict)
    examples: dict[Rule, tuple[str, ...]] = Field(default_factory=dict)


_EXAMPLES = 5


def funnel(
    candidates: Iterable[DatasetTask],
    measured: Mapping[str, Measurement],
    later: Mapping[str, Finding] | None = None,
) -> Funnel:
    """`measured`: by task key, on one stack. `later`: what decontamination found about tasks that passed the filter, by
    task key; None where it hasn't been asked."""
    findings: dict[str, list[Rule | str | None]] = {}
    examples: dict[Rule, list[str]] = {}
    for task in candidates:
        key = task.task.key
        measurement = measured.get(key)
        finding = measurement.finding if measurement is not None else None
        if measurement is not None and measurement.passed and later is not None:
            finding = later.get(key)
        state: Rule | str | None = "unknown" if measurement is None else finding.rule if finding is not None else None
        findings.setdefault(task.data_source, []).append(state)
        if finding is not None and len(examples.setdefault(finding.rule, [])) < _EXAMPLES:
            examples[finding.rule].append(f"{task.task.name}: {finding.detail}")
    rules = [rule for rule in Rule if later is not None or rule not in (Rule.DUPLICATE, Rule.SIMILAR)]
    return Funnel(
        all=_flow([state for states in findings.values() for state in states], rules),
        by_origin={origin: _flow(findings[origin], rules) for origin in sorted(findings)},
        examples={rule: tuple(examples[rule]) for rule in Rule if rule in examples},
    )


def _flow(states: list[Rule | str | None], rules: list[Rule]) -> Flow:
    asked = sum(state != "unknown" for state in states)
    stages, left = [], asked
    for rule in rules:
        broke = sum(state is rule for state in states)
        stages.append(Stage(rule=rule, asked=left, broke=broke))
        left -= broke
    return Flow(candidates=len(states), unknown=len(states) - asked, stages=tuple(stages))


def write_funnel(
    folder: Path,
    candidates: Iterable[DatasetTask],
    measured: Mapping[str, Measurement],
    later: Mapping[str, Finding] | None = None,
) -> Funnel:
    """Also into the folder. Raises StoreError."""
    made = funnel(candidates, measured, later)
    made.write(folder)
    return made
