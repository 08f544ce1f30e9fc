"""The base of every record on disk: frozen, without unknown fields, with a schema version."""

from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from cuda_agent.core.errors import StoreError

SCHEMA_VERSION = 1


def now() -> str:
    """Returns the time in the form of records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Record(BaseModel):
    """A frozen record that refuses unknown fields. Units are in field names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


class StoredRecord(Record):
    """A record with its own file. A reader refuses another schema version and names both."""

    schema_version: int = SCHEMA_VERSION
    """Version of the format."""
    file_name: ClassVar[str] = ""

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str, *, where: str = "the text") -> Self:
        """Returns the record. Raises StoreError when the text isn't this record or has another schema version."""
        import json

        try:
            version = json.loads(text).get("schema_version")
        except (ValueError, AttributeError) as error:
            raise StoreError(f"{where} is not a {cls.__name__}: {error}", "Restore the file or run again") from None
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{where} has schema version {version}, this cuda-agent reads {SCHEMA_VERSION}",
                "Use the cuda-agent that wrote it",
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise StoreError(f"{where} is not a valid {cls.__name__}: {field}: {first['msg']}") from None

    def write(self, directory: Path) -> Path:
        """Writes the file durably (temporary file, fsync, rename). Raises StoreError."""
        from cuda_agent.core.files import write_durably

        path = directory / self.file_name
        write_durably(path, self.to_json())
        return path

    @classmethod
    def find(cls, directory: Path) -> Self | None:
        """Returns the record in a folder, None if it has none. Raises StoreError when the file isn't this record."""
        return cls.read(directory) if (directory / cls.file_name).is_file() else None

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Returns the record in a folder. Raises StoreError when the file is missing or isn't this record."""
        return cls.read_file(directory / cls.file_name)

    @classmethod
    def read_file(cls, path: Path) -> Self:
        """Returns the record in a file of any name. Raises StoreError as `read` does."""
        try:
            text = path.read_text()
        except OSError as error:
            raise StoreError(f"Can't read {path}: {error.strerror}", "Check the path") from None
        return cls.from_json(text, where=str(path))
