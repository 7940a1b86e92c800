"""Who sees a row in Delta, and when: the log of its table and the data files that it names."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pyarrow.parquet as pq

from dblog_core.delta_writer.shape import shape_of


class DeltaRows:
    """When (monotonic seconds) which version of a table came, and which key with it; keys are of `id`."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._wall_clock_began = time.time() - time.monotonic()
        self._column = ""
        self.versions: list[float] = []
        self.seen: dict[int, float] = {}

    def read(self) -> dict[int, float]:
        """Reads the versions that have come since the last look; returns all keys seen."""
        while (path := self._table / "_delta_log" / f"{len(self.versions):020d}.json").exists():
            # The time of the file's name: the bytes were written before it.
            came = path.stat().st_ctime - self._wall_clock_began
            for action in map(orjson.loads, path.read_bytes().splitlines()):
                if "metaData" in action:
                    self._column = shape_of(action["metaData"], str(self._table))["id"].physical
                if "add" in action:
                    self._add(self._table / action["add"]["path"], came)
            self.versions.append(came)
        return self.seen

    def _add(self, file: Path, came: float) -> None:
        """A file may hold rows of earlier versions too: one that joins others, or has another vector."""
        for key in pq.read_table(file, columns=[self._column])[self._column].to_pylist():
            self.seen.setdefault(key, came)

    def longest_pause(self, *, since: float, until: float) -> float:
        """Seconds between two versions, one after the other, of all pauses that have a moment of that span."""
        pairs = zip(self.versions, self.versions[1:], strict=False)
        return max(later - earlier for earlier, later in pairs if later >= since and earlier < until)
