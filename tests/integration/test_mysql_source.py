"""MySQL and MariaDB on real servers: types, resuming, lost logs, refusals and the preflight."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.errors import LogPositionLost, SourceRefused, SourceUnavailable, UnknownLogEvent, ValueOutOfRange
from dblog_core.interfaces import LogStream, Problem
from dblog_core.model import values
from dblog_core.model.events import LogBatch, SchemaSeen, Truncated, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.rows.column_rules import Rules
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.values import json_text
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from tests.fix_servers import Database
from tests.integration import mysql_types

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)

END = 30.0
"""Seconds within which the log must have delivered what a test waits for."""


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Any:
    return database.config(tmp_path).source


@pytest.fixture
def source(config: Any) -> MysqlSource:
    source = MysqlSource(config)
    source.prepare()
    return source


def batches(source: MysqlSource, position: str, *, skip: int = 0, upto: str | None = None) -> Iterator[LogBatch]:
    """Batches from `position` to `upto` (default: the present end)."""
    target = upto or source.current_position()
    stream = source.open_log(position, skip=skip)
    try:
        yield from until(source, stream, target)
    finally:
        stream.close()


def until(source: MysqlSource, stream: LogStream, target: str) -> Iterator[LogBatch]:
    deadline = time.monotonic() + END
    while time.monotonic() < deadline:
        batch = stream.read(0.5)
        if batch is not None:
            yield batch
            if not batch.partial and source.has_reached(batch.position, target):
                return
    raise AssertionError("the log did not reach its end in time")


def changes(found: list[LogBatch], table: str = "") -> list[dict[str, Any]]:
    """All row changes in log order, over all tables; `table` leaves the others out."""
    rows = []
    for batch in found:
        of_batch = [r for c in batch.changes if not table or c.schema.table.name == table for r in c.batch.to_pylist()]
        rows += sorted(of_batch, key=lambda row: row["sequence"])
    return rows


def execute(database: Database, *statements: str) -> None:
    """In one session and without strict mode, so that values at the ends of types get in."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for statement in statements:
            cursor.execute(statement)


def insert_all_types(database: Database, name: str) -> None:
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for statement, values in mysql_types.inserts(database.kind, name):
            cursor.execute(statement, values)


def test_every_type_is_equal_in_log_and_chunk(database: Database, source: MysqlSource) -> None:
    database.execute(mysql_types.create(database.kind, "types"))
    start = source.current_position()
    insert_all_types(database, "types")
    found = list(batches(source, start))
    logged = {row["after"]["id"]: row["after"] for row in changes(found)}
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "types"))
    read = {row["id"]: row for row in reader.read(schema, after=None, upto=None, limit=100).rows.to_pylist()}
    reader.close()
    assert found[0].changes[0].schema.fingerprint == schema.fingerprint
    assert logged.keys() == read.keys() == {decimal.Decimal(2**64 - 1), *map(decimal.Decimal, (1, 2, 3))}
    for key, row in read.items():
        for name, value in row.items():
            assert repr(logged[key][name]) == repr(value), f"{name} of row {key}"


def test_types_have_the_values_that_were_written(database: Database, source: MysqlSource) -> None:
    database.execute(mysql_types.create(database.kind, "types"))
    start = source.current_position()
    insert_all_types(database, "types")
    first = changes(list(batches(source, start)))[0]["after"]
    assert first["u8"] == decimal.Decimal(2**64 - 1) and first["i8"] == -(2**63) and first["i3"] == -8388608
    assert first["d65"] == "-12345678901234567890123456789012345.123456789012345678901234567890"
    assert first["d38"] == decimal.Decimal("-1234567890123456789012345678.0123456789") and first["dz"] == "123.50000"
    assert first["b"] == b"ab" + bytes(14) and first["b255"] == b"\0\xff" * 100 + bytes(55)
    assert first["v_latin1"] == "é€\u0081\u009d" and first["c"] == "ab" and first["v"] == "日本😀  "
    assert first["dt6"] == dt.datetime.fromisoformat("2024-02-29 12:34:56.123456") and first["da"] == dt.date(1, 1, 1)
    assert first["ts6"] == dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    assert (first["ti"], first["ti1"], first["ti6"]) == ("-838:59:59", "-00:00:00.1", "838:59:58.999999")
    assert (first["e"], first["s"], first["y"]) == ("bé", "x,zß", 2155)
    assert first["bit20"] == b"\x0a\xbc\xde" and json.loads(first["j"])["aa"][-1] == 'x"\x01\n\x7fé😀/'


def test_before_and_after_images_keep_order_over_tables(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v varchar(9))")
    start = source.current_position()
    execute(
        database,
        "BEGIN", "INSERT INTO a VALUES (1, 10)", "INSERT INTO b VALUES (1, 'x')", "UPDATE a SET v = NULL",
        "DELETE FROM b",
        "COMMIT",
        "UPDATE a SET id = 7",
    )  # fmt: skip
    found = list(batches(source, start))
    shown = [(r["op"], r["before"], r["after"]) for r in changes(found)]
    assert shown == [
        ("c", None, {"id": 1, "v": 10}),
        ("c", None, {"id": 1, "v": "x"}),
        ("u", {"id": 1, "v": 10}, {"id": 1, "v": None}),
        ("d", {"id": 1, "v": "x"}, None),
        ("u", {"id": 1, "v": None}, {"id": 7, "v": None}),
    ]


def test_rolled_back_changes_are_absent(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(
        database,
        "BEGIN", "INSERT INTO a VALUES (1)", "ROLLBACK",
        "BEGIN", "INSERT INTO a VALUES (2)", "SAVEPOINT s", "INSERT INTO a VALUES (3)", "ROLLBACK TO SAVEPOINT s",
        "INSERT INTO a VALUES (4)", "COMMIT",
    )  # fmt: skip
    assert [row["after"]["id"] for row in changes(list(batches(source, start)))] == [2, 4]


def test_resuming_at_any_batch_neither_loses_nor_repeats(database: Database, source: MysqlSource) -> None:
    execute(
        database,
        "CREATE TABLE a (id int PRIMARY KEY AUTO_INCREMENT, v varchar(40))",
        "INSERT INTO a (v) VALUES ('seed')",
    )
    start = source.current_position()
    copies = ["INSERT INTO a (v) SELECT CONCAT(v, id % 7) FROM a LIMIT 25000"] * 16
    execute(
        database, "INSERT INTO a (v) VALUES ('before')", "BEGIN", *copies, "COMMIT", "UPDATE a SET v = 'u' WHERE id < 9"
    )
    target = source.current_position()
    whole = list(batches(source, start, upto=target))
    ids = [(row["op"], row["after"]["id"]) for row in changes(whole)]
    assert len(ids) > 50_000 and any(batch.partial for batch in whole)
    seen = 0
    for number, batch in enumerate(whole[:-1]):
        seen += sum(c.batch.num_rows for c in batch.changes)
        rest = batches(source, batch.position, skip=batch.partial, upto=target)
        if (
            number < len(whole) - 3
        ):  # enough to see that the next rows are right; the last resumes read all that is left
            rest = iter([next(rest)])
        again = [(row["op"], row["after"]["id"]) for row in changes(list(rest))]
        assert again and again == ids[seen : seen + len(again)]


def test_a_batch_joins_small_transactions(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(database, *(f"INSERT INTO a VALUES ({i})" for i in range(300)))
    found = list(batches(source, start))
    assert len(found) < 30 and sum(len(batch.transactions) for batch in found) == 300


def test_idle_log_moves_on_with_other_tables(database: Database, config: Any) -> None:
    execute(database, "CREATE TABLE mine (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    source = MysqlSource(config.model_copy(update={"tables": (f"{database.schema}.mine",)}))
    start = source.current_position()
    execute(database, "INSERT INTO other VALUES (1)")
    found = list(batches(source, start))
    assert changes(found) == [] and source.has_reached(found[-1].position, source.current_position())


def test_changed_shape_is_told_before_its_rows(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(
        database, "INSERT INTO a VALUES (1)", "ALTER TABLE a ADD COLUMN n int DEFAULT 5", "INSERT INTO a VALUES (2, 3)"
    )
    found = list(batches(source, start))
    shapes = [[c.name for c in s.schema.columns] for b in found for s in b.signals if isinstance(s, SchemaSeen)]
    assert shapes == [["id"], ["id", "n"]]
    assert [row["after"] for row in changes(found)] == [{"id": 1}, {"id": 2, "n": 3}]


CONSTANTS = [f"c{number}" for number in range(1, 10)]
"""The columns added below of which the statement tells what older rows hold in them."""
ALTERS: list[tuple[str, dict[str, str] | None]] = [
    ("RENAME COLUMN a TO x", {"x": "a"}),
    ("RENAME COLUMN x TO b, RENAME COLUMN b TO x", {"b": "x", "x": "b"}),
    ("CHANGE n m bigint NULL COMMENT 'it, too' FIRST, ADD COLUMN e int NULL AFTER id", {"m": "n"}),
    ("ADD f decimal(5,2) DEFAULT 1.25, RENAME COLUMN X TO `a b`", {"a b": "x"}),
    ('RENAME COLUMN "a b" TO a', {"a": "a b"}),
    ("DROP COLUMN b, ADD COLUMN b varchar(9) DEFAULT 'new'", None),
    ("RENAME COLUMN id TO k", {"k": "id"}),
    ("ADD INDEX i (a)", None),
    (
        "ADD c1 int unsigned NOT NULL, ADD c2 decimal(6,3) DEFAULT '-1.5', ADD c3 varchar(9) DEFAULT 'it''s ', "
        "ADD c4 enum('a','b') DEFAULT 'b', ADD c5 date DEFAULT '2024-02-29', ADD c6 char(4) NOT NULL, "
        "ADD c7 datetime(3) DEFAULT '2024-02-29 01:02:03', ADD c8 double DEFAULT 0.1, ADD c9 bool DEFAULT true, "
        "ADD c10 char(4) DEFAULT 'a ', ADD c11 enum('a','b') DEFAULT 'B', ADD c12 float DEFAULT 0.1, "
        "ADD c13 timestamp NOT NULL DEFAULT '2024-02-29 01:02:03', ADD c14 text, RENAME COLUMN m TO mm",
        {"mm": "m"},
    ),
    ("RENAME COLUMN a TO y /* why */", None),
]


def test_what_is_told_of_renamed_columns_is_what_the_server_made_of_a_row(
    database: Database, source: MysqlSource, tmp_path: Path
) -> None:
    execute(database, "CREATE TABLE w (id int PRIMARY KEY, a varchar(9), b varchar(9), n bigint)")
    start = source.current_position()
    witnesses = []
    execute(database, "INSERT INTO w VALUES (1, 'a', 'b', 7)")
    for number, (what, _) in enumerate(ALTERS):
        key = "id" if number < 7 else "k"
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM w WHERE {key} = 1")
            witnesses.append(dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True)))
            cursor.execute("SET sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'")
            cursor.execute(f"ALTER TABLE w {what}")
            cursor.execute("SET sql_mode = ''")
            cursor.execute(f"INSERT INTO w ({'k' if number >= 6 else 'id'}) VALUES ({number + 2})")
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM w WHERE k = 1")
        witnesses.append(dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True)))
    staging = Staging(str(tmp_path / "staging"), source="s")
    staging.publish(Manifest("s", 1, 1, 1, 0, start, 0, "", None, 0))
    head = staging.head()
    assert head is not None
    log = Sequencer(staging, source="s", epoch=1, head=head, visibility=LogOrder(), rules=Rules({}))
    for batch in batches(source, start):
        log.process(batch)
    marks = [m for m in log.seal(0).marks if m.op == "s" and m.table.endswith(".w")]
    told = {frozenset((m.renamed or {}).items()): m for m in marks}
    for (before, after), (what, renamed) in zip(itertools.pairwise(witnesses), ALTERS, strict=True):
        if renamed is not None:
            mark = told[frozenset(renamed.items())]
            assert {n: before[o] for n, o in renamed.items()} == {n: after[n] for n in renamed}, what
            assert {n: values.to_json(after[n]) for n in mark.filled or {}} == (mark.filled or {})
    assert sum(m.renamed is not None for m in marks) == sum(r is not None for _, r in ALTERS)
    assert [sorted(m.filled) for m in marks if m.filled] == [["e"], ["f"], sorted([*CONSTANTS, "c14"])]


def test_emptied_tables_are_signals(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE `a``b` (id int PRIMARY KEY)", "CREATE TABLE c (id int PRIMARY KEY)")
    start = source.current_position()
    execute(database, "TRUNCATE /* now */ TABLE `a``b`", f"TRUNCATE {database.name} . c -- all", "DROP TABLE c")
    signals = [s for b in batches(source, start) for s in b.signals]
    assert [s.table.name for s in signals if isinstance(s, Truncated)] == ["a`b", "c", "c"]


def unreadable(source: MysqlSource, start: str) -> list[Unreadable]:
    """What the log from `start` on says of tables that stop alone."""
    return [s for batch in batches(source, start) for s in batch.signals if isinstance(s, Unreadable)]


def test_a_change_in_statement_form_stops_the_log(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1)")
    start = source.current_position()
    execute(database, "SET SESSION binlog_format = 'STATEMENT'", "UPDATE a SET v = 2 WHERE id = 1")
    with pytest.raises(UnknownLogEvent, match="statement form") as raised:
        list(batches(source, start))
    assert "binlog." in raised.value.where and raised.value.fix


DOCUMENT = "INSERT INTO {} VALUES (1, JSON_OBJECT('k', 1, 'long', REPEAT('x', 1000)), 'text')"


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("binlog_row_image = 'MINIMAL'", "binlog_row_image = FULL"),
        ("binlog_row_image = 'NOBLOB'", "binlog_row_image = FULL"),
        ("binlog_row_value_options = 'PARTIAL_JSON'", "binlog_row_value_options = ''"),
    ],
)
def test_rows_that_a_session_logs_in_part_stop_their_table_alone(
    database: Database, source: MysqlSource, setting: str, fix: str
) -> None:
    if database.kind == "mariadb" and "JSON" in setting:
        return  # it has no such form
    execute(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY, j json, t text)" for name in "ab"))
    execute(database, DOCUMENT.format("a"), DOCUMENT.format("b"))
    start = source.current_position()
    changed = "UPDATE a SET j = JSON_SET(j, '$.k', id + 1)" if "JSON" in setting else "UPDATE a SET id = 3"
    execute(database, f"SET SESSION {setting}", "BEGIN", changed, "INSERT INTO b VALUES (7, NULL, '')", "COMMIT")
    execute(database, "UPDATE b SET id = 9 WHERE id = 7")
    (told,) = unreadable(source, start)
    assert told.table.name == "a" and "binlog." in told.why and fix in told.fix and not told.refused
    assert "start the capture again, which dumps the table" in told.fix
    logged = changes(list(batches(source, start)))
    assert [row["after"]["id"] for row in logged][-1:] == [9] and {len(row["after"]) for row in logged} == {3}


def test_a_label_that_is_no_text_is_told_with_its_column(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, e enum(x'ff','b') CHARACTER SET binary)")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1, 1)")
    (told,) = unreadable(source, start)
    assert "column e: a label is no text" in told.why and not told.refused


@pytest.mark.parametrize("declared", ["varchar(900) COMPRESSED", "longtext COMPRESSED", "datetime", "time(3)"])
def test_a_form_of_mariadb_that_is_not_read_is_told_with_its_column(
    database: Database, source: MysqlSource, declared: str
) -> None:
    """By the preflight, and in the log."""
    if database.kind == "mysql":
        return  # it has neither
    try:
        execute(
            database, "SET GLOBAL mysql56_temporal_format = OFF", f"CREATE TABLE a (id int PRIMARY KEY, v {declared})"
        )
    finally:
        execute(database, "SET GLOBAL mysql56_temporal_format = ON")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1, '2024-01-01 10:00:00')")
    assert f"{database.schema}.a: column v: " in check(source)
    (told,) = unreadable(source, start)
    assert "column v: type" in told.why and "is not supported" in told.why and told.refused
    assert not source.tables() and [problem.table for problem in source.list_refusals()] == [str(told.table)]


def test_zero_dates_are_errors_or_null(database: Database, config: Any) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, d date, t datetime, s timestamp NULL)")
    strict = MysqlSource(config)
    lenient = MysqlSource(config.model_copy(update={"zero_dates": "null"}))
    start = strict.current_position()
    execute(database, "INSERT INTO a VALUES (1, '2024-00-10', '0000-00-00', 0), (2, '2024-01-10', NULL, '2024-01-01')")
    (told,) = unreadable(strict, start)
    assert str(told.table) == f"{database.schema}.a" and "zero date" in told.why and "zero_dates" in told.fix
    logged = [row["after"] for row in changes(list(batches(lenient, start)))]
    reader = lenient.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    assert reader.read(schema, after=None, upto=None, limit=9).rows.to_pylist() == logged
    assert logged[0] == {"id": 1, "d": None, "t": None, "s": None} and logged[1]["d"] == dt.date(2024, 1, 10)
    reader.close()
    reader = strict.open_reader()
    with pytest.raises(ValueOutOfRange, match="column d"):
        reader.read(schema, after=None, upto=None, limit=9)
    reader.close()


def test_single_byte_text_reads_as_the_server_converts_it(database: Database, source: MysqlSource) -> None:
    """Every byte of every single-byte character set that the server has, also those that stand for nothing."""
    sets = [
        name
        for (name,) in database.query(
            "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN = 1"
        )
    ]
    names = [name for name in sets if name not in ("binary", "ascii")]
    columns = ", ".join(f"c_{name} varchar(255) CHARACTER SET {name}" for name in names)
    execute(database, f"CREATE TABLE a (id int PRIMARY KEY, {columns})")
    start = source.current_position()
    every = ", ".join(f"CONVERT(x'{bytes(range(1, 256)).hex()}' USING {name})" for name in names)
    execute(database, f"INSERT IGNORE INTO a SELECT 1, {every}")
    (logged,) = (row["after"] for row in changes(list(batches(source, start))))
    reader = source.open_reader()
    (read,) = reader.read(
        reader.schema(TableName(database.schema, "a")), after=None, upto=None, limit=9
    ).rows.to_pylist()
    reader.close()
    assert len(names) > 20 and logged == read


def test_a_set_of_more_labels_than_bits_reads_as_the_server_prints_it(database: Database, source: MysqlSource) -> None:
    """A server that is not strict takes a 65th label if one stands there twice; no value has it."""
    every = ", ".join(f"'{n}'" for n in [*range(1, 65), 1])
    execute(database, f"CREATE TABLE a (id int PRIMARY KEY, s set({every}))")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1, '64'), (2, '1'), (3, 18446744073709551615), (4, '2,63'), (5, '')")
    logged = [row["after"] for row in changes(list(batches(source, start)))]
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    assert reader.read(schema, after=None, upto=None, limit=9).rows.to_pylist() == logged
    assert [row["s"] for row in logged[:2]] == ["64", "1"]
    reader.close()


def test_purged_log_is_lost_with_a_way_on(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2)")
    last = json.loads(source.current_position())["file"]
    execute(database, f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(LogPositionLost) as raised:
        list(batches(source, start))
    assert "fresh" in str(raised.value) or "full dump" in raised.value.fix


def test_a_position_that_the_server_has_not_reached_is_lost(database: Database, source: MysqlSource) -> None:
    position = json.loads(source.current_position())
    if database.kind == "mysql":
        uuid, _, last = position["gtids"].rpartition("-")
        position["gtids"] = f"{uuid}-{int(last) + 1000}"
    else:
        domain, server, number = position["gtids"].split("-")
        position["gtids"] = f"{domain}-{server}-{int(number) + 1000}"
    with pytest.raises(LogPositionLost):
        list(batches(source, json.dumps(position)))


def test_a_second_reader_ends_the_first(database: Database, source: MysqlSource) -> None:
    start = source.current_position()
    first = source.open_log(start)
    first.read(0.2)
    second = source.open_log(start)
    second.read(0.2)
    deadline = time.monotonic() + END
    with pytest.raises(SourceUnavailable):  # noqa: PT012  # it may take a few reads
        while time.monotonic() < deadline:
            first.read(0.5)
    first.close()
    second.close()


def test_compressed_transactions_are_read(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v longtext)")
    start = source.current_position()
    setting = "binlog_transaction_compression" if database.kind == "mysql" else "log_bin_compress"
    scope = "SESSION" if database.kind == "mysql" else "GLOBAL"
    try:
        execute(
            database,
            f"SET {scope} {setting} = ON",
            "INSERT INTO a VALUES (1, REPEAT('x', 100000))",
            "UPDATE a SET id = 2",
        )
    finally:
        execute(database, f"SET {scope} {setting} = OFF")
    assert [(r["op"], r["after"]["id"], len(r["after"]["v"])) for r in changes(list(batches(source, start)))] == [
        ("c", 1, 100_000),
        ("u", 2, 100_000),
    ]


def test_wrong_password_is_refused_without_showing_it(config: Any) -> None:
    wrong = MysqlSource(type(config).model_validate({**config.model_dump(), "password": "not-the-one"}))
    with pytest.raises(SourceRefused) as raised:
        wrong.current_position()
    assert "not-the-one" not in str(raised.value)
    (problem,) = wrong.check()
    assert problem.fatal and "not-the-one" not in problem.what


def test_unreachable_server_is_transient(config: Any) -> None:
    with pytest.raises(SourceUnavailable) as raised:
        MysqlSource(config.model_copy(update={"port": 1})).current_position()
    assert raised.value.transient


def check(source: MysqlSource) -> str:
    return "\n".join(f"{p.what} | {p.fix} | {p.fatal}" for p in source.check())


def test_check_finds_nothing_on_a_good_server(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    assert check(source) == ""


def test_checks_at_the_same_time_do_not_end_each_others_look_at_the_log(
    database: Database, source: MysqlSource
) -> None:
    """As those of two containers, whose processes have the same number."""
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: check(source), range(8))) == [""] * 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "MINIMAL"),
        ("binlog_order_commits", "OFF"),
        ("binlog_row_value_options", "PARTIAL_JSON"),
    ],
)
def test_check_finds_wrong_settings(database: Database, source: MysqlSource, name: str, value: str) -> None:
    if name in ("binlog_order_commits", "binlog_row_value_options") and database.kind == "mariadb":
        assert name not in check(source)
        return
    good = database.query(f"SELECT @@GLOBAL.{name}")[0][0]
    try:
        execute(database, f"SET GLOBAL {name} = {value}")
        assert f"{name} is {value}" in check(source)
    finally:
        execute(database, f"SET GLOBAL {name} = {repr(good) if isinstance(good, str) else good}")


def test_check_finds_everything_wrong_with_tables_at_once(database: Database, config: Any) -> None:
    execute(
        database,
        "CREATE TABLE nokey (id int)",
        "CREATE TABLE loose (id int NULL, v int)",
        "CREATE TABLE old (s set('', 'a') PRIMARY KEY)",
    )
    changed = {
        "tables": (f"{database.schema}.*", f"{database.schema}.absent"),
        "keys": {f"{database.schema}.loose": ("id",)},
    }
    found = MysqlSource(config.model_copy(update=changed)).check()
    text = "\n".join(problem.what for problem in found)
    assert ".absent matches no table" in text and "old: column s: a SET with an empty label" in text
    assert "can be NULL" in text and "is not unique" in text
    assert [problem.fatal for problem in found if "nokey has no primary key" in problem.what] == [False]


def test_check_refuses_a_table_that_keeps_all_versions_of_a_row(database: Database, source: MysqlSource) -> None:
    if database.kind == "mysql":
        return  # it has no such tables
    execute(
        database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY) WITH SYSTEM VERSIONING"
    )
    (found,) = source.check()
    assert found.fatal and f"{database.schema}.b: it is system-versioned" in found.what and "DROP SYSTEM" in found.fix


@pytest.mark.parametrize("grant", ["REPLICATION SLAVE ON *.*", "CLIENT", "SELECT", "WATERMARK"])
def test_check_names_each_missing_grant(database: Database, source: MysqlSource, grant: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", "DROP TABLE dblog_watermark")
    who = f"'{database.account.user}'@'127.0.0.1'"
    watermark = f"`{database.name}`.`dblog_watermark`"
    what, says = {
        "REPLICATION SLAVE ON *.*": ("REPLICATION SLAVE ON *.*", "GRANT REPLICATION SLAVE ON *.*"),
        "CLIENT": (("REPLICATION CLIENT" if database.kind == "mysql" else "BINLOG MONITOR") + " ON *.*", " ON *.* TO"),
        "SELECT": (f"SELECT ON `{database.name}`.*", "GRANT SELECT ON"),
        "WATERMARK": (f"CREATE, INSERT, UPDATE ON {watermark}", "CREATE, SELECT, INSERT, UPDATE ON"),
    }[grant]
    execute(database, f"REVOKE {what} FROM {who}")
    assert says in check(source)


def test_json_doubles_print_as_the_server_prints_them(database: Database, source: MysqlSource) -> None:
    if database.kind == "mariadb":  # its JSON is text
        return
    values = [
        0.1,
        1.0,
        -0.0,
        1e15,
        1e16,
        123456789012345.6,
        1e-5,
        1.5e-7,
        0.000123456789012345678,
        1 / 3,
        -1 / 3,
        5e-324,
    ]
    values += [
        1.7976931348623157e308,
        2.5e-13,
        2.5e-14,
        2.5e-15,
        1e21,
        1e22,
        -1e22,
        123456.789e3,
        4.35,
        0.1 + 0.2,
        1e-14,
    ]
    values += [x * 10.0**e for x in (1.2345678901234567, -9.87654321098765) for e in range(-20, 20)]
    shown = database.query("SELECT " + ", ".join(f"JSON_EXTRACT(CAST('[{v!r}]' AS JSON), '$[0]')" for v in values))[0]
    assert [json_text.double(value) for value in values] == [str(text) for text in shown]


def test_json_values_that_only_functions_make(database: Database, source: MysqlSource) -> None:
    if database.kind == "mariadb":
        return
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, j json)")
    start = source.current_position()
    execute(
        database,
        "INSERT INTO a VALUES (1, JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('2024-02-29 01:02:03.5' AS DATETIME(6)),"
        " CAST('-12:34:56.7' AS TIME(6)), CAST(-12.340 AS DECIMAL(20,3)), CAST(x'00ff' AS BINARY), b'101',"
        " 18446744073709551615))",
        "INSERT INTO a SELECT 2, JSON_OBJECT('k', REPEAT('é', 70000), 'l', JSON_ARRAY(1, 2), 'm', 70000, 'n', -70000)",
        "INSERT INTO a VALUES (3, CAST('null' AS JSON)), (4, NULL), (5, CAST('{\"\": {\"a\": [[], {}]}}' AS JSON))",
    )
    logged = {row["after"]["id"]: row["after"]["j"] for row in changes(list(batches(source, start)))}
    assert logged == dict(database.query("SELECT id, CAST(j AS CHAR) FROM a"))


def test_problems_are_records(config: Any) -> None:
    assert all(isinstance(problem, Problem) for problem in MysqlSource(config.model_copy(update={"port": 1})).check())


def test_file_positions_work_without_gtids(database: Database, source: MysqlSource, config: Any) -> None:
    if database.kind == "mariadb":  # it always has GTIDs
        return
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    position = json.loads(source.current_position())
    position.update(gtids=None, server=database.query("SELECT @@server_uuid")[0][0])
    execute(database, "INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2)")
    found = list(batches(source, json.dumps(position)))
    assert [row["after"]["id"] for row in changes(found)] == [1, 2]
    position["server"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(LogPositionLost):
        source.open_log(json.dumps(position))

    assert abs(found[0].transactions[0].commit_time / 1e6 - time.time()) < 600
    execute(database, "INSERT INTO a VALUES (3)")
    assert [row["after"]["id"] for row in changes(list(batches(source, found[-1].position)))] == [3]


def test_a_missing_database_is_refused_with_a_fix(config: Any) -> None:
    with pytest.raises(SourceRefused) as raised:
        MysqlSource(config.model_copy(update={"database": "no_such_schema"})).current_position()
    assert raised.value.fix


def test_positions_behind_an_event_larger_than_a_packet_may_be_compare(database: Database, source: MysqlSource) -> None:
    """The server itself cannot tell the GTIDs of a place there: MariaDB's BINLOG_GTID_POS answers nothing."""
    size = (16 << 20) + 1
    allowed = database.query("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    database.execute("SET GLOBAL max_allowed_packet = 67108864", "FLUSH BINARY LOGS")
    try:
        execute(database, "CREATE TABLE a (id int PRIMARY KEY, v longtext)")
        execute(database, f"INSERT INTO a VALUES (1, REPEAT('x', {size}))")
        database.execute("SET GLOBAL max_allowed_packet = 16777216")
        before = source.current_position()
        execute(database, "INSERT INTO a VALUES (2, 'y')")
        after = source.current_position()
        assert source.has_reached(after, before) and not source.has_reached(before, after)
    finally:
        # A file of its own: MariaDB refuses to begin by GTID behind such an event.
        database.execute(f"SET GLOBAL max_allowed_packet = {allowed}", "FLUSH BINARY LOGS")
