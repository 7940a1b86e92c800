"""Signals as lines of a file: JSON objects {"id", "type", "data"}, which others append.

The place up to which the file is read lies in the state store; it moves past a line once that is in the inbox. A line
without its end waits. Where the file is another one by now (its first bytes differ, or it is shorter), it is read from
its beginning: ids that came before are known.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import orjson

from dblog_core.errors import ConfigError, RequestError
from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.signals import inbox
from dblog_core.signals.message import LARGEST, Message

log = logging.getLogger(__name__)

CHANNEL = "file"
_HEAD = 4096  # bytes by which a file is known again
_AT_ONCE = 1 << 20
_LONGEST = 4 * LARGEST  # bytes of a line


class SignalFile:
    """The reader of one file."""

    def __init__(self, path: Path, state: StateStore, clock: Clock) -> None:
        self._path, self._state, self._clock = path, state, clock
        self._last = 0

    def look(self) -> None:
        """Takes in the lines that were appended. Raises ConfigError where the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD)
                place = self._place(head, file.seek(0, 2))
                file.seek(place)
                data = file.read(_AT_ONCE)
        except FileNotFoundError:
            return  # nobody has asked for anything yet
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}", where=f"[signals] file {self._path}", fix="let the capture read it"
            ) from error
        self._take(data, head, place)

    def _take(self, data: bytes, head: bytes, place: int) -> None:
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _LONGEST:
            end = len(data)  # no signal is as long: what this is, is told by its refusal
        if not end:
            return
        at = place
        for line in data[:end].removesuffix(b"\n").split(b"\n"):
            if line.strip():
                self._line(line, at)
            at += len(line) + 1
        at = min(at, place + end)
        known = min(at, _HEAD)
        inbox.put_place(self._state, CHANNEL, {"at": at, "known": known, "head": _digest(head[:known])})

    def _place(self, head: bytes, size: int) -> int:
        place = inbox.place(self._state, CHANNEL)
        if place is None or size < place["at"] or _digest(head[: place["known"]]) != place["head"]:
            return 0
        return int(place["at"])

    def _line(self, line: bytes, at: int) -> None:
        self._last = max(self._last + 1, int(self._clock.time() * 1e6))
        try:
            found = message_of(line)
        except RequestError as error:
            log.warning("%s, byte %d: %s", self._path, at, error)
            name = f"file-{at}-{hashlib.sha256(line).hexdigest()[:12]}"
            inbox.refuse(self._state, name, channel=CHANNEL, at=self._last, error=error)
            return
        if not inbox.put(self._state, found, channel=CHANNEL, at=self._last):
            log.info("signal %s was taken in before", found.id)


def message_of(text: bytes, *, default_id: str | None = None) -> Message:
    """The signal of a JSON object. `data` is an object, or text that holds one. Raises RequestError."""
    try:
        found: Any = orjson.loads(text)
    except ValueError as error:
        raise RequestError(f"a signal is not JSON: {error}", fix=_FORM) from error
    if isinstance(found, dict) and default_id is not None:
        found.setdefault("id", default_id)
    if not isinstance(found, dict) or not isinstance(found.get("id"), str) or not isinstance(found.get("type"), str):
        raise RequestError("a signal is an object with an id and a type", fix=_FORM)
    if not found["id"]:
        raise RequestError("a signal's id is empty", fix=_FORM)
    return Message(found["id"], found["type"], data_of(found.get("data")))


_FORM = 'give {"id": "…", "type": "execute-snapshot", "data": {"data-collections": ["shop.orders"]}}'


def data_of(given: Json | str | None) -> str | None:
    """A signal's data as text, in the form in which every channel hands it on."""
    if given is None or isinstance(given, str):
        return given
    return orjson.dumps(given).decode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
