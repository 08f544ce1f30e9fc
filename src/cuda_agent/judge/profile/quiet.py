"""The device for one candidate's timing: who has others beside it on the device enters a `Quiet`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

#: makes a context in which nobody else does anything on the device, for what is on the clock.
Hush = Callable[[], AbstractContextManager[None]]
#: makes a context in which one candidate has the device; others may start there, but while it hushes them.
Quiet = Callable[[], AbstractContextManager[Hush]]
#: where there is nobody else.
no_hush: Hush = nullcontext


@contextmanager
def nobody_else() -> Iterator[Hush]:
    """As it says."""
    yield no_hush
