"""The published procedure of one turn, for comparison: three commands in a workspace, each in a new process and without
a cache. This is our minimal form of it.

    python published.py build|verify|profile FOLDER DEVICE

build:   every source with torch.utils.cpp_extension.load in a fresh folder
verify:  5 random inputs, shared weights, atol = rtol = 1e-2
profile: eager, torch.compile and the extension: 5 calls to warm up, kernel time of 10 under torch's profiler
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRIALS, WARM_UP, REPEATS = 5, 5, 10
TOLERANCE = 1e-2


def build(folder: Path, device: str) -> None:
    from torch.utils.cpp_extension import load

    cuda = device == "cuda"
    kernels = sorted(path for path in (folder / "kernels").iterdir() if path.suffix in (".cu", ".cpp"))
    with tempfile.TemporaryDirectory() as directory:
        load(
            name="cuda_extension",
            sources=[str(path) for path in (folder / "binding.cpp", *kernels)],
            build_directory=directory,
            extra_cflags=["-O3", "-std=c++20"] + ([] if cuda else ["-fopenmp"]),
            extra_cuda_cflags=["-O3", "--use_fast_math", "-std=c++20"] if cuda else None,
            extra_ldflags=[] if cuda else ["-fopenmp"],
            with_cuda=cuda,
        )
        shutil.copy(Path(directory) / "cuda_extension.so", folder)


def models(folder: Path, device: str) -> tuple[Any, Any, Callable[[], list[Any]]]:
    """Returns (Model, ModelNew with its weights, a function that draws inputs)."""
    import torch

    sys.path.insert(0, str(folder))
    import model
    import model_new

    init = model.get_init_inputs()
    torch.manual_seed(0)
    reference = model.Model(*init).eval().to(device)
    ours = model_new.ModelNew(*init).eval().to(device)
    ours.load_state_dict(reference.state_dict())
    return reference, ours, lambda: [x.to(device) for x in model.get_inputs()]


def verify(folder: Path, device: str) -> None:
    import torch

    reference, ours, inputs = models(folder, device)
    with torch.no_grad():
        for trial in range(TRIALS):
            torch.manual_seed(trial)
            drawn = inputs()
            expected, got = reference(*drawn), ours(*drawn)
            if not torch.allclose(expected, got, atol=TOLERANCE, rtol=TOLERANCE):
                raise SystemExit(f"trial {trial}: wrong")


def profile(folder: Path, device: str) -> None:
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    reference, ours, inputs = models(folder, device)
    drawn = inputs()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with torch.no_grad():
        for name, program in (("eager", reference), ("compile", torch.compile(reference)), ("extension", ours)):
            for _ in range(WARM_UP):
                program(*drawn)
            with profiler(activities=activities) as seen:
                for _ in range(REPEATS):
                    program(*drawn)
                if device == "cuda":
                    torch.cuda.synchronize()
            events = seen.key_averages()
            total = sum(e.self_device_time_total if device == "cuda" else e.self_cpu_time_total for e in events)
            print(f"{name}: {total / REPEATS:.1f} us")


if __name__ == "__main__":
    {"build": build, "verify": verify, "profile": profile}[sys.argv[1]](Path(sys.argv[2]).resolve(), sys.argv[3])
