"""Whether a task can be judged at all: it repeats itself, its state dict says everything, and null answers fail on
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda_agent.core.enums import SandboxLevel
from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import Graph, TensorMeta
from cuda_agent.core.record import Record
from cuda_agent.core.records import Task
from cuda_agent.judge.compare import measure, rule
from cuda_agent.judge.reference import Answer, Reference
from cuda_agent.judge.verify import Secrets

#: Operators whose answer depends on a generator's state.
_RANDOM = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial",
    "normal", "normal_functional", "uniform", "native_dropout", "dropout", "feature_dropout", "alpha_dropout",
    "rrelu_with_noise", "rrelu_with_noise_functional", "exponential", "geometric", "cauchy", "log_normal", "poisson",
    "binomial", "fractional_max_pool2d", "fractional_max_pool3d",
)  # fmt: skip


class Admission(Record):
    """What was found about a task that can be judged."""

    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    weights: int
    operators: tuple[str, ...]
    sandbox: SandboxLevel


def random_operators(graph: Graph) -> tuple[str, ...]:
    """The graph's operators that draw random numbers."""
    return tuple(sorted({n.op for n in graph.nodes if n.op.removeprefix("aten.").split(".")[0].rstrip("_") in _RANDOM}))


def check_answers(task: Task, reference: Reference, secrets: Secrets, floor: float) -> None:
    """Raises TaskError: stochastic, random state outside the state dict, or a null answer passes."""
    weights, here = secrets.seed(), secrets.seed()
    reference.draw_weights(weights)
    other = _eager(reference, secrets.seed(), secrets.seed())
    again = _eager(reference, here, secrets.seed())
    twin = _eager(reference, here, secrets.seed(), twin=secrets.seed())
    spec = reference.draw_inputs(here)
    answer = reference.answer(spec, secrets.seed())

    def passes(mine: list[Any]) -> bool:
        return _passes(mine, answer, task, floor)

    def same(mine: list[Any]) -> bool:
        """Eager against itself: neither the oracle nor eager's own error excuses a difference."""
        pairs = zip(mine, answer.eager, strict=True)
        return all(rule(measure(c, e, e, e, atol=task.atol, rtol=task.rtol), floor).passed for c, e in pairs)

    if not same(again):
        raise TaskError(
            f"{task.name}: Model gives another answer to the same inputs and weights (it is stochastic)",
            "Remove random operators from forward",
        )
    if not same(twin):
        raise TaskError(
            f"{task.name}: Model's answer depends on random values that its state dict doesn't hold",
            "Register them as parameters or buffers",
        )
    _check_nulls(task, answer, other, passes)


def _check_nulls(task: Task, answer: Answer, other: list[Any], passes: Callable[[list[Any]], bool]) -> None:
    import torch

    def constant(tensor: Any) -> Any:
        if not tensor.is_floating_point():
            return torch.full_like(tensor, tensor.flatten()[0].item()) if tensor.numel() else tensor
        mean = tensor[tensor.isfinite()].double().mean() if tensor.numel() else 0.0
        return torch.full_like(tensor, float(mean))

    nulls: dict[str, Callable[[], list[Any]]] = {
        "all zeros": lambda: [torch.zeros_like(t) for t in answer.eager],
        "a constant": lambda: [constant(t) for t in answer.eager],
        "the answer to other inputs": lambda: other,
    }
    for name, make in nulls.items():
        if passes(make()):
            raise TaskError(
                f"{task.name}: {name} would pass for the answer, so a candidate can't be told from doing nothing",
                "Let the output depend on the inputs beyond the tolerance, or tighten the task's atol and rtol",
            )


def _eager(reference: Reference, seed: int, rng: int, twin: int | None = None) -> list[Any]:
    """The plain answer to the inputs under `seed`, kept apart from the next one."""
    spec = reference.draw_inputs(seed)
    return [tensor.clone() for tensor in reference.answer(spec, rng, oracle=False, twin=twin).eager]


def _passes(mine: list[Any], answer: Answer, task: Task, floor: float) -> bool:
    for c, e, p, o in zip(mine, answer.eager, answer.policy, answer.oracle, strict=True):
        if not rule(measure(c, e, p, o, atol=task.atol, rtol=task.rtol), floor).passed:
            return False
    return True
