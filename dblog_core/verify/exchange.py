"""What a verification asks of its judge, and the source's answers on their way to it.

Keys are JSON, as in watermarks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import TableSchema
from dblog_core.rows.disk_spool import SpooledTable, TableSpool

# More would only wait: the source is read for one table at a time.
TOGETHER = 2
"""Tables that are compared at the same time: while the source is read for one of them, the other is compared."""

MAX_KEYS_NAMED = 200_000
"""Keys of one table that an answer names at most."""


class Ask(StrEnum):
    """What a task is for."""

    COMPARE = "compare"  # hashes of the source with those of the lake
    COLUMNS = "columns"  # rows of the source with those of the lake, column by column
    SUMS = "sums"  # the lake's own count and sum of hashes, by range
    SAMPLE = "sample"  # keys of the lake, drawn at random
    HISTORY = "history"  # the last line of each key of the history, with the rows of the lake


@dataclass(frozen=True, slots=True)
class Pin:
    """The lake copy of a table that a comparison begins with: Delta version `version`, in which all changes up to
    `offset` and segment `segment` are. `newest`: the largest offset that any row may have by then.

    `stopped`: its merge has failed, so nothing that is staged later will come into it.
    """

    version: int
    offset: int
    segment: int
    newest: int
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """`since`, `upto`: the source's SELECTs saw every event up to the first offset and none above the second.

    `shape`: of what is hashed; `files`: what the source has answered (`Desk`). `pin` None: there is no lake copy.
    `for_chosen_keys`: `files` hold chosen keys, those that the source lacks without a hash; otherwise all rows of the
    table, or of the ranges `within` (JSON keys: the key before the first, and the last key; None: open). `bounds`: JSON
    keys between which SUMS counts. `rows`, `seed`: of a SAMPLE.
    """

    ask: Ask
    shape: TableSchema
    pin: Pin | None = None
    files: tuple[str, ...] = ()
    since: int = 0
    upto: int = 0
    for_chosen_keys: bool = False
    bounds: tuple[Any, ...] = ()
    rows: int = 0
    seed: int = 0
    within: tuple[tuple[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Sum:
    """Rows and the exact sum of their hashes."""

    rows: int
    hash: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Keys (JSON) by what was found; `different`: (key, columns), which only COLUMNS knows.

    `rows`, `lake_rows`: how many were compared; `undecided`: keys that changed while the source was read, in a way that
    does not show whether they are equal; `more`: there are more keys than are named; `twice`: keys that several rows of
    the lake have; `staged`: rows that came on top of the pinned version; `note`: why a history is not compared; `gap`:
    what another program has done to it, so that it may lack lines.
    """

    rows: int = 0
    lake_rows: int = 0
    missing: tuple[Any, ...] = ()
    extra: tuple[Any, ...] = ()
    different: tuple[tuple[Any, tuple[str, ...]], ...] = ()
    undecided: tuple[Any, ...] = ()
    twice: tuple[Any, ...] = ()
    keys: tuple[Any, ...] = ()
    sums: tuple[Sum, ...] = ()
    staged: int = 0
    more: bool = False
    note: str | None = None
    gap: str | None = None


class Desk:
    """What the source has answered, on the local disk until it is compared. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spools: dict[str, TableSpool] = {}
        self._answers: dict[str, tuple[str, SpooledTable]] = {}
        self._waiting = Counter[str]()

    def put_rows(self, table: str, name: str, rows: pa.RecordBatch) -> str:
        """Takes an answer about a table; returns what it is found by. Raises LakeError where the disk has no room."""
        with self._lock:
            if table not in self._spools:
                self._spools[table] = TableSpool()
            self._answers[name] = table, self._spools[table].write(pa.Table.from_batches([rows]))
            self._waiting[table] += 1
        return name

    def count(self, name: str) -> int:
        """How many rows an answer has."""
        with self._lock:
            return self._answers[name][1].rows

    def tables(self, names: Iterable[str]) -> Iterator[pa.Table]:
        """Answers, one after the other."""
        for name in names:
            with self._lock:
                table, spooled = self._answers[name]
                spool = self._spools[table]
            yield spool.read(spooled)

    def drop(self, names: Iterable[str]) -> None:
        """Forgets answers that are compared, or are not going to be."""
        with self._lock:
            for name in names:
                if name not in self._answers:
                    continue
                table, _ = self._answers.pop(name)
                self._waiting[table] -= 1
                if not self._waiting[table]:
                    del self._spools[table], self._waiting[table]  # its file is gone then
