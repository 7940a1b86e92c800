"""The merge's own small files in LAKE/_dblog (`dblog_core.lake` says which): durable, whole at any moment."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from dblog_core.errors import LakeError
from dblog_core.lake import LakeStatus
from spark_jobs.plan import Span

KEEP = 1000
"""Records of finished merges that stay, to look into."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What merge `number` applies: the span, and for tables that are behind the others the segment they begin after."""

    number: int
    span: Span
    behind: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"merge": self.number, "span": asdict(self.span), "behind": dict(self.behind)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Intent:
        return cls(data["merge"], Span(**data["span"]), data["behind"])


class Records:
    """LAKE/_dblog, made for its owner alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def prepare(self) -> None:
        """Makes the directories. Raises LakeError where they cannot be written."""
        try:
            (self.directory / "merges").mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LakeError(
                f"cannot be written: {error.strerror}", where=str(self.directory), fix="give this user the right"
            ) from error

    def newest(self) -> Intent | None:
        """The newest merge that was begun. Raises LakeError if its record is damaged."""
        numbers = self._numbers()
        if not numbers:
            return None
        path = self._merge(max(numbers))
        try:
            return Intent.from_json(orjson.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"the record of a merge cannot be read: {error}", where=str(path), fix="restore it from a backup"
            ) from error

    def begin(self, intent: Intent) -> None:
        """Records a merge before it applies anything. Raises LakeError if the number is taken."""
        path = self._merge(intent.number)
        temporary = self._temporary(path.parent, orjson.dumps(intent.to_json()))
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            raise LakeError(
                f"merge {intent.number} was begun by another process", where=str(path), fix="run one merge at a time"
            ) from error
        finally:
            temporary.unlink()
        _sync(path.parent)

    def finish(self, status: LakeStatus) -> None:
        """Records the outcome of a merge, and drops records that are old."""
        self.write("status.json", status.to_json())
        for number in sorted(self._numbers())[:-KEEP]:
            self._merge(number).unlink()

    def read(self, name: str) -> Any:
        """A JSON file; None if it is missing."""
        try:
            return orjson.loads((self.directory / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LakeError(
                f"is damaged: {error}", where=str(self.directory / name), fix="restore it from a backup"
            ) from error

    def write(self, name: str, data: Any) -> None:
        """Replaces a JSON file."""
        temporary = self._temporary(self.directory, orjson.dumps(data))
        temporary.replace(self.directory / name)
        _sync(self.directory)

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in (self.directory / "merges").glob("*.json") if path.stem.isdigit()]

    def _merge(self, number: int) -> Path:
        return self.directory / "merges" / f"{number:012d}.json"

    def _temporary(self, directory: Path, data: bytes) -> Path:
        path = directory / f".{uuid.uuid4().hex}.tmp"
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
