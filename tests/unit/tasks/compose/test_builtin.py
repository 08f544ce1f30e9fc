"""Every task here is composed from the catalogue, and its own text is run on meta tensors."""

from __future__ import annotations

import ast
import random
import re
from typing import Any

import pytest
import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.tasks.compose.affinity import affinity, domain
from cuda_agent.tasks.compose.builtin import BuiltinComposer, _choices
from cuda_agent.tasks.compose.chain import Link, Plan, solve
from cuda_agent.tasks.compose.emission import emit
from cuda_agent.tasks.compose.layouts import Unsolvable
from cuda_agent.tasks.compose.naming import name as name_all
from cuda_agent.tasks.compose.novelty import Novelty, chain_of
from cuda_agent.tasks.compose.rates import H200, memory_bytes, rates_for
from cuda_agent.tasks.compose.schedule import OperatorSchedule
from cuda_agent.tasks.compose.sizes import lead_for
from cuda_agent.tasks.compose.sizing import Target, fit
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.records import DatasetTask, Seed

SEEDS = tuple(entry.seed for entry in catalogue.read())
NUMBERS = [number for number in range(32) if OperatorSchedule().kind(number)]


def run(source: str) -> Any:
    """What the module gives, on meta tensors."""
    space: dict[str, Any] = {}
    with torch.device("meta"), torch.no_grad():
        exec(compile(source, "<task>", "exec"), space)
        model = space["Model"](*space["get_init_inputs"]()).eval()
        return model(*space["get_inputs"]())


def composed(seed: int = 0, numbers: list[int] = NUMBERS) -> list[DatasetTask]:
    composer = BuiltinComposer(SEEDS, seed, Target())
    found = []
    for number in numbers:
        found.append(composer.compose(number))
        composer.tell(found[-1])
    return found


def written(*names: str, attempts: int = 60) -> str:
    """A task of these operators, or seeds by their names, in this order. Raises Unsolvable."""
    seeds = [next(seed for seed in SEEDS if name in (seed.name, seed.operator)) for name in names]
    flowing = domain(seeds)
    for attempt in range(attempts):
        rng = random.Random(attempt)
        around = zip([None, *seeds], seeds, [*seeds[1:], None], strict=False)
        links = tuple(
            Link(seed, _choices(seed, flowing, *ends, rng)) for *ends, seed in ((a, c, b) for a, b, c in around)
        )
        first = seeds[0].ports[0].layout
        lead = lead_for(first, seeds[1:], rng) if first.startswith("*") else ()
        try:
            sized = fit(Plan(links, lead), Target(), 3000.0, rng)
            return emit(sized, name_all(sized), rng)
        except Unsolvable:
            continue
    raise Unsolvable(" ".join(names))


@pytest.fixture(scope="module")
def tasks() -> list[DatasetTask]:
    return composed()


def test_they_run_as_written(tasks: list[DatasetTask]) -> None:
    for task in tasks:
        made = run(task.task.source)
        assert isinstance(made, torch.Tensor | tuple), task.ops


def test_they_look_like_the_convention(tasks: list[DatasetTask]) -> None:
    for task in tasks:
        source = task.task.source
        tree = ast.parse(source)
        assert ast.get_docstring(tree)
        names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        assert names == ["Model", "get_inputs", "get_init_inputs"]
        assert max(map(len, source.splitlines())) <= 120
        assert "{" not in source and "'" not in source.replace("aren't", "").replace("n's", "").replace("t's", "")
        constants = [node for node in tree.body if isinstance(node, ast.Assign)]
        assert constants, source


def test_numbers_of_operators_follow_the_schedule(tasks: list[DatasetTask]) -> None:
    schedule = OperatorSchedule()
    for task in tasks:
        assert len(task.ops) == schedule.kind(task.number) == len(task.task.operators)
        assert task.task.origin == f"torch#{len(task.ops)}"


def test_predicted_times_lie_in_the_window(tasks: list[DatasetTask]) -> None:
    for task in tasks:
        assert task.cost is not None and 1500 <= task.cost.predicted_us <= 70_000


def test_texts_are_distinct_and_the_same_again(tasks: list[DatasetTask]) -> None:
    assert len({task.task.source for task in tasks}) == len(tasks)
    assert composed(numbers=NUMBERS[:12]) == tasks[:12]
    assert composed(seed=1, numbers=NUMBERS[:3]) != tasks[:3]


def test_no_chain_is_composed_twice(tasks: list[DatasetTask]) -> None:
    assert len({chain_of(task.task.operators) for task in tasks}) == len(tasks)
    novelty = Novelty()
    for task in tasks[:5]:
        assert not novelty.has_alike(task.task.source)
        novelty.add(task.task.operators, task.task.source)
    assert novelty.has_alike(tasks[0].task.source.replace("self, ", "self,  "))
    assert novelty.has_chain(("bias_add", "relu")) is False
    novelty.add(("add", "relu"), tasks[6].task.source)
    assert novelty.has_chain(("bias_add", "relu"))


def test_a_composer_that_is_told_the_past_goes_on_alike(tasks: list[DatasetTask]) -> None:
    composer = BuiltinComposer(SEEDS, 0, Target())
    for task in tasks[:20]:
        composer.tell(task)
    assert composer.compose(NUMBERS[20]) == tasks[20]


def of(*names: str, count: int) -> str:
    """The text of a task of these seeds alone."""
    seeds = [item for item in SEEDS if item.name in names]
    return (
        BuiltinComposer(seeds, 0, Target())
        .compose(next(n for n in range(100) if OperatorSchedule().kind(n) == count))
        .task.source
    )


def test_a_single_number_over_millions_differs_from_draw_to_draw() -> None:
    source = of("nn.MSELoss", count=1)
    assert "    scale = 0.5 + 0.5 * torch.rand(())\n" in source and "scale * torch.randn(" in source
    run(source)
    assert "scale" not in of("F.relu", count=1)


def test_two_layers_that_have_channels_of_their_own() -> None:
    source = of("F.conv_transpose2d", "nn.Conv2d", count=2)
    assert "HIDDEN_CHANNELS" in source
    run(source)


def test_nothing_jumps_after_it_was_rounded() -> None:
    product, clamp = seed("nn.Linear", "* D"), seed("torch.clamp", "*")
    rounding = seed("torch.round", "*")
    assert affinity(product, rounding) == 0 < affinity(clamp, rounding)


def test_second_operands_keep_the_size_of_values() -> None:
    first = written("cat", "F.conv1d")
    assert "weight = torch.randn(OUT_CHANNELS, 2 * CHANNELS, 3) / (2 * CHANNELS * 3) ** 0.5" in first
    assert "/ (CHANNELS * 9) ** 0.5" in written("relu", "F.conv2d")
    assert "weight2 = torch.randn(COLUMNS, OUT_FEATURES) / COLUMNS**0.5" in written("chain_matmul")
    assert "torch.randn(2 * FEATURES, COLUMNS) / (2 * FEATURES) ** 0.5" in written("cat", "chain_matmul")


def test_formulas_have_the_order_of_the_function() -> None:
    assert "y = relu(addmm(bias, x, weight, alpha=0.5))." in written("addmm", "relu")
    assert "where(mask, relu(x), other)" in written("relu", "where")
    assert "(x @ other).transpose(-2, -1)" in written("bmm", "product with its own transpose")
    assert 'einsum("bmk,kp->bmp", x / ' in written("div_scalar", "torch.einsum with one matrix")


def test_formulas_have_the_numbers_that_say_what_is_computed() -> None:
    assert re.search(r"y = topk\(elu\(x(, alpha=\d\.\d)?\), \d+\)\.", written("nn.ELU", "Tensor.topk"))
    assert "y = acosh(1.0 + abs(x))." in written("abs", "acosh")
    assert re.search(r"gt\(x, 0\.[05]\)\.float\(\)", written("comparison with a number"))
    # What is the function's default isn't said, nor how a layer is built.
    assert "y = conv(hardtanh(x))." in written("nn.Hardtanh", "nn.Conv2d").replace(", min_val=-0.5", "").replace(
        ", max_val=0.5", ""
    )


def test_what_is_masked_is_hidden_from_a_softmax_and_zero_elsewhere() -> None:
    assert "masked_fill(mask, -10000.0)" in written("masked_fill", "softmax").replace("x, mask", "mask")
    assert "masked_fill(mask, 0.0)" in written("masked_fill", "linear").replace("x, mask", "mask")


def test_what_is_padded_is_not_padded_again() -> None:
    assert re.search(r"padding=\d", written("circular_pad_2d", "depthwise nn.Conv2d")) is None


def test_targets_lie_where_the_values_do() -> None:
    assert "torch.rand(" in written("sigmoid", "mse_loss") and "target = torch.randn" not in written("tanh", "l1_loss")


def test_dimensions_have_names() -> None:
    assert "POINTS, FEATURES, CENTRES" in written("cdist")
    assert "CHANNELS, LENGTH" in written("cat", "F.conv1d")
    with pytest.raises(Unsolvable):
        written("kron", "mse_loss", attempts=3)


def test_without_seeds_of_a_library_nothing_is_composed() -> None:
    with pytest.raises(TaskError, match="no seeds of this library"):
        BuiltinComposer(SEEDS, 0, Target()).compose(next(n for n in range(200) if OperatorSchedule().kind(n) == 0))


def seed(name: str, layout: str) -> Seed:
    return next(item for item in SEEDS if item.name == name and item.ports[0].layout == layout)


def test_shapes_and_costs_of_a_chain() -> None:
    conv, relu = seed("nn.Conv2d", "N C H W"), seed("F.relu", "*")
    plan = Plan((Link(conv, ("64", "3", "2", "kernel_size // 2", "True")), Link(relu, ())))
    steps = solve(plan, {(0, "N"): 4, (0, "C"): 16, (0, "H"): 32, (0, "W"): 32})
    assert tuple(steps[1].outputs[0].shape) == (4, 64, 16, 16)
    assert steps[0].weights == 64 * 16 * 9 + 64
    assert steps[0].flops == 2 * 4 * 64 * 16 * 16 * 16 * 9
    assert memory_bytes(steps) == 4 * (4 * 16 * 32 * 32 + steps[0].weights + 2 * 4 * 64 * 16 * 16)
    assert H200.predict_us(steps[1]) == pytest.approx(2 * 4 * 4 * 64 * 16 * 16 / 4.1e6 + 5)


def test_a_recurrent_layer_has_its_shapes_at_any_length() -> None:
    gru = seed("nn.GRU", "B T D")
    (step,) = solve(Plan((Link(gru, tuple(item.choices[0] for item in gru.parameters)),)), {
        (0, "B"): 4, (0, "T"): 700, (0, "D"): 8,
    })  # fmt: skip
    assert tuple(step.outputs[0].shape[:2]) == (4, 700)


def test_what_does_not_follow() -> None:
    norm = seed("nn.BatchNorm2d", "N C H W")
    with pytest.raises(Unsolvable):
        solve(Plan((Link(seed("torch.sum", "* D"), ("-1", "False")), Link(norm, ())), ("batch",)), {
            (0, "batch"): 4, (0, "D"): 8,
        })  # fmt: skip


def test_other_stacks() -> None:
    assert rates_for("A100").memory_tb_s < H200.memory_tb_s
