"""What the verification asks of its Spark job, and how: small files of one directory in staging's own storage.

    STAGING/tmp/verify-ID/
      tasks/NUMBER.json      a `Task`; the job takes them in order, TOGETHER at a time
      answers/NUMBER.json    an `Answer`, or what went wrong; the job says so on stdout
      hashes/NAME.parquet    what the source has answered: keys and hashes, or rows

Keys travel as JSON, as in watermarks.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import orjson
import pyarrow as pa

from dblog_core.errors import LakeError
from dblog_core.model.schema import TableSchema
from dblog_core.staging import parquet
from dblog_core.storage import Storage
from dblog_core.storage.location import Location

# More would only wait: the source is read for one table at a time.
TOGETHER = 2
"""Tables that are compared at the same time: while the source is read for one of them, Spark compares the other."""

MAX_HELD = 256 << 20
"""Bytes of the source's answers that stay in memory."""

MAX_KEYS_NAMED = 200_000
"""Keys of one table that an answer names at most."""


class Ask(StrEnum):
    """What a task is for."""

    COMPARE = "compare"  # hashes of the source with those of the lake
    COLUMNS = "columns"  # rows of the source with those of the lake, column by column
    SUMS = "sums"  # the lake's own count and sum of hashes, by range
    SAMPLE = "sample"  # keys of the lake, drawn at random
    HISTORY = "history"  # the last line of each key of the history, with the rows of the lake
    END = "end"


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

    `schema`: of what is hashed; None with END alone. `pin` None: there is no lake copy. `for_chosen_keys`: `files` hold
    chosen keys, those that the source lacks without a hash; otherwise all rows of the table, or of the ranges `within`
    (JSON keys: the key before the first, and the last key; None: open). `bounds`: JSON keys between which SUMS counts.
    `rows`, `seed`: of a SAMPLE.
    """

    ask: Ask
    schema: TableSchema | None = None
    pin: Pin | None = None
    files: tuple[str, ...] = ()
    since: int = 0
    upto: int = 0
    for_chosen_keys: bool = False
    bounds: tuple[Any, ...] = ()
    rows: int = 0
    seed: int = 0
    within: tuple[tuple[Any, Any], ...] = ()

    @property
    def shape(self) -> TableSchema:
        """The schema of a task that has one: of any but END."""
        assert self.schema is not None, f"a task that is for {self.ask} has no schema"
        return self.schema

    def to_json(self) -> dict[str, Any]:
        schema = None if self.schema is None else self.schema.to_json()
        return {**asdict(replace(self, schema=None)), "schema": schema}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        schema = data["schema"]
        pin = data["pin"]
        lists = {name: tuple(data[name]) for name in ("files", "bounds")}
        lists["within"] = tuple((after, upto) for after, upto in data["within"])
        records = {
            "ask": Ask(data["ask"]),
            "schema": None if schema is None else TableSchema.from_json(schema),
            "pin": None if pin is None else Pin(**pin),
        }
        return cls(**{**data, **lists, **records})


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

    def to_json(self) -> dict[str, Any]:
        # As text: a sum of 64-bit hashes is wider than orjson's integers.
        return {**asdict(self), "sums": [[s.rows, str(s.hash)] for s in self.sums]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        lists = {name: tuple(data[name]) for name in ("missing", "extra", "undecided", "twice", "keys")}
        different = tuple((key, tuple(columns)) for key, columns in data["different"])
        sums = tuple(Sum(rows, int(total)) for rows, total in data["sums"])
        return cls(**{**data, **lists, "different": different, "sums": sums})


@contextmanager
def open_desk(storage: Storage) -> Iterator[Desk]:
    """The directory of a new verification; it is removed in the end."""
    desk = Desk(storage, f"tmp/verify-{secrets.token_hex(8)}")
    try:
        yield desk
    finally:
        desk.clear()


class Desk:
    """The directory of one verification, seen from either side. What the source has answered stays in memory until
    the Spark job is to read it, or until it is too much."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.directory = directory
        self._in_memory: dict[str, pa.RecordBatch] = {}
        self._lock = threading.Lock()

    def url(self, path: str) -> str:
        """A file's name for Spark."""
        return self._storage.url(path)

    def put_rows(self, name: str, rows: pa.RecordBatch) -> str:
        """Takes what the source has answered; returns its path in staging. Thread-safe."""
        path = f"{self.directory}/hashes/{name}.parquet"
        with self._lock:
            self._in_memory[path] = rows
            is_too_much = sum(batch.nbytes for batch in self._in_memory.values()) > MAX_HELD
        if is_too_much:
            self.store([path])
        return path

    def rows(self, paths: Iterable[str]) -> pa.Table:
        """What the source has answered, of one or more paths."""
        tables = [self._read_rows(path) for path in paths]
        return pa.concat_tables([table.cast(tables[0].schema) for table in tables])

    def _read_rows(self, path: str) -> pa.Table:
        with self._lock:
            batch = self._in_memory.get(path)
        if batch is not None:
            return pa.Table.from_batches([batch])
        where = self._storage.url(path)
        if (data := self._storage.read(path)) is None:
            raise LakeError("a file of this verification is missing", where=where, fix="verify again")
        return parquet.open_file(data, expected=None, where=where).read()

    def store(self, paths: Iterable[str]) -> None:
        """Writes the files of these paths, for the Spark job."""
        for path in paths:
            with self._lock:
                batch = self._in_memory.get(path)
            if batch is not None:
                self._storage.replace(path, parquet.encode(batch.schema, [batch]))
                with self._lock:
                    self._in_memory.pop(path, None)

    def drop(self, paths: Iterable[str]) -> None:
        """Forgets answers that are compared."""
        with self._lock:
            for path in paths:
                self._in_memory.pop(path, None)

    def put_task(self, number: int, task: Task) -> None:
        self._write("tasks", number, task.to_json())

    def read_task(self, number: int) -> Task | None:
        """The task, once it is there."""
        data = self._read("tasks", number)
        return None if data is None else Task.from_json(data)

    def put_answer(self, number: int, answer: Answer) -> None:
        self._write("answers", number, answer.to_json())

    def put_error(self, number: int, error: Mapping[str, str]) -> None:
        """What kept the job from an answer: `message`, `where` and `fix`."""
        self._write("answers", number, {"error": dict(error)})

    def read_answer(self, number: int) -> Answer | None:
        """The answer, once it is there. Raises LakeError where the job has none."""
        data = self._read("answers", number)
        # The job's own error, raised here as if it had happened here.
        if data is not None and "error" in data:
            raise LakeError(data["error"]["message"], where=data["error"]["where"], fix=data["error"]["fix"])
        return None if data is None else Answer.from_json(data)

    def clear(self) -> None:
        """Removes all files."""
        for file in list(self._storage.files(self.directory)):
            self._storage.remove(file.path)
        local = Location(self._storage, self.directory).local
        if local is not None and local.exists():
            shutil.rmtree(local)  # an object store has no empty directories

    def _write(self, kind: str, number: int, data: Mapping[str, Any]) -> None:
        self._storage.replace(f"{self.directory}/{kind}/{number:06d}.json", orjson.dumps(data))

    def _read(self, kind: str, number: int) -> Any:
        data = self._storage.read(f"{self.directory}/{kind}/{number:06d}.json")
        return None if data is None else orjson.loads(data)
