"""Every failure as one line with its exit code; the traceback only with --debug."""

import errno
import json
import traceback
from collections.abc import Callable

import typer

from cuda_agent.cli.support.output import emit, say
from cuda_agent.core.errors import EXIT_INTERRUPTED, CudaAgentError, StoreError, UsageError
from cuda_agent.core.plain import plain

#: The base of the argument parser's errors; typer has brought its own copy of click since 0.20.
_PARSER_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def report(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Print `error: cause. remedy` (and the JSON document of it where one is due); the exit code.

    Re-raises what is neither the user's nor this machine's fault: our own bug crashes.
    """
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        known: CudaAgentError | None = None
        code, line, remedy = EXIT_INTERRUPTED, "interrupted", ""
    else:
        known = _as_ours(error)
        if known is None:
            raise error
        code, line, remedy = known.exit_code, _one_line(known.cause), _one_line(known.remedy)
    if debug:
        traceback.print_exception(error)
        if known is not None and known.detail:
            say(known.detail)
    stop = "" if line.endswith(("?", "!")) else "."
    say(f"error: {line.rstrip('.')}{stop} {remedy}" if remedy else f"error: {line}")
    if as_json:
        emit(json.dumps({"error": {"cause": line, "remedy": remedy, "exit_code": code}}))
    return code


def plainly(main: Callable[[], int]) -> int:
    """For scripts: the exit code of `main`, with errors that the user can mend as one line."""
    try:
        return main()
    except (CudaAgentError, OSError, KeyboardInterrupt) as error:
        return report(error, debug=False, as_json=False)


def _as_ours(error: BaseException) -> CudaAgentError | None:
    if isinstance(error, CudaAgentError):
        return error
    if isinstance(error, _PARSER_ERROR):
        message = str(getattr(error, "format_message", lambda: str(error))())
        message = message.replace("Value error, ", "")  # foreign text: pydantic's
        return UsageError(message or "No command given", "See cuda-agent --help")
    if isinstance(error, OSError) and error.strerror:
        return _machine_error(error)
    return None


def _machine_error(error: OSError) -> CudaAgentError:
    """An operating-system error that no layer named: still the machine's, not a crash of ours."""
    where = f" ({error.filename})" if error.filename else ""
    remedies = {errno.ENOSPC: "Free some space", errno.EDQUOT: "Free some space", errno.EFBIG: "Raise the file limit"}
    return StoreError(f"{error.strerror}{where}", remedies.get(error.errno or 0, "See --debug for where it happened"))


def _one_line(text: str) -> str:
    """Also without what would steer the terminal: a task's own exception may be the cause."""
    return plain(" ".join(text.split()))
