"""All changes of `schema_changes` at one moment of a dump, on one database, under a workload that writes to all tables.

The moment is met inside the dump's own worker: `At` stops it between its steps, for each table once.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import dump_records, dump_store, filing, work_loop
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.reading.window_reader import WindowReader
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import DblogError
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import to_json
from tests.fix_servers import Database
from tests.integration.schema_changes import changes
from tests.waiting import PATIENCE_SECONDS, wait_until

DEADLINE = PATIENCE_SECONDS
ROWS = 8  # of a table at first; the workload makes some more
CHUNK = 5

Row = dict[str, Any]
UNKNOWN = "nobody has told"


class Moment(Enum):
    BEFORE = "before"
    """the dump's first window"""
    INSIDE = "inside"
    """the first window of each table: after its low watermark, before its SELECT, or after it"""
    BETWEEN = "between"
    """the first window of each table and its second"""
    AFTER = "after"
    """the dump"""
    DOWN = "down"
    """while no capture runs, and the dump has begun"""


class At:
    """Does something for each table once, at the moment, in the thread of a dump's worker."""

    def __init__(self, moment: Moment, act: Callable[[str], None], draw: random.Random) -> None:
        self._moment = moment
        self._act = act
        self._draw = draw
        self._lock = threading.Lock()
        self._place = dict[str, str]()
        self.done: set[str] = set()

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hooks into the worker's steps of a chunk."""
        read = WindowReader.read
        schema = WindowReader._read_schema
        chunk = WindowReader._select_chunk
        finish = WindowReader._finish

        def reading(reader: WindowReader, size: int, most: int) -> int:
            if self._moment is Moment.BETWEEN and reader.ordinal == 1:
                reader._background.wait()
                self._once(reader._task.table)
            return read(reader, size, most)

        def looking(reader: WindowReader) -> Any:
            self._inside(reader, "low")
            return schema(reader)

        def selecting(reader: WindowReader, *arguments: Any) -> Any:
            self._inside(reader, "look")
            return chunk(reader, *arguments)

        def finishing(reader: WindowReader, mark: Any, *arguments: Any) -> None:
            self._inside(reader, "select")
            finish(reader, mark, *arguments)

        monkeypatch.setattr(WindowReader, "read", reading)
        monkeypatch.setattr(WindowReader, "_read_schema", looking)
        monkeypatch.setattr(WindowReader, "_select_chunk", selecting)
        monkeypatch.setattr(WindowReader, "_finish", finishing)

    def _inside(self, reader: WindowReader, place: str) -> None:
        table = reader._task.table
        if self._moment is Moment.INSIDE and place == self._place.setdefault(table, self._draw_moment()):
            self._once(table)

    def _draw_moment(self) -> str:
        return self._draw.choice(("low", "look", "select"))

    def _once(self, table: str) -> None:
        with self._lock:
            first = table not in self.done
            self.done.add(table)
        if first:
            self._act(table)


class Matrix:
    """Tables, capture, workload and dump of one run."""

    def __init__(self, database: Database, path: Path, moment: Moment, seed: int, *, count: int | None = None) -> None:
        """`count`: so many of the changes, drawn by the seed; None: all."""
        self.database = database
        self.moment = moment
        self.draw = random.Random(seed)
        self._began = time.monotonic()
        patterns = {"tables": [f"{database.schema}.t_*"]}
        base = database.config(path)
        source = base.source.model_copy(update={"tables": tuple(patterns["tables"])})
        self.config = base.model_copy(update={"source": source})
        self.file = path / "tables"
        self.file.write_text("as it is")
        some = changes(database.server) if count is None else self.draw.sample(changes(database.server), count)
        self.changes = {f"{database.schema}.t_{change.name}": change for change in some}
        self._quiet = {name for name in self.changes if self.draw.random() < 0.5}
        self._loud = sorted(self.changes)
        self._changed: set[str] = set()
        self._numbers = iter(range(100, 1_000_000))
        self.faults: list[str] = []

    # Tables and what is written to them -----------------------------------------------------------------------------

    def create(self) -> None:
        """Every table with its first rows, and two that nobody captures."""
        statements = []
        for change in self.changes.values():
            t = f"t_{change.name}"
            statements.append(f"CREATE TABLE {t} ({change.key}, {change.columns}) {change.options}")
            if self.database.kind == "postgres" and change.options:
                statements.append(f"CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES FROM (0) TO (3)")
                statements.append(f"CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (3) TO (1000)")
            rows = ", ".join(f"({i}, 0, {change.values.format(i=i)})" for i in range(1, ROWS + 1))
            statements.append(f"INSERT INTO {t} VALUES {rows}")
        self.database.execute(
            *statements,
            "CREATE TABLE other (id int PRIMARY KEY, n int)",
            "CREATE TABLE another (id int PRIMARY KEY, n int)",
        )

    def alter(self, table: str) -> None:
        """Makes the change of the table."""
        change = self.changes[table]
        fresh = [change.fresh] if change.fresh and table not in self._quiet else []
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            try:
                for statement in [*change.ddl, *fresh]:
                    cursor.execute(statement.format(t=f"t_{change.name}"))
            except Exception as fault:  # noqa: BLE001 - in a worker's thread: told in the test's own
                self.faults.append(f"{table}: {statement}: {fault}")
        self._changed.add(table)

    def alter_others(self) -> None:
        """What is no table of the capture's is nobody's business."""
        self.database.execute(
            "ALTER TABLE other ADD COLUMN e int DEFAULT 3",
            "ALTER TABLE other RENAME TO elsewhere",
            "ALTER TABLE another RENAME TO other",
            "INSERT INTO other VALUES (1, 1)",
            "DROP TABLE elsewhere",
        )

    @contextmanager
    def workload(self) -> Iterator[None]:
        """Writes to all tables, but to the quiet ones not after their change."""
        over = threading.Event()
        faults = list[BaseException]()

        def write() -> None:
            try:
                with closing(self.database.connect()) as connection, connection.cursor() as cursor:
                    while not over.wait(0.002):
                        name = self.draw.choice(self._loud)
                        if name not in self._quiet or name not in self._changed:
                            self._write(cursor, name.partition(".")[2])
            except BaseException as fault:  # noqa: BLE001 - raised in the test's own thread
                faults.append(fault)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=PATIENCE_SECONDS)
        assert not faults, faults
        assert not thread.is_alive()

    def _write(self, cursor: Any, table: str) -> None:
        key = self.draw.randrange(1, 2 * ROWS)
        number = next(self._numbers)
        statements = [
            f"UPDATE {table} SET n = {number} WHERE id = {key}",
            f"DELETE FROM {table} WHERE id = {key}",
            f"INSERT INTO {table} (id, n) VALUES ({key}, {number})",
        ]
        with contextlib.suppress(Exception):  # the key is there, the table is not, or has no key on PostgreSQL
            cursor.execute(self.draw.choice(statements))

    def write_last(self) -> None:
        """A row of each table, so that the log has told every shape."""
        for change in self.changes.values():
            self.database.execute(change.last.format(t=f"t_{change.name}"))

    # The capture and the dump ---------------------------------------------------------------------------------------

    @contextmanager
    def capturing(self) -> Iterator[None]:
        stop = threading.Event()
        faults = list[BaseException]()

        def capture() -> None:
            try:
                run_capture(self.config, stop=stop, file=ConfigFile(self.file, lambda _: self.config))
            except BaseException as fault:  # noqa: BLE001 - raised in the test's own thread
                faults.append(fault)

        thread = threading.Thread(target=capture)
        thread.start()
        try:
            with self._watch_faults(faults):
                yield
        finally:
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)
        if faults:
            raise faults[0]
        assert not thread.is_alive()

    @contextmanager
    def _watch_faults(self, faults: list[BaseException]) -> Iterator[None]:
        self._faults = faults
        yield

    def wait_until_staged(self) -> None:
        """All that is committed by now is staged."""
        source = wiring.open_source(self.config.source)
        staging = wiring.open_staging(self.config)
        target = source.current_position()

        def is_staged() -> bool:
            if self._faults:
                raise self._faults[0]
            head = staging.head()
            return head is not None and not head.partial and source.has_reached(head.position, target)

        wait_until(is_staged, "the log is staged")

    def dump(self, *tables: str, by: str = dump_records.USER) -> str:
        """Requests a dump."""
        return filing.submit(self.config, DumpRequest(tables or None, chunk_size=CHUNK, ranges=1), requested_by=by)

    def work(self, dump_id: str) -> None:
        """Works on a dump to its end."""
        work_loop.work(self.config, stop=threading.Event(), once=True, dump_id=dump_id)

    def wait_until_dumped(self) -> None:
        """Every dump has ended, those too that the capture has requested by itself."""

        def over() -> bool:
            if self._faults:
                raise self._faults[0]
            with closing(wiring.open_state(self.config)) as state:
                return all(d.state in OVER for d in dump_store.list_dumps(state))

        wait_until(over, "all dumps are over")

    # The run --------------------------------------------------------------------------------------------------------

    def run(self, monkeypatch: pytest.MonkeyPatch, merge: Callable[[], None]) -> Iterator[None]:
        """To the end, with all tables changed at the moment; `merge` is called before anything changes. It yields while
        the capture runs, all is staged, and nothing is written any more."""
        monkeypatch.setattr(config_reload, "NEWCOMERS", 0.5)
        self.create()
        at = At(self.moment, self.alter, self.draw)
        with self.workload():
            with self.capturing():
                self.wait_until_staged()
                self.work(self.dump())
                self.wait_until_staged()
                merge()
                self._tell("the first dump is over")
                if self.moment is not Moment.DOWN:
                    self._around_a_dump(at, monkeypatch)
            if self.moment is Moment.DOWN:
                self._while_down()
        with self.capturing():
            self._tell("all is changed")
            self.write_last()
            self.wait_until_staged()
            self.wait_until_dumped()
            self.wait_until_staged()
            self._tell("all is staged")
            yield
            self._tell("over")

    def _tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:.1f} s: {what}")

    def _around_a_dump(self, at: At, monkeypatch: pytest.MonkeyPatch) -> None:
        if self.moment is Moment.BEFORE:
            self._alter_all()
        with monkeypatch.context() as hooked:
            at.patch(hooked)
            self._work_through(self.dump())
        if self.moment is not Moment.BEFORE:
            self._alter_all(but=at.done)
        self.wait_until_staged()

    def _while_down(self) -> None:
        dump_id = self.dump()
        worker = threading.Thread(target=self._work_through, args=(dump_id,))
        worker.start()
        self._alter_all()
        with self.capturing():
            worker.join(timeout=DEADLINE)
        assert not worker.is_alive(), "the dump that began while no capture ran has not ended"

    def _work_through(self, dump_id: str) -> None:
        with contextlib.suppress(DblogError):  # a table without its key, or with another: its task alone has failed
            self.work(dump_id)

    def _alter_all(self, *, but: set[str] | frozenset[str] = frozenset()) -> None:
        for name in self.changes:
            if name not in self._changed and name not in but:
                self.alter(name)
        self.alter_others()

    # What is to come of it ------------------------------------------------------------------------------------------

    def has_key(self, table: str) -> bool:
        """Whether the table has a key now."""
        with closing(wiring.open_source(self.config.source).open_reader()) as reader:
            return bool(reader.schema(TableName.parse(table)).key)

    def differences(self, table: str, rows: Iterable[Row]) -> list[str]:
        """How the rows of a copy differ from the source's, in the columns that the source has."""
        with closing(wiring.open_source(self.config.source).open_reader()) as reader:
            schema = reader.schema(TableName.parse(table))
            read = reader.read(schema, after=None, upto=None, limit=10_000).rows.to_pylist()
        source = {_key(schema, row): row for row in ({n: to_json(v) for n, v in row.items()} for row in read)}
        names = [column.name for column in schema.columns]
        kinds = {column.name: column.type for column in schema.columns}
        rows_by_key = {_key(schema, row): {n: _as(kinds[n], row.get(n, UNKNOWN)) for n in names} for row in rows}
        wrong = [
            (k, source.get(k), rows_by_key.get(k))
            for k in source.keys() | rows_by_key.keys()
            if source.get(k) != rows_by_key.get(k)
        ]
        return [f"{table}: {len(wrong)} rows differ; key, source, copy: {wrong[:2]}"] if wrong else []


def _as(kind: pa.DataType, value: Any) -> Any:
    """The JSON form that a value has in a column that was widened since."""
    if pa.types.is_timestamp(kind) and isinstance(value, str) and len(value) == len("2026-01-02"):
        return f"{value}T00:00:00"
    if pa.types.is_decimal(kind) and isinstance(value, str) and value != UNKNOWN:
        return format(Decimal(value).quantize(Decimal(1).scaleb(-kind.scale)), "f")
    return value


def _key(schema: TableSchema, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in schema.key)
