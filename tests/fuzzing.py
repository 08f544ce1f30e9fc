"""Mutated answers of workers and mutated sources of candidates: whatever they hold, the judge's side gives an answer, a
violation or a refusal, and never a traceback.

    python tests/fuzzing.py messages 100000
    python tests/fuzzing.py sources 10000

Each number is a seed, so a failure is repeated with `--first SEED` and a count of 1.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.records import Candidate
from cuda_agent.judge.guard import check_comparison, check_texts, is_comparison
from cuda_agent.judge.guard.kernels import judge_kernels
from cuda_agent.judge.guard.operators import FORWARD, OperatorLog
from cuda_agent.judge.guard.preprocessed import own_lines
from cuda_agent.judge.guard.source import check_preprocessed
from cuda_agent.judge.profile import timing
from cuda_agent.judge.profile.bursts import Burst, Round
from cuda_agent.judge.verify.compare import same_structure
from cuda_agent.workers.channel import ChannelError, JudgeChannel
from cuda_agent.workers.requests import Done, HeldMemory, WorkerAnswer, WorkerRequest
from cuda_agent.workers.requests.baseline import PlannedBaselines, PreparedBaseline
from cuda_agent.workers.requests.candidate import CallResult, ChangedWeights, DispatchRecord, LoadedWeights
from cuda_agent.workers.requests.reference import (
    Answered,
    CallEstimate,
    CapturedGraph,
    DrawnInputs,
    TakenPiece,
    TaskSpec,
)
from cuda_agent.workers.requests.timed import BurstTimes, ExtraFigures, QueueTime, ScreenTimes, Warmed

META = TensorMeta(shape=(2, 3), dtype="float32", strides=(3, 1))
SPEC: dict[str, Any] = {"list": [{"t": 0}, {"v": 1.5}, {"dict": {"a": {"v": None}}}]}
RECORD = DispatchRecord(operators={"aten.empty.memory_format": 2, "aten.view": 1}, intact=True)
ANSWERS: tuple[WorkerAnswer, ...] = (
    Done(),
    HeldMemory(held_bytes=5),
    RECORD,
    LoadedWeights(derive_ms=0.5, frozen=False, dispatch=RECORD),
    ChangedWeights(changed=["a.weight"]),
    CallResult(spec=SPEC, unseen_outputs=0, dispatch=RECORD, kernels=[("kernel", "_Z1kPf", 1, 1000)]),
    Warmed(otherwise=[0]),
    BurstTimes(event_us=[10.0, 11.5, 9.25], waited_us=0.25),
    QueueTime(us=3.5),
    ExtraFigures(busy_us=2.5, peak_memory_bytes=1 << 20),
    ScreenTimes(latency_us=(1.5, None), failures={"1": "too large"}, device_lost=False),
    PlannedBaselines(matched={"eager": True}),
    PreparedBaseline(left_out="it can't be the fastest"),
    TaskSpec(
        init=SPEC,
        inputs_spec=SPEC,
        inputs=(META,),
        state={"weight": META},
        outputs_spec=SPEC,
        outputs=(META,),
        mutated=(),
        products=True,
        policy_differs=False,
        variants=("signs",),
    ),
    CallEstimate(inputs=1),
    DrawnInputs(specs=(SPEC,)),
    Answered(spec=SPEC),
    TakenPiece(oracle="float64"),
    CapturedGraph(graph="{}"),
)
#: texts that a mutation puts somewhere into a message.
TOKENS = (
    b"1e999", b"-1e400", b"9" * 400, b"-" + b"9" * 5000, b"NaN", b"Infinity", b"null", b"true", b"-0.0", b"1e308",
    b"-1",
    b'"\\ud800"', b'"\\u0000"', b"[", b"]", b"{", b"}", b'{"a":', b",", b":", b'"', b"\x00", b"\xff", b"\xed\xa0\x80",
    b"[" * 100, b"[" * 5000, b"9223372036854775808", b"1.7976931348623157e308", "\u202e\x1b[31m".encode(),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 62, 1 << 63, 10**400, 1e308, -1e308, 5e-324, 1e15, "", "\x1b[2J", "\ud800", "a" * 50_000,
    [], {}, [[[[[]]]]], {"list": []}, {"v": 1e308}, {"t": 1 << 62}, [1e308] * 3, [1e15] * 3, {"": None},
)  # fmt: skip


class _Asked(WorkerRequest[Done]):
    pass


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Changes a message at one to four places: bytes, or values of its tree."""
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(raw) + 1), rng.randrange(6)
        if kind == 0:
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        elif kind == 1:
            raw = raw[:at] + rng.choice(TOKENS) + raw[at + rng.randrange(4) :]
        elif kind == 2:
            raw = raw[:at] + raw[at + rng.randrange(20) :]
        else:
            raw = _other_value(raw, rng)
    return raw[:150_000]


def _other_value(raw: bytes, rng: random.Random) -> bytes:
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    node = tree
    while isinstance(node, dict | list) and node:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if rng.random() < 0.4 or not isinstance(node[key], dict | list):
            node[key] = rng.choice(VALUES)
            break
        node = node[key]
    return json.dumps(tree).encode()


def read_message(seed: int) -> None:
    """Reads one mutated message as the judge does, and uses what it says."""
    rng = random.Random(seed)
    answer = rng.choice(ANSWERS)
    failure = {"kind": "raised", "message": "\x1b[31mno", "remedy": ""}
    said = {"error": failure} if rng.random() < 0.1 else {"ok": answer.model_dump()}
    raw = mutated(json.dumps({"id": 1, **said}).encode(), rng)
    length = len(raw) + (rng.choice((1, -1, 1 << 30)) if rng.random() < 0.05 else 0)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(struct.pack("<I", length) + raw)
        theirs.shutdown(socket.SHUT_WR)
        channel = JudgeChannel(mine)
        channel._next_id = 1
        try:
            read = channel._answer(1, "Fuzzed", time.monotonic() + 10.0, type(answer))
        except ChannelError as error:
            str(error).encode()
            return
    read.model_dump_json()
    _use(read)


def _use(answer: WorkerAnswer) -> None:
    """Computes with an answer as the judge does."""
    if isinstance(answer, DispatchRecord):
        log = OperatorLog(Device.CPU)
        log.note(answer, FORWARD)
        log.violations()
    elif isinstance(answer, CallResult):
        judge_kernels(answer.kernels, frozenset(), recordable=True, error=answer.kernels_error)
        same_structure(answer.spec, SPEC, atol=1e-2, rtol=1e-2)
    elif isinstance(answer, BurstTimes) and answer.event_us:
        events = tuple(max(each, 1e-3) for each in answer.event_us)
        mine = Burst(events, 100.0, max(0.0, answer.waited_us))
        honest, null = Burst((20.0,) * 3, 100.0), Burst((1.0,) * 3, 40.0)
        rounds = [Round({"candidate": mine, "eager": honest}, null) for _ in range(6)]
        timing.disagreement(rounds, "candidate", Device.CPU, ["eager"])
        timing.unevenness(rounds, "candidate", ["eager"])
        timing.timing(rounds, "candidate", device=Device.CPU, trusted=["eager"])
        timing.ratio(rounds, "eager", "candidate", ["eager"], Device.CPU)


# ---------------------------------------------------------------------------------------------------- sources

PYTHON = """import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for part in (x, y):
            assert part.shape[0] > 0
        return cuda_extension.scaled_relu(x, y, self.weight)
"""
KERNEL = """#include <cstdint>
#include "stream.h"
#define TWICE(x) ((x) + (x))
struct Kept { torch::Tensor a; };
static const char* text = R"(# 1 "x.h" 1)";
template <class T> T twice(T a) { static int count = 0; return TWICE(a); }
extern "C" void launch(float* out, const float* x, int64_t count, stream_t) {
  asm volatile("mov.u32 %0, %1;" : "=r"(count) : "r"(1));
  auto f = [kept = at::empty({1})](int i) { return i; };
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] > 0 ? twice(x[i]) : 0; // the end
}
"""
#: texts that a mutation puts somewhere, with a part in the middle that it repeats.
PYTHON_TOKENS = (
    ("0", "+0", ""), ("", "-", "1"), ("", "(", ""), ("", "[", ""), ("", "9", ""), ("0x", "f", ""), ("", "name", ""),
    ("x", ".a", ""), ("x", "()", ""), ("x", "[0]", ""), ("", "lambda: ", "1"), ("", "not ", "x"),
    ("", "x if x else ", "x"),
    ("", "@a\n", ""), ("", "\n", ""), ("", " ", ""), ("", "f'{", ""), ("", "x and ", "x"), ("'", "\\N{DASH}", "'"),
    ("", "x = ", "x"), ("", "(x := ", "1"), ("\x00", "", ""), ("\f", "", ""), ("\u202e", "", ""), ("", "\u00e9", ""),
    ("# coding: utf-7\n", "", ""), ("", "x @ x\n", ""), ("case Callable(__globals__=a):", "", ""), ("1e", "9", ""),
    ("", "*", ""), ("", "1_", "0"), ("", "{", ""), ("x", " < x", ""), ("", "if x:\n ", ""), ("import a", ".a", ""),
)  # fmt: skip
KERNEL_TOKENS = (
    ("", "(", ""), ("", "asm(", ""), ('asm("', "x", ""), ("", 'R"(', ""), ("", "/*", ""), ("", '"', ""), ("", "'", ""),
    ("", "\\\n", ""), ("", "\n#define A a\n", ""), ("", "#", "\n"), ("", "at::", ""), ("", "using namespace at ", ""),
    ("", "static Tensor ", ""), ("", "a<", ""), ("", "{", ""), ("", "name", ""), ("", "struct A{Tensor t;};", ""),
    ("", "\x00", ""), ("", '\n# 1 "kernels/a.cu" 1\n', ""), ("", '\n# 1 "/usr/include/x" 1\n', ""), ("", "](", ""),
    ("", '\n# 9 "<x>" 2\n', ""), ("", "namespace a = ", ""), ("\x1b[31m\u202e", "", ""), ("", "\u00e9", ""),
    ("#include <", "../", ""), ("", "\t", ""), ("", "\r\n", ""), ("", "%:", ""), ("", "9", ""),
    ("", "thread_local\n", ""),
    ("", "using A=Tensor;", ""), ('_Pragma("GCC pch_preprocess")', "", ""), ("", "\n", ""), ('asm("\\x', "f", '");'),
)  # fmt: skip


def mutated_text(text: str, tokens: Sequence[tuple[str, str, str]], rng: random.Random) -> str:
    """Changes a source at one to six places."""
    for _ in range(rng.randint(1, 6)):
        at, kind = rng.randrange(len(text) + 1), rng.randrange(5)
        if kind == 0:
            text = text[:at] + text[at + rng.randrange(30) :]
        elif kind == 1:
            text = text[:at] + chr(rng.choice((rng.randrange(1, 128), rng.randrange(1, 0xD800)))) + text[at:]
        elif kind == 2:
            begin = rng.randrange(len(text) + 1)
            text = text[:at] + text[begin : begin + rng.randrange(200)] + text[at:]
        else:
            size = rng.choice((1, 3, 20, 200, 2000) if rng.random() < 0.9 else (10_000,))
            before, repeated, after = rng.choice(tokens)
            text = text[:at] + before + repeated * size + after + text[at + rng.randrange(10) :]
    return text


def read_source(seed: int) -> None:
    """Checks one mutated module and one mutated kernel as the guard does."""
    rng = random.Random(seed)
    kernel = mutated_text(KERNEL, KERNEL_TOKENS, rng)
    candidate = Candidate(
        files={
            "model_new.py": mutated_text(PYTHON, PYTHON_TOKENS, rng),
            "kernels/a.cu": kernel,
            "kernels/b.cpp": kernel,
        }
    )
    found = [*check_texts(candidate)]
    alone = Candidate(files={"model_new.py": candidate.files["model_new.py"]})
    is_comparison(alone)
    found += check_comparison(alone)[0]
    seen = own_lines(f'# 1 "kernels/a.cu"\n{kernel}', [Path("/usr")])
    for source, device in (("kernels/a.cu", Device.CUDA), ("kernels/b.cpp", Device.CPU)):
        found += check_preprocessed([seen, seen], candidate, source, device)
    assert all(len(violation.detail) < 1000 for violation in found)


KINDS: dict[str, Callable[[int], None]] = {"messages": read_message, "sources": read_source}
#: seconds that one may take here, on two busy cores.
LONGEST_S = 60.0


def run(kind: str, first: int, count: int) -> list[str]:
    """Returns what went wrong, with its seed."""
    wrong = []
    for seed in range(first, first + count):
        begin = time.monotonic()
        try:
            KINDS[kind](seed)
        except (
            ArithmeticError,
            AssertionError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            MemoryError,
        ) as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}")
        if time.monotonic() - begin > LONGEST_S:
            wrong.append(f"seed {seed}: {time.monotonic() - begin:.0f} s")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    failed = run(given.kind, given.first, given.count)
    sys.stdout.write("\n".join([*failed, f"{given.count} {given.kind}, {len(failed)} of them wrong\n"]))
    sys.exit(bool(failed))
