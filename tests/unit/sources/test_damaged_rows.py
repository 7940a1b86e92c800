"""Damaged rows of a table: whatever is wrong with them, they come or it stops alone, and the other table has all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from dblog_core.capture import row_changes
from dblog_core.config.source import ColumnRules
from dblog_core.errors import SourceUnavailable, UnknownLogEvent
from dblog_core.model.events import LogBatch, SchemaSeen, SignalSeen, Unreadable, WatermarkSeen
from dblog_core.model.schema import TableName
from dblog_core.rows import row_faults
from dblog_core.rows.column_rules import Rules
from dblog_core.sources.mysql.binlog.events import Type
from dblog_core.sources.mysql.binlog.log_state import LogState
from dblog_core.sources.mysql.position import MysqlGtids, Position
from dblog_core.sources.mysql.row_events.table_ids import Lookups
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets
from dblog_core.sources.postgres.logical.batch import Assembly
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.pgoutput import PgoutputDecoder
from dblog_core.sources.postgres.logical.relations import Forms, Types
from dblog_core.sources.postgres.logical.wal2json import Wal2jsonDecoder
from dblog_core.sources.postgres.logical.wal2json_shapes import Shapes
from dblog_core.sources.postgres.position import Lsn
from tests.unit import logged_events, pgoutput_messages
from tests.unit import mysql_binlog as binlog
from tests.unit.pgoutput_messages import begin, change, commit, relation
from tests.unit.sources.postgres.test_decoders import SHOP

DRAWS = 400
ROWS = 6


def damage(draw: random.Random, data: bytes, *, first: int) -> bytes:
    """The bytes with some from `first` on changed, left out or put in between."""
    damaged = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        if len(damaged) <= first:
            break
        at = draw.randrange(first, len(damaged))
        match draw.randrange(4):
            case 0:
                damaged[at] = draw.randrange(256)
            case 1:
                damaged[at] = draw.choice([0, 1, 127, 128, 255])
            case 2:
                del damaged[at : at + draw.choice([1, 2, 8, 1000])]
            case _:
                damaged[at:at] = draw.randbytes(draw.choice([1, 2, 8]))
    return bytes(damaged)


def rows_of(batches: list[LogBatch], name: str) -> list[Any]:
    return [
        row
        for batch in batches
        for changes in batch.changes
        if changes.schema.table.name == name
        for row in changes.batch.to_pylist()
    ]


def stopped(batches: list[LogBatch]) -> set[str]:
    return {signal.table.name for batch in batches for signal in batch.signals if isinstance(signal, Unreadable)}


def judge(batches: list[LogBatch], *, healthy: str, damaged: str, count: int) -> bool:
    """Whether the damaged table has stopped; its rows before count, and each row of the other one."""
    assert len(rows_of(batches, healthy)) == count
    assert stopped(batches) <= {damaged}
    return bool(stopped(batches))


# MySQL and MariaDB ----------------------------------------------------------------------------------------------------


def mysql_state(*, mariadb: bool, skip: int = 0) -> LogState:
    config = logged_events.CONFIG
    return LogState(
        tables=TableFilter(config),
        keys={},
        charsets=Charsets({45: "utf8mb4"}, {}),
        zero_dates="error",
        mariadb=mariadb,
        server=binlog.UUID,
        position=Position("binlog.000001", 4, MysqlGtids.parse("")),
        rows_to_skip=skip,
        lookups=Lookups(lambda _: True, lambda _: ()),
    )


def body_of(event: bytes) -> bytes:
    return event[19:]


def mysql_rows(table: int, first: int, count: int) -> bytes:
    return binlog.rows(Type.WRITE_ROWS, table, [binlog.image(first + n, "é" * n) for n in range(count)])


def read_mysql(events: list[bytes], *, skip: int = 0) -> tuple[list[LogBatch], LogState]:
    log = mysql_state(mariadb=False, skip=skip)
    logged_events.take(log, *events)
    return [log.flush()], log


@pytest.mark.parametrize("what", ["rows", "map"])
def test_a_damaged_table_of_mysql_stops_alone(what: str) -> None:
    draw = random.Random(5)
    stops = 0
    for _ in range(DRAWS):
        bad_map, bad_rows = binlog.table_map(1, "bad"), mysql_rows(1, 0, 3)
        if what == "rows":  # behind the table's number
            bad_rows = binlog.event(Type.WRITE_ROWS, damage(draw, body_of(bad_rows), first=6))
        else:  # behind its name
            first = body_of(bad_map).index(b"bad\0") + 4
            bad_map = binlog.event(Type.TABLE_MAP, damage(draw, body_of(bad_map), first=first))
        head = [binlog.gtid(1), binlog.query("BEGIN"), binlog.table_map(2, "good"), mysql_rows(2, 0, ROWS)]
        tail = [binlog.table_map(2, "good"), mysql_rows(2, 10, ROWS), binlog.xid()]
        batches, _ = read_mysql([*head, bad_map, bad_rows, bad_map, mysql_rows(1, 3, 3), *tail])
        stops += judge(batches, healthy="good", damaged="bad", count=2 * ROWS)
    assert stops > DRAWS // 10


def test_a_restart_inside_a_transaction_with_damaged_rows_leaves_out_what_is_staged() -> None:
    """The damaged event counts for no row, neither when it is read first nor when it is read again."""
    bad_rows = binlog.event(Type.WRITE_ROWS, body_of(mysql_rows(1, 0, 3))[:-2])
    events = [
        binlog.gtid(1),
        binlog.query("BEGIN"),
        binlog.table_map(1, "bad"),
        mysql_rows(1, 7, 1),
        bad_rows,
        mysql_rows(1, 8, 1),
        binlog.table_map(2, "good"),
        mysql_rows(2, 0, ROWS),
    ]
    rest = [mysql_rows(2, 10, ROWS), binlog.xid()]
    batches, log = read_mysql(events)
    assert stopped(batches) == {"bad"}
    logged_events.take(log, *rest)
    later = log.flush()
    (again,), _ = read_mysql([*events, *rest], skip=batches[0].partial)
    assert rows_of([again], "good") and [row["after"] for row in rows_of([again], "good")] == [
        row["after"] for row in rows_of([later], "good")
    ]


def test_damaged_rows_of_the_tables_that_are_ours_are_passed_over() -> None:
    draw = random.Random(7)
    config = logged_events.CONFIG.model_copy(update={"signals_table": None})
    name = TableName.parse(config.watermark_table).name
    for what in ("rows", "map") * 100:
        bad_map = binlog.table_map(1, name, columns=("worker", "payload"))
        bad_rows = mysql_rows(1, 0, 2)
        if what == "rows":
            bad_rows = binlog.event(Type.WRITE_ROWS, damage(draw, body_of(bad_rows), first=6))
        else:
            first = body_of(bad_map).index(name.encode() + b"\0") + len(name) + 1
            bad_map = binlog.event(Type.TABLE_MAP, damage(draw, body_of(bad_map), first=first))
        head = [binlog.gtid(1), binlog.query("BEGIN"), binlog.table_map(2, "good"), mysql_rows(2, 0, ROWS)]
        batches, _ = read_mysql([*head, bad_map, bad_rows, binlog.xid()])
        assert not judge(batches, healthy="good", damaged="", count=ROWS)


# PostgreSQL -----------------------------------------------------------------------------------------------------------

NAMES = {20: "bigint", 25: "text", 17: "bytea", 16: "boolean", 1082: "date", 1700: "numeric(10,2)"}
COLUMNS = [(1, "id", 20), (0, "v", 25), (0, "b", 17), (0, "f", 16), (0, "d", 1082), (0, "n", 1700)]
GOOD = relation("t_good", COLUMNS, oid=2)
BAD = relation("t_bad", COLUMNS, oid=1)


def pg_row(number: int, oid: int) -> bytes:
    values = (str(number), "é", "\\x00ff", "t", "2026-01-31", "1.50")
    return change(b"I", (b"N", pgoutput_messages.row(*values)), oid=oid)


def read_pgoutput(
    *messages: bytes, name: Callable[[int, int], str] = lambda oid, _: NAMES[oid], skip: int = 0
) -> list[LogBatch]:
    assembly = Assembly(Lsn(1), skip=skip)
    decoder = PgoutputDecoder(SHOP, assembly, Types(name, lambda _: ("id",)), forms=Forms(binary=False))
    assert decoder.feed(Messages.of(messages))
    return [decoder.take()]


def test_damaged_rows_of_pgoutput_stop_their_table_alone() -> None:
    draw = random.Random(11)
    stops = 0
    for _ in range(DRAWS):
        bad = damage(draw, pg_row(1, 1), first=draw.choice([5, 6, 8, 12]))
        good = [pg_row(n, 2) for n in range(ROWS)]
        batches = read_pgoutput(begin(), GOOD, BAD, *good[:3], pg_row(0, 1), bad, pg_row(2, 1), *good[3:], commit())
        stops += judge(batches, healthy="t_good", damaged="t_bad", count=ROWS)
    assert stops > DRAWS // 10


def test_a_type_that_the_catalogue_cannot_name_stops_its_table_alone() -> None:
    batches = read_pgoutput(
        begin(), GOOD, relation("t_bad", [(1, "id", 20), (0, "v", 4711)], oid=1), pg_row(0, 1), pg_row(1, 2), commit()
    )
    assert judge(batches, healthy="t_good", damaged="t_bad", count=1)


def test_a_catalogue_that_does_not_answer_stops_no_table() -> None:
    def name(oid: int, modifier: int) -> str:
        raise SourceUnavailable("gone")

    with pytest.raises(SourceUnavailable):
        read_pgoutput(begin(), GOOD, commit(), name=name)


def test_damaged_watermarks_and_signals_are_passed_over() -> None:
    draw = random.Random(13)
    marks = relation("dblog_watermark", [(1, "worker", 25), (0, "payload", 25)], oid=3)
    for _ in range(DRAWS // 2):
        row = change(b"I", (b"N", pgoutput_messages.row("w", "payload")), oid=3)
        batches = read_pgoutput(begin(), GOOD, marks, damage(draw, row, first=5), pg_row(1, 2), commit())
        assert not judge(batches, healthy="t_good", damaged="", count=1)
        kinds = {type(signal) for signal in batches[0].signals}
        assert kinds <= {SchemaSeen, WatermarkSeen, SignalSeen}


# wal2json -------------------------------------------------------------------------------------------------------------

HEAD = '"xid":7,"timestamp":"2026-11-21 10:08:57.204539+00","lsn":"0/64","nextlsn":"0/6E"'
JUNK: list[Any] = [None, True, 7, "x", [], {}, [{}], [[]], [None], {"name": 3}, [{"name": "id", "type": 5}], "\ud83d"]


def line(table: str, number: int) -> dict[str, Any]:
    columns = [
        {"name": "id", "type": "bigint", "value": number},
        {"name": "v", "type": "text", "value": "é"},
        {"name": "d", "type": "date", "value": "2026-01-31"},
    ]
    key = [{"name": "id", "type": "bigint"}]
    return {"action": "I", "schema": "public", "table": table, "columns": columns, "pk": key}


def damage_json(draw: random.Random, record: dict[str, Any]) -> dict[str, Any]:
    """Something of the record, other than what names its table, is another value, or gone."""
    places: list[tuple[Any, Any]] = [(record, name) for name in ("columns", "pk", "identity")]
    for column in record["columns"]:
        places += [(column, name) for name in ("name", "type", "value")]
    place, name = draw.choice(places)
    if draw.random() < 0.3:
        place.pop(name, None)
    else:
        place[name] = draw.choice(JUNK[:-1])
    if draw.random() < 0.3:
        record["action"] = draw.choice("UD")
    return record


def read_wal2json(*records: bytes, skip: int = 0) -> list[LogBatch]:
    decoder = Wal2jsonDecoder(SHOP, Assembly(Lsn(1), skip=skip), Shapes(SHOP, lambda _: None, lambda name: name))
    begins, commits = (f'{{"action":"{action}",{HEAD}}}'.encode() for action in "BC")
    assert decoder.feed(Messages.of([begins, *records, commits]))
    return [decoder.take()]


def test_damaged_lines_of_wal2json_stop_their_table_alone() -> None:
    draw = random.Random(17)
    stops = 0
    for _ in range(DRAWS):
        good = [orjson.dumps(line("t_good", n)) for n in range(ROWS)]
        bad = orjson.dumps(damage_json(draw, line("t_bad", 1)))
        before, after = orjson.dumps(line("t_bad", 0)), orjson.dumps(line("t_bad", 2))
        batches = read_wal2json(*good[:3], before, bad, after, *good[3:])
        stops += judge(batches, healthy="t_good", damaged="t_bad", count=ROWS)
        # A restart behind them: what counted for a row counts again.
        (again,) = read_wal2json(*good[:3], before, bad, after, *good[3:], skip=6)
        assert len(rows_of([again], "t_good")) == 3
    assert stops > DRAWS // 10


def test_a_line_that_names_no_table_ends_the_capture_by_name() -> None:
    for broken in (b"{", b"[]", b'{"action":"I"}', b'{"action":"I","schema":"public"}'):
        with pytest.raises(UnknownLogEvent, match="wal2json sent"):
            read_wal2json(broken)


def test_an_error_of_rows_shows_none_of_their_values() -> None:
    fault = row_faults.explain(ValueError("could not convert 'SECRET'"), TableName("shop", "a"))
    assert "SECRET" not in str(fault) and "ValueError" in fault.message and "shop.a" in fault.fix
    for other in (SourceUnavailable("gone"), MemoryError(), OSError("disk")):
        with pytest.raises(type(other)):
            row_faults.explain(other, TableName("shop", "a"))


def test_rows_that_rules_cannot_convert_stop_their_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = read_pgoutput(begin(), GOOD, BAD, pg_row(0, 1), pg_row(1, 2), commit())
    rules = Rules({"public.t_bad": ColumnRules(mask=("v",))})
    assert len(row_changes.convert(batch, rules)[0]) == 2

    def fail(*_: Any) -> Any:
        raise KeyError("SECRET")

    monkeypatch.setattr(Rules, "_images", fail)
    changes, signals = row_changes.convert(batch, rules)
    assert [stretch.schema.table.name for stretch in changes] == ["t_good"]
    (stop,) = [signal for signal in signals if isinstance(signal, Unreadable)]
    assert stop.table.name == "t_bad" and "KeyError" in stop.why and "SECRET" not in stop.why + stop.fix
