"""Compiles a candidate into a shared library `cuda_extension.so`, in a sandbox without network and without a GPU."""

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, DeviceError, UsageError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.records import BuildReport, Candidate
from cuda_agent.core.stack import read_stack
from cuda_agent.judge.build.binding_headers import BindingHeaders, binding_headers
from cuda_agent.judge.build.compiler import Compiler, ObjectCache, Outcome, deadline_after, shorten
from cuda_agent.judge.build.link import link
from cuda_agent.judge.build.toolchain import find_toolchain
from cuda_agent.workspace.layout import check_candidate, fixed_files
from cuda_agent.workspace.sandbox import resolve_level

#: progress(phase, text) shows one line to a person.
Progress = Callable[[str, str], None]

_LOG_LIMIT = 12000
_TORCH_INCLUDE = re.compile(r'#\s*include\s*[<"](?:torch|ATen|c10|pybind11)/')
#: a source that may include other sources (or that uses preprocessor tricks) sees all files, other sources only
#: headers.
_UNUSUAL_INCLUDE = re.compile(r'#\s*include(?:_next)?\s*(?:[<"][^>"\n]*\.(?:cu|cpp)[>"]|[^\s<"])')
#: a device lambda, or a library or a source that asks whether there are any.
_DEVICE_LAMBDA = re.compile(
    r"\]\s{0,99}(?:\([^{};]{0,500}\))?[\s\w]{0,99}__(?:device|host)__|extended_lambda|<(?:thrust|cub|cuda/std)/",
    re.IGNORECASE,
)
_WANTS_LAMBDAS = "extended-lambda"


def silent(_phase: str, _text: str) -> None:
    """Shows no progress."""


@dataclass(frozen=True)
class Built:
    """The result of a build. `library` is a `cuda_extension.so` alone in a folder that is named by its content, or None
    when the build failed. `objects`: source path -> object file of the candidate's own sources."""

    report: BuildReport
    library: Path | None
    objects: Mapping[str, Path] = field(default_factory=dict)


def build_extension(
    candidate: Candidate, options: JudgeOptions, cache: Path | None = None, progress: Progress = silent
) -> Built:
    """Compiles changed sources, links, and stores the library by content. A bad candidate gives a failed report, never
    an error. Raises DeviceError (no compiler, torch without CUDA), StoreError (disk full) or SandboxError."""
    started = time.monotonic()
    compiler = make_compiler(options, cache)

    def built(log: str, outcomes: Mapping[str, Outcome], library: Path | None = None) -> Built:
        cached = sum(outcome.cached for outcome in outcomes.values())
        report = BuildReport(
            succeeded=library is not None,
            candidate_digest=candidate.digest,
            library_digest=None if library is None else hashlib.sha256(library.read_bytes()).hexdigest(),
            duration_s=time.monotonic() - started,
            cached_objects=cached,
            compiled_objects=len(outcomes) - cached,
            log=shorten(log, _LOG_LIMIT),
        )
        own = {name: outcome.output for name, outcome in outcomes.items() if outcome.output and name in candidate.files}
        return Built(report, library, {} if library is None else own)

    refusal = _refusal(candidate, options.device)
    if refusal:
        return built(refusal, {})
    outcomes, headers = compile_sources(candidate, compiler, jobs=options.compiler_jobs, progress=progress)
    faults = {name: outcome for name, outcome in outcomes.items() if outcome.fault}
    if faults:
        return built("\n".join(f"{name}: {item.fault}\n{shorten(item.log)}" for name, item in faults.items()), outcomes)
    objects = [outcome.output for outcome in outcomes.values() if outcome.output is not None]
    functions = headers.functions if headers is not None else None

    library, fault = link(compiler, objects, functions, partial(progress, "build"))
    if library is None:
        return built(fault, outcomes)
    warnings = "\n".join(outcome.log for outcome in outcomes.values() if outcome.log)
    done = built(warnings, outcomes, library)
    compiler.cache.prune()
    return done


def make_compiler(options: JudgeOptions, cache: Path | None = None) -> Compiler:
    """Returns the compiler of a build, on CUDA for this machine's GPU. Raises DeviceError, StoreError, SandboxError."""
    device, arch = options.device, None
    if device is Device.CUDA:
        gpus = read_stack().gpus
        if not gpus:
            raise DeviceError("No GPU is visible, so the architecture to compile for is unknown", "Pass --device cpu")
        arch = gpus[0].compute_capability
    tools = find_toolchain(device, arch)
    if device is Device.CUDA and not tools.cuda_torch:
        raise DeviceError("The installed torch has no CUDA", "Install a CUDA build of torch, or use --device cpu")
    objects = ObjectCache(cache or cache_dir() / "build")
    return Compiler(tools, objects, resolve_level(options.sandbox), deadline_after(options.build_timeout_s))


class HeaderAhead:
    """Makes the precompiled header in the background for a session's first build, which takes 15-30 s once for a
    compiler and torch. That build reports its failures."""

    def __init__(self, options: JudgeOptions) -> None:
        self._closed = False
        self._running: Compiler | None = None
        self._thread = threading.Thread(target=self._make, args=(options,), name="header", daemon=True)
        self._thread.start()

    def _make(self, options: JudgeOptions) -> None:
        with contextlib.suppress(CudaAgentError):
            compiler = self._running = make_compiler(options)
            if not self._closed:
                binding_headers(compiler)

    def close(self) -> None:
        """Ends the compiler if it still runs."""
        self._closed = True
        if self._running is not None:
            self._running.abandon()
        self._thread.join(timeout=10.0)


def compile_sources(
    candidate: Candidate, compiler: Compiler, *, jobs: int, progress: Progress = silent
) -> tuple[dict[str, Outcome], BindingHeaders | None]:
    """Compiles every source of the candidate and the fixed ones, at most `jobs` at a time. Returns path -> outcome, and
    the shared headers of the bindings."""
    fixed = {name: text for name, text in fixed_files().items() if name in ("binding.cpp", "binding_registry.h")}
    files = fixed | {name: text for name, text in candidate.files.items() if name.startswith("kernels/")}
    sources = [name for name in files if PurePosixPath(name).suffix in (".cu", ".cpp")]
    # Sources that wait for the header come last, so that the others are compiled meanwhile.
    sources.sort(key=lambda name: (_wants_torch(name, files[name]), name))

    def say(source: str) -> None:
        progress("build", f"compiling {source}")

    def one(source: str, headers: Future[BindingHeaders] | None) -> Outcome:
        visible = _visible(source, files)
        if source.endswith(".cu"):
            return _with_nvcc(compiler, visible, source, say)
        binding = is_binding(source, files[source])
        used = headers.result().header if headers is not None and _wants_torch(source, files[source]) else None
        return compiler.compile(compiler.tools.cxx_command(binding=binding), visible, source, used, started=say)

    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="compile") as pool:
        try:
            wanted = any(_wants_torch(name, files[name]) for name in sources)
            headers = pool.submit(binding_headers, compiler) if wanted else None
            found = {name: pool.submit(one, name, headers) for name in sources}
            outcomes = {name: found[name].result() for name in sorted(found)}
            return outcomes, headers.result() if headers is not None else None
        except BaseException:
            # Leaving the pool waits for its threads, and these for their compilers.
            pool.shutdown(wait=False, cancel_futures=True)
            compiler.abandon()
            raise


def _with_nvcc(compiler: Compiler, visible: Mapping[str, str], source: str, started: Callable[[str], None]) -> Outcome:
    """Compiles without support for device lambdas where none is seen, and once more with it where nvcc finds one."""
    lambdas = any(_DEVICE_LAMBDA.search(text) for text in visible.values())
    outcome = compiler.compile(compiler.tools.nvcc_command(lambdas=lambdas), visible, source, started=started)
    if outcome.fault and not lambdas and _WANTS_LAMBDAS in outcome.log:  # foreign text: nvcc's
        outcome = compiler.compile(compiler.tools.nvcc_command(), visible, source, started=started)
    return outcome


def _refusal(candidate: Candidate, device: Device) -> str:
    """Returns why there is nothing to compile, or an empty text."""
    try:
        check_candidate(candidate)
    except UsageError as error:
        return str(error)
    kernels = [name for name in candidate.files if PurePosixPath(name).suffix in (".cu", ".cpp")]
    if not kernels:
        return "kernels/ holds no .cu or .cpp file: nothing to build"
    cuda = [name for name in kernels if name.endswith(".cu")]
    if device is Device.CPU and cuda:
        return f"{cuda[0]}: this workspace's device is cpu; write C++ (.cpp) with OpenMP"
    return ""


def is_binding(name: str, text: str) -> bool:
    return name == "binding.cpp" or name.endswith("_binding.cpp") or _TORCH_INCLUDE.search(text) is not None


def _wants_torch(name: str, text: str) -> bool:
    return name.endswith(".cpp") and _TORCH_INCLUDE.search(text) is not None


def _visible(source: str, files: dict[str, str]) -> dict[str, str]:
    """Returns the files that a compile sees, which its cache key covers."""
    if source == "binding.cpp":
        return {name: text for name, text in files.items() if "/" not in name}
    texts = [files[source], *(text for name, text in files.items() if not name.endswith((".cu", ".cpp")))]
    if any(_UNUSUAL_INCLUDE.search(text) for text in texts):
        return files
    return {name: text for name, text in files.items() if name == source or not name.endswith((".cu", ".cpp"))}
