"""A worker's connections to the source."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from dblog_core.dumps.pace.locked_tables import LOCK_SECONDS
from dblog_core.dumps.read_only_windows import AnnouncedWindows
from dblog_core.dumps.task_lease import Hold
from dblog_core.interfaces import ChunkReader, WatermarkWriter


@dataclass(slots=True)
class Connections:
    """A high watermark does not wait for the next chunk's low one."""

    reader: ChunkReader
    lows: WatermarkWriter
    highs: WatermarkWriter

    @classmethod
    def open(cls, hold: Hold, row: str) -> Connections:
        """`row`: the worker's row in the watermark table; its high watermarks have another beside it."""
        source = hold.worker.source
        with contextlib.ExitStack() as opened:
            reader = source.open_reader(lock_seconds=LOCK_SECONDS)
            opened.callback(reader.close)
            if hold.worker.config.source.read_only:
                opened.pop_all()
                return cls._announcing(hold, reader)
            lows = source.open_watermarks(row)
            opened.callback(lows.close)
            highs = source.open_watermarks(f"{row}-high")
            opened.pop_all()
        return cls(reader, lows, highs)

    def of(self, hold: Hold) -> Connections:
        """The same connections for another task."""
        return self._announcing(hold, self.reader) if hold.worker.config.source.read_only else self

    @classmethod
    def _announcing(cls, hold: Hold, reader: ChunkReader) -> Connections:
        worker = hold.worker
        windows = AnnouncedWindows(worker.state, reader, worker.clock, worker.stop, hold.goes_on)
        return cls(reader, windows, windows)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for connection in (self.reader, self.lows, self.highs):
                closing.callback(connection.close)
