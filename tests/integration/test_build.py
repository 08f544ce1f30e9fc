"""Real compilers: the published layout builds and loads, faults are told apart, nothing is compiled twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compiled_only import compile_only
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError, StoreError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.records import Candidate
from cuda_agent.core.stack import find_nvcc
from cuda_agent.judge.build import binding_headers, compiler, nvcc, toolchain
from cuda_agent.judge.build import extension as build_module
from cuda_agent.judge.build.binding_headers import BindingHeaders
from cuda_agent.judge.build.extension import Built, build_extension
from cuda_agent.judge.guard import COMPILED, Compiled, check_built
from cuda_agent.workspace.layout import fixed_files
from published_workspace import axpby_candidate

pytestmark = pytest.mark.integration

OPTIONS = JudgeOptions(device=Device.CPU)


def build_cpu(candidate: Candidate, *, cache: Path | None = None, **changes: object) -> Built:
    options = OPTIONS.model_copy(update=changes)
    return build_extension(candidate, options, cache)


def changed(candidate: Candidate, path: str, old: str, new: str) -> Candidate:
    assert old in candidate.files[path]
    return Candidate(files={**candidate.files, path: candidate.files[path].replace(old, new)})


def _lines(command: list[str]) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def axpby() -> Candidate:
    return axpby_candidate(Device.CPU)


@pytest.fixture(scope="module")
def built(axpby: Candidate) -> Built:
    return build_cpu(axpby)


def test_the_library_is_imported_and_computes(built: Built) -> None:
    assert built.report.succeeded, built.report.log
    assert built.library is not None
    code = (
        f"import sys; sys.path.insert(0, {str(built.library.parent)!r})\n"
        "import torch, cuda_extension\n"
        "x, y = torch.randn(4, 100), torch.randn(4, 100)\n"
        "torch.testing.assert_close(cuda_extension.axpby_forward(x, y, 2.0, -0.5), 2.0 * x - 0.5 * y)\n"
        "print(cuda_extension.__file__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(built.library)


def test_an_honest_build_breaks_no_rule(axpby: Candidate, built: Built) -> None:
    assert built.library is not None
    assert check_built(axpby, built.objects, built.library, Device.CPU) == ()


def test_what_macros_hide_is_found_in_the_preprocessed_text(axpby: Candidate) -> None:
    text = "#define T(a) a##nsor\nstatic torch::T(Te) kept;\nREGISTER_BINDING"
    hidden = changed(axpby, "kernels/axpby_binding.cpp", "REGISTER_BINDING", text)
    made = build_cpu(hidden)
    assert made.library is not None
    (violation,) = check_built(hidden, made.objects, made.library, Device.CPU)
    assert (violation.rule, violation.layer) == ("kept_tensor", "source")
    assert violation.detail.startswith("kernels/axpby_binding.cpp:")


def test_the_second_build_compiles_nothing(axpby: Candidate, built: Built) -> None:
    again = build_cpu(axpby)
    assert again.library == built.library
    assert (again.report.compiled_objects, again.report.cached_objects) == (0, 3)
    assert again.report.library_digest == built.report.library_digest


def test_only_what_changed_is_compiled(axpby: Candidate, built: Built) -> None:
    other = changed(axpby, "kernels/axpby.cpp", "alpha", "a")
    again = build_cpu(other)
    assert again.report.succeeded, again.report.log
    assert (again.report.compiled_objects, again.report.cached_objects) == (1, 2)
    assert again.library != built.library


def test_several_libraries_of_one_process_stay_apart(axpby: Candidate, built: Built) -> None:
    """As the parts of a whole model are: pybind11 3 keeps modules by their full name."""
    other = build_cpu(changed(axpby, "kernels/axpby.cpp", "alpha *", "-alpha *")).library
    code = (
        "import sys, torch\nfrom pathlib import Path\n"
        "from cuda_agent.workers.inside.candidate import import_extension\n"
        "one = torch.ones(4)\n"
        f"for package, library in (('a', {str(built.library)!r}), ('b', {str(other)!r})):\n"
        "    import_extension(Path(library), package)\n"
        "    print(sys.modules['cuda_extension'].axpby_forward(one, one, 2.0, 1.0)[0].item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["3.0", "-1.0"], done.stderr


def test_a_changed_header_is_noticed(axpby: Candidate, built: Built) -> None:
    files = {**axpby.files, "kernels/one.h": "#define ONE 1\n"}
    files["kernels/axpby.cpp"] += '\n#include "one.h"\nint one() { return ONE; }\n'
    first = build_cpu(Candidate(files={k: v for k, v in files.items() if "binding" not in k}))
    files["kernels/one.h"] = "#define ONE 2\n"
    second = build_cpu(Candidate(files={k: v for k, v in files.items() if "binding" not in k}))
    assert not first.report.log and not second.report.log
    assert second.report.library_digest != first.report.library_digest


def test_compile_errors_name_the_workspace_paths(axpby: Candidate) -> None:
    bad = build_cpu(changed(axpby, "kernels/axpby.cpp", "for (", "for [")).report
    assert not bad.succeeded
    assert bad.log.startswith("kernels/axpby.cpp: compile error")
    assert "kernels/axpby.cpp:" in bad.log
    assert "/build-" not in bad.log


def test_a_missing_definition_is_a_link_error(axpby: Candidate) -> None:
    bad = build_cpu(changed(axpby, "kernels/axpby.cpp", "axpby_launcher", "axpby_launch")).report
    assert not bad.succeeded
    assert "undefined axpby_launcher" in bad.log


def test_the_library_asks_the_same_of_others_as_one_of_plain_compilers(
    axpby: Candidate, built: Built, tmp_path: Path
) -> None:
    """Without shared headers and functions, linked with torch's own libraries."""
    assert built.library is not None
    tools = toolchain.find_toolchain(Device.CPU)
    files = {name: text for name, text in (fixed_files() | axpby.files).items() if name.endswith((".cpp", ".h"))}
    objects = []
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in sorted(files):
        if name.endswith(".cpp"):
            objects.append(str(tmp_path / f"{len(objects)}.o"))
            command = tools.cxx_command(binding="binding" in name)
            subprocess.run([*command, "-c", str(tmp_path / name), "-o", objects[-1]], check=True, capture_output=True)
    command = tools.link_command()
    subprocess.run(
        [command[0], *objects, *command[1:], "-o", str(tmp_path / "real.so")], check=True, capture_output=True
    )
    for asked in (["readelf", "-dW"], ["nm", "-D", "--undefined-only"]):
        ours, theirs = (
            [line for line in _lines([*asked, str(path)]) if "NEEDED" in line or asked[0] == "nm"]
            for path in (built.library, tmp_path / "real.so")
        )
        assert ours == theirs


def test_bindings_count_on_shared_functions(built: Built) -> None:
    asked = _lines(["nm", "-C", "--undefined-only", str(built.objects["kernels/axpby_binding.cpp"])])
    assert any("pybind11::" in line for line in asked)


def test_a_binding_may_use_all_of_pybind11(tmp_path: Path) -> None:
    """Classes with trampolines, buffers, containers, functions, exceptions: what the shared functions don't have is
    compiled with the binding."""
    text = (Path(__file__).parent / "everything_of_pybind11.cpp").read_text()
    made = build_cpu(Candidate(files={"kernels/everything_binding.cpp": text}))
    assert made.library is not None, made.report.log
    code = (
        f"import sys; sys.path.insert(0, {str(made.library.parent)!r})\n"
        "import pickle, torch\nimport cuda_extension as m\n"
        "class Twice(m.A):\n"
        "    def go(self, a):\n        return 2 * a\n"
        "def fault(call):\n"
        "    try:\n        return call()\n"
        "    except Exception as error:\n        return type(error).__name__\n"
        "a, b = m.A(), m.B()\nb.data = [1, 2]\n"
        "print(a.go(), m.call(Twice(), 4), (a + a).x, a, pickle.loads(pickle.dumps(a)), m.E.two.name)\n"
        "print(memoryview(b).tolist(), list(b), m.count(1, 2, c=3), m.after(lambda x: 2 * x)(4))\n"
        "print(m.both({'a': None}, 'x'), m.tensors([torch.ones(2)], torch.float32, [1, 2]), m.over('a'))\n"
        "print(*map(fault, (m.throws, m.stops, lambda: m.missing(3), lambda: m.over(None))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "4 8 2 A(1) A(1) two",
        "[1.0, 2.0] [1.0, 2.0] 3 9",
        "{'a': {'a': None}, 'v': 'x'} (2, 2) 2",
        "MyError StopIteration AttributeError TypeError",
    ], done.stderr


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model_new.py": ""}, "nothing to build"),
        ({"kernels/a.cu": "// CUDA"}, "device is cpu"),
        ({"setup.py": "", "kernels/a.cpp": ""}, "can't be part of a candidate"),
    ],
)
def test_what_can_not_be_built_says_why(files: dict[str, str], message: str) -> None:
    report = build_cpu(Candidate(files=files)).report
    assert not report.succeeded
    assert message in report.log


def test_a_compiler_without_end_is_ended() -> None:
    recursive = "template <int N> struct F { static constexpr long v = F<N - 1>::v + F<N - 2>::v * N; };\n"
    slow = recursive + "constexpr int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\nstatic_assert(f(60) > 0);\n"
    report = build_cpu(
        Candidate(files={"kernels/a.cpp": '#pragma GCC optimize("O0")\n' + slow}), build_timeout_s=4.0
    ).report
    assert not report.succeeded
    # GCC's own limit on constant evaluation may end it first.
    assert "took too long" in report.log or "constexpr" in report.log


def test_an_endless_include_takes_bounded_time_and_space(tmp_path: Path) -> None:
    report = build_cpu(Candidate(files={"kernels/a.cpp": '#include "/dev/zero"\n'}), build_timeout_s=20.0).report
    assert not report.succeeded


def test_files_of_the_machine_are_out_of_reach(tmp_path: Path) -> None:
    secret = Path.home() / f".cuda-agent-test-{tmp_path.name}"
    secret.write_text("12345")
    try:
        text = f'asm(".incbin \\"{secret}\\"");\n'
        report = build_cpu(Candidate(files={"kernels/a.cpp": text})).report
        assert not report.succeeded
        assert "12345" not in report.log
    finally:
        secret.unlink()


def test_a_source_may_include_another_one(axpby: Candidate) -> None:
    files = {
        "kernels/a.cpp": '#include "b.cpp"\nint a() { return b_value; }\n',
        "kernels/b.cpp": "static int b_value = 1;\n",
    }
    assert build_cpu(Candidate(files=files)).report.succeeded


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch, axpby: Candidate) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    toolchain.find_toolchain.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"apt install g\+\+"):
            build_cpu(axpby)
    finally:
        toolchain.find_toolchain.cache_clear()


def test_a_compiler_may_be_a_script_far_from_its_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "g++"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    toolchain.find_toolchain.cache_clear()
    try:
        source = Candidate(files={"kernels/a.cpp": "#include <vector>\nstd::vector<int> a() { return {1}; }\n"})
        made = compile_only(source, device=Device.CPU, options=OPTIONS, arch="9.0", cache=tmp_path / "cache")
        output = made["kernels/a.cpp"].output
        assert output is not None, made
        (only,) = Compiled.load(output.with_name(COMPILED)).passes
        assert {piece.path for piece in only.pieces} == {"kernels/a.cpp"}
    finally:
        toolchain.find_toolchain.cache_clear()


def test_a_full_disk_is_said(axpby: Candidate, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="CUDA_AGENT_CACHE"):
        build_cpu(axpby, cache=cache)


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = compiler.ObjectCache(tmp_path)
    for index in range(3):
        made = tmp_path / "made"
        made.write_bytes(b"x" * 1000)
        kept = cache.keep("objects", f"key{index}", "object.o", made)
        os.utime(kept.parent, (index, index))
    cache.prune(limit_bytes=2500)
    assert cache.find("objects", "key0", "object.o") is None
    assert cache.find("objects", "key2", "object.o") is not None


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
def test_cuda_sources_compile_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # Read as it is: to precompile it, for these sources alone, takes twice as long.
    text = Path(binding_headers.__file__).with_name("headers") / "cuda_agent_torch.h"
    monkeypatch.setattr(build_module, "binding_headers", lambda _: BindingHeaders(text, text))
    outcomes = compile_only(
        axpby_candidate(Device.CUDA), device=Device.CUDA, options=JudgeOptions(device=Device.CUDA), arch="9.0"
    )
    assert {name: outcome.fault for name, outcome in outcomes.items()} == dict.fromkeys(
        ("binding.cpp", "kernels/axpby.cu", "kernels/axpby_binding.cpp"), ""
    ), {name: outcome.log for name, outcome in outcomes.items()}
    kernel = outcomes["kernels/axpby.cu"].output
    assert kernel is not None
    assert b"sm_90a" in kernel.read_bytes()


def test_builds_at_the_reduced_level_too(axpby: Candidate) -> None:
    build_cpu(axpby)
    report = build_cpu(changed(axpby, "kernels/axpby.cpp", "alpha", "first"), sandbox="reduced").report
    assert report.succeeded, report.log
    assert report.compiled_objects == 1
    assert (cache_dir() / "build" / "objects").is_dir()


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
def test_lambdas_for_the_device_compile_however_they_are_spelled(tmp_path: Path) -> None:
    """The flag that they need costs 0.6 s a compile, so it is left out where none is seen."""
    kernel = (
        "#include <cuda_runtime.h>\n#define DEVICE __device__\n"
        "template <class F> __global__ void apply(F f, float* out) { out[threadIdx.x] = f(threadIdx.x); }\n"
        'extern "C" void launch(float* out, float a, cudaStream_t stream) {\n'
        "  apply<<<1, 32, 0, stream>>>([=] QUALIFIER (int i) { return a * i; }, out);\n}\n"
    )
    options = JudgeOptions(device=Device.CUDA)
    for spelling in ("__device__", "DEVICE"):
        candidate = Candidate(files={"model_new.py": "", "kernels/apply.cu": kernel.replace("QUALIFIER", spelling)})
        found = compile_only(candidate, device=Device.CUDA, options=options, arch="9.0", cache=tmp_path)
        assert found["kernels/apply.cu"].fault == "", found["kernels/apply.cu"].log


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is missing")
def test_the_two_passes_of_nvcc_make_what_nvcc_makes(tmp_path: Path) -> None:
    candidate = axpby_candidate(Device.CUDA)
    command = toolchain.find_toolchain(Device.CUDA, "9.0").nvcc_command(lambdas=False)
    (tmp_path / "a.cu").write_text(candidate.files["kernels/axpby.cu"])
    made = {}
    for name in ("plain", "passes"):
        kept = tmp_path / name
        kept.mkdir()
        if name == "plain":
            call = [*command, "--keep", "--keep-dir", str(kept), "-c", "a.cu", "-o", f"{name}.o"]
        else:
            module = (tmp_path / "plain" / "a.module_id").read_text().strip()
            steps = nvcc.script(tuple(command), "a.cu", str(kept), f"{name}.o", module)
            assert steps is not None, "this nvcc works in other steps: it is run as it is, and a turn takes longer"
            call = ["/bin/sh", "-c", steps]
        subprocess.run(call, cwd=tmp_path, check=True)
        made[name] = (tmp_path / f"{name}.o").read_bytes().replace(b"plain", b"").replace(b"passes", b"")
    assert made["plain"] == made["passes"]


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is missing")
@pytest.mark.parametrize(
    ("code", "said"), [("undeclared", "kernels/a.cu(1): error"), ('asm("bogus;")', "known instruction")]
)
def test_errors_of_either_pass_are_told_once(code: str, said: str) -> None:
    files = {"kernels/a.cu": f"__global__ void k() {{ {code}; }}\n"}
    found = compile_only(Candidate(files=files), device=Device.CUDA, options=OPTIONS, arch="9.0")["kernels/a.cu"]
    assert found.fault == "compile error"
    assert found.log.count(said) == 1, found.log
