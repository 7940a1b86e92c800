"""Tables whose rows the log does not hold as they are needed: each stops alone, told once, and goes on when it can."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dblog_core.errors import UnknownLogEvent
from dblog_core.model import watermark
from dblog_core.model.events import LogBatch, SchemaSeen, SignalSeen, Truncated, Unreadable, WatermarkSeen
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog.events import Type
from dblog_core.sources.mysql.binlog.log_state import LogState
from tests.unit import mysql_binlog as binlog
from tests.unit.sources.mysql.binlog.test_log_state import CONFIG, long_way, short_way, state

COMPRESSED = 140


def group(number: int, *stream: bytes, mariadb: bool = False) -> list[bytes]:
    head = [binlog.mariadb_gtid(number, 0)] if mariadb else [binlog.gtid(number), binlog.query("BEGIN")]
    return [*head, *stream, binlog.xid()]


def statement(number: int, sql: str) -> list[bytes]:
    return [binlog.mariadb_gtid(number, 1), binlog.query(sql)]


def rows_of(table_id: int, *, width: int = 2, whole: bool = True) -> bytes:
    return binlog.rows(30, table_id, [binlog.image(1, *"x" * (width - 1))], columns=width, whole=whole)


def read(log: LogState, stream: Sequence[bytes]) -> list[LogBatch]:
    """Either way says the same."""
    return list(short_way(log, list(stream), random.Random(1)))


def stops_and_shapes(batches: Sequence[LogBatch]) -> list[str]:
    """Tables that are unreadable from there on, and those whose shape is told, in order."""
    signals = [s for batch in batches for s in batch.signals]
    return [
        f"{s.table.name} stops" if isinstance(s, Unreadable) else f"{s.schema.table.name} goes on"
        for s in signals
        if isinstance(s, Unreadable | SchemaSeen)
    ]


def rows(batches: Sequence[LogBatch]) -> list[str]:
    return [c.schema.table.name for batch in batches for c in batch.changes for _ in range(c.batch.num_rows)]


def test_a_table_that_is_not_described_as_needed_stops_alone_until_it_is() -> None:
    bad = binlog.table_map(2, "b", code=COMPRESSED)
    good = binlog.table_map(2, "b")
    stream = [
        *group(1, binlog.table_map(1, "a"), rows_of(1), bad, rows_of(2), rows_of(2), rows_of(1)),
        *group(2, good, rows_of(2)),
        *group(3, bad, rows_of(2), binlog.table_map(1, "a"), rows_of(1)),
        *group(4, good, rows_of(2)),
    ]
    for way in (read(state(mariadb=False), stream), list(long_way(state(mariadb=False), stream))):
        assert stops_and_shapes(way) == ["a goes on", "b stops", "b goes on", "b stops", "b goes on"]
        assert sorted(rows(way)) == ["a"] * 3 + ["b"] * 2
        signal = next(s for batch in way for s in batch.signals if isinstance(s, Unreadable))
        assert signal.refused and "column v: type 140" in signal.why and "binlog.000001:" in signal.why
        assert "leave the table out" in signal.fix


def test_rows_in_part_stop_their_table_until_the_capture_begins_anew() -> None:
    part = binlog.event(Type.PARTIAL_UPDATE_ROWS, (1).to_bytes(6, "little") + b"\1\0\2\0")
    for bad in (rows_of(1, whole=False), part):
        stream = [
            *group(1, binlog.table_map(1, "a"), rows_of(1), bad, rows_of(1), bad),
            *group(2, binlog.table_map(2, "b"), rows_of(2), binlog.table_map(1, "a"), rows_of(1)),
        ]
        way = read(state(mariadb=False), stream)
        assert stops_and_shapes(way) == ["a goes on", "a stops", "b goes on"]
        (signal,) = [s for batch in way for s in batch.signals if isinstance(s, Unreadable)]
        assert not signal.refused and "start the capture again, which dumps the table" in signal.fix
        assert "MariaDB" not in signal.fix
        alone = read(state(mariadb=False), group(1, binlog.table_map(1, "a"), bad, rows_of(1)))
        assert stops_and_shapes(alone) == ["a goes on", "a stops"]  # its next rows are no news


@pytest.mark.parametrize(("mariadb", "columns", "is_hinted"), [(True, 1, True), (True, 2, False), (False, 1, False)])
def test_the_hint_at_generated_columns_is_for_mariadb_where_the_key_is_there(
    mariadb: bool, columns: int, is_hinted: bool
) -> None:
    """`columns`: the bits of those that the row has; the first is the key."""
    kind, extra = (Type.WRITE_ROWS_V1, b"") if mariadb else (Type.WRITE_ROWS, b"\2\0")
    body = (1).to_bytes(6, "little") + b"\1\0" + extra + b"\2" + bytes([columns]) + b"\0" + b"\1\0\0\0"
    begin = binlog.mariadb_gtid(1, 0) if mariadb else binlog.gtid(1)
    stream = [begin, binlog.query("BEGIN"), binlog.table_map(1, "a"), binlog.event(kind, body), binlog.xid()]
    (signal,) = [
        s for batch in read(state(mariadb=mariadb), stream) for s in batch.signals if isinstance(s, Unreadable)
    ]
    assert "it lacks " in signal.why and "binlog_row_image = FULL" in signal.fix
    assert ("exclude" in signal.fix) == is_hinted


def test_what_is_not_wanted_is_passed_over_in_part_too() -> None:
    part = binlog.event(Type.PARTIAL_UPDATE_ROWS, (7).to_bytes(6, "little") + b"\1\0\2\0")
    stream = group(1, binlog.table_map(7, "t", schema="other", code=COMPRESSED), rows_of(7, whole=False), part)
    assert stops_and_shapes(read(state(mariadb=False), stream)) == []


def test_watermarks_and_signals_in_part_are_such_as_nobody_has_written() -> None:
    log = state(mariadb=False)
    own_table = CONFIG.watermark_table.partition(".")[2]
    stream = group(1, binlog.table_map(1, own_table, columns=("worker", "payload")), rows_of(1, whole=False))
    (seen,) = [s for batch in read(log, stream) for s in batch.signals]
    assert isinstance(seen, WatermarkSeen) and not isinstance(seen, SignalSeen)
    with pytest.raises(UnknownLogEvent, match="without all its columns"):
        watermark.parse_for("s", seen.payload)


def test_each_table_of_which_the_log_names_no_columns_stops_until_it_does() -> None:
    log = state(mariadb=False)
    unnamed = [binlog.table_map(1, "a", named=False), rows_of(1)]
    batches = list(long_way(log, [*group(1, *unnamed, *unnamed), *group(2, binlog.table_map(2, "b"), rows_of(2))]))
    (stop,) = [signal for batch in batches for signal in batch.signals if isinstance(signal, Unreadable)]
    assert "binlog_row_metadata is not FULL" in stop.why and "SET PERSIST" in stop.fix and not stop.refused
    assert rows(batches) == ["b"]
    again = list(long_way(log, group(3, binlog.table_map(3, "a"), rows_of(3))))
    assert stops_and_shapes(again) == ["a goes on"] and rows(again) == ["a"]


def test_rows_that_wait_for_an_xa_commit_stop_their_table_then() -> None:
    head = [binlog.gtid(1), binlog.query("XA START X'78',X'',1")]
    bad = [binlog.table_map(2, "b", code=COMPRESSED), rows_of(2), binlog.table_map(1, "a"), rows_of(1, whole=False)]
    prepared = binlog.event(Type.XA_PREPARE, b"\0" + bytes([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]) + b"x")
    before = read(state(mariadb=False), [*head, *bad, binlog.query("XA END X'78',X'',1"), prepared])
    assert stops_and_shapes(before) == []
    log = state(mariadb=False)
    stream = [*head, *bad, binlog.query("XA END X'78',X'',1"), prepared]
    stream += [*group(2, binlog.table_map(3, "c"), rows_of(3)), binlog.gtid(3), binlog.query("XA COMMIT X'78',X'',1")]
    way = list(long_way(log, stream))
    assert stops_and_shapes(way) == ["c goes on", "b stops", "a goes on", "a stops"] and rows(way) == ["c"]


PLAIN = binlog.table_map(1, "v")
KEPT = binlog.table_map(1, "v", columns=("id", "v", "row_start", "row_end"))


def test_a_system_versioned_table_is_known_by_the_columns_that_mariadb_gives_it() -> None:
    stream = [*group(1, KEPT, rows_of(1, width=4), mariadb=True), *group(2, PLAIN, rows_of(1), mariadb=True)]
    assert stops_and_shapes(read(state(mariadb=True), stream)) == ["v stops", "v goes on"]
    (signal,) = [s for batch in read(state(mariadb=True), stream) for s in batch.signals if isinstance(s, Unreadable)]
    assert signal.refused and "ALTER TABLE `shop`.`v` DROP SYSTEM VERSIONING" in signal.fix
    mysql = [*group(1, KEPT, rows_of(1, width=4))]
    assert stops_and_shapes(read(state(mariadb=False), mysql)) == ["v goes on"]  # MySQL has no such tables


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["CREATE TABLE v (id int) WITH SYSTEM VERSIONING"], ["v stops"]),
        (["create or replace table `v` (id int, v int without system versioning) with system versioning"], ["v stops"]),
        (["CREATE TABLE v (id int, v int WITH SYSTEM VERSIONING)"], ["v stops"]),
        (["CREATE TABLE v (id int, v int WITHOUT SYSTEM VERSIONING)"], ["v goes on"]),
        (["CREATE TABLE v (id int COMMENT 'WITH SYSTEM VERSIONING')"], ["v goes on"]),
        (["ALTER TABLE shop.v ADD SYSTEM VERSIONING"], ["v stops"]),
        (["ALTER TABLE v ADD SYSTEM VERSIONING", "ALTER TABLE v ADD COLUMN c int"], ["v stops"]),
        (["ALTER TABLE v ADD SYSTEM VERSIONING", "ALTER TABLE v DROP SYSTEM VERSIONING"], ["v goes on"]),
        (["ALTER TABLE v ADD SYSTEM VERSIONING", "DROP TABLE v", "CREATE TABLE v (id int)"], ["v goes on"]),
        (["ALTER TABLE v ADD SYSTEM VERSIONING", "CREATE TABLE IF NOT EXISTS v (id int)"], ["v stops"]),
        (["ALTER TABLE o ADD SYSTEM VERSIONING", "RENAME TABLE o TO v"], ["v stops"]),
        (["ALTER TABLE o ADD SYSTEM VERSIONING", "ALTER TABLE o RENAME v"], ["v stops"]),
        (["ALTER TABLE v ADD SYSTEM VERSIONING", "RENAME TABLE v TO o"], ["v goes on"]),
    ],
)
def test_statements_tell_which_tables_are_system_versioned(statements: list[str], says: list[str]) -> None:
    """Whose rows do not show it: their definition may name the columns of the versions."""
    statement_events = [data for number, sql in enumerate(statements, 1) for data in statement(number, sql)]
    stream = [*statement_events, *group(9, PLAIN, rows_of(1), mariadb=True)]
    assert stops_and_shapes(read(state(mariadb=True), stream)) == says


def test_a_table_that_becomes_system_versioned_while_its_rows_are_read_stops_there() -> None:
    stream = [
        *group(1, PLAIN, rows_of(1), rows_of(1), mariadb=True),
        *statement(2, "ALTER TABLE v ADD SYSTEM VERSIONING"),
        *group(3, PLAIN, rows_of(1), mariadb=True),
        *statement(4, "ALTER TABLE v DROP SYSTEM VERSIONING"),
        *group(5, PLAIN, rows_of(1), mariadb=True),
    ]
    way = read(state(mariadb=True), stream)
    assert stops_and_shapes(way) == ["v goes on", "v stops", "v goes on"] and rows(way) == ["v"] * 3


SEQUENCE = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size",
    "cycle_option", "cycle_count",
)  # fmt: skip


def test_rows_of_a_sequence_are_those_of_no_table() -> None:
    """MariaDB's log has them as rows; the catalogue tells a table of the same columns from a sequence."""
    lookups: list[str] = []

    def sequence(number: int, *, keyed: bool = False) -> bytes:
        return binlog.table_map(number, "v", columns=SEQUENCE, keyed=keyed)

    def read_where(is_table: bool, *events: bytes, mariadb: bool = True) -> tuple[list[str], list[str]]:
        def ask(table: TableName) -> bool:
            lookups.append(str(table))
            return is_table

        way = read(state(mariadb=mariadb, is_table=ask), group(1, *events, mariadb=mariadb))
        return stops_and_shapes(way), rows(way)

    two_rows = [sequence(1), rows_of(1, width=8), sequence(1), rows_of(1, width=8)]
    others = [binlog.table_map(2, "a"), rows_of(2)]
    assert read_where(False, *two_rows, *others) == (["a goes on"], ["a"])
    assert read_where(True, *two_rows) == (["v goes on"], ["v", "v"])
    assert lookups == ["shop.v"] * 2  # once for a number of the log
    assert read_where(False, *two_rows, mariadb=False) == (["v goes on"], ["v", "v"])
    assert read_where(False, sequence(1, keyed=True), rows_of(1, width=8)) == (["v goes on"], ["v"])
    assert lookups == ["shop.v"] * 2  # neither MySQL nor a table with a key is asked about
    assert read_where(False, *two_rows, sequence(3), rows_of(3, width=8)) == ([], []) and len(lookups) == 4


@pytest.mark.parametrize(
    ("sql", "emptied"),
    [
        ("CREATE SEQUENCE v", False),
        ("CREATE SEQUENCE IF NOT EXISTS v START 5", False),
        ("CREATE OR REPLACE SEQUENCE v START 5", True),
        ("create or replace /*M! sequence */ `shop` . `v`", True),
        ("CREATE OR REPLACE TEMPORARY SEQUENCE v", False),
        ("ALTER SEQUENCE v RESTART 7", False),
        ("CREATE OR REPLACE TABLE v (a int) SEQUENCE=1", True),
        ("CREATE TABLE v (a int) ENGINE = InnoDB SEQUENCE 1", False),
        ("ALTER TABLE v SEQUENCE = 1", True),
        ("ALTER TABLE v SEQUENCE = 0", False),
        ("ALTER TABLE v ADD sequence int DEFAULT 1", False),
        ("ALTER TABLE v ADD CHECK (sequence = 1), COMMENT 'SEQUENCE = 1'", False),
    ],
)
def test_a_sequence_that_takes_the_place_of_a_table_leaves_none_of_its_rows(sql: str, emptied: bool) -> None:
    signals = [s for batch in read(state(mariadb=True), statement(1, sql)) for s in batch.signals]
    assert [str(s.table) for s in signals if isinstance(s, Truncated)] == ["shop.v"] * emptied
