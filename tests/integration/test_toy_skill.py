"""The kernel of a skill that is added as a folder is compiled and right."""

from __future__ import annotations

import pytest

from playbook_harness import check
from toy_skill import INPUTS, Signs, added

pytestmark = pytest.mark.integration


def test_a_kernel_of_a_new_folder_agrees_with_torch() -> None:
    with added():
        steps = check(Signs(), INPUTS, every_setting=True)
    assert [step.skill for step in steps] == ["pointwise", "toy_sign", "pointwise"]
