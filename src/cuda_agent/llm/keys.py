"""The key of an endpoint, from a file or the environment. Only the endpoint is sent it."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from cuda_agent.core.config import OPENAI_URL
from cuda_agent.core.errors import UsageError

#: the key of any endpoint.
OWN_VARIABLE = "CUDA_AGENT_API_KEY"
#: the key of OpenAI's endpoint, and of the endpoint in OPENAI_BASE_URL. No other endpoint is sent it.
OPENAI_VARIABLE = "OPENAI_API_KEY"
HOW_TO_GIVE = f"Give a key with --api-key-file FILE or in {OWN_VARIABLE}"
_MAX_BYTES = 16_384
_SHOWN = "[key]"
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET")
_SECRET_LENGTH = 16


class Key:
    """A secret text, which only `reveal()` returns; printing, formatting and pickling don't. `file` is its source, or
    None."""

    __slots__ = ("__value", "file")

    def __init__(self, value: str, file: Path | None = None) -> None:
        self.__value = value
        self.file = file

    def reveal(self) -> str:
        return self.__value

    def redact(self, text: str) -> str:
        """Removes the key, and a server's masked form of it (its first characters and stars), from `text`."""
        head = self.__value[:8]
        if len(self.__value) < 16:
            return text.replace(self.__value, _SHOWN)
        return re.sub(re.escape(head) + r"[^\s\"'<>,;)}\]]*", _SHOWN, text.replace(self.__value, _SHOWN))

    def __repr__(self) -> str:
        return "Key(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key isn't pickled")


def find_key(base_url: str, key_file: Path | None) -> Key | None:
    """Returns the file's key, else the environment's, else None; local servers need no key. Raises UsageError when the
    file can't be read or holds anything but one key."""
    if key_file is not None:
        return Key(_checked(_read(key_file), str(key_file)), key_file.resolve())
    names = [OWN_VARIABLE]
    host = urlsplit(base_url).hostname or ""
    same = os.environ.get("OPENAI_BASE_URL", "").rstrip("/") == base_url
    if same or host == "openai.com" or host.endswith(".openai.com"):
        names.append(OPENAI_VARIABLE)
    for name in names:
        if value := os.environ.get(name, "").strip():
            return Key(_checked(value, name))
    return None


def redacted(text: str, key: Key | None) -> str:
    """Removes the key, and the value of every environment variable whose name marks a secret, from `text`: other
    protocols have their own variables."""
    named = (value for name, value in os.environ.items() if name.upper().endswith(_SECRET_NAMES))
    known = [Key(value) for value in named if len(value) >= _SECRET_LENGTH]
    for secret in [*([key] if key is not None else []), *known]:
        text = secret.redact(text)
    return text


def default_base_url() -> str:
    """Returns `$OPENAI_BASE_URL`, else OpenAI's endpoint."""
    return os.environ.get("OPENAI_BASE_URL", "").rstrip("/") or OPENAI_URL


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_MAX_BYTES + 1).decode().strip()
    except OSError as error:
        raise UsageError(f"Can't read the key file {path}: {error.strerror}", "Check its path and rights") from None
    except UnicodeDecodeError:
        raise UsageError(f"The key file {path} isn't text", "Write the key alone into it") from None


def _checked(value: str, where: str) -> str:
    if not value or len(value) > _MAX_BYTES or not all("!" <= character <= "~" for character in value):
        raise UsageError(f"{where} doesn't hold one key", "Write the key alone there, on one line, without quotes")
    return value
