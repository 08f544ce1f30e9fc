"""The comparison of a large output in one pass over it, by a kernel of our own, where torch's operators take fourteen.

`compare.measure` defines what is measured; this gives the same numbers (but for the order of sums) or none. The kernel
(`headers/onepass.cu`) is compiled in the background, once for a machine, when it is first wanted, and what it says of
the first output is held against torch's before it counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.stack import find_nvcc
from cuda_agent.judge.build.toolchain import gencode

#: elements of an output from which on it is worth it.
LEAST_ELEMENTS = 1 << 20
#: elements whose error is also looked at by itself; `kBlock` of the kernel.
BLOCK = 4096
_SOURCES = tuple(Path(__file__).with_name(name) for name in ("onepass.cu", "onepass.h"))
_OPTIONS = ("-O3", "-std=c++17", "-shared", "-cudart", "shared", "-Xcompiler=-fPIC,-fvisibility=hidden")
_NUMBERS = 7
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
_COMPILE_TIMEOUT_S = 120.0


class OnePass:
    """`numbers` for this process and its device."""

    def __init__(self) -> None:
        self._library: Any = None
        self._asked = threading.Lock()
        self._trusted = False
        #: it can't be had here, or said something else than torch.
        self.given_up = False

    def numbers(
        self,
        candidate: Any,
        eager: Any,
        policy: Any,
        oracle: Any,
        *,
        tiny: float,
        atol: float,
        rtol: float,
        passes: Callable[..., Any],
    ) -> list[float] | None:
        """Returns for one output: the largest |candidate - oracle| beyond the published bound, |policy - oracle|,
        |candidate - eager| and that over |eager|; the sums of squares of the oracle and of the candidate's and the
        policy's difference from it; and the worst block's relative error of these two. Returns None where it can't be
        computed or a value isn't finite. `passes` computes the same for a part by torch's operators."""
        tensors = (candidate, eager, policy, oracle)
        if self.given_up or not _fits(tensors) or not self._is_ready(candidate.device):
            return None
        bounds = {"tiny": tiny, "atol": atol, "rtol": rtol}
        if not self._trusted:
            part = [tensor.reshape(-1)[:LEAST_ELEMENTS] for tensor in tensors]
            mine, theirs = self._measure(part, **bounds), passes(*part).tolist()
            if not all(map(_is_finite, theirs)):
                return None
            self.given_up = mine is None or not all(map(_is_close, mine, theirs))
            self._trusted = not self.given_up and any(theirs)
        found = None if self.given_up else self._measure(tensors, **bounds)
        return found if found is not None and all(map(_is_finite, found)) else None

    def _measure(self, tensors: Any, *, tiny: float, atol: float, rtol: float) -> list[float] | None:
        import torch

        candidate, eager, policy, oracle = (tensor.reshape(-1) for tensor in tensors)
        count = candidate.numel()
        blocks = -(-count // BLOCK)
        out = torch.empty(_NUMBERS, blocks, dtype=torch.float64, device=candidate.device)
        status = self._library.onepass_measure(
            _TYPES[str(candidate.dtype).removeprefix("torch.")],
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (candidate, eager, policy, oracle)),
            ctypes.c_longlong(count),
            *(ctypes.c_double(bound) for bound in (atol, rtol, atol or 1e-30)),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_void_p(torch.cuda.current_stream(candidate.device).cuda_stream),
        )
        if status != 0:
            return None
        return joined(out, count, tiny)

    def _is_ready(self, device: Any) -> bool:
        if self._library is not None:
            return True
        if self._asked.acquire(blocking=False):
            threading.Thread(target=self._get_ready, args=(_arch(device),), name="onepass", daemon=True).start()
        return False

    def _get_ready(self, arch: str) -> None:
        try:
            self._library = ctypes.CDLL(str(library(arch)))
        except (OSError, CudaAgentError, subprocess.SubprocessError):
            self.given_up = True


def joined(out: Any, count: int, tiny: float) -> list[float]:
    """`numbers` from those of each block (7 rows, a column a block); `tiny`: root mean square below which a block
    counts as this large."""
    import torch

    squares, largest = out[:3], out[3:].amax(dim=1)
    sizes = torch.full_like(out[0], float(BLOCK))
    sizes[-1] = count - BLOCK * (out.shape[1] - 1)
    worst = (squares[1:] / (squares[0] + sizes * tiny**2)).amax(dim=1).sqrt()
    found: list[float] = torch.cat([largest, squares.sum(dim=1), worst]).tolist()
    return found


@lru_cache(maxsize=8)
def library(arch: str) -> Path:
    """The compiled kernel for a compute capability such as `9.0`. Raises OSError, CudaAgentError, SubprocessError."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise OSError("no nvcc")
    command = [nvcc, *_OPTIONS, *gencode(arch)]
    digest = digest_text(*command, *(source.read_text() for source in _SOURCES))
    made = cache_dir() / "onepass" / f"{digest[:32]}.so"
    made.parent.mkdir(parents=True, exist_ok=True)
    with open(made.with_suffix(".lock"), "w") as lock:
        # One of many processes compiles it; the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            handle, temporary = tempfile.mkstemp(suffix=".so", dir=made.parent)
            os.close(handle)
            try:
                subprocess.run(
                    [*command, "-o", temporary, str(_SOURCES[0])],
                    check=True,
                    capture_output=True,
                    timeout=_COMPILE_TIMEOUT_S,
                )
                os.replace(temporary, made)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
    return made


def _fits(tensors: Any) -> bool:
    """Whether the kernel reads them as they lie; the oracle in double."""
    import torch

    candidate, _, _, oracle = tensors
    return (
        candidate.is_cuda
        and candidate.numel() >= LEAST_ELEMENTS
        and str(candidate.dtype).removeprefix("torch.") in _TYPES
        and oracle.dtype is torch.float64
        and all(tensor.dtype is candidate.dtype for tensor in tensors[:3])
        and all(tensor.is_contiguous() and tensor.device == candidate.device for tensor in tensors)
    )


def _arch(device: Any) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def _is_close(mine: float, theirs: float) -> bool:
    # The bound's own rounding differs where a product and a sum are one operation.
    return mine == theirs or abs(mine - theirs) <= 1e-5 * abs(theirs)


def _is_finite(value: float) -> bool:
    return value - value == 0.0


ONE_PASS = OnePass()
