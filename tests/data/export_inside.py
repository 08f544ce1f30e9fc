"""What exports do in an environment that has torch and transformers and nothing of cuda-agent; run there by pytest.

`llama_norm` is the recorded run as a package, `llama_norm_ops` and `llama_norm_frozen` as operators of torch, the last
one with a derived weight. All three share one compiled library.
"""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llama_norm
import llama_norm_frozen
import llama_norm_ops
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

#: without a compiler an operator of torch is the same as a package.
PACKAGES = [llama_norm, llama_norm_frozen]
OPERATORS = [llama_norm_ops, llama_norm_frozen]
TOKENS = (2, 256)

# Of several threads a busy machine gives a sum fewer now and then, and its last bit changes.
torch.set_num_threads(1)


def _llama(layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=64, rms_norm_eps=1e-6)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def _norm() -> LlamaRMSNorm:
    norm = LlamaRMSNorm(256, eps=1e-6).eval()
    with torch.no_grad():
        norm.weight.normal_()
    return norm


@contextmanager
def _calls(package: Any) -> Iterator[list[int]]:
    """Counts runs of the kernels meanwhile."""
    kernels = importlib.import_module(f"{package.__name__}.kernels")
    seen, run = [], kernels.run

    def counted(*args: Any) -> Any:
        seen.append(1)
        return run(*args)

    kernels.run = counted
    try:
        yield seen
    finally:
        kernels.run = run


def _close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_nothing_of_cuda_agent_is_here() -> None:
    assert importlib.util.find_spec("cuda_agent") is None


@pytest.mark.parametrize("package", PACKAGES)
def test_patch_keeps_a_llamas_outputs(package: Any) -> None:
    model, ids = _llama(), torch.randint(0, 64, TOKENS)
    names, state = list(model.state_dict()), torch.get_rng_state()
    with torch.no_grad():
        expected = model(ids).logits
        result = package.patch(model)
        assert len(result.replaced) == 5 and not result.skipped
        assert torch.equal(state, torch.get_rng_state()) and list(model.state_dict()) == names
        with _calls(package) as calls:
            _close(model(ids).logits, expected)
        assert len(calls) == 5
        assert package.unpatch(model) == 5 and type(model.model.norm) is LlamaRMSNorm
        with _calls(package) as calls:
            assert torch.equal(model(ids).logits, expected)
        assert not calls


@pytest.mark.parametrize("package", PACKAGES)
def test_gradients_come_from_the_original(package: Any) -> None:
    model, ids = _llama(1), torch.randint(0, 64, TOKENS)
    model(ids).logits.square().mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    package.patch(model)
    with _calls(package) as calls:
        model(ids).logits.square().mean().backward()
    assert not calls
    assert all(torch.equal(parameter.grad, expected[name]) for name, parameter in model.named_parameters())


def _elsewhere() -> list[tuple[str, Callable[[nn.Module, torch.Tensor], Any]]]:
    class Marked(torch.Tensor):
        pass

    def training(norm: nn.Module, x: torch.Tensor) -> None:
        norm.train()
        norm(x)

    def autocast(norm: nn.Module, x: torch.Tensor) -> None:
        with torch.autocast("cpu"):
            norm(x)

    def configured(norm: Any, x: torch.Tensor) -> None:
        norm.variance_epsilon = 0.5
        norm(x)

    return [
        ("shape", lambda norm, x: norm(x[:, :100])),
        ("strides", lambda norm, x: norm(x.transpose(0, 1).contiguous().transpose(0, 1))),
        ("type", lambda norm, x: norm(x.double())),
        ("weight's type", lambda norm, x: norm.bfloat16()(x)),
        ("meta device", lambda norm, x: norm.to("meta")(x.to("meta"))),
        ("subclass", lambda norm, x: norm(x.as_subclass(Marked))),
        ("vmap", lambda norm, x: torch.func.vmap(norm)(x.expand(3, *x.shape))),
        ("training", training),
        ("autocast", autocast),
        ("configured anew", configured),
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_else_runs_the_original(package: Any) -> None:
    x = torch.randn(*TOKENS, 256)
    for what, call in _elsewhere():
        norm = _norm()
        package.patch(norm)
        with torch.no_grad(), _calls(package) as calls:
            call(norm, x)
            assert not calls, what
            fresh = _norm()
            package.patch(fresh, check=False)
            fresh(x)
            fresh(hidden_states=x)
            assert len(calls) == 2


@pytest.mark.parametrize("package", PACKAGES)
def test_what_does_not_match_is_left_alone_with_the_reason(package: Any) -> None:
    class Own(nn.Module):
        def __init__(self, epsilon: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(256))
            self.epsilon = epsilon

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()

    cases = [
        (LlamaRMSNorm(256, eps=1e-5), {}, "variance_epsilon is 1e-05"),
        (LlamaRMSNorm(128), {}, r"weight is \[128\]"),
        (LlamaRMSNorm(256).bfloat16(), {}, "bfloat16"),
        (LlamaRMSNorm(256).to("meta"), {}, "is on meta"),
        (Own(1e-6), {}, "none is of class"),
        (Own(1e-3), {"target": Own}, "differs from the original's"),
    ]
    for module, options, said in cases:
        with pytest.warns(UserWarning, match=said):
            assert not package.patch(module.eval(), **options).replaced
        assert type(module) in (LlamaRMSNorm, Own)
    assert package.patch(Own(1e-6).eval(), target=Own).replaced == [""]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_change_of_weights_is_noticed(package: Any) -> None:
    x, norm = torch.randn(*TOKENS, 256), _norm()
    package.patch(norm)
    large = torch.randn(257)
    changes: list[Callable[[], Any]] = [
        lambda: norm.weight.mul_(1.5),
        lambda: norm.load_state_dict({"weight": torch.randn(256)}),
        lambda: setattr(norm, "weight", nn.Parameter(torch.randn(256))),
        lambda: setattr(norm.weight, "data", torch.randn(256)),
        lambda: setattr(norm.weight, "data", large[1:]),
        lambda: large.mul_(2.0),
        lambda: torch.optim.SGD([norm.weight], 0.1).step(),
    ]
    for change in changes:
        norm.weight.grad = torch.ones(256)
        with torch.no_grad():
            change()
            _close(norm(x), LlamaRMSNorm.forward(norm, x))
        with torch.inference_mode():
            _close(norm(x), LlamaRMSNorm.forward(norm, x))


@pytest.mark.parametrize("package", PACKAGES)
def test_copies_pickles_and_threads_have_weights_of_their_own(package: Any) -> None:
    x, norm = torch.randn(*TOKENS, 256), _norm()
    package.patch(norm)
    with torch.no_grad():
        copied, pickled = copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))
        copied.weight.mul_(2.0)
        with _calls(package) as calls:
            _close(copied(x), 2.0 * norm(x))
            _close(pickled(x), norm(x))
        assert len(calls) == 4
    wrong = []

    def work(one: Any) -> None:
        with torch.no_grad():
            for _ in range(10):
                if not torch.allclose(one(x), LlamaRMSNorm.forward(one, x), atol=2e-5):
                    wrong.append(one)

    threads = [threading.Thread(target=work, args=(one,)) for one in (norm, copied, pickled, norm)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_weights_that_are_gone_are_let_go(package: Any) -> None:
    bound = importlib.import_module(f"{package.__name__}.kernels")._bound
    package.forget()
    norm = _norm()
    package.patch(norm)
    assert len(bound) == 1
    del norm
    gc.collect()
    assert not bound


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_of_other_arguments_runs_the_original(package: Any) -> None:
    x = torch.randn(*TOKENS, 256)
    with torch.no_grad(), _calls(package) as calls:
        package.Module(256, eps=1e-6).eval()(x)
        assert len(calls) == 1
        package.Module(256, eps=1e-3).eval()(x)
        assert len(calls) == 1


def test_the_package_breaks_a_graph_and_keeps_its_numbers() -> None:
    x, norm = torch.randn(*TOKENS, 256), _norm()
    llama_norm.patch(norm)
    with torch.no_grad(), _calls(llama_norm):
        compiled = torch.compile(nn.Sequential(norm, nn.ReLU()), backend="eager")
        _close(compiled(x), torch.relu(LlamaRMSNorm.forward(norm, x)))


def test_the_operator_has_no_graph_break_in_a_compiled_llama() -> None:
    torch._dynamo.reset()
    model, ids = _llama(1), torch.randint(0, 64, TOKENS)
    called: list[Any] = []

    def seen(graph: torch.fx.GraphModule, _: Any) -> Any:
        called.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    with torch.no_grad():
        expected = model(ids).logits
        assert len(llama_norm_frozen.patch(model).replaced) == 3
        compiled = torch.compile(model, fullgraph=True, backend=seen)
        _close(compiled(ids).logits, expected)
        assert called.count(torch.ops.llama_norm_frozen.forward.default) == 3
        model.model.norm.weight.mul_(2.0)
        _close(compiled(ids).logits, 2.0 * expected)


def test_the_operator_among_what_the_compiler_writes() -> None:
    torch._dynamo.reset()
    x, norm = torch.randn(*TOKENS, 256), _norm()
    module = nn.Sequential(nn.Linear(256, 256), norm, nn.SiLU()).eval()
    with torch.no_grad():
        expected = module(x)
        llama_norm_ops.patch(module)
        with _calls(llama_norm_ops) as calls:
            _close(torch.compile(module, fullgraph=True)(x), expected)
        assert len(calls) == 1


@pytest.mark.parametrize("package", OPERATORS)
def test_the_operator_is_exported_and_well_formed(package: Any) -> None:
    x, norm = torch.randn(*TOKENS, 256), _norm()
    with torch.no_grad():
        expected = norm(x)
        package.patch(norm)
        exported = torch.export.export(norm, (x,))
        assert getattr(torch.ops, package.__name__).forward.default in [node.target for node in exported.graph.nodes]
        _close(exported.module()(x), expected)
    weight = norm.weight.detach()
    torch.library.opcheck(package.forward, ([x], [weight]))
    _close(package.forward([x.transpose(0, 1).contiguous().transpose(0, 1)], [weight])[0], expected)
    with pytest.raises(ValueError, match="verified for"):
        package.forward([x[:, :8]], [weight])
