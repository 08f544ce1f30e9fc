"""Counts how many candidates are left after each rule, in all and by origin, from a folder's files."""

from collections.abc import Iterable, Mapping

from pydantic import Field

from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.tasks.records import DatasetTask, Measurement, Rule, TaskFinding


class FunnelRule(Record):
    """One rule: the candidates that passed all earlier rules, and those of them that broke it."""

    rule: Rule
    asked: int
    broke: int

    @property
    def left(self) -> int:
        return self.asked - self.broke


class Flow(Record):
    """The candidates of one origin, or all. `unknown` counts those that weren't checked yet."""

    candidates: int
    unknown: int
    stages: tuple[FunnelRule, ...]

    @property
    def kept(self) -> int:
        return self.stages[-1].left if self.stages else 0


class Funnel(StoredRecord):
    """The funnel of a dataset. `examples` has a few details of each broken rule."""

    file_name = "funnel.json"
    all: Flow
    by_origin: dict[str, Flow] = Field(default_factory=dict)
    examples: dict[Rule, tuple[str, ...]] = Field(default_factory=dict)


_EXAMPLES = 5


def funnel(
    candidates: Iterable[DatasetTask],
    measured: Mapping[str, Measurement],
    later: Mapping[str, TaskFinding] | None = None,
) -> Funnel:
    """Returns the funnel. `measured` maps a task key to its measurement on one stack. `later` maps the key of a task
    that passed the filter to what decontamination found; it is None before decontamination."""
    findings: dict[str, list[Rule | str | None]] = {}
    examples: dict[Rule, list[str]] = {}
    for task in candidates:
        key = task.task.key
        measurement = measured.get(key)
        finding = measurement.finding if measurement is not None else None
        if measurement is not None and measurement.passed and later is not None:
            finding = later.get(key)
        state: Rule | str | None = "unknown" if measurement is None else finding.rule if finding is not None else None
        findings.setdefault(task.task.origin, []).append(state)
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
        stages.append(FunnelRule(rule=rule, asked=left, broke=broke))
        left -= broke
    return Flow(candidates=len(states), unknown=len(states) - asked, stages=tuple(stages))
