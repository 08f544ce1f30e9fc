"""Baselines by their names in records."""

from __future__ import annotations

import pytest

from cuda_agent.core.baselines import Baseline, forms
from cuda_agent.core.enums import Precision


@pytest.mark.parametrize(
    ("name", "form", "precision", "label"),
    [
        ("eager", "eager", None, "eager"),
        ("compile", "compile", None, "torch.compile (float32)"),
        ("eager_tf32", "eager", Precision.TF32, "eager (tf32)"),
        ("graphs_bf16", "graphs", Precision.BF16, "torch.compile reduce-overhead (bf16)"),
        ("autotune_fp32", "autotune", Precision.FP32, "torch.compile max-autotune (fp32)"),
        ("frozen_fp16", "frozen", Precision.FP16, "torch.compile, constant weights (fp16)"),
        ("frozen", "frozen", None, "torch.compile, constant weights"),
        ("of_another_version_tf32", "of_another_version", Precision.TF32, "of_another_version (tf32)"),
    ],
)
def test_a_name_is_parsed_and_written_again(name: str, form: str, precision: Precision | None, label: str) -> None:
    found = Baseline.parse(name)
    assert (found.form, found.precision, found.name, found.label) == (form, precision, name, label)
    assert found.frozen is (form == "frozen")


def test_forms_are_found_and_their_names_are_no_baselines_at_a_precision() -> None:
    assert list(forms()) == ["eager", "compile", "graphs", "autotune", "frozen"], "eager is prepared first"
    assert all(Baseline.parse(name) == Baseline(form=name) for name in forms())
