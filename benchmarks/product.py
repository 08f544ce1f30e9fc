"""Times a linear layer in half precision with bias, GELU and residual: by the library and a kernel after it, and by one
kernel, beside the bare product. It needs a GPU.

    .venv/bin/python benchmarks/product.py
    .venv/bin/python benchmarks/product.py --sizes 4096,4096,4096 512,4096,4096 --dtype float16

Each size is rows, columns, inner size. The playbook's plans of both layers are built as the judge builds them and run
at every setting of the product. Each round times every setting once, so that all meet the same clocks. A time is the
median of rounds of 20 calls in a row. The one kernel's results are compared with the library's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from common import arguments, chosen_device, failed, run, save, table
from torch import nn

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.extension import build_extension
from cuda_agent.playbook.proposal import propose
from cuda_agent.playbook.skills.gemm.fused import TILINGS
from cuda_agent.playbook.skills.gemm.skill import CONFIGS
from cuda_agent.workers.inside.candidate import import_extension
from cuda_agent.workers.inside.graph.capture import capture

SIZES = ((4096, 4096, 4096), (8192, 1024, 4096))
CALLS, ROUNDS = 20, 9
#: the largest relative error of the one kernel's results from the library's.
ALLOWED = 8e-3


class Bare(nn.Module):
    def __init__(self, columns: int, inner: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inner, columns, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Whole(nn.Module):
    def __init__(self, columns: int, inner: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inner, columns)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.layer(x)) + y


@dataclass
class Timed:
    """A layer at one setting of its product."""

    layer: str
    setting: int
    run: Any
    us: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.us)


def built(module: nn.Module, size: Sequence[int], inputs: list[torch.Tensor], name: str) -> list[Timed]:
    """Returns the layer's plan at every setting of its product that runs."""
    graph = capture(module.eval(), inputs, SimpleNamespace(Model=type(module)))
    proposal = propose(graph, Device.CUDA, Precision.TF32)
    made = build_extension(Candidate(files=dict(proposal.files)), JudgeOptions(device=Device.CUDA))
    if made.library is None:
        failed(made.report.log)
    import_extension(made.library, name)
    namespace: dict[str, Any] = {"__name__": "model_new"}
    exec(compile(proposal.files["model_new.py"], "model_new.py", "exec"), namespace)
    model = namespace["ModelNew"](*size).to(inputs[0].device, inputs[0].dtype)
    model.load_state_dict(module.state_dict())
    (tunable,) = (one for one in proposal.tunables if one.startswith("gemm_"))
    found = []
    for setting in range(proposal.tunables[tunable]):

        def call(setting: int = setting) -> torch.Tensor:
            namespace["CONFIG"][tunable] = setting
            with torch.no_grad():
                result: torch.Tensor = model(*inputs)
            return result

        try:
            call()
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"{name}, setting {setting}: {str(error).splitlines()[0]}")
            continue
        found.append(Timed(name, setting, call))
    return found


def time_once(one: Timed) -> None:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    one.run()
    start.record()
    for _ in range(CALLS):
        one.run()
    stop.record()
    stop.synchronize()
    one.us.append(start.elapsed_time(stop) * 1000 / CALLS)


def measure(size: Sequence[int], dtype: torch.dtype) -> dict[str, Any]:
    """Returns the times of both layers at all settings."""
    rows, columns, inner = size
    torch.manual_seed(0)
    x, y = (torch.randn(rows, width, device="cuda").to(dtype) for width in (inner, columns))
    layers = [module(columns, inner).to("cuda", dtype).requires_grad_(False) for module in (Bare, Whole)]
    bare, whole = (
        built(layer, (columns, inner), given, f"{type(layer).__name__.lower()}_{rows}x{columns}x{inner}")
        for layer, given in zip(layers, ([x], [x, y]), strict=True)
    )
    for _ in range(ROUNDS):
        for one in (*bare, *whole):
            time_once(one)
    library, fused = ([one for one in whole if (one.setting >= CONFIGS) == later] for later in (False, True))
    truth = library[0].run().double()
    wrong = {TILINGS[one.setting - CONFIGS]: _error(one.run(), truth) for one in fused}
    return {
        "size": list(size),
        "bare_us": min(one.median for one in bare),
        "library_us": min(one.median for one in library),
        "fused_us": {TILINGS[one.setting - CONFIGS]: one.median for one in fused},
        "error": wrong,
        "samples": [{key: value for key, value in asdict(one).items() if key != "run"} for one in (*bare, *whole)],
    }


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--sizes", nargs="+", help="rows,columns,inner; default: " + " ".join(",".join(map(str, s)) for s in SIZES)
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    options = parser.parse_args()
    if chosen_device(options.device) is not Device.CUDA:
        failed("there is no GPU")
    sizes = [tuple(map(int, text.split(","))) for text in options.sizes] if options.sizes else SIZES
    found = [measure(size, getattr(torch, options.dtype)) for size in sizes]
    header = ["rows x columns x inner", "tiling", "us", "over the bare product", "over library and kernel", "TFLOP/s"]
    lines = []
    for row in found:
        name, flop = " x ".join(map(str, row["size"])), 2.0 * row["size"][0] * row["size"][1] * row["size"][2]
        times = {"bare product": row["bare_us"], "library and kernel": row["library_us"], **row["fused_us"]}
        lines += [
            [
                name,
                kind,
                f"{us:.1f}",
                f"{us / row['bare_us']:.3f}",
                f"{us / row['library_us']:.3f}",
                f"{flop / us / 1e6:.0f}",
            ]
            for kind, us in times.items()
        ]
    print(table(header, lines))
    print(f"raw samples: {save('product', options, Device.CUDA, {'sizes': found})}")
    wrong = [kind for row in found for kind, error in row["error"].items() if not error < ALLOWED]
    if wrong:
        failed(f"wrong results of tilings {', '.join(wrong)}")
    return 0


if __name__ == "__main__":
    run(main)
