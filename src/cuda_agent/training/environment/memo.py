"""Remembers verdicts on disk by task, candidate and stack, so that no candidate is timed twice."""

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import append, read_lines
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import BuildReport, Candidate, Evaluation
from cuda_agent.core.stack import Stack

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
_EVALUATIONS, _BUILDS = "evaluations.jsonl", "builds.jsonl"


class Known(StoredRecord):
    """One verdict. `kind` is `evaluate`, or `verify` (without times)."""

    kind: str
    stack: str
    evaluation: Evaluation


class KnownBuild(StoredRecord):
    """One build, by the digest of the compiled files."""

    sources: str
    stack: str
    report: BuildReport


def stack_digest(stack: Stack, options: JudgeOptions) -> str:
    """Returns a digest of what a time depends on: the machine's model, its software and the judge's settings. It is the
    same on equal machines, and on a GPU for any number of processor cores."""
    gpus = [(gpu.name, gpu.power_limit_w, gpu.max_sm_clock_mhz) for gpu in stack.gpus[:1]]
    software = (stack.driver, stack.cuda_compiler, stack.cxx_compiler, stack.torch, stack.cudnn, stack.triton)
    judged = options.model_dump_json(exclude={"reward_baseline", "seed", "compiler_jobs", "host_memory_mib"})
    cores = str(stack.cpu_cores) if options.device is Device.CPU else ""
    return digest_text(repr(gpus), repr(software), stack.python, stack.cpu, cores, judged)


def sources_digest(candidate: Candidate) -> str:
    """Returns the digest of the compiled files, which are all except `model_new.py`."""
    return Candidate(files={p: t for p, t in candidate.files.items() if p != "model_new.py"}).digest


class Memo:
    """A thread-safe memory of verdicts. A thread that asks for a verdict in progress waits for it. A void timing says
    nothing about the candidate and isn't kept."""

    def __init__(self, folder: Path, stack: str) -> None:
        """Raises StoreError if the folder can't be read."""
        self._folder, self._stack = folder, stack
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], Evaluation] = {}
        self._builds: dict[str, BuildReport] = {}
        self._asked: dict[Hashable, Future[Any]] = {}
        self.asked = self.hits = 0
        #: number of verdicts in the folder by another stack or other settings of the judge.
        self.foreign = 0
        for line in read_lines(folder / _EVALUATIONS, Known, optional=True):
            if line.stack != stack:
                self.foreign += 1
                continue
            found = line.evaluation
            self._known[line.kind, found.task_key, found.candidate_digest] = found
        for build in read_lines(folder / _BUILDS, KnownBuild, optional=True):
            if build.stack == stack:
                self._builds[build.sources] = build.report

    def __len__(self) -> int:
        return len(self._known)

    @property
    def hit_rate(self) -> float:
        """The share of requested verdicts that were known; 0 before any request."""
        return self.hits / self.asked if self.asked else 0.0

    def known(self, kind: str, task_key: str, candidate: Candidate) -> Evaluation | None:
        """Returns the verdict if it is known, without counting a request."""
        return self._known.get((kind, task_key, candidate.digest))

    def known_build(self, candidate: Candidate) -> BuildReport | None:
        """Returns the known build of these sources, or None."""
        found = self._builds.get(sources_digest(candidate))
        return None if found is None else found.model_copy(update={"candidate_digest": candidate.digest})

    def failed_build(self, candidate: Candidate) -> BuildReport | None:
        """Returns the known build of these sources if it failed, or None."""
        found = self.known_build(candidate)
        return None if found is None or found.succeeded else found

    def evaluation(
        self, kind: str, task_key: str, candidate: Candidate, judge: Callable[[], Evaluation]
    ) -> tuple[Evaluation, bool]:
        """Returns the verdict and whether it was known. Raises what `judge` raises."""

        def ask() -> Evaluation:
            found = judge()
            self.keep(kind, found, sources_digest(candidate))
            return found

        with self._lock:
            self.asked += 1
        evaluation, known = self._once((kind, task_key, candidate.digest), self._known, ask)
        with self._lock:
            self.hits += known
        return evaluation, known

    def build(self, candidate: Candidate, compile_it: Callable[[], BuildReport]) -> BuildReport:
        """Returns the build of a candidate's files. Raises what `compile_it` raises, in every waiting thread."""
        sources = sources_digest(candidate)

        def ask() -> BuildReport:
            found = compile_it()
            self._keep_build(sources, found)
            return found

        report, _ = self._once(sources, self._builds, ask)
        return report.model_copy(update={"candidate_digest": candidate.digest})

    def _once(self, key: Key, known: Mapping[Key, Answer], ask: Callable[[], Answer]) -> tuple[Answer, bool]:
        """Returns the answer and whether it was known. Threads that need an answer in progress wait for it and get its
        error too."""
        with self._lock:
            if key in known:
                return known[key], True
            waiting = self._asked.get(key)
            if waiting is None:
                mine: Future[Answer] = Future()
                self._asked[key] = mine
        if waiting is not None:
            return waiting.result(), True
        try:
            found = ask()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(found)
            return found, False
        finally:
            with self._lock:
                del self._asked[key]

    def keep(self, kind: str, evaluation: Evaluation, sources: str | None = None) -> None:
        """Stores a verdict. `sources` is the digest of its compiled files; a failed build is stored for other
        candidates with the same files. Raises StoreError."""
        if evaluation.verdict is Verdict.TIMING_VOID and kind == "evaluate":
            return
        with self._lock:
            self._known[kind, evaluation.task_key, evaluation.candidate_digest] = evaluation
            line = Known(kind=kind, stack=self._stack, evaluation=_without_samples(evaluation))
            append(self._folder / _EVALUATIONS, [line])
        build = evaluation.build
        if build is not None and not build.succeeded and sources is not None and sources not in self._builds:
            self._keep_build(sources, build)

    def _keep_build(self, sources: str, report: BuildReport) -> None:
        with self._lock:
            self._builds[sources] = report
            append(self._folder / _BUILDS, [KnownBuild(sources=sources, stack=self._stack, report=report)])


def _without_samples(evaluation: Evaluation) -> Evaluation:
    """Removes the single repetitions, which are hundreds of numbers that training doesn't use."""
    profile = evaluation.profile
    if profile is None:
        return evaluation
    bare = {
        "candidate": profile.candidate.model_copy(update={"samples_us": ()}),
        "baselines": {name: t.model_copy(update={"samples_us": ()}) for name, t in profile.baselines.items()},
    }
    return evaluation.model_copy(update={"profile": profile.model_copy(update=bare)})
