"""The database of winners: the plan and the settings that were the fastest of a search, for each graph and stack. The
next search for them begins there."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.errors import StoreError
from cuda_agent.core.hashing import digest_files, digest_text
from cuda_agent.core.stack import Stack
from cuda_agent.playbook import Proposal

_TABLE = """CREATE TABLE IF NOT EXISTS winners (
    stack TEXT, graph TEXT, plan TEXT, config TEXT, latency_us REAL, PRIMARY KEY (stack, graph))"""
#: Facts of a stack that don't decide which kernel is the fastest. Plans that another version prints are other plans.
_IRRELEVANT = {"cuda_agent", "python"}
#: seconds for which a search waits while another one writes.
_BUSY_S = 30.0


@dataclass(frozen=True)
class Winner:
    """A plan that passed, with its settings and its time in microseconds."""

    plan: Proposal
    config: dict[str, int]
    latency_us: float


class Winners:
    """One database on one stack. Methods raise StoreError where the file can't be read or written."""

    def __init__(self, path: Path, stack: Stack) -> None:
        self._path = path
        facts = stack.model_dump(mode="json", exclude=_IRRELEVANT)
        facts["gpus"] = sorted({f"{gpu.name} {gpu.compute_capability} {gpu.power_limit_w}" for gpu in stack.gpus})
        self._stack = digest_text(json.dumps(facts, sort_keys=True))

    def find(self, plans: Sequence[Proposal]) -> Winner | None:
        """Returns the winner of an earlier search among these plans of a graph, the default plan first. None where it
        is unknown, or where today's plans or settings are others."""
        with self._opened() as database:
            row = database.execute(
                "SELECT plan, config, latency_us FROM winners WHERE stack = ? AND graph = ?", (self._stack, _key(plans))
            ).fetchone()
        if row is None:
            return None
        digest, config, latency_us = row[0], json.loads(row[1]), row[2]
        plan = next((plan for plan in plans if digest_files(plan.files) == digest), None)
        if plan is None or not _fits(config, plan.tunables):
            return None
        return Winner(plan, config, latency_us)

    def keep(self, plans: Sequence[Proposal], winner: Winner) -> None:
        """Makes this the winner of the plans' graph."""
        row = (self._stack, _key(plans), digest_files(winner.plan.files), json.dumps(winner.config), winner.latency_us)
        with self._opened() as database, database:
            database.execute("INSERT OR REPLACE INTO winners VALUES (?, ?, ?, ?, ?)", row)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as database:
                database.execute(_TABLE)
                yield database
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"The winners {self._path} can't be used: {error}", "Name another file") from None


def _key(plans: Sequence[Proposal]) -> str:
    """Returns the key of a graph: the text of its default plan, which has all operators, shapes and types."""
    return digest_files(plans[0].files)


def _fits(config: Mapping[str, int], tunables: Mapping[str, int]) -> bool:
    return set(config) == set(tunables) and all(0 <= config[name] < count for name, count in tunables.items())
