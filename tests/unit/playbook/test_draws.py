"""Random numbers that `forward` draws become inputs of the graph."""

from __future__ import annotations

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.playbook import propose

_ROWS = TensorMeta(shape=(4, 8), dtype="float32", strides=(8, 1))
_INTEGERS = TensorMeta(shape=(4, 8), dtype="int64", strides=(8, 1))


def _graph(*nodes: Node) -> Graph:
    return Graph(
        inputs=(GraphInput(name="x", kind=ValueKind.INPUT, meta=_ROWS, position=0),),
        nodes=nodes,
        outputs=("add",),
        init_signature="(self)",
        forward_parameters=("x",),
    )


def _node(name: str, op: str, *args: object, meta: TensorMeta = _ROWS) -> Node:
    return Node(name=name, op=op, args=args, outputs=(meta,))


def test_model_new_draws_in_the_order_of_the_reference() -> None:
    found = propose(
        _graph(
            _node("randint", "aten.randint.low", 2, 5, [4, 8], meta=_INTEGERS),
            _node("rand", "aten.rand.default", [4, 8]),
            _node("randn_like", "aten.randn_like.default", Ref(ref="x")),
            _node("mul", "aten.mul.Tensor", Ref(ref="randn_like"), Ref(ref="x")),
            _node("add", "aten.add.Tensor", Ref(ref="mul"), Ref(ref="randint")),
        ),
        Device.CPU,
        Precision.FP32,
    )
    drawn = [line.strip() for line in found.files["model_new.py"].splitlines() if "_drawn = " in line]
    assert drawn == [
        'randint_drawn = torch.randint(2, 5, (4, 8), dtype=torch.int64, device="cpu")',
        # Nothing reads it, but it moves the generator on.
        'rand_drawn = torch.rand((4, 8), dtype=torch.float32, device="cpu")',
        'randn_like_drawn = torch.randn((4, 8), dtype=torch.float32, device="cpu")',
    ]
    call = next(line for line in found.files["model_new.py"].splitlines() if "fused_forward" in line)
    assert "randint_drawn" in call
    assert "randn_like_drawn" in call
    assert "rand_drawn" not in call
