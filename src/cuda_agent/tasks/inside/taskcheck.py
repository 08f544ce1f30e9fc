"""Checks one task in its own process before it joins a dataset. A fork of `zygote` serves this module.

Everything here runs beside the task's code, so the task can forge the answers (`docs/tasks.md` has the consequences).
The judge compares the times with its own clock.

Requests, each answered with its result or with {finding: {rule, detail}}:
  open     {name, source, atol, rtol, seed, device, memory_bytes, device_bytes, host_bytes, threads, sleeps}  loads the
           task's module and opens its device. `memory_bytes` limits one eager call and `device_bytes` this process;
           with `sleeps` the process sleeps while it waits for the device
  run      {}       makes the model and calls it -> {peak_memory_bytes}
  graph    {}       -> {graph: JSON}, also without `run`
  answers  {floor}  checks that outputs repeat, vary with the inputs, and aren't matched by null outputs
  compiled {}       compiles the model
  agrees   {}       checks that the compiled model agrees with eager
  place    {}       puts model and inputs on the device -> {sample: [per output tensor: [norm, values…]]}, which is the
                    same in every process
  warm     {calls}  calls before the timing, fewer of long ones -> {call_s: time of the last call}
  time     {calls, flush_bytes, null}  -> {event_us: […]}; with `null` the program is empty
  close    {}       unloads the task, so that another one can be opened
"""

from __future__ import annotations

import gc
import random
import resource
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import OutOfMemory, TaskError
from cuda_agent.core.records import Task
from cuda_agent.judge import Answer, Answers, Secrets
from cuda_agent.workers.buffers import synchronize
from cuda_agent.workers.inside.baselines import Flags, _FindProducts
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.main import Context, Operation
from cuda_agent.workers.inside.runner import Runner, share_the_gpu
from cuda_agent.workers.inside.task.oracle import eager_at_precision, run_float64
from cuda_agent.workers.inside.task.pytree import flatten
from cuda_agent.workers.inside.task.taskmemory import give_back, peak_memory
from cuda_agent.workers.inside.task.taskmodule import (
    load_task_module,
    make_init_inputs,
    make_inputs,
    make_model,
    run_forward,
    seed_everything,
    unload_task_module,
)
from cuda_agent.workers.inside.task.weights import redraw

#: The number of values of each output that are compared between processes.
_SAMPLED = 64
#: The bytes of the device's memory that a process may keep unused.
_SPARE_BYTES = 1 << 30
#: The bytes of outputs that stay on the device during compilation.
_KEPT_BYTES = 2 << 30
#: Compiles each kernel with one setting instead of the fastest of several, because it need only run and agree.
_UNTUNED = {"triton.autotune_pointwise": False}
#: The seconds after which no more warm-up calls begin.
_WARM_S = 0.1
#: The relative difference below which two outputs for different inputs are the same.
NO_DIFFERENCE = 1e-5
#: The standard deviation over the mean below which an output counts as constant.
NEARLY = 0.01


class Broken(Exception):
    """A rule that the task breaks, by its name in the dataset's records."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule, self.detail = rule, detail
        super().__init__(detail)


#: A step -> the rule that a failure of the task's code breaks.
_RULES = {
    "open": "runs",
    "run": "runs",
    "graph": "compiles",
    "answers": "deterministic",
    "compiled": "compiles",
    "agrees": "agrees",
    "place": "deterministic",
    "warm": "runs",
    "time": "eager_time",
    "close": "runs",
}


def create(context: Context) -> Mapping[str, Operation]:
    opened: list[TaskCheck] = []

    def operation(name: str) -> Operation:
        def ask(params: dict[str, Any]) -> Any:
            if name == "open":
                opened[:] = [TaskCheck(context)]
            found = getattr(opened[0], name)(params)
            if name == "close":
                opened.clear()
                give_back(context.device)
            return found

        return ask

    return {name: _reporting(operation(name), rule) for name, rule in _RULES.items()}


def _reporting(operation: Operation, rule: str) -> Operation:
    """Returns an operation that reports a broken rule as its answer."""

    def answer(params: dict[str, Any]) -> Any:
        try:
            return operation(params)
        except Broken as broken:
            found = broken.rule, broken.detail
        except TaskError as error:
            found = "memory" if isinstance(error, OutOfMemory) else rule, error.cause
        return {"finding": {"rule": found[0], "detail": " ".join(found[1].split())[:400]}}

    return answer


class TaskCheck:
    """The open task of this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._secrets: Secrets
        self._model: Any = None
        #: Shapes and types of the inputs, from the first draw on.
        self._metas: list[tuple[tuple[int, ...], str]] | None = None

    @property
    def _device(self) -> str:
        return self._context.device.value

    def open(self, params: dict[str, Any]) -> dict[str, Any]:
        """Starts the device and executes the task's source, without using the device's time."""
        torch.set_num_threads(int(params["threads"]))
        if params.get("sleeps") and params["device"] == Device.CUDA.value and not torch.cuda.is_initialized():
            share_the_gpu()
        self._context.start(params)
        self._memory_bytes = int(params["memory_bytes"])
        if self._context.device is Device.CUDA:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, int(params["device_bytes"]) / total))
        else:
            # The limit is below the sandbox's, so that the zygote survives. On CUDA the driver's mappings forbid it.
            _, most = resource.getrlimit(resource.RLIMIT_DATA)
            wanted = int(params["host_bytes"])
            bound = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
            resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
        self._seed = int(params["seed"])
        self._secrets = Secrets(self._seed)
        self._record = Task(name=params["name"], source=params["source"], atol=params["atol"], rtol=params["rtol"])
        Flags().apply()
        self._task = load_task_module(params["source"], params["name"])
        self._init = make_init_inputs(self._task, self._seed)
        return {}

    def run(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Checks the rules runs, finite, memory, and stochastic (by a generator's state)."""
        with peak_memory(self._context.device) as peak, _FindProducts() as found:
            self._model = make_model(self._task, self._init, self._device, self._seed).requires_grad_(False)
            inputs = make_inputs(self._task, self._device, self._seed)
            self._metas = _metas(flatten(inputs)[1])
            versions = _versions(inputs)
            seed_everything(self._seed)
            before = _generators()
            outputs = flatten(run_forward(self._task, self._model, inputs))[1]
            synchronize(self._context.device)
            after = _generators()
        self._products = found.matmul or found.convolution
        self._changes_inputs = _versions(inputs) != versions
        if not outputs:
            raise Broken("runs", "forward() returns no tensor")
        for index, tensor in enumerate(outputs):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                count = int((~tensor.isfinite()).sum())
                raise Broken("finite", f"output {index}: {count} of {tensor.numel()} values are infinite or NaN")
        if peak and peak[0] > self._memory_bytes:
            limit = f"{peak[0] / 2**20:.0f} MiB of {self._memory_bytes / 2**20:.0f} MiB"
            raise Broken("memory", f"one call takes {limit}")
        if after != before:
            raise Broken("stochastic", "forward() draws random numbers: it changes the state of a generator")
        del inputs, outputs
        self._free()
        return {"peak_memory_bytes": peak[0] if peak else None, "products": self._products}

    def graph(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Returns the graph of `forward`. A task without one can't be compared with others."""
        if self._model is None:
            self._model = make_model(self._task, self._init, self._device, self._seed).requires_grad_(False)
        inputs = make_inputs(self._task, self._device, self._seed)
        return {"graph": capture(self._model, inputs, self._task).model_dump_json()}

    def answers(self, params: dict[str, Any]) -> dict[str, Any]:
        """Checks the rules deterministic, varies and null tests."""
        answers = Answers(self._record, self, self._secrets, float(params["floor"]))
        for check, rule in (
            (answers.check_repeats, "deterministic"),
            (answers.check_state, "deterministic"),
            (lambda: _check_varies(answers.answer.eager, answers.other), "varies"),
            (answers.check_nulls, "null_tests"),
        ):
            try:
                check()
            except TaskError as error:
                raise Broken("memory" if isinstance(error, OutOfMemory) else rule, error.cause) from None
        answers.drop_other()
        self._kept = _bytes(answers.answer) <= _KEPT_BYTES
        if not self._kept:
            # Compiling takes seconds, in which other tasks need the memory.
            answers.drop()
        self._answers = answers
        self._free()
        return {"oracle": answers.answer.oracle_kind}

    def compiled(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Checks the rule compiles, on the inputs of `answers`."""
        given = self._copies() if self._changes_inputs else self._drawn
        program = torch.compile(self._model, options=_UNTUNED)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._compiled = _row_major(program(*given))
                synchronize(self._context.device)
        except torch.OutOfMemoryError as error:
            raise Broken("memory", f"compiled: {error}") from None
        except Exception as error:  # noqa: BLE001 - the boundary to the compiler, which raises all kinds
            line = next((line for line in str(error).splitlines() if line.strip()), "")
            raise Broken("compiles", f"torch.compile raised {type(error).__name__}: {line}") from None
        self._free()
        return {}

    def agrees(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Checks the rule agrees, on the outputs of `compiled`."""
        answers, mine = self._answers, self._compiled
        if not self._kept:
            answers.answer = self.answer({}, self._secrets.seed())
        eager = answers.answer.eager
        if _metas(mine) != _metas(eager):
            raise Broken("agrees", f"compiled returns {_metas(mine)} instead of {_metas(eager)}")
        reason = answers.failure(mine)
        if reason is not None:
            raise Broken("agrees", f"compiled and eager disagree: {reason}")
        answers.drop()
        del mine, eager
        self._compiled = []
        torch._dynamo.reset()
        self._free()
        return {}

    # The methods of `admission.Answering`.

    def draw_weights(self, seed: int | None) -> None:
        if seed is not None:
            redraw(self._model, seed)

    def draw_inputs(self, seed: int) -> dict[str, Any]:
        self._drawn = make_inputs(self._task, self._device, seed)
        metas = _metas(flatten(self._drawn)[1])
        if metas != (self._metas or metas):
            raise Broken("deterministic", "get_inputs() returns other shapes or types at each call")
        self._metas = metas
        return {}

    def answer(self, _spec: dict[str, Any], rng: int, *, oracle: bool = True, twin: int | None = None) -> Answer:
        model = self._model if twin is None else self._twin(twin)
        seed_everything(rng)
        eager = _row_major(run_forward(self._task, model, self._copies()))
        if not oracle:
            return Answer({}, eager, eager, eager, "")
        policy = eager
        if self._products and self._context.device is Device.CUDA:
            policy = _row_major(eager_at_precision(model, self._copies(), Precision.TF32))
        self._free()
        try:
            wide = run_float64(model, self._copies())
        except torch.OutOfMemoryError:
            raise Broken("memory", "the float64 outputs of the judge don't fit") from None
        return Answer({}, eager, policy, _row_major(wide.value), wide.precision)

    def _twin(self, seed: int) -> Any:
        twin = make_model(self._task, self._init, self._device, seed, on_device=True).requires_grad_(False)
        twin.load_state_dict(self._model.state_dict())
        return twin

    def _copies(self) -> list[Any]:
        """Returns copies of the drawn inputs, because `forward` may change them."""
        copied: list[Any] = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, self._drawn)
        return copied

    def place(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Puts a model with drawn weights and inputs on the device. Returns a few values of each output, which are the
        same in every process."""
        self._model = make_model(self._task, self._init, self._device, self._seed, on_device=True).requires_grad_(False)
        self.draw_weights(self._seed)
        self.draw_inputs(self._seed)
        return {"sample": [_sampled(tensor) for tensor in self.answer({}, self._seed, oracle=False).eager]}

    def warm(self, params: dict[str, Any]) -> dict[str, Any]:
        self._runner = Runner(self._device)
        gc.collect()
        # The collector stays off until the task is closed.
        gc.disable()
        end = time.monotonic() + _WARM_S
        call_s = 0.0
        for _ in range(int(params["calls"])):
            begun = time.monotonic()
            self._runner.warmup(self._model, [self._drawn], calls=1)
            call_s = time.monotonic() - begun
            if time.monotonic() >= end:
                break
        return {"call_s": call_s}

    def time(self, params: dict[str, Any]) -> dict[str, Any]:
        program = (lambda *_inputs: None) if params["null"] else self._model
        calls, flush_bytes = int(params["calls"]), int(params["flush_bytes"])
        times = [self._runner.time_once(program, self._drawn, flush_bytes=flush_bytes) for _ in range(calls)]
        return {"event_us": times}

    def close(self, _params: dict[str, Any]) -> dict[str, Any]:
        unload_task_module(self._task)
        return {}

    def _free(self) -> None:
        """Frees unused memory for other processes, unless it is little: the driver serves one process at a time."""
        gc.collect()
        if torch.cuda.memory_reserved() > torch.cuda.memory_allocated() + _SPARE_BYTES:
            torch.cuda.empty_cache()


def _metas(tensors: list[Any]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(t.shape), str(t.dtype)) for t in tensors]


def _versions(values: Any) -> list[int]:
    """Returns how often each tensor was written to."""
    return [tensor._version for tensor in flatten(values)[1]]


def _bytes(answer: Answer) -> int:
    tensors = {id(t): t for t in (*answer.eager, *answer.policy, *answer.oracle)}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _row_major(nested: Any) -> list[Any]:
    return [tensor.detach().contiguous() for tensor in flatten(nested)[1]]


def _generators() -> list[Any]:
    """Returns the states of the global random generators."""
    states = [torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(np.random.get_state())]
    return states + ([torch.cuda.get_rng_state().numpy().tobytes()] if torch.cuda.is_initialized() else [])


def _check_varies(eager: list[Any], other: list[Any]) -> None:
    """Raises Broken where every output is constant or nearly so, or every output is the same for other inputs."""
    if all(_is_constant(tensor) for tensor in eager):
        raise Broken("varies", f"the output varies by less than {NEARLY:.0%}")
    if all(_is_near(mine, yours) for mine, yours in zip(eager, other, strict=True)):
        raise Broken("varies", "the outputs for different inputs are the same")


def _is_constant(tensor: Any) -> bool:
    """Returns whether all elements are the same, or spread by less than NEARLY of their mean, such as the variances of
    long random rows. A single number isn't constant."""
    if tensor.numel() < 2:
        return bool(tensor.numel() == 0)
    if not tensor.is_floating_point():
        low, high = torch.aminmax(tensor)
        return bool(low == high)
    spread, mean = torch.std_mean(tensor.float(), correction=0)
    return float(spread) <= NEARLY * abs(float(mean))


def _is_near(mine: Any, yours: Any) -> bool:
    if not mine.is_floating_point():
        return bool(torch.equal(mine, yours))
    apart = float(torch.linalg.vector_norm(mine.float() - yours.float()))
    return apart <= NO_DIFFERENCE * float(torch.linalg.vector_norm(mine.float()))


def _sampled(tensor: Any) -> list[float]:
    """Returns the tensor's norm, and values at regular places."""
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // _SAMPLED)
    norm = torch.linalg.vector_norm(flat.float())
    return [float(norm), *(float(value) for value in flat[::step][:_SAMPLED].double().cpu())]
