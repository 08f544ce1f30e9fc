"""Writes a composed chain as a natural module: constants, layers, `forward`, `get_inputs`."""

import ast
import random
import re
from collections.abc import Sequence

from cuda_agent.core.assets import tables
from cuda_agent.tasks.compose.affinity import made_by
from cuda_agent.tasks.compose.chain import used_names
from cuda_agent.tasks.compose.naming import NamedStep, Names, constant
from cuda_agent.tasks.compose.plain import without_defaults
from cuda_agent.tasks.compose.sizing import Sized
from cuda_agent.tasks.compose.wording import WIDTH, docstring, quoted, stands_alone, texts_of
from cuda_agent.tasks.expressions import dimensions, fill, names_in, placeholders
from cuda_agent.tasks.records import Port, Seed

#: So few numbers over a whole tensor are near their mean at every draw.
_FEW_OUTPUTS = 64
#: The values of a port, with its dtype where that matters -> how they are drawn.
_DRAWN: dict[str, str] = tables(__file__)
_HELPERS = ("import torch", "import torch.nn.functional as F", "from torch import nn")


def emit(sized: Sized, names: Names, rng: random.Random) -> str:
    """Returns the text of the module."""
    body = _model(names, rng)
    inputs = _get_inputs(names)
    held = _arguments(names)
    ends = f"def get_init_inputs() -> list[int]:\n    return [{', '.join(constant(item) for item in held)}]\n"
    code = f"{body}\n\n\n{inputs}\n\n\n{ends}"
    head = f'"""{docstring(sized, names)}"""\n\n{_imports(sized, code)}\n\n{_constants(names, code)}\n\n\n'
    return head + code


def _imports(sized: Sized, code: str) -> str:
    lines = {line for step in sized.steps for line in step.seed.imports} - set(_HELPERS)
    used = ["import torch"]
    if re.search(r"\bF\.", code):
        used.append("import torch.nn.functional as F")
    return "\n".join([*used, "from torch import nn", *sorted(lines)])


def _constants(names: Names, code: str) -> str:
    """Returns the sizes of the inputs in one line and those of the layers in another, without unused ones."""
    used = [item for item in names.constants if re.search(rf"\b{constant(item)}\b", code)]
    shapes = [*names.first_shape, *(text for step in names.steps for shape in step.shapes.values() for text in shape)]
    inputs = [item for item in used if any(re.search(rf"\b{constant(item)}\b", text) for text in shapes)]
    lines = []
    for part in (inputs, [item for item in used if item not in inputs]):
        if part:
            values = ", ".join(str(names.constants[item]) for item in part)
            lines.append(f"{', '.join(constant(item) for item in part)} = {values}")
    return "\n".join(lines)


def _arguments(names: Names) -> list[str]:
    """Returns the constants that the model is constructed with: those in its layers and calls, in order."""
    found = (s for named in names.steps for item in used_names(named.step.seed) for s in _symbols(named, item))
    return list(dict.fromkeys(found))


def _symbols(named: NamedStep, item: str) -> list[str]:
    """Returns the constants in the text of a dimension or parameter."""
    text = named.texts.get(item, "")
    if item in named.sizes:
        return [text]
    values = {named.texts[other] for other in named.sizes}
    return [word for word in re.findall(r"[a-z_]\w*", text) if word in values]


def _model(names: Names, rng: random.Random) -> str:
    arguments = _arguments(names)
    layers = [line for named in names.steps for line in _layer(named)]
    kept = [f"self.{item} = {item}" for item in _in_forward(names)]
    lines = ["class Model(nn.Module):"]
    if arguments or layers:
        signature = "".join(f", {item}: int" for item in arguments)
        lines += [f"    def __init__(self{signature}) -> None:", "        super().__init__()"]
        lines += [f"        {line}" for line in (*layers, *kept)]
        lines.append("")
    signature = ", ".join(f"{item}: torch.Tensor" for item in _variables(names))
    single = names.steps[-1].step.plain
    returned = "torch.Tensor" if single else "tuple[torch.Tensor, ...]"
    lines.append(f"    def forward(self, {signature}) -> {returned}:")
    lines += [f"        {line}" for line in _forward(names, rng)]
    return "\n".join(line for text in lines for line in _wrapped(text))


def _layer(named: NamedStep) -> list[str]:
    seed = named.step.seed
    if seed.constructor is None:
        return []
    lines = []
    made = without_defaults(quoted(fill(seed.constructor, texts_of(named))))
    tree = ast.parse(made, mode="eval").body
    first = tree.args[0] if isinstance(tree, ast.Call) and tree.args else None
    if isinstance(first, ast.Call) and isinstance(first.func, ast.Name) and first.func.id.endswith("Config"):
        config = ast.get_source_segment(made, first) or ""
        lines.append(f"config = {config}")
        made = made.replace(config, "config", 1)
    lines.append(f"self.{named.layer} = {made}")
    lines += [fill(line, {"layer": f"self.{named.layer}"}) for line in seed.initialize]
    return lines + _initial(named)


def _initial(named: NamedStep) -> list[str]:
    """Returns lines that draw a norm's weights as after training. With ones and zeros the norm would copy its input."""
    layer, name = named.step.layer, f"self.{named.layer}"
    if named.step.seed.family != "normalization" or named.step.seed.library != "torch":
        return []
    drawn = (
        ("weight", "normal_({}.weight, mean=1.0, std=0.2)"),
        ("bias", "normal_({}.bias, std=0.2)"),
        ("running_mean", "normal_({}.running_mean, std=0.2)"),
        ("running_mean", "uniform_({}.running_var, 0.5, 1.5)"),
    )
    return [f"nn.init.{call.format(name)}" for held, call in drawn if getattr(layer, held, None) is not None]


def _in_forward(names: Names) -> list[str]:
    """Returns the constants in the calls of `forward`."""
    used = ((named, item) for named in names.steps for item in placeholders(named.step.seed.call))
    return list(dict.fromkeys(s for named, item in used if item in named.texts for s in _symbols(named, item)))


def _forward(names: Names, rng: random.Random) -> list[str]:
    """Returns one line for each call, or a call inside the next where that stays short."""
    nested = rng.random() < 0.6
    lines: list[str] = []
    current, pending = names.first, names.first
    for named in names.steps:
        seed = named.step.seed
        port = seed.ports[0].name
        if pending != current and (not nested or not _nests(pending, seed, port)):
            lines.append(f"x = {pending}")
            pending = current = "x"
        pending = _call(named, pending)
    return [*lines, f"return {pending}"]


def _nests(inner: str, seed: Seed, port: str) -> bool:
    once = seed.call.count(f"{{{port}}}") == 1
    return once and len(inner) + len(seed.call) < 70 and inner.count("(") < 3


def _call(named: NamedStep, before: str) -> str:
    """Returns the text of a call on the text before it."""
    seed = named.step.seed
    port = seed.ports[0].name
    simple = isinstance(ast.parse(before, mode="eval").body, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
    bare = stands_alone(seed, port)
    texts = {item: _own(text, named) if item in named.texts else text for item, text in texts_of(named).items()}
    texts |= named.ports | {port: before if simple or bare else f"({before})", "layer": f"self.{named.layer}"}
    return without_defaults(quoted(fill(seed.call, texts)))


def _own(text: str, named: NamedStep) -> str:
    """Returns the text with sizes as attributes, for `forward`."""
    values = {named.texts[item] for item in named.sizes}
    return re.sub(r"[a-z_]\w*", lambda found: f"self.{found[0]}" if found[0] in values else found[0], text)


def _get_inputs(names: Names) -> str:
    first = names.steps[0].step.seed.ports[0]
    texts = [_drawn(first, names.first_shape, names.steps[0])]
    made = "normal"
    for named in names.steps:
        ports = [_beside(port, made) for port in named.step.seed.ports[1:]]
        texts += [_drawn(port, named.shapes[port.name], named) for port in ports]
        made = made_by(named.step.seed)
    head = "def get_inputs() -> list[torch.Tensor]:"
    scaled = _scaled(names, texts)
    if scaled is not None:
        texts[scaled[0]] = scaled[1]
        head += "\n    # A few numbers of so many: without it they would be nearly the same at every draw."
        head += f"\n    {_scale_name(names)} = 0.5 + 0.5 * torch.rand(())"
    if len(texts) > 1 and len(set(texts)) == 1:
        return f"{head}\n    return [{texts[0]} for _ in range({len(texts)})]"
    line = f"    return [{', '.join(texts)}]"
    if len(line) <= WIDTH:
        return f"{head}\n{line}"
    variables = _variables(names)
    lines = [f"    {variable} = {text}" for variable, text in zip(variables, texts, strict=True)]
    return "\n".join([head, *lines, f"    return [{', '.join(variables)}]"])


def _beside(port: Port, made: str) -> Port:
    """Returns the port of a target with values between 0 and 1, if a loss compares it with such values."""
    inside = made == "probabilities" and port.name == "target" and port.values == "normal"
    return port.model_copy(update={"values": "uniform"}) if inside else port


def _scaled(names: Names, texts: Sequence[str]) -> tuple[int, str] | None:
    """Returns the place and text of the first input that can be drawn with a random scale, where the outputs are a few
    numbers over many inputs. Without the scale, a sum or a mean over millions of numbers would be nearly constant."""
    outputs = names.steps[-1].step.outputs
    if sum(tensor.numel() for tensor in outputs) > _FEW_OUTPUTS or not any(t.is_floating_point() for t in outputs):
        return None
    for place, text in enumerate(texts):
        if re.match(r"torch\.randn?\(", text) and " < " not in text:
            scale = _scale_name(names)
            return place, f"{scale} * ({text})" if ") + " in text else f"{scale} * {text}"
    return None


def _scale_name(names: Names) -> str:
    return "spread" if "scale" in _variables(names) else "scale"


def _variables(names: Names) -> list[str]:
    return [names.first, *(variable for named in names.steps for variable in named.ports.values())]


def _drawn(port: Port, shape: Sequence[str], named: NamedStep) -> str:
    """Returns how an input is drawn, by the port's values and dtype."""
    sizes = ", ".join(shape)
    whole = f"({sizes},)" if len(shape) == 1 else f"({sizes})"
    kind = "" if port.dtype in ("float32", "int64", "bool") else f", dtype=torch.{port.dtype}"
    drawn = f"{port.values} {port.dtype}" if f"{port.values} {port.dtype}" in _DRAWN else port.values
    if drawn == "probabilities" and (len(shape) == 1 or named.step.seed.operator.startswith("binary")):
        drawn = "uniform"
    if drawn in _DRAWN:
        high = constant(_bound(port, named))
        text = _DRAWN[drawn].format(sizes=sizes, whole=whole, kind=kind, last=shape[-1], high=high)
        return f"{text}.expand({sizes})" if drawn == "positions" and len(shape) > 1 else text
    drawn = f"torch.randn({sizes}{kind})"
    inner = _contracted(port, named)
    if inner is None:
        return drawn
    return f"{drawn} / {inner}**0.5" if re.fullmatch(r"\w+", inner) else f"{drawn} / {inner} ** 0.5"


def _bound(port: Port, named: NamedStep) -> str:
    """Returns the exclusive bound of indices, in names if it has them."""
    text = port.high or "2"
    values = texts_of(named)
    return re.sub(r"[A-Za-z_]\w*", lambda found: values.get(found[0], found[0]), text)


def _contracted(port: Port, named: NamedStep) -> str | None:
    """Returns the constant over which a second operand of a product is summed. Dividing by its root keeps the size of
    the values."""
    step = named.step
    if step.seed.family not in ("matrix product", "convolution") or port.name == step.seed.ports[0].name:
        return None
    size = step.flops / (2 * sum(tensor.numel() for tensor in step.outputs))
    if step.seed.operator in ("addbmm", "chain_matmul"):
        text = named.shapes[port.name][-2] if len(names_in(port.layout)) > 1 and port.name != "bias" else None
        return text if text is None or re.fullmatch(r"\w+", text) else f"({text})"
    inside = [item for item in names_in(port.layout) if item in named.sizes and item in ("K", "D", "C")]
    for item in inside:
        if step.names[item] == size:
            return constant(named.texts[item])
    shape = named.shapes[port.name]
    starred, laid = dimensions(port.layout)
    for item, text in zip(laid, shape[-len(laid) :] if starred else shape, strict=True):
        if text.isidentifier():
            continue
        if item in ("K", "D") and step.names[item] == size:
            return f"({text})"
        if item == "C" and size % step.names[item] == 0:
            return f"({text} * {int(size // step.names[item])})"
    for item in inside:
        if item == "C" and size % step.names[item] == 0:
            return f"({constant(named.texts[item])} * {int(size // step.names[item])})"
    return None


def _wrapped(line: str) -> list[str]:
    """Returns a line, broken after its first open bracket if it is too long, and then after every argument."""
    if len(line) <= WIDTH or "\n" in line or "(" not in line:
        return line.split("\n")
    indent = " " * (len(line) - len(line.lstrip()))
    start = line.index("(") + 1
    texts, end = _split(line, start)
    inside = line[start:end]
    if len(indent) + 4 + len(inside) <= WIDTH:
        return [line[:start], f"{indent}    {inside}", f"{indent}{line[end:]}"]
    arguments = [part for text in texts for part in _wrapped(f"{indent}    {text},")]
    return [line[:start], *arguments, f"{indent}{line[end:]}"]


def _split(line: str, start: int) -> tuple[list[str], int]:
    """Returns the arguments after an open bracket, and the index of the bracket that closes it."""
    parts, depth, begin = [], 1, start
    for place, letter in enumerate(line[start:], start):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if depth == 0 or (letter == "," and depth == 1):
            parts.append(line[begin:place].strip())
            begin = place + 1
        if depth == 0:
            return parts, place
    return [*parts, line[begin:].strip()], len(line)
