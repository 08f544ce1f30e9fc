"""Runs nvcc's two passes at the same time.

nvcc runs the host's pass (preprocessor, cudafe++) and then the device's (preprocessor, cicc, ptxas); each spends about
half a second on headers. They share only the module's name, which cudafe++ makes and cicc reads. With a name given
beforehand neither waits for the other, and the object is the same. A compiler with other steps is run normally.
"""

import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache

_NAME = "SOURCE_NAME"
_KEPT = "KEPT_FOLDER"
_OBJECT = "OBJECT_FILE"
_MAKES_ID = "--gen_module_id_file"
_ASSIGNMENT = re.compile(r"(PATH|TOP|CICC_PATH|NVVMIR_LIBRARY_DIR|LD_LIBRARY_PATH)=(.*)")
_PLAIN_NAME = re.compile(r"[\w./-]+\.cu")
#: the programs of the two passes and of what joins them.
_HOST, _DEVICE, _JOIN = (("gcc -E", "cudafe++"), ("gcc -E", "cicc", "ptxas", "fatbinary"), ("gcc -c",))


@dataclass(frozen=True)
class Steps:
    """The shell commands of one compile, with placeholders for its files."""

    exports: tuple[str, ...]
    host: tuple[str, ...]
    device: tuple[str, ...]
    join: tuple[str, ...]


def script(command: tuple[str, ...], source: str, kept: str, made: str, module: str) -> str | None:
    """Returns a shell script in place of `command -c source -o made`. It leaves the intermediate files in `kept`, which
    exists. `module` is a unique name for the module. Returns None where nvcc must be run itself."""
    found = steps(command)
    stem = source.rpartition("/")[2].removesuffix(".cu")
    if found is None or not _PLAIN_NAME.fullmatch(source):
        return None
    # The device's messages are kept back: where the host's pass fails, they say the same once more.
    lines = [
        *found.exports,
        f"printf %s '{module}' > '{kept}/{stem}.module_id'",
        f"( {' && '.join(found.device)} ) > '{kept}/device.log' 2>&1 & device=$!",
        f"{' && '.join(found.host)} || exit",
        f"wait $device; code=$?; cat '{kept}/device.log'; [ $code = 0 ] || exit $code",
        *found.join,
    ]
    # Not the beginning of `NAME.cudafe1.cpp` and `NAME.cubin`.
    text = re.sub(rf"{_NAME}\.cu\b", source, "\n".join(lines)).replace(_NAME, stem)
    return text.replace(_KEPT, kept).replace(_OBJECT, made) + "\n"


@lru_cache(maxsize=8)
def steps(command: tuple[str, ...]) -> Steps | None:
    """Returns the steps that nvcc would run, or None where these aren't one host pass and one device pass."""
    asked = [*command, "--keep", "--keep-dir", _KEPT, "--dryrun", "-c", f"{_NAME}.cu", "-o", _OBJECT]
    # Nothing of this process's folder and environment gets into the commands.
    alone = {"PATH": "/usr/bin:/bin"}
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False, cwd="/", env=alone)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.removeprefix("#$ ") for line in done.stderr.splitlines() if line.startswith("#$ ")]
    assigned = [match for line in lines if (match := _ASSIGNMENT.fullmatch(line.strip())) and "'" not in line]
    exports = [f"export {match[1]}='{match[2].strip()}'" for match in assigned]
    commands = [line.strip() for line in lines if _program(line) is not None]
    kinds = tuple(_program(line) for line in commands)
    if kinds != _HOST + _DEVICE + _JOIN or _MAKES_ID not in commands[1]:
        return None
    commands[1] = commands[1].replace(_MAKES_ID, "")
    host, device = len(_HOST), len(_HOST) + len(_DEVICE)
    return Steps(tuple(exports), tuple(commands[:host]), tuple(commands[host:device]), tuple(commands[device:]))


def _program(line: str) -> str | None:
    """Returns which known step a line is, `other` for an unknown command, None for a line without a command."""
    words = line.split()
    if not words or re.match(r"\w*=|rm$", words[0]):
        return None
    name = words[0].strip('"').rpartition("/")[2]
    if name in ("cudafe++", "cicc", "ptxas", "fatbinary"):
        return name
    if "-E" in words:
        return "gcc -E"
    return "gcc -c" if "-c" in words else "other"
