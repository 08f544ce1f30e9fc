"""A helper process' role for tests: a module of its own, as the process that runs it must be able to import it."""

from __future__ import annotations

import os
import signal

from cuda_agent.core.errors import UsageError
from cuda_agent.workers.helper import tell


class Counting:
    def count(self, to: int) -> int:
        for number in range(to):
            tell(number)
        return to

    def refuse(self) -> None:
        tell("nothing")
        raise UsageError("no", "ask otherwise")

    def die(self) -> None:
        tell("last words")
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Holds nothing."""
