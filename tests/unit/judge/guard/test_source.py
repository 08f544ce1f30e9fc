"""Names and declarations in preprocessed C++ and CUDA: each cheat has an honest twin that must pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.playbook.skills import shared
from cuda_agent.workspace.layout import fixed_files
from guard_harness import found
from published_workspace import axpby_candidate


def rules(text: str, folder: Path, path: str = "kernels/a_binding.cpp", device: Device = Device.CUDA) -> set[str]:
    return {violation.rule for violation in found({path: _without_includes(text)}, path, folder, device)}


def _without_includes(text: str) -> str:
    return re.sub(r"^#include.*$", "", text, flags=re.MULTILINE)


def inside(statement: str) -> str:
    return f"void f(torch::Tensor x) {{\n  {statement}\n}}\n"


HONEST = {
    "comment": inside("// at::relu(x) and system(1) are only words\n/* dlopen\nfork */"),
    "string": inside('TORCH_CHECK(x.dim() == 2, "use at::relu, system( or time( elsewhere");'),
    "digit separators": inside("int64_t n = 1'000'000; const char c = '\\'';"),
    "member": inside("options.time(); p->system();"),
    "allocation": inside("at::Tensor y = torch::empty({2}, x.options().dtype(torch::kHalf)), z = at::empty_like(y);"),
    "blas handle": inside("auto h = at::cuda::getCurrentCUDABlasHandle();"),
    "unused macro": "#define RELU(x) at::relu(x)\n" + inside(""),
    "kept plans": "struct Plan { cublasHandle_t h; }; static std::map<int, Plan> plans;\n"
    + inside("static const int count = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;"),
    "kept numbers in a template": "template <typename T> int blocks() { static int n = query(kernel<T>); return n; }",
    "prototypes": "static torch::Tensor g(torch::Tensor x);\nstruct S { static at::Tensor g(int n); at::Tensor t; };\n"
    "torch::Tensor g(torch::Tensor x) { torch::Tensor y = x; S s; return y; }\nstatic torch::TensorOptions o;",
    "a table of functions": "static constexpr torch::Tensor (*kTable[])(torch::Tensor) = {f, g};",
    "shared memory": "template <typename T> __global__ void k(T* x) { __shared__ T s[4]; }",
}  # fmt: skip
CHEATING = {
    "compute": (inside("at::relu(x);"), "torch_compute"),
    "from the root": (inside("::at::relu(x);"), "torch_compute"),
    "pasted": ("#define CALL(a, b) a##b\n" + inside("at::CALL(re, lu)(x);"), "torch_compute"),
    "pasted space": ("#define SPACE(a) a##t\n" + inside("SPACE(a)::relu(x);"), "torch_compute"),
    "split by a continuation": (inside("at::re\\\nlu(x);"), "torch_compute"),
    "spaces": (inside("torch :: nn :: functional :: relu(x);"), "torch_compute"),
    "product on the GPU": (inside("at::mm(x, x);"), "torch_compute"),
    "using namespace": ("using namespace at;\n" + inside("relu(x);"), "hidden_names"),
    "another name": ("namespace math = at;\n" + inside("math::relu(x);"), "hidden_names"),
    "from within": ("namespace at { " + inside("relu(x);") + "}", "hidden_names"),
    "dispatcher": (inside("c10::Dispatcher::singleton();"), "torch_compute"),
    "dispatcher switched off": (inside("c10::impl::ExcludeDispatchKeyGuard g(keys);"), "hidden_dispatch"),
    "python": (inside('py::module_::import("torch").attr("relu")(x);'), "python_from_c"),
    "process": (inside('system("true");'), "process"),
    "thread": (inside("std::thread t;"), "process"),
    "loader": (inside('dlopen("libtorch.so", 2);'), "loader"),
    "clock": (inside("auto t = std::chrono::steady_clock::now();"), "clock"),
    "side stream": (inside("cudaStreamCreateWithFlags(&s, 1);"), "cuda_side_channel"),
    "environment": (inside('getenv("HOME");'), "outside_world"),
    "a marker in a string": (inside('auto s = R"(\n# 1 "/x.h" 1 3\n)"; at::relu(x);'), "torch_compute"),
    "host assembler": (inside('asm volatile("nop");'), "inline_assembler"),
    "static tensor": (inside("static torch::Tensor last;"), "kept_tensor"),
    "static map": ("static std::map<const void*, at::Tensor> results;", "kept_tensor"),
    "global": ("namespace { std::vector<at::Tensor> kept; }", "kept_tensor"),
    "thread's own": (inside("thread_local auto& kept = *new std::vector<at::Tensor>();"), "kept_tensor"),
    "deduced": (inside("static auto kept = at::empty_like(x);"), "kept_tensor"),
    "in a class": ("struct A { at::Tensor t; }; struct B { A a; };" + inside("static B kept;"), "kept_tensor"),
    "through an alias": ("using T = std::optional<at::Tensor>; typedef T U;" + inside("static U kept;"), "kept_tensor"),
    "static member": ("struct A { inline static at::Tensor kept; };", "kept_tensor"),
    "member of a template": (
        "template <typename T> struct A { inline static T kept; };" + inside("A<at::Tensor>::kept = x;"),
        "kept_tensor",
    ),
    "by pointer": (inside("static void* kept = new at::Tensor(x);"), "kept_tensor"),
    "Python object": ("static py::object kept;", "kept_tensor"),
    "captured": (inside("m.def(\"f\", [kept = at::Tensor()](at::Tensor y) mutable { return kept; });"), "kept_tensor"),
    "where the grammar gives up": ("int a <% ;;) \n static std::vector<at::Tensor> kept;", "kept_tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_sources_pass(name: str, tmp_path: Path) -> None:
    assert rules(HONEST[name], tmp_path) == set()


@pytest.mark.parametrize("name", CHEATING)
def test_cheating_sources_are_convicted(name: str, tmp_path: Path) -> None:
    text, rule = CHEATING[name]
    assert rule in rules(text, tmp_path)


PTX = {
    'asm volatile("mma.sync.aligned.m16n8k8;" : "=f"(a) : "r"(b));': False,
    'asm("{ .reg .pred p; setp.equ.f32 p, %1, 0f00000000; selp.b32 %0, 1, 0, p; }" : "=r"(a) : "f"(b));': False,
    'asm volatile("sys" "call");': True,
    'asm volatile("\\x73yscall");': True,
    'asm volatile("nop\\n\\t.byte 0x0f, 0x05");': True,
}


@pytest.mark.parametrize("statement", PTX)
def test_assembler_in_cuda_files_is_ptx(statement: str, tmp_path: Path) -> None:
    assert rules(inside(statement), tmp_path, "kernels/a.cu") == ({"inline_assembler"} if PTX[statement] else set())


def test_products_through_torch_are_allowed_on_the_cpu_only(tmp_path: Path) -> None:
    text = inside("at::mm_out(y, x, w); at::convolution(x, w, b);")
    assert rules(text, tmp_path, device=Device.CPU) == set()
    assert rules(text, tmp_path, device=Device.CUDA) == {"torch_compute"}


def test_detail_names_the_file_and_line_once(tmp_path: Path) -> None:
    files = {
        "kernels/a.cpp": '#include "b.h"\nint x = CALL;\n',
        "kernels/b.h": "#pragma once\n#define CALL \\\n  at::relu(1)\n\nint y = at::gelu(2);\n",
    }
    details = sorted(violation.detail.partition(" ")[0] for violation in found(files, "kernels/a.cpp", tmp_path))
    assert details == ["kernels/a.cpp:2:", "kernels/b.h:5:"]


def test_a_macro_must_not_reach_into_a_header_that_comes_later(tmp_path: Path) -> None:
    honest = "#include <stddef.h>\n#define MINE(x) x\n#define size_t evil(), size_t\n#include <limits.h>\nint a;\n"
    cheat = "#define MINE(x) x\n#define size_t evil(), size_t\n#include <stddef.h>\nint a;\n"
    assert found({"kernels/a.cpp": honest}, "kernels/a.cpp", tmp_path) == []
    (violation,) = found({"kernels/a.cpp": cheat}, "kernels/a.cpp", tmp_path)
    assert violation.rule == "macro_in_header"
    assert violation.detail.startswith("kernels/a.cpp:2: macro size_t")


@pytest.mark.parametrize("device", list(Device))
def test_published_workspace_passes(device: Device, tmp_path: Path) -> None:
    for path, text in axpby_candidate(device).files.items():
        if path.endswith((".cu", ".cpp")):
            assert rules(text, tmp_path, path, device) == set()


def test_examples_of_the_skill_file_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```(cuda|cpp)\n(.*?)```", fixed_files()["SKILL.md"], re.DOTALL)
    assert blocks
    for kind, text in blocks:
        assert rules(text, tmp_path, f"kernels/a.{'cu' if kind == 'cuda' else 'cpp'}") == set()


def test_kept_handles_and_plans_of_the_playbook_pass(tmp_path: Path) -> None:
    text = Path(shared.__file__).with_name("gemm.cu").read_text()
    assert "static std::map" in text
    assert rules(text, tmp_path, "kernels/gemm.cu") == set()
