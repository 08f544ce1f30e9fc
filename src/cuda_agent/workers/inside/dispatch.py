"""Records which ATen operators a call reaches at torch's dispatcher, from Python and from C++ alike.

A mode on the dispatcher's thread-local stack sees every operator before any kernel runs, unless code calls kernels past
the dispatcher (`at::native`, `at::cpu`), which the guard finds among the imported symbols. This runs in the candidate's
process, so its reports can convict a candidate but never acquit it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_agent.workers.requests.candidate import DispatchRecord

#: the operator that the recorder calls itself, to check whether it still records.
_CANARY = "aten.empty_strided.default"


class Listener(TorchDispatchMode):  # type: ignore[misc]
    """A mode that is called after every operator."""

    def note(self, operator: Any, args: Any, result: Any) -> None:
        raise NotImplementedError


def _dispatch(self: Listener, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    del types
    result = func(*args, **(kwargs or {}))
    self.note(func, args, result)
    return result


# Set here, because a mode's own class body would wrap it in code that imports the whole compiler (3 s, and every later
# call of a few microseconds is some 5 % slower).
Listener.__torch_dispatch__ = _dispatch


class OperatorRecorder(Listener):
    """Counts operators by name, and remembers the storages that they made. A copy or clone to another dtype counts as
    `<name>:converts`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.intact = True
        self._storages: set[int] = set()

    def note(self, operator: Any, args: Any, result: Any) -> None:
        name = str(operator)
        tensors = [item for item in (*args, result) if isinstance(item, torch.Tensor)]
        if name.startswith(("aten.copy_.", "aten.clone.")) and len({tensor.dtype for tensor in tensors[:2]}) > 1:
            name += ":converts"
        self.counts[name] = self.counts.get(name, 0) + 1
        for tensor in _tensors(result):
            self._storages.add(tensor.untyped_storage().data_ptr())

    def still_records(self) -> bool:
        """Whether an operator that is called now is counted. It is removed from the counts."""
        before = self.counts.get(_CANARY, 0)
        torch.empty_strided((1,), (1,))
        seen = self.counts.get(_CANARY, 0) == before + 1
        if seen and before:
            self.counts[_CANARY] = before
        else:
            self.counts.pop(_CANARY, None)
        return seen

    def unseen(self, outputs: Iterable[Any]) -> int:
        """Returns how many of the outputs are in memory that no recorded operator made."""
        return sum(t.numel() > 0 and t.untyped_storage().data_ptr() not in self._storages for t in outputs)

    def report(self) -> DispatchRecord:
        return DispatchRecord(operators=self.counts, intact=self.intact)


@contextmanager
def recorded() -> Iterator[OperatorRecorder]:
    """Records until the block ends. `intact` then says whether it recorded to the end."""
    recorder, depth = OperatorRecorder(), torch._C._len_torch_dispatch_stack()
    recorder.__enter__()
    try:
        yield recorder
    finally:
        recorder.intact = torch._C._len_torch_dispatch_stack() == depth + 1 and recorder.still_records()
        # If other code has emptied the stack, there is nothing left to remove.
        with suppress(RuntimeError):
            recorder.__exit__(None, None, None)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
