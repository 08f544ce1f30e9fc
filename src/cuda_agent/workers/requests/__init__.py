"""What the judge asks of a worker: one record for each operation, and one for its answer, used by both sides.

A request travels as `{id, op, params}`, where `op` is the record's class and `params` its fields. Its answer is read
strictly, since a worker isn't trusted: a wrong type, an unknown field or a number that isn't finite is a violation of
the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, Strict

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta

T = TypeVar("T")
#: the nesting of a value without its tensors (`pytree`).
Spec = dict[str, Any]
#: a tuple in a strict record, which JSON holds as a list.
Many = Annotated[tuple[T, ...], Strict(False)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
#: a time as a worker reports it: thirty years at the most, so that sums stay finite.
Microseconds = Annotated[float, Field(ge=-1e15, le=1e15)]


class WorkerAnswer(BaseModel):
    """The base of all answers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Done(WorkerAnswer):
    """The operation is done; there is nothing to say."""


A_co = TypeVar("A_co", bound=WorkerAnswer, covariant=True)


class WorkerRequest(BaseModel, Generic[A_co]):
    """The base of all requests; `WorkerRequest[X]` is answered by an `X`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    answer: ClassVar[type[WorkerAnswer]] = Done

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        base: Any = cls.__bases__[0]
        if arguments := base.__pydantic_generic_metadata__["args"]:
            cls.answer = arguments[0]


A = TypeVar("A", bound=WorkerAnswer)
#: the operations of a worker: what answers each request.
Operations = Mapping[type[WorkerRequest[Any]], Callable[[Any], WorkerAnswer]]


def operations_of(*methods: Callable[[Any], WorkerAnswer]) -> Operations:
    """Returns the operations of these methods. Each answers the request with which its parameter is annotated."""
    return {next(iter(get_type_hints(method).values())): method for method in methods}


class FaultKind(StrEnum):
    """Why a request failed. A worker reports those up to `TASK`; the judge finds the others itself."""

    LOAD = "load"
    STRUCTURE = "structure"
    RAISED = "raised"
    OUT_OF_MEMORY = "out_of_memory"
    #: an error that stays on the device.
    DEVICE = "device"
    TASK = "task"
    DIED = "died"
    DEADLINE = "deadline"
    PROTOCOL = "protocol"
    #: another process used the device.
    FOREIGN_LOAD = "foreign_load"
    #: the clocks disagree: another process used the device, or the candidate hides time.
    CLOCKS = "clocks"


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies in its arena: `offset` in bytes."""

    offset: int
    meta: TensorMeta


class TensorRefs(BaseModel):
    """Tensors in an attached arena."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    arena: str
    slots: tuple[Slot, ...]


class HeldMemory(WorkerAnswer):
    """Bytes of the device that the worker still holds, without its context."""

    held_bytes: Count


class FreeMemory(WorkerRequest[HeldMemory]):
    """Gives back the device memory that nothing uses."""


class Start(WorkerRequest[Done]):
    """Starts the device on the given cores, if the system allows that; none given: on any. With `small_context` the
    process has one connection to the device."""

    device: Device
    cores: tuple[int, ...] = ()
    small_context: bool = False


class Attach(WorkerRequest[Done]):
    """Maps an arena. On the CPU its memory comes as a descriptor; on a GPU `handle` is its CUDA IPC handle in hex."""

    arena: str
    nbytes: int
    device: Device
    handle: str = ""


class Detach(WorkerRequest[Done]):
    """Unmaps an arena. The role has let go of its tensors before."""

    arena: str


class ImportTask(WorkerRequest[Done]):
    """Imports what the task imports (transformers takes seconds). A failure shows when the task is loaded."""

    name: str
    source: str
