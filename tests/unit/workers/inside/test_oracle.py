"""The oracle is float64 whatever the module casts to inside, and says so when it isn't."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from capture_modules import CASES
from cuda_agent.core.enums import Precision
from cuda_agent.workers.inside.task.oracle import Draws, eager_at_precision, precision_flags, run_float64
from cuda_agent.workers.inside.task.taskmodule import load_task_module, make_init_inputs, make_inputs, make_model
from cuda_agent.workers.inside.task.weights import redraw


def load(text, name="case"):
    task = load_task_module(text, name)
    model = make_model(task, make_init_inputs(task), "cpu", 0)
    redraw(model, 1)
    return model, make_inputs(task, "cpu", 2)


def floats(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.is_floating_point()]


@pytest.mark.parametrize("name", CASES)
def test_every_family_is_float64(name):
    model, inputs = load(CASES[name], name)
    before = [t.clone() for t in (*model.state_dict().values(), *tree_leaves(inputs)) if isinstance(t, torch.Tensor)]
    oracle = run_float64(model, inputs)
    assert oracle.precision == "float64", oracle.reason
    after = [t for t in (*model.state_dict().values(), *tree_leaves(inputs)) if isinstance(t, torch.Tensor)]
    assert all(one.dtype is two.dtype and torch.equal(one, two) for one, two in zip(before, after, strict=True))
    eager = eager_at_precision(model, inputs, Precision.FP32)
    for exact, native in zip(floats(oracle.value), floats(eager), strict=True):
        assert exact.dtype is torch.float64
        tolerance = 2e-2 if native.dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(native.double(), exact, rtol=tolerance, atol=tolerance)
    assert torch.get_default_dtype() is torch.float32


class Casts(torch.nn.Module):
    def forward(self, x):
        h = x.float() * torch.full((1,), 1 / 3, dtype=torch.float32)
        buffer = torch.zeros_like(x, dtype=torch.float32)
        buffer += h
        return torch.softmax(buffer, -1, dtype=torch.float32).to(torch.bfloat16) * torch.rsqrt(
            h.to(torch.half).float() + 2
        )


def test_inner_casts_are_widened():
    x = torch.rand(4, 8)
    oracle = run_float64(Casts(), [x])
    h = x.double() / 3
    expected = torch.softmax(h, -1) * torch.rsqrt(h + 2)
    assert oracle.precision == "float64"
    torch.testing.assert_close(oracle.value, expected, rtol=1e-12, atol=0)


class Bits(torch.nn.Module):
    def forward(self, x):
        return x.float().view(torch.int32).bitwise_and(-256).view(torch.float32)


def test_what_cannot_be_widened_falls_back():
    oracle = run_float64(Bits(), [torch.rand(8)])
    assert oracle.precision == "float32" and oracle.reason and oracle.precision != "float64"
    assert oracle.value.shape == (8,)


class Sums(torch.nn.Module):
    """Sums in an order of its own, which a candidate needn't take."""

    def forward(self, x):
        assert x.dtype is torch.float32
        total = torch.zeros(x.shape[0])
        for column in x.unbind(1):
            total = total + column
        return total


def test_below_float64_the_oracle_shows_the_spread_of_rounding_errors():
    x = torch.randn(64, 2000)
    oracle, eager = run_float64(Sums(), [x]), Sums()(x)
    assert oracle.precision == "float32"

    def apart(one, other):
        return float((one - other).norm() / other.norm())

    spread = apart(eager.double(), oracle.value)
    assert 1e-7 < spread < 1e-4
    # An exact sum passes within four times eager's distance.
    assert apart(x.double().sum(1), oracle.value) < 4 * spread


class OnlyNative(torch.nn.Module):
    def forward(self, x):
        assert x.dtype is torch.bfloat16
        return x + 1


def test_module_that_insists_on_its_type():
    oracle = run_float64(OnlyNative(), [torch.zeros(3, dtype=torch.bfloat16)])
    assert oracle.precision == "native" and "AssertionError" in oracle.reason


def test_module_that_fails_raises():
    with pytest.raises(RuntimeError):
        run_float64(torch.nn.Linear(3, 3), [torch.rand(4)])


def test_flags_are_restored():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), precision_flags(Precision.TF32):
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        with precision_flags(Precision.FP32):
            assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
        1 / 0  # noqa: B018
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


def test_autocast_policies():
    model, x = torch.nn.Linear(8, 8), [torch.rand(2, 8)]
    assert eager_at_precision(model, x, Precision.BF16).dtype is torch.bfloat16
    assert eager_at_precision(model, x, Precision.TF32).dtype is torch.float32


class Drawing(torch.nn.Module):
    def forward(self, x):
        noise = torch.empty_like(x).normal_(1.0, 2.0) + torch.rand_like(x)
        return x * torch.randn(x.shape) + noise + torch.randint(0, 5, x.shape)


def test_the_oracle_repeats_eagers_random_numbers():
    x, draws = torch.rand(64), Draws()
    with draws:
        eager = Drawing()(x)
    oracle = run_float64(Drawing(), [x], draws.drawn)
    assert oracle.precision == "float64", oracle.reason
    assert torch.allclose(oracle.value, eager.double(), atol=1e-6)


def test_without_eagers_numbers_a_model_that_draws_has_no_wide_oracle():
    assert run_float64(Drawing(), [torch.rand(64)]).precision == "native"
