"""`gpu [--seconds N] COMMAND…` inside the agent's shell. It asks the run, outside the sandbox, to run a command on the
GPU.

It uses the standard library only, because it is started as a script by a Python that can't import this package.
"""

import json
import os
import shlex
import socket
import sys
from pathlib import Path

VARIABLE = "CUDA_AGENT_GPU"
USAGE = """Usage: gpu [--seconds N] COMMAND [ARGUMENT…]
Runs COMMAND on the GPU, in this workspace's sandbox, for at most N seconds (60 by default, 300 at most), while nothing
else uses the GPU. For pipes and redirections: gpu bash -c '…'. Everything else in this shell has no GPU."""


def request(arguments: list[str]) -> dict[str, object] | None:
    """Returns the request, or None for arguments that make no sense."""
    seconds = 60.0
    if arguments[:1] == ["--seconds"]:
        try:
            seconds, arguments = float(arguments[1]), arguments[2:]
        except (IndexError, ValueError):
            return None
    if not arguments or arguments[0].startswith("-") or not 0 < seconds <= 300:
        return None
    return {"command": arguments, "cwd": str(Path.cwd()), "seconds": seconds}


def main(arguments: list[str]) -> int:
    """Returns the exit code of the command, or 2 if it can't be run."""
    asked = request(arguments)
    if asked is None:
        sys.stderr.write(USAGE + "\n")
        return 2
    path = os.environ.get(VARIABLE, "")
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The full path may be longer than the kernel accepts for a socket.
        os.chdir(Path(path).parent)
        client.connect(Path(path).name)
    except OSError as error:
        sys.stderr.write(f"gpu: nothing answers at {path!r} ({error.strerror}); the run may have ended\n")
        return 2
    with client, client.makefile("rwb") as stream:
        stream.write(json.dumps(asked).encode() + b"\n")
        stream.flush()
        for line in stream:
            received = json.loads(line)
            if "output" in received:
                sys.stdout.write(received["output"])
                sys.stdout.flush()
            elif "note" in received:
                sys.stderr.write(f"gpu: {received['note']}\n")
            elif "exit" in received:
                return int(received["exit"])
    sys.stderr.write(f"gpu: {shlex.join(arguments)} was not finished: the run ended\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
