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
    ],
)  # fmt: skip
def test_pointless_pairs(before: str, after: str) -> None:
    assert affinity(seed(before), seed(after)) == 0


def test_usual_pairs_come_before_unusual_ones() -> None:
    conv = seed("conv2d")
    assert affinity(conv, seed("relu")) > affinity(conv, seed("cumsum")) > 0
    assert affinity(seed("softplus"), seed("log")) > 0


def test_roles_are_finer_than_families() -> None:
    assert [role(seed(name)) for name in ("add", "exp", "gt", "softmax", "topk", "zero_pad_2d")] == [
        "binary", "math", "comparison", "softmax", "ordering", "padding",
    ]  # fmt: skip


def test_the_last_dimension_of_an_image_is_left_alone() -> None:
    assert domain([seed("relu"), seed("conv2d")]) == "image"
    assert suits(seed("softmax"), "image") < 0.1 < suits(seed("softmax"), "rows")
    assert suits(seed("scaled_dot_product_attention"), "image") == 0
