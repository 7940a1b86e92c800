"""Lines that an output's target refuses for good, in a file, each with the reason: one JSON object a line.

A line is noted, durably, before the output goes past it. Once noted it is not tried again, so it is either here or in
the target, whatever dies in between.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from dblog_core.errors import OutputRefused
from dblog_core.interfaces import Json


class DeadLetters:
    """The file of one output; None: there is none, since the output stops at such a line."""

    def __init__(self, path: Path | None, *, source: str, output: str) -> None:
        self._path = path
        self._source = source
        self._output = output
        self._offsets: set[int] = set()

    def read(self) -> None:
        """Learns what was noted before. Raises OutputRefused for a file that cannot be read."""
        if self._path is None or not self._path.exists():
            return
        try:
            notes = [n for n in _notes(self._path) if (n["source"], n["output"]) == (self._source, self._output)]
            self._offsets = {int(note["line"]["offset"]) for note in notes}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unusable(error) from error

    def holds_line(self, line: Json) -> bool:
        return line["offset"] in self._offsets

    def note_line(self, line: Json, reason: str) -> None:
        """Notes the line. Raises OutputRefused where the file cannot be written."""
        assert self._path is not None
        note = {"source": self._source, "output": self._output, "reason": reason, "line": line}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "ab", opener=_for_us_alone) as file:
                # A relay that died while it wrote has left half a line: ours begins a new one.
                if file.tell() and not _ends_whole(self._path):
                    file.write(b"\n")
                file.write(orjson.dumps(note) + b"\n")
                file.flush()
                # Durable before the relay goes past the line: afterwards nobody else has it.
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from error
        self._offsets.add(line["offset"])

    def _unusable(self, error: Exception) -> OutputRefused:
        return OutputRefused(
            f"the file of dead letters cannot be used: {error}", where=str(self._path), fix="repair or move the file"
        )


def _for_us_alone(path: str, flags: int) -> int:
    """A new file has rows of the source, which nobody else may read."""
    return os.open(path, flags, 0o600)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _notes(path: Path) -> Iterator[Json]:
    """Without one that was cut short: its output has not gone past the line, which is tried again."""
    for text in path.read_bytes().splitlines():
        with contextlib.suppress(orjson.JSONDecodeError):
            yield orjson.loads(text)
