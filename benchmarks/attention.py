"""Measures attention in half precision beside PyTorch's backends: heads, lengths, masks and types. Needs a GPU.

    python3 benchmarks/attention.py                       # the whole table
    python3 benchmarks/attention.py --only decode causal  # rows whose name has one of these words
    python3 benchmarks/attention.py --before --out runs/before [--seconds 300] [-- options of bench]

Every setting of the playbook's kernel and every backend of `scaled_dot_product_attention` that takes the case is timed
in interleaved rounds on the same tensors. A row shows the median of the fastest setting and backend in µs, and their
ratio; the setting's result is compared with float64 first. Raw samples are in the file that `--out` names.

`--before` judges attention with a rotary embedding or a norm of queries and keys before it, as tasks of a suite in
slices (see blocks.py).
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from blocks import Block
from blocks import measure as judge_blocks
from common import ROOT, arguments, failed, run, save, table
from torch.nn.attention import SDPBackend, sdpa_kernel

from cuda_agent.core.enums import Device
from cuda_agent.playbook.skills.attention.call import FORMS, MASKS, Attention
from cuda_agent.playbook.skills.attention.skill import kernel, library_files

sys.path.append(str(ROOT / "tests" / "unit" / "playbook_library"))
from library_kernels import compiled

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
ROUNDS = 7
#: of one burst of launches.
BURST_US = 2000.0
#: relative error of a result against float64, by type.
TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3}


@dataclass(frozen=True)
class Case:
    """q [batch, heads, rows, width] on k and v [batch, shared, keys, width], as they lie in a projection's result."""

    name: str
    batch: int
    heads: int
    shared: int
    rows: int
    keys: int
    width: int
    causal: bool = False
    #: "added" of the inputs' type, or "boolean"; one for all heads.
    mask: str = ""
    dtype: torch.dtype = torch.bfloat16


CASES = (
    Case("encoder 512", 16, 16, 16, 512, 512, 64),
    Case("encoder 512, float16", 16, 16, 16, 512, 512, 64, dtype=torch.float16),
    Case("encoder 512, mask added", 16, 16, 16, 512, 512, 64, mask="added"),
    Case("encoder 512, boolean mask", 16, 16, 16, 512, 512, 64, mask="boolean"),
    Case("vision 197", 64, 16, 16, 197, 197, 64),
    Case("vision 577", 8, 12, 12, 577, 577, 64),
    Case("vision 729, heads of 72", 8, 16, 16, 729, 729, 72),
    Case("speech 1500", 8, 16, 16, 1500, 1500, 64),
    Case("heads of 32", 8, 12, 12, 512, 512, 32),
    Case("heads of 96", 8, 12, 12, 512, 512, 96),
    Case("causal 1024, shared heads", 4, 32, 8, 1024, 1024, 128, causal=True),
    Case("causal 4096, shared heads", 1, 32, 8, 4096, 4096, 128, causal=True),
    Case("causal 4096, float16", 1, 32, 8, 4096, 4096, 128, causal=True, dtype=torch.float16),
    Case("causal 4096, heads of 64", 4, 16, 16, 4096, 4096, 64, causal=True),
    Case("causal 2048, heads of 256", 4, 8, 4, 2048, 2048, 256, causal=True),
    Case("long 4096", 2, 32, 32, 4096, 4096, 128),
    Case("decode 1 on 1024", 32, 32, 8, 1, 1024, 128),
    Case("decode 1 on 4096", 32, 32, 8, 1, 4096, 128),
    Case("decode 1 on 8192, one sequence", 1, 32, 8, 1, 8192, 128),
    Case("decode 1 on 2048, own keys", 32, 32, 32, 1, 2048, 128),
    Case("decode 16 on 4096", 8, 32, 8, 16, 4096, 128),
    Case("decode 1 on 8192, heads of 256", 4, 8, 4, 1, 8192, 256),
    Case("decode 1 on 4096, mask added", 32, 32, 8, 1, 4096, 128, mask="added"),
)


#: name -> batch, heads, shared heads, rows, cached keys, width, and whether there is a norm, a rotation, a causal mask.
BEFORE = {
    "rotary-causal-1024": (4, 32, 8, 1024, 0, 128, False, True, True),
    "rotary-causal-4096": (1, 32, 8, 4096, 0, 128, False, True, True),
    "rotary-encoder-512": (16, 16, 16, 512, 0, 64, False, True, False),
    "norm-encoder-729": (8, 16, 16, 729, 0, 72, True, False, False),
    "norm-rotary-causal-1024": (4, 32, 8, 1024, 0, 128, True, True, True),
    "norm-rotary-causal-2048": (2, 8, 4, 2048, 0, 256, True, True, True),
    "rotary-decode-4096": (32, 32, 8, 1, 4095, 128, False, True, False),
    "norm-rotary-decode-1024": (32, 32, 8, 1, 1023, 128, True, True, False),
}
_TASK = """import torch
import torch.nn.functional as F

B, H, S, T, CACHED, D = {sizes}
NORM, ROTARY, CAUSAL = {flags}


def rotated(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = (torch.nn.RMSNorm(D, eps=1e-6, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, q, k, v, cos, sin, keys, values):
        q, k, v = (x.view(B, T, -1, D) for x in (q, k, v))
        q, k = (self.q_norm(q), self.k_norm(k)) if NORM else (q, k)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, k = (rotated(q, cos, sin), rotated(k, cos, sin)) if ROTARY else (q, k)
        k, v = (torch.cat([keys, k], 2), torch.cat([values, v], 2)) if CACHED else (k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=CAUSAL, enable_gqa=H != S)
        return out.transpose(1, 2).reshape(B, T, H * D)


def get_inputs():
    angle = torch.randn(T, D)
    drawn = [torch.randn(B, T, H * D), torch.randn(B, T, S * D), torch.randn(B, T, S * D), angle.cos(), angle.sin()]
    drawn += [torch.randn(B, S, max(CACHED, 1), D) for _ in range(2)]
    return [x.bfloat16() for x in drawn]


def get_init_inputs():
    return []
"""


def before() -> list[Block]:
    """Returns the tasks with something before the attention."""
    return [
        Block(name, "attention", "bfloat16", _TASK.format(sizes=sizes, flags=flags))
        for name, (*sizes, norm, rotary, causal) in BEFORE.items()
        for flags in [(norm, rotary, causal)]
    ]


class Tensors:
    """The tensors of a case."""

    def __init__(self, case: Case) -> None:
        def heads(length: int, count: int) -> torch.Tensor:
            flat = torch.randn(case.batch, length, count, case.width, device="cuda")
            return flat.to(case.dtype).transpose(1, 2)

        self.case = case
        self.q, self.k, self.v = (
            heads(case.rows, case.heads), heads(case.keys, case.shared), heads(case.keys, case.shared)
        )  # fmt: skip
        self.out = torch.empty_like(self.q.transpose(1, 2).contiguous()).transpose(1, 2)
        shape = (case.batch, 1, case.rows, case.keys)
        self.mask = None
        if case.mask == "boolean":
            self.mask = torch.rand(shape, device="cuda") > 0.2
        elif case.mask:
            self.mask = torch.randn(shape, device="cuda").to(case.dtype)

    def exact(self) -> torch.Tensor:
        """Returns the first sequence's answer in float64."""
        group = self.case.heads // self.case.shared
        q, k, v = (x[:1].double() for x in (self.q, self.k, self.v))
        mask = None if self.mask is None else self.mask[:1]
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.double()
        shared = [x.repeat_interleave(group, 1) for x in (k, v)]
        return F.scaled_dot_product_attention(q, *shared, attn_mask=mask, is_causal=self.case.causal)

    def error(self) -> float:
        truth = self.exact()
        return float((self.out[:1].double() - truth).norm() / truth.norm())

    def library(self, backend: SDPBackend) -> Callable[[], object]:
        def call() -> object:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    self.q, self.k, self.v, attn_mask=self.mask, is_causal=self.case.causal,
                    enable_gqa=self.case.heads != self.case.shared,
                )  # fmt: skip

        return call

    def own(self, launcher: Any, setting: int) -> Callable[[], int]:
        case = self.case
        group = case.heads // case.shared
        room = case.batch * case.heads * case.rows * (case.width + 2) * 4
        splits = max(1, min(64, (64 << 20) // room))
        # The library gets a boolean mask as one that is added.
        added = 0 if self.mask is None else 2 * self.mask.numel() * case.keys // self.mask.shape[-1]
        scratch = torch.empty(splits * room + added + (1 << 20), dtype=torch.uint8, device="cuda")
        strides: list[int] = []
        for x in (self.q, self.k, self.v, self.out):
            outer, head, row = x.stride()[:3]
            strides += [outer, head, row] if x is self.k or x is self.v else [outer, head * group, head, row]
        mask = [0] * 5
        if self.mask is not None:
            outer, head, row, key = self.mask.expand(case.batch, case.heads, case.rows, case.keys).stride()
            mask = [outer, head * group, head, row, key]
        numbers = [case.batch, case.shared, group, case.rows, case.keys, splits, *strides, *mask]
        geometry = (ctypes.c_longlong * len(numbers))(*numbers)
        kind = 0 if self.mask is None else MASKS.get(str(self.mask.dtype).removeprefix("torch."), 1)
        operands = (self.out, self.q, self.k, self.v, None, None, self.mask, scratch)
        pointers = [None if x is None else x.data_ptr() for x in operands]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        arguments = (
            *map(ctypes.c_void_p, pointers), ctypes.c_longlong(scratch.numel()), geometry,
            ctypes.c_float(case.width**-0.5), ctypes.c_float(0.0), int(case.causal), kind, setting, stream,
        )  # fmt: skip
        # The scratch memory lives as long as the call.
        return lambda _scratch=scratch: launcher(*arguments)


@functools.cache
def launcher_of(folder: Path, dtype: str, width: int) -> Any:
    call = Attention(
        "q", "k", "v", mask=None, batch=(), group=1, rows=1, keys=1, width=width, value=width, scale=1.0, causal=False,
        cap=0.0, dtype=dtype,
    )  # fmt: skip
    source = folder / f"{call.stem}.cu"
    source.write_text(library_files()["kernels/attention_library.cu"] + kernel(call))
    return getattr(compiled(source, folder, ("cudnn",)), f"launch_{call.stem}")


def burst(call: Callable[[], object], count: int) -> float:
    """Returns µs a call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / count


def measure(case: Case, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    tensors = Tensors(case)
    launcher = launcher_of(folder, str(case.dtype).removeprefix("torch."), case.width)
    calls: dict[str, Callable[[], object]] = {}
    errors: dict[str, float] = {}
    for setting in range(FORMS["bfloat16"].settings):
        own = tensors.own(launcher, setting)
        tensors.out.fill_(7)
        status = own()
        torch.cuda.synchronize()
        if status == 0:
            calls[f"setting {setting}"], errors[f"setting {setting}"] = own, tensors.error()
        elif status != -1:
            failed(f"{case.name}: setting {setting} returns {status}")
    for name, backend in BACKENDS.items():
        call = tensors.library(backend)
        try:
            call()
        except RuntimeError:
            # This backend doesn't take the case.
            continue
        calls[name] = call
    wrong = {name: error for name, error in errors.items() if not error < TOLERANCE[case.dtype]}
    counts = {name: max(1, min(200, int(BURST_US / burst(call, 3)))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(round(burst(call, counts[name]), 2))
    return {"case": case.name, "samples_us": samples, "errors": errors, "wrong": wrong}


def row(found: dict[str, Any]) -> list[str]:
    medians = {name: statistics.median(values) for name, values in found["samples_us"].items()}
    right = {name: t for name, t in medians.items() if name in found["errors"] and name not in found["wrong"]}
    own = min(right, key=right.__getitem__)
    theirs = min((name for name in medians if name in BACKENDS), key=medians.__getitem__)
    ratio = medians[theirs] / medians[own]
    wrong = ", ".join(found["wrong"]) or "none"
    return [found["case"], own, f"{medians[own]:.1f}", theirs, f"{medians[theirs]:.1f}", f"{ratio:.2f}×", wrong]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="rows whose name has one of these words")
    parser.add_argument("--before", action="store_true", help="judge attention with something before it")
    parser.add_argument("--seconds", type=int, default=300, help="with --before: of a slice")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    if not torch.cuda.is_available():
        failed("there is no GPU")
    if options.before:
        out = options.out or ROOT / "runs" / "before"
        return judge_blocks(
            before(), argparse.Namespace(**vars(options) | {"out": out, "small": False}), sys.argv[at + 1 :]
        )
    cases = [case for case in CASES if not options.only or any(word in case.name for word in options.only)]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            found.append(measure(case, Path(folder)))
            print("  ".join(row(found[-1])), flush=True)
    print(table(("case", "setting", "µs", "backend", "µs", "ratio", "wrong settings"), [row(one) for one in found]))
    save("attention", options, Device.CUDA, {"rows": found})
    return 0


if __name__ == "__main__":
    run(main)
