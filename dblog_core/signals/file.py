"""Signals as lines of a file: JSON objects {"id", "type", "data"}, which others append.

The place up to which the file is read lies in the state store; it moves past a line once that is in the inbox. A line
without its end waits. Where the file is now another one (its first bytes differ, or it is shorter), it is read from
its beginning: ids that came before are known.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from dblog_core.errors import ConfigError, RequestError
from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.signals import inbox
from dblog_core.signals.message import MAX_DATA_BYTES, Message

log = logging.getLogger(__name__)

CHANNEL = "file"
_HEAD_BYTES = 4096  # bytes by which a file is known again
_BYTES_AT_ONCE = 1 << 20
_MAX_LINE_BYTES = 4 * MAX_DATA_BYTES  # bytes of a line


@dataclass(frozen=True, slots=True)
class FilePosition:
    """All before byte `at` is read; `head`: the digest of the file's first `head_length` bytes, by which it is known
    again."""

    at: int
    head_length: int
    head: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(int(data["at"]), data["known"], data["head"])

    def to_json(self) -> Json:
        return {"at": self.at, "known": self.head_length, "head": self.head}


class SignalFile:
    """The reader of one file."""

    def __init__(self, path: Path, state: StateStore, clock: Clock) -> None:
        self._path = path
        self._state = state
        self._clock = clock
        self._last_at_us = 0

    def read_new_lines(self) -> None:
        """Takes in the lines that were appended. Raises ConfigError where the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
                place = self._position_in_file(head, file.seek(0, 2))
                file.seek(place)
                data = file.read(_BYTES_AT_ONCE)
        except FileNotFoundError:
            return  # nobody has asked for anything yet
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}", where=f"[signals] file {self._path}", fix="let the capture read it"
            ) from error
        self._take_lines(data, head, place)

    def _take_lines(self, data: bytes, head: bytes, place: int) -> None:
        # What follows the last line end is still being written.
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _MAX_LINE_BYTES:
            end = len(data)  # no signal is as long: what this is, is told by its refusal
        if not end:
            return
        at = place
        for line in data[:end].removesuffix(b"\n").split(b"\n"):
            if line.strip():
                self._put_signal(line, at)
            at += len(line) + 1
        at = min(at, place + end)
        head_length = min(at, _HEAD_BYTES)
        # After the lines are in the inbox: a crash between the two repeats them, and their ids are known.
        position = FilePosition(at, head_length, _digest(head[:head_length]))
        inbox.put_position(self._state, CHANNEL, position)

    def _position_in_file(self, head: bytes, size: int) -> int:
        position = inbox.read_position(self._state, CHANNEL, FilePosition)
        if position is None or size < position.at or _digest(head[: position.head_length]) != position.head:
            return 0
        return position.at

    def _put_signal(self, line: bytes, byte_offset: int) -> None:
        # Growing even where the clock stands still or goes back: it orders the signals.
        self._last_at_us = max(self._last_at_us + 1, int(self._clock.time() * 1e6))
        try:
            message = parse_message(line)
        except RequestError as error:
            log.warning("%s, byte %d: %s", self._path, byte_offset, error)
            # The name follows from place and content, so a repeated reading refuses it once.
            name = f"file-{byte_offset}-{hashlib.sha256(line).hexdigest()[:12]}"
            inbox.put_refusal(self._state, name, channel=CHANNEL, at_us=self._last_at_us, error=error)
            return
        if not inbox.put_signal(self._state, message, channel=CHANNEL, at_us=self._last_at_us):
            log.info("signal %s was taken in before", message.id)


def parse_message(text: bytes, *, default_id: str | None = None) -> Message:
    """The signal of a JSON object. `data` is an object, or text that holds one. Raises RequestError."""
    try:
        signal: Any = orjson.loads(text)
    except ValueError as error:
        raise RequestError(f"a signal is not JSON: {error}", fix=_FORM) from error
    if isinstance(signal, dict) and default_id is not None:
        signal.setdefault("id", default_id)
    if not isinstance(signal, dict) or not isinstance(signal.get("id"), str) or not isinstance(signal.get("type"), str):
        raise RequestError("a signal is an object with an id and a type", fix=_FORM)
    if not signal["id"]:
        raise RequestError("a signal's id is empty", fix=_FORM)
    return Message(signal["id"], signal["type"], data_as_text(signal.get("data")))


_FORM = 'give {"id": "…", "type": "execute-snapshot", "data": {"data-collections": ["shop.orders"]}}'


def data_as_text(data: Json | str | None) -> str | None:
    """A signal's data as text, in the form in which every channel hands it on."""
    if data is None or isinstance(data, str):
        return data
    return orjson.dumps(data).decode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
