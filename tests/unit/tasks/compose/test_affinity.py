from __future__ import annotations

import pytest

from cuda_agent.tasks.compose.affinity import affinity, domain, role, suits
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.records import Seed


def seed(operator: str, spelling: str = "functional") -> Seed:
    found = [entry.seed for entry in catalogue.read() if entry.seed.operator == operator]
    return next((item for item in found if item.spelling == spelling), found[0])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("softmax", "sum"), ("layer_norm", "mean"), ("relu", "abs"), ("relu", "log"), ("cross_entropy", "relu"),
        ("relu", "gelu"), ("conv2d", "cross_entropy"), ("gt", "relu"), ("relu", "embedding"), ("exp", "exp2"),
        # the second undoes or ignores the first
        ("mul_scalar", "batch_norm_2d"), ("add_scalar", "softmax"), ("flip", "sum"), ("cummax", "amax"), ("neg", "abs"),
        ("tile", "mean"), ("channel_shuffle", "var"), ("sigmoid", "clamp"), ("tanh", "relu6"), ("relu", "hardshrink"),
        # constant or beyond all bounds
        ("amax", "softshrink"), ("vector_norm", "expm1"), ("sum", "sigmoid"), ("std", "sinc"), ("square", "exp"),
        ("matrix_power", "hardsigmoid"), ("cosine_similarity", "add_scalar"),
        # nobody writes it
        ("triu", "log_softmax"), ("log_softmax", "einsum"), ("diag_embed", "matmul"), ("cosh", "gru_cell"),
        ("hypot", "gru"), ("addmm", "i0"), ("conv2d", "exp2"), ("atan", "linear"), ("gru", "vstack"),
        ("log_softmax", "multilabel_soft_margin_loss"), ("softmin", "median"), ("matmul", "lstm"),
        ("zero_pad_2d", "relu"), ("zero_pad_2d", "conv_transpose2d"),
    ],
)  # fmt: skip
def test_pointless_pairs(before: str, after: str) -> None:
    assert affinity(seed(before), seed(after)) == 0


def test_usual_pairs_come_before_unusual_ones() -> None:
    conv = seed("conv2d")
    assert affinity(conv, seed("relu")) > affinity(conv, seed("mean")) > 0 == affinity(conv, seed("cumsum"))
    assert affinity(seed("softplus"), seed("log")) > 0


def test_roles_are_finer_than_families() -> None:
    assert [role(seed(name)) for name in ("add", "exp", "gt", "softmax", "topk", "zero_pad_2d")] == [
        "binary", "math", "comparison", "softmax", "ordering", "padding",
    ]  # fmt: skip


def test_the_last_dimension_of_an_image_is_left_alone() -> None:
    assert domain([seed("relu"), seed("conv2d")]) == "image"
    assert suits(seed("softmax"), "image") == 0 < suits(seed("softmax"), "rows")
    assert suits(seed("sum"), "image") > 0 == suits(seed("cumsum"), "image")
    assert suits(seed("scaled_dot_product_attention"), "image") == 0


def test_signals_images_and_rows_are_not_mixed() -> None:
    for name in ("bmm", "hstack", "repeat_interleave", "transformer_encoder_layer", "cdist", "bias_add"):
        assert suits(seed(name), "signal") == suits(seed(name), "image") == 0, name
    assert suits(seed("transpose"), "signal") == suits(seed("cat"), "image") == 1
