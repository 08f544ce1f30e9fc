"""Prints a plan as the files of a candidate: kernels, one binding for `forward` and `derive`, and `model_new.py`."""

import builtins
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph, GraphInput, TensorMeta, ValueKind, spec_text
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import render
from cuda_agent.playbook.draws import draw_lines, variable
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Step

#: names that `model_new.py` uses.
_TAKEN = {"torch", "nn", "cuda_extension", "CONFIG", "ModelNew", "results"}

FORWARD, DERIVE = "fused_forward", "fused_derive"


@dataclass(frozen=True)
class Stage:
    """One binding function, `forward` or `derive`. Python passes the buffers `given`, in this order, and gets those
    `returned`."""

    name: str
    steps: tuple[Step, ...]
    given: tuple[tuple[str, TensorMeta], ...]
    returned: tuple[str, ...]

    @property
    def tunables(self) -> dict[str, int]:
        """The tunables that Python passes. `derive` has none, since it isn't timed."""
        if self.name != FORWARD:
            return {}
        return {name: count for step in self.steps for name, count in step.tunables.items() if count > 1}

    @property
    def released(self) -> list[list[str]]:
        """For each step the buffers that no later step reads."""
        last_use = {name: at for at, step in enumerate(self.steps) for name in step.inputs}
        made: set[str] = set()
        found = []
        for at, step in enumerate(self.steps):
            made |= {buffer.name for buffer in step.outputs}
            dead = [name for name in step.inputs if name in made and last_use[name] == at and name not in self.returned]
            found.append(sorted(set(dead)))
        return found

    @property
    def fixed(self) -> tuple[str, ...]:
        """The tunables that keep their default."""
        names = dict.fromkeys(name for step in self.steps for name in step.tunables)
        return tuple(name for name in names if name not in self.tunables)


def binding(stages: Sequence[Stage], device: Device) -> str:
    """Returns the text of `kernels/fused_binding.cpp`."""
    steps = [step for stage in stages for step in stage.steps]
    return render(
        "binding.cpp.j2",
        {
            "cuda": device is Device.CUDA,
            "declarations": list(dict.fromkeys(line for step in steps for line in step.declaration.splitlines())),
            "includes": list(dict.fromkeys(header for step in steps for header in step.includes)),
            "with_values": any("check_values(" in step.call for step in steps),
            "with_status": any("check_status(" in step.call for step in steps),
            "stages": stages,
            "is_row_major": lambda meta: meta.strides == ir.contiguous(meta.shape) or 0 in meta.shape,
        },
    )


def _attribute(parts: Sequence[str], last: str = "_modules") -> str:
    """Returns `self.a.b`, with numbered children taken from `_modules`. A numbered name at the end is taken from
    `last`."""
    text = "self"
    for index, part in enumerate(parts):
        place = last if index == len(parts) - 1 else "_modules"
        text += f".{part}" if part.isidentifier() else f".{place}[{part!r}]"
    return text


def constant_name(item: GraphInput) -> str:
    return f"constant_{cpp_name(item.name)}"


def _elements(item: GraphInput) -> list[str]:
    """Returns the elements of a constant as Python expressions."""
    values = [int(v) if item.meta.dtype not in ir.FLOAT_DTYPES else v for v in item.values or ()]
    return [f'float("{v}")' if isinstance(v, float) and not math.isfinite(v) else repr(v) for v in values]


def _nest(spec: Any) -> str:
    """Returns the result of `forward` as a Python expression over `results`."""
    try:
        return spec_text(spec, parameter=lambda index, _: f"results[{index}]")
    except ValueError as error:
        raise NotCovered(f"An output of this form can't be returned: {error}", "Return tensors") from None


def _source(item: GraphInput, graph: Graph) -> str:
    """Returns the Python expression of a buffer that `forward` passes on. Raises NotCovered."""
    if item.kind is ValueKind.INPUT:
        if item.position is None or item.position >= len(graph.forward_parameters):
            raise NotCovered(f"Input {item.name} is nested", "Pass tensors as plain arguments of forward")
        return parameters(graph)[item.position]
    if item.target is not None and item.target in graph.state:
        return _attribute(
            item.target.split("."), "_parameters" if item.target in graph.state_parameters else "_buffers"
        )
    if item.kind is ValueKind.DRAWN:
        return variable(item.name)
    if item.kind is ValueKind.CONSTANT:
        return f"self.{constant_name(item)}"
    return f"self._derived[{int(item.name.removeprefix('derived_'))}]"


def parameters(graph: Graph) -> list[str]:
    """Returns the parameter names of `forward`. Names that `model_new.py` uses, or of Python's builtins, get an
    underscore: the judge refuses names such as `input`."""
    found: list[str] = []
    for name in graph.forward_parameters:
        found.append(_free_name(name, found))
    return found


def _free_name(name: str, taken: Sequence[str]) -> str:
    while hasattr(builtins, name) or name in _TAKEN or name in taken:
        name += "_"
    return name


def signature(graph: Graph) -> str:
    """Returns the parameter list of `forward` with its defaults, so that it can be called like the task's."""
    names, defaults = parameters(graph), graph.forward_defaults
    plain = dict(zip(graph.forward_parameters, names, strict=True))
    parts = ["self"] + [f"{name}={defaults[old]}" if old in defaults else name for old, name in plain.items()]
    keywords = [f"{_free_name(name, names)}={text}" for name, text in defaults.items() if name not in plain]
    return ", ".join([*parts, "*", *keywords] if keywords else parts)


def refusals(graph: Graph) -> list[str]:
    """Returns statements of `forward` that refuse other values than those that the graph was captured with."""
    names = dict(zip(graph.forward_parameters, parameters(graph), strict=True))
    lines = []
    for name, text in graph.fixed.items():
        name = names.get(name) or _free_name(name, list(names.values()))
        # `in` also compares what has no operators here.
        lines += [f"if {name} is not None:" if text == "None" else f"if {name} not in ({text},):"]
        lines += [f"    raise ValueError({f'{name} must be {text}, which the kernels are made for'!r})"]
    return lines


def config_line(tunables: Mapping[str, int], config: Mapping[str, int] | None) -> str:
    """Returns the line of `model_new.py` that holds the settings."""
    settings = {name: (config or {}).get(name, 0) for name in tunables}
    return "CONFIG = {" + ", ".join(f'"{name}": {value}' for name, value in settings.items()) + "}"


def module(graph: Graph, forward: Stage, derive: Stage | None, inputs: Mapping[str, GraphInput], device: Device) -> str:
    """Returns the text of `model_new.py`."""

    def call(stage: Stage) -> str:
        passed = [_source(inputs[name], graph) for name, _ in stage.given]
        passed += [f'CONFIG["{name}"]' for name in stage.tunables]
        return f"cuda_extension.{stage.name}(" + ", ".join(passed) + ")"

    used = {name for stage in (forward, derive) if stage for name, _ in stage.given}
    constants = [inputs[name] for name in sorted(used) if inputs[name].kind is ValueKind.CONSTANT]
    constants = [item for item in constants if item.target is None or item.target not in graph.state]
    spec = json.loads(graph.output_spec)
    single = len(graph.outputs) == 1
    weights = [
        inputs[name] for name, _ in (derive.given if derive else ()) if inputs[name].kind is not ValueKind.CONSTANT
    ]
    return render(
        "model_new.py.j2",
        {
            "config": config_line(forward.tunables, None),
            "signature": graph.init_signature,
            "graph": graph,
            "constants": constants,
            "attribute": _attribute,
            "constant_name": constant_name,
            "elements": _elements,
            "float_dtypes": ir.FLOAT_DTYPES,
            "repr": repr,
            "forward_parameters": signature(graph),
            "draws": [*refusals(graph), *draw_lines(graph, device)],
            "forward_call": call(forward),
            "result": _nest(spec).replace("results[0]", "results") if single else _nest(spec),
            "plain": spec == {"t": 0},
            "derive_call": call(derive) if derive else "",
            "derive_single": derive is not None and len(derive.returned) == 1,
            "any_weight": _source(weights[0], graph) if weights else "",
            "device": device.value,
        },
    )


def files(graph: Graph, stages: Sequence[Stage], inputs: Mapping[str, GraphInput], device: Device) -> dict[str, str]:
    """Returns all files of the candidate. The stages are `forward` and, where there is one, `derive`."""
    result: dict[str, str] = {}
    for stage in stages:
        for step in stage.steps:
            for path, text in step.files.items():
                assert result.setdefault(path, text) == text, f"two texts for {path}"
    result["kernels/fused_binding.cpp"] = binding(stages, device)
    result["model_new.py"] = module(graph, stages[0], stages[1] if len(stages) > 1 else None, inputs, device)
    return result
