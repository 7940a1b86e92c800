"""What the proof by simulation takes for granted of a source, shown on servers and on the simulated databases alike.

Both speak the same few operations on one table, `a`, with the columns id (key), v and big.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pytest

from dblog_core.algorithm.visibility import Snapshot
from dblog_core.interfaces import Source
from dblog_core.model.events import LogBatch, Truncated, WatermarkSeen
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.values import keys_of
from dblog_core.wiring import open_source
from tests.fix_servers import Database
from tests.simulation import database as simulated
from tests.simulation.scheduler import Simulation
from tests.simulation.source import SimSource
from tests.waiting import PATIENCE_SECONDS

Row = dict[str, Any]
Step = tuple[Any, ...]  # ("c", row), ("u", old id, row), ("d", id) or ("t",)
Result = TypeVar("Result")
END = PATIENCE_SECONDS  # seconds within which the log must have delivered what a test waits for


class Place(Protocol):
    """A source with its table, and who writes into it."""

    source: Source
    table: TableName

    def call(self, function: Callable[[], Result]) -> Result:
        """Calls into the source."""

    def write(self, steps: Sequence[Step], *, commit: bool = True) -> None:
        """One transaction."""

    def begin(self, steps: Sequence[Step]) -> Callable[[], None]:
        """A transaction that stays open until what is returned is called, which commits it."""


class Server:
    """A real one."""

    def __init__(self, database: Database, source: Source) -> None:
        self.source = source
        self._database = database
        self.table = TableName(database.schema, "a")
        database.execute("CREATE TABLE a (id int PRIMARY KEY, v int, big varchar(50))")
        if database.kind == "postgres":
            database.execute("ALTER TABLE a REPLICA IDENTITY FULL")
        source.prepare()

    def call(self, function: Callable[[], Result]) -> Result:
        return function()

    def write(self, steps: Sequence[Step], *, commit: bool = True) -> None:
        with closing(self._database.connect()) as connection, connection.cursor() as cursor:
            for text, values in [("BEGIN", ()), *map(_statement, steps), ("COMMIT" if commit else "ROLLBACK", ())]:
                cursor.execute(text, values)

    def begin(self, steps: Sequence[Step]) -> Callable[[], None]:
        connection = self._database.connect()
        cursor = connection.cursor()
        for text, values in [("BEGIN", ()), *map(_statement, steps)]:
            cursor.execute(text, values)

        def commit() -> None:
            cursor.execute("COMMIT")
            connection.close()

        return commit


def _statement(step: Step) -> tuple[str, tuple[Any, ...]]:
    match step:
        case ("c", row):
            return "INSERT INTO a VALUES (%s, %s, %s)", (row["id"], row["v"], row["big"])
        case ("u", key, row):
            return "UPDATE a SET id = %s, v = %s, big = %s WHERE id = %s", (row["id"], row["v"], row["big"], key)
        case ("d", key):
            return "DELETE FROM a WHERE id = %s", (key,)
    return "TRUNCATE TABLE a", ()


class Simulated:
    """The simulation's, with nothing that fails; each call is a process of its own."""

    def __init__(self, kind: str) -> None:
        text = pa.string()
        number = pa.int64()
        columns = (Column("id", "bigint", number), Column("v", "bigint", number), Column("big", "text", text))
        self._schema = TableSchema(TableName("shop", "a"), columns, ("id",))
        self._simulation = Simulation(1)
        self._database = simulated.Database(self._simulation, kind, [self._schema], gap=0.0)
        self.source: Source = SimSource(self._simulation, self._database)
        self.table = self._schema.table

    def call(self, function: Callable[[], Result]) -> Result:
        results: list[Result] = []
        process = self._simulation.start("test", lambda: results.append(function()))
        self._simulation.run(self._simulation.now + END, lambda: process.over)
        if process.error is not None:
            raise process.error
        return results[0]

    def write(self, steps: Sequence[Step], *, commit: bool = True) -> None:
        transaction = self._open(steps)
        if commit:
            self._database.commit(transaction)
        else:
            self._database.rollback(transaction)

    def begin(self, steps: Sequence[Step]) -> Callable[[], None]:
        transaction = self._open(steps)
        return lambda: self._database.commit(transaction)

    def _open(self, steps: Sequence[Step]) -> simulated.Transaction:
        transaction = self._database.begin()
        for step in steps:
            if step[0] == "t":
                self._database.change(transaction, simulated.Change("t", self._schema))
                continue
            before = None if step[0] == "c" else self._database.row(transaction, self.table, (step[1],))
            after = None if step[0] == "d" else step[-1]
            for key in {image["id"] for image in (before, after) if image is not None}:
                assert self._database.lock(transaction, self.table, (key,))
            self._database.change(transaction, simulated.Change(step[0], self._schema, before, after))
        return transaction


@pytest.fixture(params=["mysql", "mariadb", "postgres", "simulated mysql", "simulated postgres"])
def source_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(source_kind: str, request: pytest.FixtureRequest) -> Place:
    if source_kind.startswith("simulated"):
        return Simulated(source_kind.removeprefix("simulated "))
    config = request.getfixturevalue("source_config")
    return Server(request.getfixturevalue("database"), open_source(config.source))


def row(key: int, v: int) -> Row:
    return {"id": key, "v": v, "big": f"b{v}"}


def log(place: Place, position: str, *, skip: int = 0) -> list[LogBatch]:
    """All batches from the position to the present end."""
    source = place.source
    target = place.call(source.current_position)
    stream = place.call(lambda: source.open_log(position, skip=skip))
    log_batches: list[LogBatch] = []
    deadline = time.monotonic() + END
    try:
        while not log_batches or log_batches[-1].partial or not source.has_reached(log_batches[-1].position, target):
            assert time.monotonic() < deadline, "the log did not reach its end in time"
            if (batch := place.call(lambda: stream.read(0.5))) is not None:
                log_batches.append(batch)
    finally:
        place.call(stream.close)
    return log_batches


def changes(log_batches: Sequence[LogBatch]) -> list[tuple[str, Any, Any]]:
    """(op, old key, image after) in log order; a TRUNCATE among them; no old key but where it went away."""
    return [what for batch in log_batches for _, what in sorted(_of(batch))]


def _of(batch: LogBatch) -> Iterator[tuple[int, tuple[str, Any, Any]]]:
    for signal in batch.signals:
        if isinstance(signal, Truncated):
            yield signal.sequence, ("t", None, None)
    for table in batch.changes:
        for change in table.batch.to_pylist():
            before = change["before"]
            after = change["after"]
            old_id = before["id"] if before and (after is None or after["id"] != before["id"]) else None
            yield change["sequence"], (change["op"], old_id, after and {n: after[n] for n in ("id", "v", "big")})


def start(place: Place) -> str:
    return place.call(place.source.current_position)


def test_the_log_has_what_was_committed_in_its_order(place: Place) -> None:
    begin = start(place)
    place.write([("c", row(1, 1)), ("c", row(2, 2))])
    place.write([("u", 1, row(1, 3))], commit=False)
    place.write([("u", 1, row(1, 4)), ("u", 2, row(9, 5)), ("d", 1)])
    place.write([("c", row(3, 6))])
    place.write([("t",)])
    place.write([("c", row(3, 7))])
    assert changes(log(place, begin)) == [
        ("c", None, row(1, 1)),
        ("c", None, row(2, 2)),
        ("u", None, row(1, 4)),
        ("u", 2, row(9, 5)),
        ("d", 1, None),
        ("c", None, row(3, 6)),
        ("t", None, None),
        ("c", None, row(3, 7)),
    ]


def test_a_reader_goes_on_where_another_has_stopped(place: Place) -> None:
    begin = start(place)
    for number in range(30):
        place.write([("c", row(10 * number + i, number)) for i in range(3)])
    whole = log(place, begin)
    for number, batch in enumerate(whole[:-1]):
        assert changes(log(place, batch.position, skip=batch.partial)) == changes(whole[number + 1 :])


def test_a_watermark_is_in_the_log_when_its_write_returns(place: Place) -> None:
    begin = start(place)
    place.write([("c", row(1, 1))])
    writer = place.call(lambda: place.source.open_watermarks("w1"))
    place.call(lambda: writer.write("low"))
    end = start(place)
    place.write([("c", row(2, 2))])
    place.call(lambda: writer.write("high"))
    place.call(writer.close)
    log_batches = log(place, begin)
    seen = [s.payload for batch in log_batches for s in batch.signals if isinstance(s, WatermarkSeen)]
    assert seen == ["low", "high"]
    assert [c[2]["id"] for c in changes(log_batches)] == [1, 2], "watermarks are no rows"
    after = [s.payload for batch in log(place, end) for s in batch.signals if isinstance(s, WatermarkSeen)]
    assert after == ["high"]


def test_a_select_sees_what_is_committed_and_has_the_keys_order(place: Place) -> None:
    place.write([("c", row(key, key)) for key in (5, 1, 3, 4, 2)])
    commit = place.begin([("d", 3), ("c", row(6, 6))])
    reader = place.call(place.source.open_reader)
    schema = place.call(lambda: reader.schema(place.table))

    def read(**bounds: Any) -> list[int]:
        chunk = place.call(lambda: reader.read(schema, **bounds))
        return [key[0] for key in keys_of(chunk.rows, schema)]

    try:
        assert read(after=None, upto=None, limit=2) == [1, 2]
        assert read(after=(2,), upto=(4,), limit=9) == [3, 4]
        assert place.call(lambda: reader.last_key(schema)) == (5,)
        commit()
        assert read(after=(2,), upto=None, limit=9) == [4, 5, 6]
        some = place.call(lambda: reader.read_keys(schema, [(3,), (6,)]))
        assert keys_of(some.rows, schema) == [(6,)]
        assert list(place.call(lambda: list(reader.boundaries(schema, after=None, upto=None, every=2)))) == [(2,), (5,)]
    finally:
        place.call(reader.close)


@pytest.mark.parametrize("source_kind", ["postgres", "simulated postgres"], indirect=True)
def test_a_snapshot_tells_which_transactions_its_select_has_seen(place: Place) -> None:
    begin = start(place)
    place.write([("c", row(1, 1))])
    commit = place.begin([("c", row(2, 2))])
    place.write([("c", row(3, 3))])
    reader = place.call(place.source.open_reader)
    schema = place.call(lambda: reader.schema(place.table))
    chunk = place.call(lambda: reader.read(schema, after=None, upto=None, limit=9))
    horizon = place.call(place.source.horizon)
    place.call(reader.close)
    commit()
    assert chunk.snapshot is not None and horizon is not None
    xids = {}
    for batch in log(place, begin):
        for table in batch.changes:
            for change in table.batch.to_pylist():
                xids[change["after"]["id"]] = batch.transactions[change["transaction"]].xid
    assert {key for key, xid in xids.items() if Snapshot.parse(chunk.snapshot).sees(xid)} == {1, 3}
    open_one = xids[2]
    assert (open_one or 0) < Snapshot.parse(horizon).xmax % (1 << 32), "it ends before a transaction that has begun"
    assert not Snapshot.parse(horizon).sees(open_one)
