"""One candidate of each fault, as whole workspaces of a small `axpby` task, for either device."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.core.enums import Device, Phase, Verdict
from cuda_agent.core.records import Candidate, Task
from published_workspace import axpby_candidate, axpby_task

#: the published workspace's own example has 128 numbers.
SMALL = "1, 128"


def small_axpby(size: str = SMALL) -> Task:
    """`axpby` on tensors of `size`, such as "4096, 4096"."""
    source = axpby_task().source
    assert "4096, 4096" in source
    return Task(name="axpby", source=source.replace("4096, 4096", size))


@dataclass(frozen=True)
class Fault:
    """`file`: which file of the honest candidate is edited (`kernel`, `binding`, `model`), `old` by `new`. `verdicts`:
    what it may be called; `phase`: where it must be noticed; `words`: what reason or log must hold.

    `past_guard`: judged as if the guard had not seen it. `killed`: the candidate's worker is killed from outside while
    an honest candidate is verified.
    """

    file: str
    old: str
    new: str
    verdicts: tuple[Verdict, ...]
    phase: Phase
    words: str = ""
    past_guard: bool = False
    killed: bool = False


_CALL = "  axpby_launcher(out"
_ENTRY = {Device.CPU: "#pragma omp parallel for simd\n", Device.CUDA: "  int count = size / 4;\n"}
_FORWARD = "        return cuda_extension"

_SHARED = {
    "compile_error": Fault("kernel", "launcher(", "launcher(flaot z, ", (Verdict.BUILD_FAILED,), Phase.BUILD, "flaot"),
    "link_error": Fault(
        "binding", "axpby_launcher", "missing_launcher", (Verdict.BUILD_FAILED,), Phase.BUILD, "missing_launcher"
    ),
    "import_error": Fault(
        "binding", "  m.def(", '  throw std::runtime_error("not today");\n  m.def(', (Verdict.LOAD_FAILED,),
        Phase.VERIFY, "not today",
    ),
    "wrong_signature": Fault(
        "model", "alpha: float, beta: float", "alpha: float", (Verdict.LOAD_FAILED,), Phase.VERIFY, "ModelNew("
    ),
    "exception": Fault(
        "binding", _CALL, '  TORCH_CHECK(x.numel() < 0, "it is what it is");\n' + _CALL, (Verdict.RAISED,),
        Phase.VERIFY, "it is what it is",
    ),
    "wrong_values": Fault("kernel", "beta * ", "1.01f * beta * ", (Verdict.INCORRECT,), Phase.VERIFY, "trial"),
    "out_of_memory": Fault(
        "binding", _CALL, "  auto more = torch::empty({int64_t(1) << 46}, x.options());\n" + _CALL,
        (Verdict.OUT_OF_MEMORY,), Phase.VERIFY,
    ),
    "hang_on_the_host": Fault(
        "binding", _CALL, "  for (volatile bool on = true; on;) {}\n" + _CALL, (Verdict.TIMED_OUT,), Phase.VERIFY,
        "no answer within",
    ),
    "fork_bomb": Fault(
        "model", _FORWARD, f"        import os\n        while True: os.fork()\n{_FORWARD}",
        (Verdict.CRASHED, Verdict.RAISED, Verdict.OUT_OF_MEMORY, Verdict.TIMED_OUT), Phase.VERIFY, past_guard=True,
    ),
    "full_disk": Fault(
        "model", _FORWARD,
        "        import os\n        with open(os.path.expanduser('~/much'), 'wb') as much:\n"
        f"            while True: much.write(bytes(1 << 20))\n{_FORWARD}",
        (Verdict.RAISED, Verdict.CRASHED), Phase.VERIFY, "disk", past_guard=True,
    ),
    "killed_worker": Fault(
        "kernel", "", "", (Verdict.CRASHED, Verdict.OUT_OF_MEMORY), Phase.VERIFY, "killed", killed=True
    ),
}  # fmt: skip

_CPU = {
    "illegal_address": Fault(
        "kernel", "(void)config;", "*(volatile int*)8 = config;", (Verdict.CRASHED,), Phase.VERIFY, "SIGSEGV"
    ),
    "hang_on_the_device": Fault(
        "kernel", "alpha * x[i]",
        "[](int64_t j) { for (volatile bool on = j == 7; on;) {} return 1; }(i) * alpha * x[i]",
        (Verdict.TIMED_OUT,), Phase.VERIFY, "no answer within",
    ),
    "host_memory": Fault(
        "binding", _CALL, "  for (std::vector<torch::Tensor> kept;;) kept.push_back(torch::full({1 << 24}, 1.0f));\n"
        + _CALL, (Verdict.OUT_OF_MEMORY,), Phase.VERIFY, past_guard=True,
    ),
}  # fmt: skip

_CUDA = {
    "illegal_address": Fault(
        "kernel", "float4 a = x[i]", "float4 a = x[i + (1ll << 40)]", (Verdict.CRASHED,), Phase.VERIFY,
    ),
    "sticky_error": Fault(
        "kernel", "float4 a = x[i]", '__trap(); float4 a = x[i]', (Verdict.CRASHED,), Phase.VERIFY,
    ),
    "hang_on_the_device": Fault(
        "kernel", "if (i < count) {", "while (alpha > 0.0f) { __nanosleep(100); }\n  if (i < count) {",
        (Verdict.TIMED_OUT,), Phase.VERIFY, "no answer within",
    ),
}  # fmt: skip


def faults(device: Device) -> dict[str, Fault]:
    """Every fault that a device knows, by name."""
    return _SHARED | (_CUDA if device is Device.CUDA else _CPU)


def faulty(fault: Fault, device: Device, mark: int = 0) -> Candidate:
    """The honest candidate with the fault; another `mark` makes other sources of the same sense."""
    files = dict(axpby_candidate(device).files)
    kernel = next(name for name in files if name.startswith("kernels/") and "binding" not in name)
    names = {"kernel": kernel, "binding": "kernels/axpby_binding.cpp", "model": "model_new.py"}
    if fault.old:
        text = files[names[fault.file]]
        assert fault.old in text, fault.old
        files[names[fault.file]] = text.replace(fault.old, fault.new)
    if mark:
        files[kernel] += f"\n// {mark}\n"
    return Candidate(files=files)


HONEST = Fault("kernel", "", "", (Verdict.PASSED,), Phase.PROFILE)
