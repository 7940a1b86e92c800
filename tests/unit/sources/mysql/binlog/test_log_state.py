"""What a busy log consists of goes a short way through `LogState`: it says what the long way says, event by event."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import DblogError
from dblog_core.model.events import Altered, LogBatch, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog.events import Type
from dblog_core.sources.mysql.binlog.log_state import LogState
from dblog_core.sources.mysql.binlog.progress import Progress
from dblog_core.sources.mysql.position import MariadbGtids, MysqlGtids, Newest, Position
from dblog_core.sources.mysql.row_events import change_batch
from dblog_core.sources.mysql.row_events.table_ids import Lookups
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets
from tests.unit import mysql_binlog as binlog
from tests.unit.sources.mysql.binlog.test_framing import cut, feed_pieces

CONFIG = SourceConfig.model_validate({"name": "s", "kind": "mysql", "database": "shop", "tables": ["shop.*"]})
TABLES = {1: "a", 2: "b", 65: "c", 66: "a"}
"""Table numbers of the log: `a` has two, of two shapes; 1 and 65 share a slot of the kernel's memory."""
UNWANTED = 7


def state(
    *,
    mariadb: bool,
    skip: int = 0,
    position: Position | None = None,
    is_table: Callable[[TableName], bool] = lambda _: True,
) -> LogState:
    gtids = MariadbGtids.parse("") if mariadb else MysqlGtids.parse("")
    return LogState(
        tables=TableFilter(CONFIG),
        keys={},
        charsets=Charsets({45: "utf8mb4"}, {}),
        zero_dates="error",
        mariadb=mariadb,
        server=binlog.UUID,
        position=position or Position("binlog.000001", 4, gtids),
        rows_to_skip=skip,
        lookups=Lookups(is_table, lambda _: ()),
    )


class Writer:
    """A server's log: transactions of all kinds, with their places."""

    def __init__(self, seed: int, *, mariadb: bool) -> None:
        self._draw = random.Random(seed)
        self._mariadb = mariadb
        self._number = 0
        self._end = 4
        self._prepared: list[str] = []
        self.found: list[bytes] = []

    def write(self, transactions: int) -> list[bytes]:
        for _ in range(transactions):
            kinds = [self._rows] * 3 + [
                self._foreign,
                self._statement,
                self._payload,
                self._add_odd_event,
                self._xa,
                self._xa,
            ]
            self._draw.choice(kinds)()
        return self.found

    def _add(self, data: bytes) -> None:
        self._end += len(data)
        self.found.append(data[:13] + (self._end & 0xFFFFFFFF).to_bytes(4, "little") + data[17:])

    def _begin(self, *, prepared: bool = False) -> None:
        self._number += 1
        if self._mariadb:
            self._add(binlog.mariadb_gtid(self._number, 64 if prepared else 0, domain=self._draw.choice([0, 0, 3])))
            return
        uuid = self._draw.choice([binlog.UUID] * 5 + [binlog.OTHER_UUID])
        self._add(binlog.gtid(self._number, uuid=uuid))
        if not prepared:
            self._add(binlog.query("BEGIN"))

    def _changes(self) -> Iterator[bytes]:
        draw = self._draw
        for _ in range(draw.choice([1, 1, 2, 6])):
            table = draw.choice([*TABLES, UNWANTED])
            yield self._map(table)
            for _ in range(draw.choice([1, 1, 4])):
                base = 23 if self._mariadb else 30
                kind = base + draw.choice([0, 0, 1, 2])
                width = 3 if table == 66 else 2
                images = [
                    binlog.image(draw.randint(0, 99), *(draw.choice([None, "é", "x" * 20]) for _ in range(width - 1)))
                    for _ in range(draw.choice([0, 1, 1, 3]) * (2 if kind == base + 1 else 1))
                ]
                yield binlog.rows(kind, table, images, columns=width)

    def _map(self, table: int) -> bytes:
        if table == UNWANTED:
            return binlog.table_map(table, "t", schema="other")
        columns = ("id", "v", "w") if table == 66 else ("id", "v")
        return binlog.table_map(table, TABLES[table], columns=columns)

    def _rows(self) -> None:
        self._begin()
        for data in self._changes():
            self._add(data)
        self._add(self._draw.choice([binlog.xid(), binlog.xid(), binlog.query("COMMIT")]))

    def _foreign(self) -> None:
        self._begin()
        self._add(self._map(UNWANTED))
        self._add(binlog.rows(23 if self._mariadb else 30, UNWANTED, [binlog.image(1, "x")]))
        self._add(binlog.xid())

    def _statement(self) -> None:
        self._number += 1
        sql = self._draw.choice(["TRUNCATE TABLE a", "CREATE TABLE x (id int)", "ALTER TABLE b DROP PARTITION p"])
        if self._mariadb:
            self._add(binlog.mariadb_gtid(self._number, 1))
        else:
            self._add(binlog.gtid(self._number))
        self._add(binlog.query(sql))

    def _payload(self) -> None:
        if self._mariadb:
            return
        self._number += 1
        self._add(binlog.gtid(self._number))
        inner = b"".join([binlog.query("BEGIN"), *self._changes(), binlog.xid()])
        self._add(binlog.event(Type.TRANSACTION_PAYLOAD, binlog.payload(inner)))

    def _xa(self) -> None:
        """Prepares a transaction, or ends one that is prepared."""
        if self._prepared and self._draw.random() < 0.5:
            xid = self._prepared.pop()
            self._number += 1
            self._add(binlog.mariadb_gtid(self._number, 1) if self._mariadb else binlog.gtid(self._number))
            self._add(binlog.query(f"XA {self._draw.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} {xid}"))
            return
        name = b"x%d" % self._number
        self._begin(prepared=True)
        if not self._mariadb or self._draw.random() < 0.5:
            self._add(binlog.query(f"XA START X'{name.hex()}',X'',1"))
        for data in self._changes():
            self._add(data)
        one_phase = self._draw.random() < 0.3
        self._add(binlog.event(Type.XA_PREPARE, struct.pack("<?III", one_phase, 1, len(name), 0) + name))
        if not one_phase:
            self._prepared.append(f"X'{name.hex()}',X'',1")

    def _add_odd_event(self) -> None:
        """What stands between transactions."""
        draw = self._draw
        if draw.random() < 0.3:
            self._add(binlog.description(checksums=False))
        elif draw.random() < 0.5:
            self.found.append(binlog.event(Type.HEARTBEAT, b"", end=self._end & 0xFFFFFFFF))
        else:
            self._add(binlog.event(Type.PREVIOUS_GTIDS, bytes(8)))


def long_way(log: LogState, events: list[bytes]) -> Iterator[LogBatch]:
    """Every event through `take`, the events of compressed transactions too."""
    for data in events:
        event = binlog.parse(data, 0, False)
        if event.type == Type.TRANSACTION_PAYLOAD:
            log.take(event)
            log._unpacking = None
            for inner in binlog.unpack_events(event.body):
                log._dispatch(inner)
                if log.is_full:
                    yield log.flush()
        else:
            log.take(event)
        if log.is_full:
            yield log.flush()
        yield from rows_that_were_held(log, events)
    yield log.flush()


def rows_that_were_held(log: LogState, written: list[bytes]) -> Iterator[LogBatch]:
    """Brings the prepared rows that are due: from memory, or as a second connection does."""
    if log.prepared_rows is not None:
        reread_events = written[places_of(written)[log.prepared_rows.place.start] :]
        for event in log.prepared_rows.remembered or (binlog.parse(data, 0, False) for data in reread_events):
            log.take_prepared(event)
            if log.is_full:
                yield log.flush()
            if log.prepared_rows is None:
                return


def short_way(log: LogState, written: list[bytes], draw: random.Random, begin: int = 0) -> Iterator[LogBatch]:
    """Stretches of what the server has written from event `begin` on, cut anyhow."""
    for stretch in feed_pieces(cut(binlog.packets(written[begin:]), draw), brief=True):
        whole = False
        while not whole:
            whole = log.take_all(stretch)
            while log.is_unpacking:
                log.take_unpacked()
                if log.is_full:
                    yield log.flush()
            if log.is_full:
                yield log.flush()
            yield from rows_that_were_held(log, written)
    yield log.flush()


def batch_contents(batches: list[LogBatch]) -> list[Any]:
    """All that batches say, wherever they are cut."""
    every: list[Any] = []
    for batch in batches:
        contents: list[tuple[int, Any]] = []
        for signal in batch.signals:
            what = {name: getattr(signal, name) for name in signal.__slots__ if name not in ("sequence", "transaction")}
            contents.append((signal.sequence, (type(signal).__name__, what, batch.transactions[signal.transaction])))
        for changes in batch.changes:
            contents += [
                (row.pop("sequence"), (changes.schema, batch.transactions[row.pop("transaction")], row))
                for row in changes.batch.to_pylist()
            ]
        every += [what for _, what in sorted(contents, key=lambda entry: entry[0])]
    return every


@pytest.mark.parametrize("rows", [1, 7, 10_000])
@pytest.mark.parametrize("mariadb", [False, True], ids=["mysql", "mariadb"])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.thorough
def test_the_short_way_says_what_the_long_way_says(
    seed: int, mariadb: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_batch, "EVENTS", rows)
    stream = Writer(seed, mariadb=mariadb).write(60)
    long = list(long_way(state(mariadb=mariadb), stream))
    short = list(short_way(state(mariadb=mariadb), stream, random.Random(seed)))
    assert [batch.position for batch in short] == [batch.position for batch in long]
    assert [batch.partial for batch in short] == [batch.partial for batch in long]
    assert batch_contents(short) == batch_contents(long) and len(batch_contents(short)) > 60
    assert any(batch.partial for batch in short) == (rows < 10_000)


@pytest.mark.parametrize("mariadb", [False, True], ids=["mysql", "mariadb"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.thorough
def test_a_transaction_is_gone_on_with_after_any_part(
    seed: int, mariadb: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every batch's position on, with its partial rows skipped, comes exactly what comes after that batch."""
    stream = Writer(seed, mariadb=mariadb).write(25)
    monkeypatch.setattr(change_batch, "EVENTS", 3)
    whole = list(short_way(state(mariadb=mariadb), stream, random.Random(seed)))
    monkeypatch.setattr(change_batch, "EVENTS", 10_000)
    places = places_of(stream)
    for number, batch in enumerate(whole[:-1]):
        start = Position.decode(batch.position, mariadb=mariadb)
        log = state(mariadb=mariadb, skip=batch.partial, position=start)
        rest = short_way(log, stream, random.Random(seed), places[start.offset])
        compared = ("SchemaSeen", "Rewritten")  # with rows from before, which a stream that begins here has not
        later = [entry for entry in batch_contents(list(rest)) if entry[0] not in compared]
        expected = [entry for entry in batch_contents(whole[number + 1 :]) if entry[0] not in compared]
        assert later == expected, f"after batch {number} of {len(whole)}"


def places_of(events: list[bytes]) -> dict[int, int]:
    """The number of the first event at or after each offset that a group ends at."""
    places = {4: 0}
    offset = 4
    for number, data in enumerate(events):
        if data[4] != Type.HEARTBEAT:
            offset = int.from_bytes(data[13:17], "little")
        places[offset] = number + 1
    return places


def test_rows_without_all_columns_are_refused_on_the_short_way_too() -> None:
    good = [binlog.gtid(1), binlog.query("BEGIN"), binlog.table_map(1, "a")]
    row = binlog.rows(30, 1, [binlog.image(1, "x")])
    for bad in (binlog.rows(30, 1, [binlog.image(1, "x")], whole=False), binlog.rows(30, 1, [b"\0\0"], columns=1)):
        log = state(mariadb=False)
        batches = list(short_way(log, [*good, row, row, bad, row, binlog.xid()], random.Random(0)))
        unreadable = [s for batch in batches for s in batch.signals if isinstance(s, Unreadable)]
        assert ["without all its columns" in signal.why for signal in unreadable] == [True]


def test_offsets_go_on_counting_past_32_bits() -> None:
    def transaction(number: int, end: int) -> list[bytes]:
        return [
            binlog.gtid(number, end=end - 300),
            binlog.query("BEGIN", end=end - 200),
            binlog.table_map(1, "a", end=end - 150),
            binlog.rows(30, 1, [binlog.image(number, "x")], end=end - 31),
            binlog.xid(end=end),
        ]

    stream = [data for n in range(1, 5) for data in transaction(n, n * 3_000_000_000)]
    (batch,) = short_way(state(mariadb=False), stream, random.Random(0))
    assert Position.decode(batch.position, mariadb=False).offset == 12_000_000_000
    assert batch.transactions[-1].position == f"binlog.000001:{12_000_000_000 - 300 - len(stream[0])}"


@pytest.mark.parametrize("mariadb", [False, True], ids=["mysql", "mariadb"])
def test_many_transactions_make_the_position_that_they_make_one_by_one(mariadb: bool) -> None:
    draw = random.Random(3)
    flavour: type[MysqlGtids | MariadbGtids] = MariadbGtids if mariadb else MysqlGtids
    start = Position("b.1", 4, flavour.parse("0-1-7" if mariadb else f"{binlog.UUID}:1-5:9"))
    progress = Progress(start)
    gtids = start.gtids
    assert gtids is not None
    for n in range(300):
        number = n + 6 if draw.random() < 0.8 else draw.randint(1, 2000)
        owner = draw.choice([binlog.UUID, binlog.OTHER_UUID, f"{binlog.UUID}:tag"])
        gtid = f"{draw.randint(0, 2)}-{draw.randint(1, 3)}-{number}" if mariadb else f"{owner}:{number}"
        time = draw.choice([0, 1_000_000 + n])
        assert progress.end_transaction("b.2", 100 + n, gtid, start=90 + n, time=time)
        newest = Newest(gtid, time, "b.2", 90 + n, str(gtids) if mariadb else None) if time else None
        gtids = gtids.with_transaction(gtid)
        if draw.random() < 0.1:
            assert progress.position == Position("b.2", 100 + n, gtids, newest=newest)
    assert progress.position == Position("b.2", 399, gtids, newest=newest)
    assert Position.decode(progress.position.encode(), mariadb=mariadb) == progress.position
    assert not progress.end_transaction("b.3", 1, None)
    progress.move(file="b.3", gtids=None)
    assert not progress.end_transaction("b.3", 1, "0-1-1") and progress.position.file == "b.3"


def ids(batch: LogBatch) -> list[tuple[str, int]]:
    return [(c.schema.table.name, row["after"]["id"]) for c in batch.changes for row in c.batch.to_pylist()]


def test_a_number_means_what_its_last_map_says() -> None:
    def row(number: int) -> bytes:
        return binlog.rows(30, 1, [binlog.image(number, "x")])

    maps = [
        binlog.table_map(1, "a"),
        binlog.table_map(1, "b"),
        binlog.table_map(1, "t", schema="other"),
        binlog.table_map(1, "a"),
    ]
    rows = [row(1), row(2), row(3), row(4)]
    stream = [
        event for described, row_event in zip(maps, rows, strict=True) for event in (described, row_event, row_event)
    ]
    stream = [binlog.gtid(1), binlog.query("BEGIN"), *stream, binlog.xid()]
    (batch,) = short_way(state(mariadb=False), stream, random.Random(0))
    assert sorted(ids(batch)) == [("a", 1), ("a", 1), ("a", 4), ("a", 4), ("b", 2), ("b", 2)]


@pytest.mark.parametrize("schema", ["shop", "other"])
def test_numbers_mean_nothing_after_the_server_has_restarted(schema: str) -> None:
    row = binlog.rows(30, 1, [binlog.image(1, "x")])
    begin = [binlog.query("BEGIN"), binlog.table_map(1, "a", schema=schema), row, row, binlog.xid()]
    stream = [binlog.gtid(1), *begin, binlog.description(checksums=False), binlog.gtid(2), binlog.query("BEGIN"), row]
    with pytest.raises(DblogError, match="not described"):
        list(short_way(state(mariadb=False), stream, random.Random(0)))


def test_rows_that_are_not_delivered_again_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batch, "EVENTS", 2)
    two = [binlog.image(1, "x"), binlog.image(2, "y")]
    events = [binlog.gtid(1), binlog.query("BEGIN"), binlog.table_map(1, "a"), *[binlog.rows(30, 1, two)] * 5]
    start = Position("binlog.000001", 4, MysqlGtids.parse(""), None, f"{binlog.UUID}:1")
    log = state(mariadb=False, skip=3, position=start)
    batches = list(short_way(log, events, random.Random(0)))
    delivered = [len(ids(batch)) for batch in batches]
    assert sum(delivered) == 7
    assert [batch.partial for batch in batches] == [3 + sum(delivered[: n + 1]) for n in range(len(batches))]


BEGINS, SUCCEEDS, FAILS = 2, 4, 8
"""What MariaDB's second byte of flags says of an ALTER, with `binlog_alter_two_phase`."""


@pytest.mark.parametrize(
    ("phases", "altered"),
    [([BEGINS, SUCCEEDS], 1), ([BEGINS, FAILS], 0), ([BEGINS], 0), ([BEGINS, FAILS, BEGINS, SUCCEEDS], 1)],
)
def test_an_alter_in_two_phases_has_happened_when_it_has_succeeded(phases: list[int], altered: int) -> None:
    packets = [
        binlog.mariadb_gtid(1, 0),
        binlog.table_map(1, "t"),
        binlog.rows(30, 1, [binlog.image(1, "x")]),
        binlog.xid(),
    ]
    for number, phase in enumerate(phases, 2):
        packets += [binlog.mariadb_gtid(number, 1, more_flags=phase), binlog.query("ALTER TABLE t DROP COLUMN v")]
    for batches in (long_way(state(mariadb=True), packets), short_way(state(mariadb=True), packets, random.Random(1))):
        signals = [signal for batch in batches for signal in batch.signals]
        assert sum(isinstance(signal, Altered) for signal in signals) == altered
