"""Compiles a candidate without linking it, for machines without a GPU or without torch for CUDA."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.files import cache_dir
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.compiler import Compiler, ObjectCache, Outcome, deadline_after
from cuda_agent.judge.build.extension import compile_sources
from cuda_agent.judge.build.toolchain import find_toolchain
from cuda_agent.workspace.sandbox import resolve_level


def compile_only(
    candidate: Candidate, *, device: Device, options: JudgeOptions, arch: str, cache: Path | None = None
) -> dict[str, Outcome]:
    """Returns path -> outcome."""
    objects = ObjectCache(cache or cache_dir() / "build")
    level, deadline = resolve_level(options.sandbox), deadline_after(options.build_timeout_s)
    compiler = Compiler(find_toolchain(device, arch), objects, level, deadline)
    return compile_sources(candidate, compiler, jobs=options.compiler_jobs)[0]
