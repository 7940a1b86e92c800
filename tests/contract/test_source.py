"""The Source protocol: one suite of guarantees for every kind of database."""

from __future__ import annotations

import datetime as dt
import decimal
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dblog_core.interfaces import ChunkReader, Source
from dblog_core.model.events import LogBatch, SchemaSeen, Truncated, WatermarkSeen
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import Key, keys_of
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS

END = PATIENCE_SECONDS
"""Seconds within which the log must have delivered what a test waits for."""


def run(database: Database, *statements: str) -> None:
    """All statements in one session, so that BEGIN … COMMIT is one transaction."""
    # Not `with connection`: psycopg2 would make one transaction of all statements.
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def create(database: Database, source: Source, name: str, columns: str, *, values: str = "") -> str:
    """A table with its rows; returns the position after both. Before images are whole on every kind."""
    run(database, f"CREATE TABLE {name} ({columns})")
    if database.kind == "postgres":
        run(database, f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        source.prepare()
    if values:
        run(database, f"INSERT INTO {name} VALUES {values}")
    return source.start_position() if database.kind != "postgres" else source.current_position()


def log(source: Source, position: str, *, skip: int = 0, upto: str | None = None) -> Iterator[LogBatch]:
    """Batches from `position` to `upto` (default: the present end)."""
    target = upto or source.current_position()
    stream = source.open_log(position, skip=skip)
    deadline = time.monotonic() + END
    try:
        while time.monotonic() < deadline:
            batch = stream.read(0.5)
            if batch is None:
                continue
            yield batch
            if not batch.partial and source.has_reached(batch.position, target):
                return
    finally:
        stream.close()
    raise AssertionError("the log did not reach its end in time")


def rows(batches: list[LogBatch]) -> list[dict[str, Any]]:
    """All row changes in log order over all tables, with the table's name."""
    ordered = []
    for batch in batches:
        named = [{**row, "table": c.schema.table.name} for c in batch.changes for row in c.batch.to_pylist()]
        ordered += sorted(named, key=lambda row: row["sequence"])
    return ordered


def shape(database: Database, reader: ChunkReader, name: str) -> TableSchema:
    return reader.schema(TableName(database.schema, name))


def test_positions_grow_and_compare(database: Database, source: Source) -> None:
    before = create(database, source, "a", "id int PRIMARY KEY")
    run(database, "INSERT INTO a VALUES (1)")
    after = source.current_position()
    assert source.has_reached(after, before) and source.has_reached(before, before)
    assert not source.has_reached(before, after)
    assert source.show(after)


def test_changes_come_in_commit_order_with_images(database: Database, source: Source) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY, v varchar(9)")
    create(database, source, "b", "id int PRIMARY KEY, v varchar(9)")
    run(
        database,
        "BEGIN",
        "INSERT INTO a VALUES (1, 'x')",
        "INSERT INTO b VALUES (1, NULL)",
        "UPDATE a SET v = 'y'",
        "COMMIT",
    )
    run(database, "BEGIN", "INSERT INTO a VALUES (5, 'gone')", "ROLLBACK", "DELETE FROM b")
    log_batches = list(log(source, start))
    assert [(r["table"], r["op"], r["before"], r["after"]) for r in rows(log_batches)] == [
        ("a", "c", None, {"id": 1, "v": "x"}),
        ("b", "c", None, {"id": 1, "v": None}),
        ("a", "u", {"id": 1, "v": "x"}, {"id": 1, "v": "y"}),
        ("b", "d", {"id": 1, "v": None}, None),
    ]


def test_transactions_name_themselves_place_and_time(database: Database, source: Source) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY")
    began = time.time()
    run(database, "INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)")
    log_batches = list(log(source, start))
    seen = [batch.transactions[row["transaction"]] for batch in log_batches for row in rows([batch])]
    assert len({t.id for t in seen}) == 2 and all(t.position for t in seen)
    # MariaDB logs whole seconds; the servers share our clock.
    assert all(began - 2 <= t.commit_time / 1e6 <= time.time() + 2 for t in seen)


def test_sequences_grow_over_rows_and_signals(database: Database, source: Source) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY")
    run(database, *(f"INSERT INTO a VALUES ({i})" for i in range(20)))
    for batch in log(source, start):
        numbers = [row["sequence"] for row in rows([batch])] + [signal.sequence for signal in batch.signals]
        assert len(numbers) == len(set(numbers))


def test_a_change_of_key_is_one_update(database: Database, source: Source) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY, v int", values="(1, 1)")
    run(database, "UPDATE a SET id = 9")
    (row,) = rows(list(log(source, start)))
    assert (row["op"], row["before"]["id"], row["after"]["id"]) == ("u", 1, 9)


def test_shape_is_told_before_the_first_row(database: Database, source: Source, reader: ChunkReader) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY, v varchar(9)")
    run(database, "INSERT INTO a VALUES (1, 'x')")
    log_batches = list(log(source, start))
    (seen,) = [signal for batch in log_batches for signal in batch.signals if isinstance(signal, SchemaSeen)]
    assert seen.sequence < rows(log_batches)[0]["sequence"]
    assert seen.schema.fingerprint == shape(database, reader, "a").fingerprint
    assert [t.fingerprint for t in source.tables() if t.table.name == "a"] == [seen.schema.fingerprint]


def test_watermarks_are_signals_and_never_rows(database: Database, source: Source) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY")
    writer = source.open_watermarks("w1")
    other = source.open_watermarks("w2")
    for payload in ("one", "zweï"):
        writer.write(payload)
        other.write(payload + "'")
    writer.close()
    other.close()
    log_batches = list(log(source, start))
    seen = [signal.payload for batch in log_batches for signal in batch.signals if isinstance(signal, WatermarkSeen)]
    assert seen == ["one", "one'", "zweï", "zweï'"] and rows(log_batches) == []
    assert [t.table.name for t in source.tables()] == ["a"]


def test_truncate_is_a_signal_in_its_place(database: Database, source: Source) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY", values="(1)")
    run(database, "INSERT INTO a VALUES (2)", "TRUNCATE TABLE a", "INSERT INTO a VALUES (3)")
    log_batches = list(log(source, start))
    places = [(n, row["sequence"]) for n, batch in enumerate(log_batches) for row in rows([batch])]
    (cut,) = [(n, s.sequence) for n, batch in enumerate(log_batches) for s in batch.signals if isinstance(s, Truncated)]
    assert places[0] < cut < places[1]


def numbers_of(database: Database, count: int) -> str:
    """A SELECT of the numbers from 1 to `count`."""
    if database.kind == "postgres":
        return f"SELECT n FROM generate_series(1, {count}) AS g(n)"
    digits = " UNION ALL ".join(f"SELECT {i} AS n" for i in range(10))
    places = [f"(SELECT n * {10**i} AS n FROM ({digits}) d{i}) p{i}" for i in range(len(str(count)))]
    total = " + ".join(f"p{i}.n" for i in range(len(places)))
    return f"SELECT {total} + 1 AS n FROM {' CROSS JOIN '.join(places)} WHERE {total} < {count}"


def test_a_large_transaction_comes_in_parts_that_can_be_resumed(database: Database, source: Source) -> None:
    start = create(database, source, "a", "id int PRIMARY KEY, v varchar(200)")
    text = "CONCAT('row ', n)" if database.kind != "postgres" else "'row ' || n"
    numbers = numbers_of(database, 90_000)
    run(
        database,
        "BEGIN",
        f"INSERT INTO a SELECT n, {text} FROM ({numbers}) s",
        "COMMIT",
        "INSERT INTO a VALUES (0, 'last')",
    )
    target = source.current_position()
    whole = list(log(source, start, upto=target))
    assert (
        any(batch.partial for batch in whole) and max(sum(c.batch.num_rows for c in b.changes) for b in whole) < 90_000
    )
    ids = [row["after"]["id"] for row in rows(whole)]
    assert sorted(ids) == list(range(90_001)) and ids[-1] == 0
    part = next(batch for batch in whole if batch.partial)
    seen = sum(sum(c.batch.num_rows for c in b.changes) for b in whole[: whole.index(part) + 1])
    assert [
        row["after"]["id"] for row in rows(list(log(source, part.position, skip=part.partial, upto=target)))
    ] == ids[seen:]


def walk(reader: ChunkReader, schema: TableSchema, *, limit: int, upto: Key | None = None) -> list[Key]:
    """All keys, chunk by chunk."""
    keys: list[Key] = []
    while True:
        chunk = reader.read(schema, after=keys[-1] if keys else None, upto=upto, limit=limit)
        read_rows = keys_of(chunk.rows, schema)
        assert len(read_rows) <= limit and chunk.rows.schema.names == [c.name for c in schema.columns]
        if not read_rows:
            return keys
        keys += read_rows


BINARY = {"postgres": ("bytea", "'\\x{}'"), "mysql": ("varbinary(16)", "x'{}'"), "mariadb": ("varbinary(16)", "x'{}'")}


@pytest.mark.in_turn("limit")
@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("case", ["integer", "text", "composite", "binary", "decimal", "time"])
def test_chunks_cover_each_row_once(
    database: Database, source: Source, reader: ChunkReader, case: str, limit: int
) -> None:
    kind, literal = BINARY[database.kind]
    moment = "datetime(6)" if database.kind != "postgres" else "timestamp"
    columns, values = {
        "integer": ("id bigint PRIMARY KEY", [f"({i})" for i in (-(2**63), -1, 0, 1, 2, 2**63 - 1)]),
        # The default collations of the MySQL kinds ignore case: the order is the database's, not that of the bytes.
        "text": (
            "id varchar(20) PRIMARY KEY",
            [f"('{t}')" for t in ("", "B", "a", "ä c", "C d", "''; --", "100%%", "Zz", "日本")],
        ),
        "composite": (
            "a int, b varchar(9), c int, PRIMARY KEY (a, c, b)",
            [f"({a}, '{b}', {c})" for a in (1, 2) for b in ("x", "Y") for c in (-1, 0, 7)],
        ),
        "binary": (
            f"id {kind} PRIMARY KEY",
            [f"({literal.format(h)})" for h in ("00", "0000", "01ff", "ff", "27", "5c27", "")],
        ),
        "decimal": (
            "id decimal(30,10) PRIMARY KEY",
            [f"({d})" for d in ("-1.5", "0", "12345678901234567890.0123456789", "1e-10")],
        ),
        "time": (
            f"id {moment} PRIMARY KEY",
            ["('2024-01-01 00:00:00')", "('2024-01-01 00:00:00.000001')", "('1999-12-31 23:59:59.5')"],
        ),
    }[case]
    create(database, source, "a", columns)
    for value in values:
        run(database, f"INSERT INTO a VALUES {value.replace('%%', '%')}")
    schema = shape(database, reader, "a")
    every = walk(reader, schema, limit=limit)
    assert len(every) == len(set(every)) == len(values)
    assert reader.last_key(schema) == every[-1]
    half = every[len(every) // 2]
    assert walk(reader, schema, limit=limit, upto=half) == every[: len(every) // 2 + 1]
    assert sorted(map(repr, keys_of(reader.read_keys(schema, every[::2]).rows, schema))) == sorted(
        map(repr, every[::2])
    )


def test_an_empty_table_has_no_key_and_no_rows(database: Database, source: Source, reader: ChunkReader) -> None:
    create(database, source, "a", "id int PRIMARY KEY, v varchar(9)")
    schema = shape(database, reader, "a")
    assert reader.last_key(schema) is None and reader.read(schema, after=None, upto=None, limit=5).rows.num_rows == 0
    assert reader.read_keys(schema, [(1,)]).rows.num_rows == 0


def test_each_chunk_is_a_new_read(database: Database, source: Source, reader: ChunkReader) -> None:
    create(database, source, "a", "id int PRIMARY KEY", values="(1)")
    schema = shape(database, reader, "a")
    assert reader.read(schema, after=None, upto=None, limit=5).rows.num_rows == 1
    run(database, "INSERT INTO a VALUES (2)")
    assert reader.read(schema, after=None, upto=None, limit=5).rows.num_rows == 2


def test_names_are_quoted(database: Database, source: Source, reader: ChunkReader) -> None:
    quote = '"' if database.kind == "postgres" else "`"
    table = f"{quote}or'der %s; --{quote}"
    column = f"{quote}se lect%{quote}"
    start = create(database, source, table, f"{column} int PRIMARY KEY")
    run(database, f"INSERT INTO {table} VALUES (1)")
    schema = reader.schema(TableName(database.schema, "or'der %s; --"))
    assert reader.read(schema, after=(0,), upto=(1,), limit=5).rows.to_pylist() == [{"se lect%": 1}]
    assert [row["after"] for row in rows(list(log(source, start)))] == [{"se lect%": 1}]


def test_log_and_chunk_have_the_same_values(database: Database, source: Source, reader: ChunkReader) -> None:
    kind, literal = BINARY[database.kind]
    real, moment = ("real", "timestamp") if database.kind == "postgres" else ("float", "datetime(6)")
    columns = f"id int PRIMARY KEY, d decimal(20,5), t varchar(50), b {kind}, f {real}"
    columns += f", g double precision, da date, m {moment}"
    start = create(database, source, "a", columns)
    run(
        database,
        f"INSERT INTO a VALUES (1, -12345.67890, 'é日😀', {literal.format('00ff')}, 1.1, 0.1, '2024-02-29',"
        " '2024-02-29 01:02:03.000004')",
        "INSERT INTO a (id) VALUES (2)",
    )
    log_batches = list(log(source, start))
    schema = shape(database, reader, "a")
    read = reader.read(schema, after=None, upto=None, limit=5).rows.to_pylist()
    assert [row["after"] for row in rows(log_batches)] == read
    assert read[0]["d"] == decimal.Decimal("-12345.67890") and read[0]["m"] == dt.datetime.fromisoformat(
        "2024-02-29 01:02:03.000004"
    )
    assert {c.schema.fingerprint for batch in log_batches for c in batch.changes} == {schema.fingerprint}


def test_a_good_source_has_no_problem(database: Database, source: Source) -> None:
    create(database, source, "a", "id int PRIMARY KEY")
    assert [problem for problem in source.check() if problem.fatal] == []
