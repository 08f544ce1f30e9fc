from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.tasks.compose.layouts import Unsolvable, bind, concrete, leading
from cuda_agent.tasks.expressions import names_in

LAYOUTS = ("N C H W", "* D", "* 2*D", "N 4*C L", "*", "B T T", "N D 3")


@given(st.sampled_from(LAYOUTS), st.lists(st.integers(1, 999), min_size=4, max_size=4), st.lists(st.integers(1, 9)))
def test_a_shape_settles_what_made_it(layout: str, sizes: list[int], lead: list[int]) -> None:
    names = dict(zip(names_in(layout), sizes, strict=False))
    before = tuple(lead) if layout.startswith("*") else ()
    shape = concrete(layout, names, before)
    assert bind(layout, shape, {}) == names
    assert leading(layout, shape) == before


@pytest.mark.parametrize(
    ("layout", "shape"), [("N C", (2, 3, 4)), ("* 2*D", (2, 5)), ("B T T", (2, 3, 4)), ("N 3", (2, 4)), ("N C", (2,))]
)
def test_what_does_not_fit(layout: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(Unsolvable):
        bind(layout, shape, {})
