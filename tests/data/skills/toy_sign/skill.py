"""Where the toy applies, and the step that it makes."""

from __future__ import annotations

import math

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node, Ref
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import render
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, PlanState, Skill, Step
from cuda_agent.playbook.skills.shared.operands import one_piece


class Sign(Skill):
    """`aten.sign` of float32 numbers in one piece."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        if node.op != "aten.sign.default" or state.device is not Device.CPU:
            return None
        (given,) = node.args
        assert isinstance(given, Ref)
        view, name = one_piece(state, given.ref), f"sign_{cpp_name(node.name)}"
        x, out = cpp_name(view.buffer), cpp_name(node.name)
        values = {"name": name, "x": x, "out": out, "count": math.prod(view.shape)}
        step = Step(
            name=name,
            inputs=(view.buffer,),
            outputs=(Buffer(node.name, ir.contiguous_meta(view.shape, "float32")),),
            files={f"kernels/{name}.cpp": render("toy_sign/sign.cpp.j2", values)},
            declaration=f'extern "C" void launch_{name}(const float* {x}, float* {out}, int config);',
            call=f"launch_{name}({x}.data_ptr<float>(), {out}.data_ptr<float>(), config_{name});",
            tunables={name: 2},
        )
        return Claim(step, frozenset({node.name}))


SKILL = Sign
