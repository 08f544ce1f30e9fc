"""Makes a task's source into a module, models and inputs. It runs task code, so it is used only inside a sandboxed
worker.

Every failure of task code becomes a TaskError of one line: the step, the type, the message, the line.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import random
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cuda_agent.core.errors import OutOfMemory, TaskError
from cuda_agent.core.hashing import digest_text
from cuda_agent.workers.inside.failures import is_out_of_memory
from cuda_agent.workers.inside.imports import importing
from cuda_agent.workers.inside.task.pytree import flatten, unflatten
from cuda_agent.workers.requests import Done, ImportTask

GENERIC_SIGNATURE = "(self, *args, **kwargs)"
_NO_CUDA = ("no NVIDIA driver", "not compiled with CUDA", "No CUDA GPUs are available", "CUDA-capable device")


@dataclass(frozen=True)
class TaskModule:
    """A loaded task: `Model` (a class), `get_inputs`, `get_init_inputs`, and the file name in its tracebacks."""

    name: str
    filename: str
    module: types.ModuleType

    @property
    def Model(self) -> Any:
        return self.module.Model

    @property
    def get_inputs(self) -> Callable[[], Any]:
        return self.module.get_inputs  # type: ignore[no-any-return]

    @property
    def get_init_inputs(self) -> Callable[[], Any]:
        return self.module.get_init_inputs  # type: ignore[no-any-return]


@dataclass(frozen=True)
class InitInputs:
    """The arguments of `Model`'s constructor."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


#: model -> the task and the arguments with which `make_model` made it.
MADE: weakref.WeakKeyDictionary[Any, tuple[TaskModule, InitInputs]] = weakref.WeakKeyDictionary()


def load_task_module(source: str, name: str) -> TaskModule:
    """Runs a task's source in its own module.

    The module is in `sys.modules` and its source in `linecache`, which `inspect.getsource`, tracebacks, `torch.compile`
    and `torch.export` read. Raises TaskError: syntax error, an import that fails, `Model` or a function missing.
    """
    word = "".join(c if c.isalnum() else "_" for c in name) or "task"
    unique = f"cuda_agent_task_{word}_{digest_text(source)[:12]}"
    filename = f"/task/{unique}.py"
    try:
        code = compile(source, filename, "exec")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise TaskError(f"{name}{where}: {getattr(error, 'msg', None) or error}", "Correct the task's syntax") from None
    module = types.ModuleType(unique)
    module.__file__ = filename
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[unique] = module
    task = TaskModule(name=name, filename=filename, module=module)
    with task_code(task, "loading the file"):
        exec(code, module.__dict__)
    _require(task)
    return task


def unload_task_module(task: TaskModule) -> None:
    """Undoes `load_task_module`, as far as no other code holds the module."""
    linecache.cache.pop(task.filename, None)
    sys.modules.pop(task.module.__name__, None)


def import_task(request: ImportTask) -> Done:
    with importing(), suppress(TaskError):
        unload_task_module(load_task_module(request.source, f"{request.name}_imports"))
    return Done()


def _require(task: TaskModule) -> None:
    model = getattr(task.module, "Model", None)
    if not (isinstance(model, type) and issubclass(model, torch.nn.Module)):
        found = "has no class `Model`" if model is None else "has a `Model` that is no subclass of torch.nn.Module"
        raise TaskError(f"{task.name} {found}", "Define `class Model(torch.nn.Module)` in the task file")
    for function in ("get_inputs", "get_init_inputs"):
        if not callable(getattr(task.module, function, None)):
            raise TaskError(f"{task.name} has no function `{function}`", f"Define `def {function}():` in the task file")


@contextmanager
def task_code(task: TaskModule, doing: str) -> Iterator[None]:
    """Wraps task code. Its errors become a TaskError of one line, with the traceback as detail."""
    try:
        yield
    except (TaskError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the boundary to task code, which may even call exit()
        raise describe(error, task, doing) from None


def describe(error: BaseException, task: TaskModule, doing: str) -> TaskError:
    """Returns the TaskError for an error of task code while `doing` something."""
    message = " ".join(str(error).split())[:300]
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == task.filename]
    where = f" (line {lines[-1]})" if lines else ""
    detail = "".join(traceback.format_exception(error))[-8000:]
    if is_out_of_memory(error):
        return OutOfMemory(f"{task.name}: {doing} ran out of memory{where}", "Make the task smaller", detail=detail)
    if any(words in message for words in _NO_CUDA):  # foreign text: torch's
        cause = f"{task.name}: {doing} needs CUDA{where}, which isn't there"
        return TaskError(
            cause, "Judge it on a machine with an NVIDIA GPU, or create tensors without device=", detail=detail
        )
    if isinstance(error, ModuleNotFoundError):
        remedy = f"Install {error.name} or remove the import"
        return TaskError(f"{task.name} imports {error.name}, which isn't installed{where}", remedy, detail=detail)
    if "same device" in message:  # foreign text: torch's
        remedy = "Register tensors that Model keeps with register_buffer, and create others on the input's device"
        return TaskError(f"{task.name}: {doing} mixes devices{where}: {message}", remedy, detail=detail)
    cause = f"{task.name}: {doing} raised {type(error).__name__}{where}: {message}"
    return TaskError(cause, "Correct the task file", detail=detail)


def seed_torch(seed: int) -> None:
    """Seeds torch's generators (the CPU's and every GPU's)."""
    # torch.manual_seed asks every kind of accelerator, which takes 0.1 ms a draw.
    torch.default_generator.manual_seed(seed)
    if torch.backends.cuda.is_built():
        torch.cuda.manual_seed_all(seed)


def seed_everything(seed: int) -> None:
    """Seeds torch, Python and NumPy."""
    seed_torch(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def ignoring_seeds() -> Iterator[None]:
    """Disables seeding in task code, which would otherwise draw the same values each time. A generator object of its
    own isn't affected."""
    places = ((torch, "manual_seed"), (torch.random, "manual_seed"), (torch.cuda, "manual_seed"),
              (torch.cuda, "manual_seed_all"), (random, "seed"), (np.random, "seed"))  # fmt: skip
    originals = [getattr(module, name) for module, name in places]
    try:
        for module, name in places:
            setattr(module, name, lambda *args, **kwargs: torch.default_generator)
        yield
    finally:
        for (module, name), original in zip(places, originals, strict=True):
            setattr(module, name, original)


def make_init_inputs(task: TaskModule, seed: int = 0) -> InitInputs:
    """Calls `get_init_inputs`. A list or tuple gives positional arguments, a dict keyword arguments, and `[list, dict]`
    both where `Model` wouldn't take those two as they are. Raises TaskError when it raises or returns anything else."""
    seed_everything(seed)
    with task_code(task, "get_init_inputs()"):
        value = task.get_init_inputs()
    if value is None:
        return InitInputs()
    if isinstance(value, dict):
        return InitInputs(kwargs=dict(value))
    if not isinstance(value, (list, tuple)):
        cause = f"{task.name}: get_init_inputs() returned {type(value).__name__}"
        raise TaskError(cause, "Return a list of constructor arguments, [] where there are none")
    pair = len(value) == 2 and isinstance(value[0], (list, tuple)) and isinstance(value[1], dict)
    if pair and (not value[0] or not _takes(task.Model, value)):
        return InitInputs(tuple(value[0]), dict(value[1]))
    return InitInputs(tuple(value))


def _takes(model_class: Any, args: Any) -> bool:
    try:
        inspect.signature(model_class).bind(*args)
    except (TypeError, ValueError):
        return False
    return True


def make_model(
    task: TaskModule,
    init_inputs: InitInputs,
    device: str,
    seed: int,
    *,
    own_seeds: bool = True,
    on_device: bool = False,
) -> Any:
    """Constructs `Model` in eval mode on `device`. It is constructed under `seed` on the CPU, so that its weights don't
    depend on the device. With `on_device` it is constructed there where the constructor allows it, which draws large
    weights a hundred times faster, for models whose values needn't be the same. Without `own_seeds` the constructor's
    own seeding is ignored. Raises TaskError when the constructor raises."""

    def made(where: str) -> Any:
        seed_everything(seed)
        with task_code(task, "Model(...)"), nullcontext() if own_seeds else ignoring_seeds(), torch.device(where):
            return task.Model(*init_inputs.args, **init_inputs.kwargs).eval().to(device)

    if on_device and torch.device(device).type != "cpu":
        try:
            model = made(device)
        except TaskError:
            model = made("cpu")
    else:
        model = made("cpu")
    MADE[model] = task, init_inputs
    return model


def make_inputs(task: TaskModule, device: str, seed: int) -> list[Any]:
    """Returns `forward`'s positional arguments, drawn under `seed` with `device` as torch's default device.

    Where `get_inputs` can't draw on the device (a CPU generator, NumPy), it draws on the CPU. Every tensor ends on
    `device`, detached. Seeds that `get_inputs` sets itself are ignored. Raises TaskError when `get_inputs` raises or
    returns no tensor.
    """
    try:
        value = _call_get_inputs(task, device, seed)
    except TaskError:
        if torch.device(device).type == "cpu":
            raise
        value = _call_get_inputs(task, "cpu", seed)
    if isinstance(value, torch.Tensor):
        value = [value]
    if isinstance(value, dict):
        value = _in_order(task, value)
    if not isinstance(value, (list, tuple)):
        cause = f"{task.name}: get_inputs() returned {type(value).__name__}"
        raise TaskError(cause, "Return a list of forward's arguments")
    spec, tensors = flatten(list(value))
    if not tensors:
        raise TaskError(f"{task.name}: get_inputs() returned no tensors", "Return a list with at least one tensor")
    placed: list[Any] = unflatten(spec, [tensor.detach().to(device) for tensor in tensors])
    return placed


def _call_get_inputs(task: TaskModule, device: str, seed: int) -> Any:
    seed_everything(seed)
    with task_code(task, "get_inputs()"), ignoring_seeds(), torch.device(device):
        return task.get_inputs()


def _in_order(task: TaskModule, named: dict[str, Any]) -> list[Any]:
    names = forward_parameters(task.Model)
    unknown = [name for name in named if name not in names]
    if unknown or list(names[: len(named)]) != [name for name in names if name in named]:
        cause = f"{task.name}: get_inputs() returned a dict that doesn't match forward({', '.join(names)})"
        raise TaskError(cause, "Return a list of forward's arguments in order")
    return [named[name] for name in names[: len(named)]]


def run_forward(task: TaskModule, model: Any, inputs: list[Any]) -> Any:
    """Runs `model(*inputs)` without gradients. Raises TaskError when the reference fails."""
    with task_code(task, "Model.forward"), torch.no_grad():
        return model(*inputs)


def forward_parameters(model_class: Any) -> tuple[str, ...]:
    """Returns the names of `forward`'s parameters in order, without `self` and variadic ones."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(model_class.forward).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind in plain)


def forward_defaults(model_class: Any) -> dict[str, str]:
    """Returns the defaults of `forward`'s parameters as source. A default that isn't a literal, and the value of a
    keyword-only parameter without one, are None: the task's calls don't pass them."""
    parameters = list(inspect.signature(model_class.forward).parameters.values())[1:]
    needed = [p for p in parameters if p.default is not p.empty or p.kind is p.KEYWORD_ONLY]
    return {p.name: repr(p.default) if p.default is not p.empty and _is_literal(p.default) else "None" for p in needed}


def fixed_values(model_class: Any, inputs: list[Any]) -> dict[str, str]:
    """Returns the values, as source, of `forward`'s parameters that get no tensor from these inputs."""
    given = dict(zip(forward_parameters(model_class), inputs, strict=False))
    defaults = {name: text for name, text in forward_defaults(model_class).items() if name not in given}
    return {name: repr(value) for name, value in given.items() if _is_literal(value)} | defaults


def init_signature(model_class: Any) -> str:
    """Returns `Model.__init__`'s parameter list as source for `ModelNew`, such as `(self, hidden, eps=1e-06)`.

    It is `(self, *args, **kwargs)` where a default isn't a literal, since its name may not exist in the other file.
    """
    try:
        signature = inspect.signature(model_class.__init__)
    except (TypeError, ValueError):
        return GENERIC_SIGNATURE
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    if not parameters or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return GENERIC_SIGNATURE
    parameters[0] = parameters[0].replace(name="self")
    for parameter in parameters:
        if parameter.default is not inspect.Parameter.empty and not _is_literal(parameter.default):
            return GENERIC_SIGNATURE
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False
