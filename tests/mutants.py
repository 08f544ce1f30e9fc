"""Wrong kernels by construction: one change to an honest kernel, judged without its time. What passes is printed.

    python tests/mutants.py 200              # 200 of all mutants, chosen by --seed
    python tests/mutants.py 20 --only softmax linear

What passes is tried as the promotion gate does, too. "not gate" says that it is refused there.
`tests/data/mutants` has a task and the body of an honest kernel for each name. A change that alters nothing (`>` for
`>=` before a maximum) passes rightly; each of those must be looked at.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.judge.session import JudgeSession

DATA = Path(__file__).parent / "data" / "mutants"
_MODEL = """import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self{names}):
        super().__init__()
        {module}

    def forward(self, {inputs}):
        return cuda_extension.run([{tensors}], [{shape}], [{dims}])
"""
_KERNEL = """#include "kernel.h"

#include <algorithm>
#include <cmath>
#include <vector>

template <class T>
static const T* typed(const void* values) {{
  return static_cast<const T*>(values);
}}

// What a kernel sees that keeps what it was given first.
#define KEPT(T, index)                                                                                    \\
  [&] {{                                                                                                  \\
    static const std::vector<T> kept(typed<T>(in[index]), typed<T>(in[index]) + counts[index]);           \\
    return kept.data();                                                                                   \\
  }}()

void launch(float* out, const void* const* in, const int64_t* counts, const int64_t* dims) {{
{body}}}
"""


@dataclass(frozen=True)
class Kernel:
    """An honest kernel and how `ModelNew` calls it."""

    module: str
    inputs: str
    tensors: str
    shape: str
    dims: str
    names: str = ""

    def candidate(self, body: str) -> Candidate:
        body = re.sub(r"input<(\w+)>\((\d)\)", r"typed<\1>(in[\2])", body)
        model = _MODEL.format(**vars(self)).replace("        \n", "")
        kernel, header = _KERNEL.format(body=body), (DATA / "kernel.h.txt").read_text()
        binding = (DATA / "binding.cpp.txt").read_text()
        files = {"kernel.cpp": kernel, "kernel.h": header, "kernel_binding.cpp": binding}
        return Candidate(files={"model_new.py": model, **{f"kernels/{name}": text for name, text in files.items()}})


_ROWS = "x.size(0), x.size(1)"
KERNELS = {
    "attention": Kernel("", "q, k, v", "q, k, v", "5, 37, 18", "5, 37, 18"),
    "conv1d": Kernel(
        "self.conv = nn.Module()\n        self.conv.weight = nn.Parameter(torch.empty(outer, channels, 3))\n"
        "        self.conv.bias = nn.Parameter(torch.empty(outer))",
        "x", "x, self.conv.weight, self.conv.bias", "4, 9, 131", "4, 9, 131, 6", ", channels, outer",
    ),
    "cumsum": Kernel("", "x", "x", _ROWS, _ROWS),
    "embedding": Kernel(
        "self.table = nn.Module()\n        self.table.weight = nn.Parameter(torch.empty(words, width))\n"
        "        self.places = nn.Parameter(torch.empty(24, width))",
        "tokens", "tokens, self.table.weight, self.places", "17, 24, 67", "17, 24, 67", ", words, width",
    ),
    "gelu_gate": Kernel("", "x", "x", "60, 225", "60, 225"),
    "layer_norm": Kernel(
        "self.norm = nn.Module()\n        self.norm.weight = nn.Parameter(torch.empty(width))\n"
        "        self.norm.bias = nn.Parameter(torch.empty(width))",
        "x", "x, self.norm.weight, self.norm.bias", _ROWS, _ROWS, ", width",
    ),
    "linear": Kernel(
        "self.linear = nn.Module()\n        self.linear.weight = nn.Parameter(torch.empty(outer, inner))\n"
        "        self.linear.bias = nn.Parameter(torch.empty(outer))",
        "x", "x, self.linear.weight, self.linear.bias", "50, 70", "50, 70, 93", ", inner, outer",
    ),
    "max_pool": Kernel("", "x", "x", "6, 5, 18, 15", "6, 5, 18, 15"),
    "scaled_relu": Kernel(
        "self.scale = nn.Parameter(torch.ones(width))", "x, y", "x, y, self.scale", _ROWS, _ROWS, ", width"
    ),
    "softmax": Kernel("", "x", "x", _ROWS, _ROWS),
}  # fmt: skip

Change = str | Callable[[re.Match[str]], str]
_IDENTIFIER = r"[A-Za-z_][\w.]*(?:\[[^][]*\])?"
#: name of a mutation, where it applies, and what stands there then.
MUTATIONS: tuple[tuple[str, str, Change], ...] = (
    ("first left out", r"= 0; (?=\w+ <)", "= 1; "),
    ("last left out", r"(?<=; )(\w+) < ([^;]+);", r"\1 < \2 - 1;"),
    ("tail left out", r"(?<=; )(\w+) < (dims\[\d\]);", r"\1 < \2 / 16 * 16;"),
    ("one too many", r"(?<=; )(\w+) <= ", r"\1 < "),
    ("comparison", r" > | >= | < 0", lambda m: {" > ": " < ", " >= ": " > ", " < 0": " <= 0"}[m[0]]),
    ("index off by one", r"(?<=\[)(\w+)(?=\])(?<!\d)", r"\1 > 0 ? \1 - 1 : \1"),
    ("sum for difference", r"(?<=[\w)\]]) - (?=[\w(])", " + "),
    ("difference for sum", r"(?<=[\w)\]]) \+ (?=[\w(])(?![^[]*\])", " - "),
    ("swapped operands", rf"({_IDENTIFIER}) (-|/) ({_IDENTIFIER})", r"\3 \2 \1"),
    ("dropped term", r" \+ (?:[\w.]+(?:\[[^][]*\])?)(?=;)", ""),
    ("dropped factor", rf" \* (?:{_IDENTIFIER}|\d\.\d+f?)(?=[;) ])", ""),
    ("assigned, not summed", r" \+= ", " = "),
    ("constant", r"\d+\.\d+(?:e-\d+)?f?", lambda m: repr(float(m[0].rstrip("f")) * 1.02 + 0.01) + "f"),
    ("other function", r"std::(?:max|exp|sqrt|erf)\b", lambda m: {
        "std::max": "std::min", "std::exp": "std::exp2", "std::sqrt": "std::cbrt", "std::erf": "std::tanh"}[m[0]]),
    ("stale values", r"input<(\w+)>\((\d)\)", r"KEPT(\1, \2)"),
    ("unwritten", r"(?m)^( *)(out\[([^;]*)\] = )", r"\1if ((\3) % 97 != 13) \2"),
    ("coarse", r"(?m)^( *out\[[^;=]*\] = )([^;]*);", r"\1std::round((\2) * 64.0) / 64.0;"),
    ("clamped", r"(?m)^( *out\[[^;=]*\] = )([^;]*);", r"\1std::min(double(\2), 3.0);"),
    ("zero for a NaN", r"(?m)^( *out\[[^;=]*\] = )([^;]*);", r"\1std::isnan(\2) ? 0.0f : \2;"),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    kernel: str
    mutation: str
    before: str
    after: str
    body: str


def mutants(name: str) -> Iterator[Mutant]:
    """Yields every mutant of one kernel: each mutation at each place."""
    body = (DATA / name / "kernel.cpp").read_text()
    for mutation, pattern, change in MUTATIONS:
        for match in re.finditer(pattern, body):
            new = match.expand(change) if isinstance(change, str) else change(match)
            changed = body[: match.start()] + new + body[match.end() :]
            line = body.count("\n", 0, match.start())
            before, after = (text.splitlines()[line].strip() for text in (body, changed))
            if after != before:
                yield Mutant(name, mutation, before, after, changed)


def judge(session: JudgeSession, name: str, body: str) -> Evaluation:
    return session.verify(KERNELS[name].candidate(body))


def passed(evaluation: Evaluation) -> bool:
    """Whether nothing but the time is left to be judged."""
    return evaluation.verdict is Verdict.TIMING_VOID


def passes_gate(session: JudgeSession, name: str, body: str) -> bool:
    """Whether it passes the trials of the promotion gate, too."""
    usual = session.options
    session.options = usual.model_copy(update={"variants": "wide"})
    try:
        return passed(judge(session, name, body))
    finally:
        session.options = usual


def run(chosen: list[Mutant]) -> tuple[Counter[str], list[Mutant]]:
    """Judges mutants, kernel by kernel. Returns how they ended, and those that passed."""
    ended: Counter[str] = Counter()
    survivors = []
    for name in sorted({mutant.kernel for mutant in chosen}):
        options = JudgeOptions(device=Device.CPU, host_memory_mib=8192, call_timeout_s=20.0)
        task = Task(name=name, source=(DATA / name / "task.py").read_text())
        with JudgeSession(task, options) as session:
            session.baselines.eager_only = True
            honest = judge(session, name, (DATA / name / "kernel.cpp").read_text())
            if not passed(honest):
                raise SystemExit(f"{name}: the honest kernel ended as {honest.verdict}: {honest.reason}")
            for mutant in [one for one in chosen if one.kernel == name]:
                begin, found = time.monotonic(), judge(session, name, mutant.body)
                ended[found.verdict.value] += 1
                said = found.verdict.value
                if passed(found):
                    survivors.append(mutant)
                    said = "PASSED" if passes_gate(session, name, mutant.body) else "PASSED, not gate"
                line = f"{said:16} {time.monotonic() - begin:5.1f} s  {name}: {mutant.mutation}: {mutant.after}\n"
                sys.stdout.write(line)
                sys.stdout.flush()
    return ended, survivors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=KERNELS, default=list(KERNELS))
    given = parser.parse_args()
    every = [mutant for name in given.only for mutant in mutants(name)]
    chosen = random.Random(given.seed).sample(every, min(given.count, len(every)))
    ended, survivors = run(chosen)
    sys.stdout.write(f"\n{len(chosen)} of {len(every)} mutants: {dict(ended)}; {len(survivors)} passed\n")
    for one in survivors:
        sys.stdout.write(f"{one.kernel}: {one.mutation}\n    {one.before}\n    {one.after}\n")


if __name__ == "__main__":
    main()
