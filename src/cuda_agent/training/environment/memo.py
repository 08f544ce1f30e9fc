"""Verdicts that are known: on disk by task, candidate and stack, so that no candidate is timed twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import BuildReport, Candidate, Evaluation
from cuda_agent.core.stack import Stack
from cuda_agent.tasks import store

Line = TypeVar("Line", bound=StoredRecord)
_EVALUATIONS, _BUILDS = "evaluations.jsonl", "builds.jsonl"


class Known(StoredRecord):
    """One verdict. `kind`: evaluate, or verify (without times)."""

    kind: str
    stack: str
    evaluation: Evaluation


class KnownBuild(StoredRecord):
    """One build, by the digest of what is compiled."""

    sources: str
    stack: str
    report: BuildReport


def stack_digest(stack: Stack, options: JudgeOptions) -> str:
    """Of what a time depends on: the machine's model and its software, and how it is judged; not which one of several
    equal machines it is, nor, on a GPU, how many of its processors this process may use."""
    gpus = [(gpu.name, gpu.power_limit_w, gpu.max_sm_clock_mhz) for gpu in stack.gpus[:1]]
    software = (stack.driver, stack.cuda_compiler, stack.cxx_compiler, stack.torch, stack.cudnn, stack.triton)
    judged = options.model_dump_json(exclude={"reward_baseline", "seed", "compiler_jobs", "host_memory_mib"})
    cores = str(stack.cpu_cores) if options.device is Device.CPU else ""
    return digest_text(repr(gpus), repr(software), stack.python, stack.cpu, cores, judged)


def sources_digest(candidate: Candidate) -> str:
    """Of the files that are compiled; `model_new.py` isn't."""
    return Candidate(files={p: t for p, t in candidate.files.items() if p != "model_new.py"}).digest


class Memo:
    """Thread-safe. Whoever asks for what another one is already asking waits for that answer. A void timing, which says
    nothing of the candidate, is not kept."""

    def __init__(self, folder: Path, stack: str) -> None:
        """Raises StoreError where the folder can't be read."""
        self._folder, self._stack = folder, stack
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], Evaluation] = {}
        self._builds: dict[str, BuildReport] = {}
        self._asked: dict[tuple[str, str, str], Future[Evaluation]] = {}
        self._building: dict[str, Future[BuildReport]] = {}
        self.asked = self.hits = 0
        #: verdicts in the folder that another stack, or a judge with other settings, gave.
        self.foreign = 0
        for line in self._lines(_EVALUATIONS, Known):
            if line.stack != stack:
                self.foreign += 1
                continue
            found = line.evaluation
            self._known[line.kind, found.task_key, found.candidate_digest] = found
        for build in self._lines(_BUILDS, KnownBuild):
            if build.stack == stack:
                self._builds[build.sources] = build.report

    def __len__(self) -> int:
        return len(self._known)

    @property
    def hit_rate(self) -> float:
        """Share of the verdicts asked for that were known; 0 before anything was asked."""
        return self.hits / self.asked if self.asked else 0.0

    def known(self, kind: str, task_key: str, candidate: Candidate) -> Evaluation | None:
        """Without asking for it."""
        return self._known.get((kind, task_key, candidate.digest))

    def known_build(self, candidate: Candidate) -> BuildReport | None:
        """What the compiler said of these sources, without asking it."""
        found = self._builds.get(sources_digest(candidate))
        return None if found is None else found.model_copy(update={"candidate_digest": candidate.digest})

    def failed_build(self, candidate: Candidate) -> BuildReport | None:
        """What the compiler said of these sources, where it is known to have refused them."""
        found = self.known_build(candidate)
        return None if found is None or found.succeeded else found

    def evaluation(
        self, kind: str, task_key: str, candidate: Candidate, judge: Callable[[], Evaluation]
    ) -> tuple[Evaluation, bool]:
        """The verdict, and whether it was known. Raises what `judge` raises."""
        key = (kind, task_key, candidate.digest)
        with self._lock:
            self.asked += 1
            found = self._known.get(key)
            if found is not None:
                self.hits += 1
                return found, True
            waiting = self._asked.get(key)
            if waiting is None:
                mine: Future[Evaluation] = Future()
                self._asked[key] = mine
        if waiting is not None:
            result = waiting.result()
            with self._lock:
                self.hits += 1
            return result, True
        try:
            result = judge()
            self.keep(kind, result, sources_digest(candidate))
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(result)
            return result, False
        finally:
            with self._lock:
                del self._asked[key]

    def keep(self, kind: str, evaluation: Evaluation, sources: str | None = None) -> None:
        """`sources`: digest of what was compiled for it; a failed build is kept for others of the same sources. Raises
        StoreError."""
        void = evaluation.verdict is Verdict.TIMING_VOID and kind == "evaluate"
        if void:
            return
        with self._lock:
            self._known[kind, evaluation.task_key, evaluation.candidate_digest] = evaluation
            line = Known(kind=kind, stack=self._stack, evaluation=_without_samples(evaluation))
            store.append(self._folder / _EVALUATIONS, [line])
        build = evaluation.build
        if build is not None and not build.succeeded and sources is not None and sources not in self._builds:
            self._keep_build(sources, build)

    def build(self, candidate: Candidate, compile_it: Callable[[], BuildReport]) -> BuildReport:
        """Raises what `compile_it` raises, to all who waited for it."""
        sources = sources_digest(candidate)
        with self._lock:
            found = self._builds.get(sources)
            waiting = self._building.get(sources)
            if found is None and waiting is None:
                mine: Future[BuildReport] = Future()
                self._building[sources] = mine
        if found is None and waiting is not None:
            found = waiting.result()
        if found is None:
            try:
                found = compile_it()
                self._keep_build(sources, found)
            except BaseException as error:
                mine.set_exception(error)
                raise
            else:
                mine.set_result(found)
            finally:
                with self._lock:
                    del self._building[sources]
        return found.model_copy(update={"candidate_digest": candidate.digest})

    def _keep_build(self, sources: str, report: BuildReport) -> None:
        with self._lock:
            self._builds[sources] = report
            store.append(self._folder / _BUILDS, [KnownBuild(sources=sources, stack=self._stack, report=report)])

    def _lines(self, name: str, kind: type[Line]) -> list[Line]:
        path = self._folder / name
        return store.read_lines(path, kind) if path.exists() else []


def _without_samples(evaluation: Evaluation) -> Evaluation:
    """Single repetitions are hundreds of numbers that nobody reads here."""
    profile = evaluation.profile
    if profile is None:
        return evaluation
    bare = {
        "candidate": profile.candidate.model_copy(update={"samples_us": ()}),
        "baselines": {name: t.model_copy(update={"samples_us": ()}) for name, t in profile.baselines.items()},
    }
    return evaluation.model_copy(update={"profile": profile.model_copy(update=bare)})
