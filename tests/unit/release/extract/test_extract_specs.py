"""A model named on the command line, as a task's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.core.errors import TaskError, UsageError
from cuda_agent.release.extract.specs import whole_model_source

WHOLE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def test_a_file_is_the_source_itself(tmp_path: Path) -> None:
    path = tmp_path / "code" / "mine.py"
    path.parent.mkdir()
    path.write_text(WHOLE)
    whole = whole_model_source(str(path), cwd=tmp_path)
    assert (whole.name, whole.source, whole.folders) == ("mine", WHOLE, ())


def test_a_file_that_imports_its_neighbour_needs_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "code" / "mine.py"
    path.parent.mkdir()
    path.write_text("from layers import Block\n" + WHOLE)
    (path.parent / "layers.py").write_text("")
    assert whole_model_source(str(path), cwd=tmp_path).folders == (path.parent.resolve(),)


def test_a_class_is_wrapped_with_its_arguments(tmp_path: Path) -> None:
    whole = whole_model_source(
        "transformers:LlamaForCausalLM",
        ["input_ids=int64[2,128]:0..32000", "mask=bool[2,128]", "x=bfloat16[4]:-1..1", "use_cache=False"],
        ["config=transformers:LlamaConfig(hidden_size=64)", "extra=3"],
        cwd=tmp_path,
    )
    assert whole.name == "LlamaForCausalLM"
    assert "from transformers import LlamaForCausalLM as _Whole" in whole.source
    assert "_Whole(config=LlamaConfig(hidden_size=64), extra=3)" in whole.source
    assert "torch.randint(0, 32000, (2, 128), dtype=torch.int64)" in whole.source
    assert "(torch.rand((4,)) * 2.0 + -1.0).to(torch.bfloat16)" in whole.source
    assert "self.model(input_ids=input_ids, mask=mask, x=x, use_cache=False)" in whole.source


def test_inputs_without_names_are_positional(tmp_path: Path) -> None:
    whole = whole_model_source("a.b:C.make", ["float32[2]", "float32[3]"], ["5"], cwd=tmp_path)
    assert "from a.b import C as _Whole" in whole.source
    assert "self.model = _Whole.make(5)" in whole.source
    assert "return self.model(input_0, input_1)" in whole.source


@pytest.mark.parametrize(
    ("model", "inputs", "init", "says"),
    [
        ("nothing", [], [], "neither a file nor"),
        ("a:B", [], [], "aren't given"),
        ("a:B;import os", ["float32[1]"], [], "not the name of a class"),
        ("a:B", ["float33[1]"], [], "no tensor type"),
        ("a:B", ["float32[0]"], [], "sizes are at least 1"),
        ("a:B", ["int64[2]:5..5"], [], "LOW < HIGH"),
        ("a:B", ["int64[2]:a..b"], [], "can't be read"),
        ("a:B", ["cache=open('x')"], [], "can't be read"),
        ("a:B", ["flag=True"], [], "No --input is a tensor"),
        ("a:B", ["x=float32[1]", "float32[1]"], [], "follows one with a name"),
        ("a:B", ["float32[1]"], ["x=os:system(open('y'))"], "can't be read"),
        ("gone.py:B", ["float32[1]"], [], "No such file"),
    ],
)
def test_what_can_t_be_read_is_said(tmp_path: Path, model: str, inputs: list[str], init: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        whole_model_source(model, inputs, init, cwd=tmp_path)


def test_a_file_without_a_model_is_no_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    with pytest.raises(TaskError, match="doesn't define Model"):
        whole_model_source(str(path), cwd=tmp_path)
