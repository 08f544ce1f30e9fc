"""A plan in one line."""

from cuda_agent.core.plan import KernelPlan, PlannedKernel


def plan_of(count: int) -> KernelPlan:
    return KernelPlan(kernels=tuple(PlannedKernel(name=f"k{at}", skill="pointwise") for at in range(count)))


def test_a_summary_names_each_launch_in_order() -> None:
    assert plan_of(3).summary == "k0 -> k1 -> k2"


def test_the_middle_of_a_long_one_is_counted() -> None:
    found = plan_of(500).summary
    assert found.startswith("k0 -> k1 -> ") and found.endswith("k498 -> k499") and "… 476 more …" in found
