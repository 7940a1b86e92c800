"""An output within one process: the twin of the real ones in tests. It keeps its place, as they do."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from dblog_core.errors import OutputTaken, PoisonLine
from dblog_core.interfaces import Json


@dataclass(slots=True)
class MemoryTarget:
    """What several relays of one test share, as processes share a server."""

    lines: list[Json] = field(default_factory=list)
    place: int | None = None
    epoch: int = 0
    refused: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryOutput:
    """The `Output` contract in a list."""

    exactly_once = True

    def __init__(self, target: MemoryTarget) -> None:
        self._target = target
        self._epoch = 0
        self._pending: list[Json] = []

    def open(self, epoch: int) -> int | None:
        with self._target.lock:
            self._check(self._target.epoch > epoch)
            self._target.epoch = self._epoch = epoch
            self._pending = []
            return self._target.place

    def write(self, lines: Sequence[Json]) -> None:
        for line in lines:
            if line["offset"] in self._target.refused:
                raise PoisonLine("it is refused", where="memory")
        self._pending += lines

    def commit(self, offset: int) -> None:
        with self._target.lock:
            self._check(self._target.epoch != self._epoch)
            self._target.lines += self._pending
            self._target.place = offset
            self._pending = []

    def close(self) -> None:
        self._pending = []

    def _check(self, is_taken: bool) -> None:
        if is_taken:
            raise OutputTaken("another relay has gone on", where="memory", epoch=self._target.epoch)
