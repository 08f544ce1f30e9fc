"""Checks one task in its own process before it joins a dataset.

Everything here runs beside the task's code, so the task can forge the answers (`docs/tasks.md` has the consequences).
The judge compares the times with its own clock.
"""

import gc
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import OutOfMemory, TaskError
from cuda_agent.judge import Answers, Secrets, WholeAnswer
from cuda_agent.tasks.inside import requests
from cuda_agent.tasks.inside.outputs import NEARLY, is_constant, is_near, sampled
from cuda_agent.tasks.records import Rule, TaskFinding
from cuda_agent.workers.buffers import synchronize
from cuda_agent.workers.inside.baselines import FindProducts, Flags
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.inside.runner import Runner, share_the_gpu
from cuda_agent.workers.inside.task.oracle import eager_at_precision, run_float64
from cuda_agent.workers.inside.task.pytree import flatten
from cuda_agent.workers.inside.task.scaling import scale_weights
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
from cuda_agent.workers.inside.task.weights import changed_names, redraw, state_versions
from cuda_agent.workers.requests import Done, Operations, Start, WorkerAnswer

#: The bytes of the device's memory that a process may keep unused.
_SPARE_BYTES = 1 << 30
#: The bytes of outputs that stay on the device during compilation.
_KEPT_BYTES = 2 << 30
#: Compiles each kernel with one setting instead of the fastest of several, because it need only run and agree.
_UNTUNED = {"triton.autotune_pointwise": False}
#: The seconds after which no more warm-up calls begin.
_WARM_S = 0.1


class Broken(Exception):
    """A rule that the task breaks."""

    def __init__(self, rule: Rule, detail: str) -> None:
        self.rule, self.detail = rule, detail
        super().__init__(detail)


def create(context: Context) -> Operations:
    opened: list[TaskCheck] = []

    def open_task(request: requests.OpenTask) -> requests.TaskAnswer:
        opened[:] = [TaskCheck(context)]
        return opened[0].open(request)

    def close(request: requests.CloseTask) -> requests.TaskAnswer:
        opened.pop().close()
        give_back(context.device)
        return requests.TaskAnswer()

    def step(method: Callable[[TaskCheck, Any], requests.TaskAnswer]) -> Callable[[Any], requests.TaskAnswer]:
        return lambda request: method(opened[0], request)

    operations: dict[type[requests.TaskRequest[Any]], Callable[[Any], requests.TaskAnswer]] = {
        requests.OpenTask: open_task,
        requests.RunTask: step(TaskCheck.run),
        requests.GraphTask: step(TaskCheck.graph),
        requests.CheckAnswers: step(TaskCheck.answers),
        requests.CompileTask: step(TaskCheck.compiled),
        requests.CompareCompiled: step(TaskCheck.agrees),
        requests.PlaceTask: step(TaskCheck.place),
        requests.WarmTask: step(TaskCheck.warm),
        requests.TimeTask: step(TaskCheck.time),
        requests.CloseTask: close,
    }
    # `OpenTask` starts the device, which counts as the task's time.
    own: Operations = {Start: lambda _request: Done()}
    return {**own, **{kind: _reporting(operation) for kind, operation in operations.items()}}


def _reporting(operation: Callable[[Any], requests.TaskAnswer]) -> Callable[[requests.TaskRequest[Any]], WorkerAnswer]:
    """Returns an operation that reports a broken rule as its answer."""

    def answer(request: requests.TaskRequest[Any]) -> WorkerAnswer:
        try:
            return operation(request)
        except Broken as broken:
            rule, detail = broken.rule, broken.detail
        except TaskError as error:
            rule, detail = Rule.MEMORY if isinstance(error, OutOfMemory) else request.rule, error.cause
        return request.answer.model_validate({"finding": TaskFinding(rule=rule, detail=" ".join(detail.split())[:400])})

    return answer


class TaskCheck:
    """The open task of this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._secrets: Secrets
        self._model: Any = None
        #: Parameters and buffers that `forward` changes.
        self._changed: tuple[str, ...] = ()
        #: Shapes and types of the inputs, from the first draw on.
        self._metas: list[tuple[tuple[int, ...], str]] | None = None

    @property
    def _device(self) -> str:
        return self._context.device.value

    def open(self, request: requests.OpenTask) -> requests.TaskAnswer:
        """Starts the device and loads the task's module, without using the device's time."""
        torch.set_num_threads(request.threads)
        if request.sleeps and request.device is Device.CUDA and not torch.cuda.is_initialized():
            share_the_gpu()
        self._context.start(Start(device=request.device))
        self._memory_bytes = request.memory_bytes
        if self._context.device is Device.CUDA:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, request.device_bytes / total))
        self._seed = request.seed
        self._secrets = Secrets(self._seed)
        self._record = request.task
        Flags().apply()
        self._task = load_task_module(request.task.source, request.task.name)
        self._init = make_init_inputs(self._task, self._seed)
        return requests.TaskAnswer()

    def run(self, _request: requests.RunTask) -> requests.RanTask:
        """Checks the rules runs, finite, memory, and stochastic (by a generator's state)."""
        with peak_memory(self._context.device) as peak, FindProducts() as found:
            self._model = self._made(self._seed)
            inputs = make_inputs(self._task, self._device, self._seed)
            self._metas = _metas(flatten(inputs)[1])
            versions, state = _versions(inputs), state_versions(self._model)
            seed_everything(self._seed)
            before = _generators()
            outputs = flatten(run_forward(self._task, self._model, inputs))[1]
            synchronize(self._context.device)
            after = _generators()
        self._products = found.matmul or found.convolution
        self._changes_inputs = _versions(inputs) != versions
        self._changed = changed_names(state, self._model)
        if not outputs:
            raise Broken(Rule.RUNS, "forward() returns no tensor")
        for index, tensor in enumerate(outputs):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                count = int((~tensor.isfinite()).sum())
                raise Broken(Rule.FINITE, f"output {index}: {count} of {tensor.numel()} values are infinite or NaN")
        if peak and peak[0] > self._memory_bytes:
            used, limit = peak[0] / 2**20, self._memory_bytes / 2**20
            raise Broken(Rule.MEMORY, f"one call takes {used:.0f} MiB of {limit:.0f} MiB")
        if after != before:
            raise Broken(Rule.STOCHASTIC, "forward() draws random numbers: it changes a generator's state")
        del inputs, outputs
        self._free()
        return requests.RanTask(peak_memory_bytes=peak[0] if peak else None, products=self._products)

    def graph(self, _request: requests.GraphTask) -> requests.TaskGraph:
        """Captures the graph of `forward`. A task without one can't be compared with others."""
        if self._model is None:
            self._model = self._made(self._seed)
        inputs = make_inputs(self._task, self._device, self._seed)
        return requests.TaskGraph(graph=capture(self._model, inputs, self._task).model_dump_json())

    def answers(self, request: requests.CheckAnswers) -> requests.TaskAnswer:
        """Checks the rules deterministic, varies and null tests."""
        answers = Answers(self._record, self, self._secrets, request.floor)
        for check, rule in (
            (lambda: answers.check_repeats(self._changed), Rule.DETERMINISTIC),
            (answers.check_state, Rule.DETERMINISTIC),
            (lambda: _check_varies(self._answer.eager, answers.other), Rule.VARIES),
            (answers.check_nulls, Rule.NULL_TESTS),
        ):
            try:
                check()
            except TaskError as error:
                raise Broken(Rule.MEMORY if isinstance(error, OutOfMemory) else rule, error.cause) from None
        answers.drop_other()
        self._kept = _bytes(self._answer) <= _KEPT_BYTES
        if not self._kept:
            # Compiling takes seconds, in which other tasks need the memory.
            self._drop(answers)
        self._answers = answers
        self._free()
        return requests.TaskAnswer()

    def compiled(self, _request: requests.CompileTask) -> requests.TaskAnswer:
        """Checks the rule compiles, on the inputs of `answers`."""
        given = self._copies() if self._changes_inputs else self._drawn
        program = torch.compile(self._model, options=_UNTUNED)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._compiled = _row_major(program(*given))
                synchronize(self._context.device)
        except torch.OutOfMemoryError as error:
            raise Broken(Rule.MEMORY, f"compiled: {error}") from None
        except Exception as error:  # noqa: BLE001 - the boundary to the compiler, which raises all kinds
            line = next((line for line in str(error).splitlines() if line.strip()), "")
            raise Broken(Rule.COMPILES, f"torch.compile raised {type(error).__name__}: {line}") from None
        self._free()
        return requests.TaskAnswer()

    def agrees(self, _request: requests.CompareCompiled) -> requests.TaskAnswer:
        """Checks the rule agrees, on the outputs of `compiled`."""
        answers, mine = self._answers, self._compiled
        if not self._kept:
            answers.answer = self.answer({}, self._secrets.seed())
        eager = self._answer.eager
        if _metas(mine) != _metas(eager):
            raise Broken(Rule.AGREES, f"compiled returns {_metas(mine)} instead of {_metas(eager)}")
        reason = answers.failure(mine)
        if reason is not None:
            raise Broken(Rule.AGREES, f"compiled and eager disagree: {reason}")
        self._drop(answers)
        del mine, eager
        self._compiled = []
        torch._dynamo.reset()
        self._free()
        return requests.TaskAnswer()

    # The methods of `admission.Answering`.

    def draw_weights(self, seed: int | None, *, scaled: bool | None = None) -> None:
        if seed is not None:
            redraw(self._model, seed)
        if scaled:
            scale_weights(self._model, lambda: run_forward(self._task, self._model, self._copies()))

    def draw_inputs(self, seed: int) -> dict[str, Any]:
        self._drawn = make_inputs(self._task, self._device, seed)
        metas = _metas(flatten(self._drawn)[1])
        if metas != (self._metas or metas):
            raise Broken(Rule.DETERMINISTIC, "get_inputs() returns other shapes or types at each call")
        self._metas = metas
        return {}

    def answer(self, _spec: dict[str, Any], rng: int, *, oracle: bool = True, twin: int | None = None) -> WholeAnswer:
        self._answer = WholeAnswer({}, [], [], [], "")
        self._answer = self._answered(rng, oracle=oracle, twin=twin)
        return self._answer

    def _drop(self, answers: Answers) -> None:
        """Frees all answers."""
        answers.drop()
        self._answer = WholeAnswer({}, [], [], [], "")

    def _answered(self, rng: int, *, oracle: bool, twin: int | None) -> WholeAnswer:
        model = self._model if twin is None else self._twin(twin)
        seed_everything(rng)
        eager = _row_major(run_forward(self._task, model, self._copies()))
        if not oracle:
            return WholeAnswer({}, eager, eager, eager, "")
        policy = eager
        if self._products and self._context.device is Device.CUDA:
            policy = _row_major(eager_at_precision(model, self._copies(), Precision.TF32))
        self._free()
        try:
            wide = run_float64(model, self._copies())
        except torch.OutOfMemoryError:
            raise Broken(Rule.MEMORY, "the judge's float64 outputs don't fit") from None
        return WholeAnswer({}, eager, policy, _row_major(wide.value), wide.precision)

    def _made(self, seed: int, *, on_device: bool = False) -> Any:
        return make_model(self._task, self._init, self._device, seed, on_device=on_device).requires_grad_(False)

    def _twin(self, seed: int) -> Any:
        twin = self._made(seed, on_device=True)
        twin.load_state_dict(self._model.state_dict())
        return twin

    def _copies(self) -> list[Any]:
        """Returns copies of the drawn inputs, because `forward` may change them."""
        copied: list[Any] = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, self._drawn)
        return copied

    def place(self, _request: requests.PlaceTask) -> requests.SampledOutputs:
        """Puts a model with drawn weights and inputs on the device. Returns a few values of each output, which are the
        same in every process."""
        self._model = self._made(self._seed, on_device=True)
        self.draw_weights(self._seed)
        self.draw_inputs(self._seed)
        eager = self.answer({}, self._seed, oracle=False).eager
        return requests.SampledOutputs(sample=tuple(map(sampled, eager)))

    def warm(self, request: requests.WarmTask) -> requests.WarmedTask:
        self._runner = Runner(self._device)
        gc.collect()
        # The collector stays off until the task is closed.
        gc.disable()
        end = time.monotonic() + _WARM_S
        call_s = 0.0
        for _ in range(request.calls):
            begun = time.monotonic()
            self._runner.warmup(self._model, [self._drawn], calls=1)
            call_s = time.monotonic() - begun
            if time.monotonic() >= end:
                break
        return requests.WarmedTask(call_s=call_s)

    def time(self, request: requests.TimeTask) -> requests.TaskTimes:
        program = (lambda *_inputs: None) if request.null else self._model
        run = self._runner.time_once
        times = [run(program, self._drawn, flush_bytes=request.flush_bytes) for _ in range(request.calls)]
        return requests.TaskTimes(event_us=tuple(times))

    def close(self) -> None:
        unload_task_module(self._task)

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


def _bytes(answer: WholeAnswer) -> int:
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
    if all(is_constant(tensor) for tensor in eager):
        raise Broken(Rule.VARIES, f"the output varies by less than {NEARLY:.0%}")
    if all(is_near(mine, yours) for mine, yours in zip(eager, other, strict=True)):
        raise Broken(Rule.VARIES, "the outputs for different inputs are the same")
