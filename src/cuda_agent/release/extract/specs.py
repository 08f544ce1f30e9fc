"""Writes the user's model as a task file: from MODEL.py, or from `module:Class` with its arguments and inputs.

It reads texts only; none of the user's code runs here.

  --init  [NAME=]VALUE                 VALUE: a Python literal, or `module:Class(name=literal, …)`
  --input [NAME=]TYPE[SIZES][:LOW..HIGH]   such as `ids=int64[2,128]:0..32000` or `float32[8,3,224,224]`
  --input NAME=LITERAL                 a constant, such as `use_cache=False`
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.agent.taskfile import check_source, load_task
from cuda_agent.core.assets import filled
from cuda_agent.core.errors import UsageError
from cuda_agent.release.source_text import imported_tops

_TENSOR = re.compile(r"(?P<type>[a-z]+[0-9]*)\[(?P<sizes>[0-9, ]*)\](?::(?P<low>[^.:]+(?:\.\d+)?)\.\.(?P<high>.+))?\Z")
_NAME = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)\Z", re.DOTALL)
_MODULE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(\(.*\))?\Z", re.DOTALL)
_FLOATS = ("float64", "float32", "bfloat16", "float16")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_INPUT_HELP = "Write it like ids=int64[2,128]:0..32000, float32[8,3,224,224], or name=literal"
_INIT_HELP = "Write it like hidden=512, or config=transformers:LlamaConfig(hidden_size=64)"


@dataclass(frozen=True)
class WholeModelSource:
    """The model as a task's source. `folders` hold the user's code that it imports."""

    name: str
    source: str
    folders: tuple[Path, ...]


def whole_model_source(
    model: str, inputs: Sequence[str] = (), init: Sequence[str] = (), *, cwd: Path
) -> WholeModelSource:
    """Returns the source of a model. `model` is MODEL.py with `Model`, `get_inputs` and `get_init_inputs`; or
    `FILE.py:Class` or `module:Class`, where Class may be any function that returns a module. Raises UsageError,
    TaskError."""
    head, colon, attribute = model.rpartition(":")
    if not colon and model.endswith(".py"):
        if not inputs and not init:
            return _from_file(Path(model))
        head, attribute = model, "Model"
    elif not colon:
        raise UsageError(f"{model} is neither a file nor module:Class", "Give MODEL.py, FILE.py:Class or module:Class")
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", attribute):
        raise UsageError(f"{attribute!r} is not the name of a class or function", "Give module:Class")
    if not inputs:
        raise UsageError(f"The inputs of {model} aren't given", f"Add --input. {_INPUT_HELP}")
    if head.endswith(".py"):
        path = Path(head)
        if not path.is_file():
            raise UsageError(f"No such file: {head}", "Give the path of a Python file")
        module = path.stem
        folders: tuple[Path, ...] = (_folder(path.resolve().parent),)
        if not module.isidentifier():
            raise UsageError(f"{path.name} can't be imported: {module!r} is no Python name", "Rename the file")
    else:
        module = head
        folders = (_folder(cwd),) if _is_below(cwd, module.partition(".")[0]) else ()
    source = _wrapped(module, attribute, inputs, init)
    check_source(source, model)
    return WholeModelSource(attribute.rpartition(".")[2], source, folders)


def _from_file(path: Path) -> WholeModelSource:
    task = load_task(path)
    parent = path.resolve().parent
    local = any(_is_below(parent, top) for top in imported_tops(task.source) if top != path.stem)
    return WholeModelSource(task.name, task.source, (_folder(parent),) if local else ())


def _folder(path: Path) -> Path:
    """Returns a folder that the model's sandbox may read. Raises UsageError for one that holds much more than code."""
    path = path.resolve()
    if path == Path.home().resolve() or len(path.parts) <= 2:
        cause = f"The model's code is in {path}, and its sandbox could read all of that"
        raise UsageError(cause, "Put it in a separate folder")
    return path


def _is_below(folder: Path, top: str) -> bool:
    return (folder / f"{top}.py").is_file() or (folder / top).is_dir()


def _wrapped(module: str, attribute: str, inputs: Sequence[str], init: Sequence[str]) -> str:
    """Returns a task's source that wraps the user's class."""
    imports = [f"from {module} import {attribute.partition('.')[0]} as _Whole"]
    made = "_Whole" + attribute[len(attribute.partition(".")[0]) :]
    arguments: list[str] = []
    for text in init:
        name, value = _named(text)
        argument, needed = _constructed(value)
        imports += needed
        if name is None and any("=" in before.partition("(")[0] for before in arguments):
            raise UsageError(f"--init {text} follows one with a name", "Give arguments without a name first")
        arguments.append(argument if name is None else f"{name}={argument}")
    parameters: list[str] = []
    drawn: list[str] = []
    passed: list[str] = []
    for text in inputs:
        name, value = _named(text)
        tensor = _tensor(value)
        if tensor is None and name is None:
            raise UsageError(f"--input {text} can't be read", _INPUT_HELP)
        if name is None and any("=" in argument for argument in passed):
            raise UsageError(f"--input {text} follows one with a name", "Give inputs without a name first")
        if tensor is None:
            passed.append(f"{name}={_literal(value, f'--input {text}', _INPUT_HELP)}")
            continue
        parameter = name or f"input_{len(parameters)}"
        parameters.append(parameter)
        drawn.append(tensor)
        passed.append(parameter if name is None else f"{name}={parameter}")
    if not drawn:
        raise UsageError("No --input is a tensor", _INPUT_HELP)
    return filled(
        Path(__file__).with_name("whole.py.j2"), imports=[*dict.fromkeys(imports)], made=made, arguments=arguments,
        parameters=parameters, passed=passed, drawn=drawn,
    )  # fmt: skip


def _named(text: str) -> tuple[str | None, str]:
    found = _NAME.match(text.strip())
    return (found.group(1), found.group(2).strip()) if found else (None, text.strip())


def _tensor(text: str) -> str | None:
    """Returns text that draws a tensor, or None where the text describes none. Raises UsageError for an unknown type or
    range."""
    found = _TENSOR.match(text)
    if found is None:
        return None
    kind, low, high = found["type"], found["low"], found["high"]
    sizes = tuple(int(word) for word in found["sizes"].split(",") if word.strip())
    if kind not in (*_FLOATS, *_INTEGERS, "bool"):
        raise UsageError(f"{kind} is no tensor type", f"Choose one of: {', '.join((*_FLOATS, *_INTEGERS, 'bool'))}")
    if any(size < 1 for size in sizes):
        raise UsageError(f"{text}: sizes are at least 1", _INPUT_HELP)
    bounds = _bounds(text, low, high) if low is not None else None
    if kind == "bool":
        return f"torch.rand({sizes}) < 0.5"
    if kind in _INTEGERS:
        first, last = bounds or (0, 2)
        if int(first) != first or int(last) != last or not first < last:
            raise UsageError(f"{text}: a range of integers is LOW..HIGH with LOW < HIGH", _INPUT_HELP)
        return f"torch.randint({int(first)}, {int(last)}, {sizes}, dtype=torch.{kind})"
    cast = "" if kind == "float32" else f".to(torch.{kind})"
    if bounds is None:
        return f"torch.randn({sizes}){cast}"
    return f"(torch.rand({sizes}) * {bounds[1] - bounds[0]!r} + {bounds[0]!r}){cast}"


def _bounds(text: str, low: str, high: str) -> tuple[float, float]:
    try:
        first, last = float(low), float(high)
    except ValueError:
        raise UsageError(f"{text}: the range can't be read", _INPUT_HELP) from None
    if not first < last:
        raise UsageError(f"{text}: a range is LOW..HIGH with LOW < HIGH", _INPUT_HELP)
    return first, last


def _constructed(text: str) -> tuple[str, list[str]]:
    """Returns a literal, or the call of `module:Class(literals)`, with the imports that it needs. Raises UsageError."""
    found = _MODULE.match(text)
    if found is None:
        return _literal(text, f"--init {text}", _INIT_HELP), []
    module, name, call = found.groups()
    top = name.partition(".")[0]
    if call is not None:
        try:
            tree = ast.parse(name + call, mode="eval").body
        except SyntaxError:
            raise UsageError(f"--init {text} can't be read", _INIT_HELP) from None
        if not isinstance(tree, ast.Call):
            raise UsageError(f"--init {text} can't be read", _INIT_HELP)
        for part in (*tree.args, *(keyword.value for keyword in tree.keywords)):
            _literal(ast.unparse(part), f"--init {text}", _INIT_HELP)
    return name + (call or ""), [f"from {module} import {top}"]


def _literal(text: str, where: str, remedy: str) -> str:
    try:
        return repr(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UsageError(f"{where} can't be read", remedy) from None
