"""The PostgreSQL source on a real server, with both plugins: the guarantees of Source, and PostgreSQL's own traps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.config.source import SourceConfig
from dblog_core.errors import (
    LogPositionLost,
    RequestError,
    SourceRefused,
    SourceUnavailable,
    ValueOutOfRange,
)
from dblog_core.interfaces import Problem
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model.events import LogBatch, SchemaSeen, Truncated, Unreadable, WatermarkSeen
from dblog_core.model.schema import TableName
from dblog_core.rows.column_rules import Rules
from dblog_core.sources.postgres.source import PostgresSource
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.reader import lines as log_lines
from tests.fix_servers import Database
from tests.waiting import wait_until

ALL_TYPES = {
    "id": ("bigint PRIMARY KEY", ["1", "2", "3"]),
    "b": ("boolean", ["true", "false", "NULL"]),
    "i2": ("smallint", ["-32768", "32767", "NULL"]),
    "i4": ("integer", ["-2147483648", "2147483647", "NULL"]),
    "i8": ("bigint", ["-9223372036854775808", "9223372036854775807", "NULL"]),
    "f4": ("real", ["1e-45", "3.4028235e38", "NULL"]),
    "f8": ("double precision", ["5e-324", "1.7976931348623157e308", "NULL"]),
    "n": ("numeric(12,2)", ["-9999999999.99", "0.01", "NULL"]),
    "n38": ("numeric(38,10)", ["9999999999999999999999999999.9999999999", "-0.0000000001", "NULL"]),
    "wide": ("numeric(60,5)", ["1234567890123456789012345678901234567890123456789012345.12345", "0", "NULL"]),
    "free": ("numeric", ["1e-30", "123456789012345678901234567890.000100", "NULL"]),
    "v": ("varchar(10)", ["''", "'a\"b\\\n,é'", "NULL"]),
    "c": ("char(5)", ["'x'", "''", "NULL"]),
    "t": ("text", ["'NULL'", "E'tab\\there \\r\\n line'", "NULL"]),
    "bin": ("bytea", [r"'\x'", r"'\x0001ff5c78'", "NULL"]),
    "d": ("date", ["'0001-01-01'", "'9999-12-31'", "NULL"]),
    "ts": ("timestamp", ["'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'", "NULL"]),
    "ts3": ("timestamp(3)", ["'2024-02-29 12:00:00.123'", "'1969-12-31 23:59:59.5'", "NULL"]),
    "tz": ("timestamptz", ["'2024-01-01 12:00:00.5+05:30'", "'0001-01-02 00:00:00Z'", "NULL"]),
    "tm": ("time", ["'24:00:00'", "'00:00:00.000001'", "NULL"]),
    "tmz": ("timetz", ["'12:00:00+02'", "'00:00:00-15:59'", "NULL"]),
    "iv": ("interval", ["'1 year -2 days 03:04:05.6'", "'0'", "NULL"]),
    "ia": ("integer[]", ["'{1,NULL,3}'", "'{{1,2},{3,4}}'", "NULL"]),
    "ta": ("text[]", ["ARRAY['a,b','\"']", "'{}'", "NULL"]),
    "mood": ("mood", ["'fine'", "'so, so'", "NULL"]),
    "small": ("small_number", ["7", "1", "NULL"]),
    "nested": ("nested_price", ["1.50", "2", "NULL"]),
    "pair": ("pair", ["ROW(1,'x y')", "ROW(NULL,'')", "NULL"]),
    "bits": ("bit(3)", ["'101'", "'000'", "NULL"]),
    "vbits": ("varbit", ["'1'", "''", "NULL"]),
    "js": ("json", ['\'{"a" : 1.10, "value":12}\'', "'null'", "NULL"]),
    "jb": ("jsonb", ['\'{"b":1.10,"a":["\\u00e9"]}\'', "'5'", "NULL"]),
    "u": ("uuid", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'00000000-0000-0000-0000-000000000000'", "NULL"]),
    "money": ("money", ["12.34", "-5", "NULL"]),
    "rng": ("int4range", ["'[1,5]'", "'empty'", "NULL"]),
    "ip": ("inet", ["'10.0.0.1'", "'::1/64'", "NULL"]),
    "mac": ("macaddr", ["'08:00:2b:01:02:03'", "'00:00:00:00:00:00'", "NULL"]),
    "x": ("xml", ["'<a b=\"1\"/>'", "'x'", "NULL"]),
    "reg": ("regclass", ["'types'", "'pg_class'", "NULL"]),
    "o": ("oid", ["4294967295", "0", "NULL"]),
    "ch": ('"char"', ["'x'", "''", "NULL"]),
    "p": ("point", ["'(1.5,-2)'", "'(0,0)'", "NULL"]),
}


@pytest.fixture(params=["pgoutput", "wal2json"])
def plugin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lab(postgres: PostgresServer, new_database: Callable[..., Database]) -> Database:
    return new_database(postgres)


@pytest.fixture
def configure(lab: Database, tmp_path: Path) -> Callable[..., SourceConfig]:
    return lambda **options: lab.config(tmp_path, source={**lab.config(tmp_path).source.model_dump(), **options}).source


@pytest.fixture
def source(configure: Callable[..., SourceConfig], plugin: str) -> PostgresSource:
    return PostgresSource(configure(plugin=plugin))


@pytest.fixture
def exact(configure: Callable[..., SourceConfig]) -> PostgresSource:
    """With pgoutput, for what does not depend on the plugin."""
    return PostgresSource(configure())


@pytest.fixture
def logged(lab: Database) -> Iterator[Callable[..., list[LogBatch]]]:
    """Reads all that is committed by now, from a position on."""
    opened = []

    def read(source: PostgresSource, position: str, *, skip: int = 0, acknowledge: bool = False) -> list[LogBatch]:
        target = source.current_position()
        log = source.open_log(position, skip=skip)
        opened.append(log)
        batches = read_to(source, log, target)
        if acknowledge:
            log.acknowledge(batches[-1].position)
        log.close()
        return batches

    yield read
    for log in opened:
        log.close()


def read_to(source: PostgresSource, log: Any, target: str) -> list[LogBatch]:
    batches: list[LogBatch] = []
    deadline = time.monotonic() + 60
    while not (batches and source.has_reached(batches[-1].position, target) and not batches[-1].partial):
        assert time.monotonic() < deadline, "the log did not come to its end"
        batch = log.read(0.5)
        if batch is not None:
            batches.append(batch)
    return batches


def lines(batches: list[LogBatch]) -> list[dict[str, Any]]:
    """Rows and truncations in log order."""
    found = []
    for number, batch in enumerate(batches):
        for changes in batch.changes:
            for row in changes.batch.to_pylist():
                transaction = batch.transactions[row["transaction"]]
                found.append(
                    {
                        **row,
                        "place": (number, row["sequence"]),
                        "table": str(changes.schema.table),
                        "xid": transaction.xid,
                    }
                )
        found += [
            {"op": "t", "place": (number, signal.sequence), "table": str(signal.table)}
            for signal in batch.signals
            if isinstance(signal, Truncated)
        ]
    return sorted(found, key=lambda line: line["place"])


def begin(source: PostgresSource) -> str:
    source.prepare()
    return source.start_position()


def make_types(lab: Database) -> None:
    lab.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'so, so')",
        "CREATE DOMAIN small_number AS integer CHECK (value > 0)",
        "CREATE DOMAIN price AS numeric(10,2)",
        "CREATE DOMAIN nested_price AS price",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE types (" + ", ".join(f'"{name}" {kind}' for name, (kind, _) in ALL_TYPES.items()) + ")",
    )


def test_every_type_has_one_value_in_log_and_chunk(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    make_types(lab)
    position = begin(source)
    for number in range(3):
        lab.execute(f"INSERT INTO types VALUES ({', '.join(values[number] for _, values in ALL_TYPES.values())})")
    batches = logged(source, position)
    reader = source.open_reader()
    schema = reader.schema(TableName("public", "types"))
    chunk = reader.read(schema, after=None, upto=None, limit=10)
    reader.close()
    (seen,) = [s.schema for batch in batches for s in batch.signals if isinstance(s, SchemaSeen)]
    assert seen.fingerprint == schema.fingerprint == source.tables()[0].fingerprint
    assert [line["after"] for line in lines(batches)] == chunk.rows.to_pylist()
    assert not {"f4", "n38", "bin", "tz", "nested"} & {c.name for c in schema.columns if str(c.type) == "string"}


def test_not_a_number_and_infinities_are_kept(
    lab: Database, exact: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE odd (id int PRIMARY KEY, f real, g double precision, n numeric)")
    position = begin(exact)
    lab.execute("INSERT INTO odd VALUES (1, 'NaN', '-Infinity', 'NaN'), (2, 'Infinity', 'NaN', '-Infinity')")
    (_, first), (_, second) = [(str(line["after"]["f"]), line["after"]) for line in lines(logged(exact, position))]
    assert (str(first["f"]), first["g"], first["n"]) == ("nan", float("-inf"), "NaN")
    assert (second["f"], str(second["g"]), second["n"]) == (float("inf"), "nan", "-Infinity")
    chunk = exact.open_reader().read(exact.tables()[0], after=None, upto=None, limit=5)
    assert [str(row) for row in chunk.rows.to_pylist()] == [str(first), str(second)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("n numeric(5,2)", "'NaN'"),
        ("d date", "'infinity'"),
        ("t timestamp", "'-infinity'"),
        ("t timestamptz", "'0044-03-15 BC'"),
        ("t timestamp", "'10000-01-01'"),
    ],
)
def test_a_value_without_an_exact_form_is_refused_by_name(
    lab: Database, exact: PostgresSource, logged: Callable[..., list[LogBatch]], column: str, value: str
) -> None:
    lab.execute(f"CREATE TABLE odd (id int PRIMARY KEY, {column})")
    position = begin(exact)
    lab.execute(f"INSERT INTO odd VALUES (1, {value})")
    name = f"public.odd.{column.split()[0]}"
    (told,) = [s for batch in logged(exact, position) for s in batch.signals if isinstance(s, Unreadable)]
    assert told.why.startswith(f"{name} at LSN") and "staged_as" in told.fix
    with pytest.raises(ValueOutOfRange, match=name):
        exact.open_reader().read(exact.tables()[0], after=None, upto=None, limit=5)


def test_wal2json_passes_over_a_null_that_cannot_be_one_and_its_table(
    lab: Database, configure: Callable[..., SourceConfig], logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE odd (id int PRIMARY KEY, f real NOT NULL)")
    source = PostgresSource(configure(plugin="wal2json"))
    position = begin(source)
    lab.execute("INSERT INTO odd VALUES (1, 1.5), (2, 'NaN'), (3, 2)")
    batches = logged(source, position)
    (told,) = [s for batch in batches for s in batch.signals if isinstance(s, Unreadable)]
    assert "NaN" in told.why and "LSN" in told.why and "pgoutput" in told.fix
    rows = [row for batch in batches for changes in batch.changes for row in changes.batch.to_pylist()]
    assert [row["after"]["id"] for row in rows] == [1]


def test_changes_come_in_commit_order_with_what_the_log_knows_of_them(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute(
        "CREATE TABLE t (a int, b text, v text, big text, PRIMARY KEY (b, a))",
        "CREATE TABLE whole (id int PRIMARY KEY, v text, big text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE whole ALTER big SET STORAGE EXTERNAL",
    )
    big = "x" * 5000
    position = begin(source)
    first = lab.connect()
    second = lab.connect()
    first.autocommit = second.autocommit = False
    with first.cursor() as one, second.cursor() as two:
        one.execute("INSERT INTO t VALUES (1, 'k', 'first', %s)", (big,))
        two.execute("INSERT INTO whole VALUES (1, 'v', %s)", (big,))
        second.commit()
        one.execute("SAVEPOINT s")
        one.execute("INSERT INTO t VALUES (9, 'gone', NULL, NULL)")
        one.execute("ROLLBACK TO s")
        first.commit()
        one.execute("UPDATE t SET v = 'lost'")
        first.rollback()
        one.execute("UPDATE t SET v = 'second'")
        one.execute("UPDATE t SET a = 2")
        two.execute("UPDATE whole SET v = 'w'")
        second.commit()
        one.execute("DELETE FROM t")
        first.commit()
        two.execute("DELETE FROM whole")
        second.commit()
        one.execute("TRUNCATE t, whole")
        first.commit()
    first.close()
    second.close()
    found = lines(logged(source, position))
    shown = [
        (f["op"], f["table"], f.get("before"), f.get("after"), f.get("unchanged"), f.get("key_only")) for f in found
    ]
    key = {"v": None, "big": None}
    kept = {"a": 1, "b": "k", "v": "second", "big": None}
    assert shown[:-2] == [
        ("c", "public.whole", None, {"id": 1, "v": "v", "big": big}, None, False),
        ("c", "public.t", None, {"a": 1, "b": "k", "v": "first", "big": big}, None, False),
        ("u", "public.whole", {"id": 1, "v": "v", "big": big}, {"id": 1, "v": "w", "big": big}, None, False),
        ("u", "public.t", None, kept, ["big"], False),
        ("u", "public.t", {"a": 1, "b": "k", **key}, {**kept, "a": 2}, ["big"], True),
        ("d", "public.t", {"a": 2, "b": "k", **key}, None, None, True),
        ("d", "public.whole", {"id": 1, "v": "w", "big": big}, None, None, False),
    ]
    assert sorted(line[:2] for line in shown[-2:]) == [("t", "public.t"), ("t", "public.whole")]


def test_the_key_is_in_key_order_and_transactions_are_described(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (a int, b text, PRIMARY KEY (b, a))")
    position = begin(source)
    lab.execute("INSERT INTO t VALUES (1, 'x')")
    ((xid, commit_time),) = lab.query("SELECT xmin::text::bigint, extract(epoch FROM now()) * 1000000 FROM t")
    batches = logged(source, position)
    (transaction,) = [t for batch in batches for t in batch.transactions]
    assert (transaction.id, transaction.xid) == (str(xid), xid)
    assert abs(transaction.commit_time - float(commit_time)) < 60_000_000
    assert source.has_reached(transaction.position, position) and source.has_reached(
        batches[-1].position, transaction.position
    )
    assert source.tables()[0].key == ("b", "a")


def test_a_large_toasted_key_is_never_lost(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (k text PRIMARY KEY, v int)", "ALTER TABLE t ALTER k SET STORAGE EXTERNAL")
    position = begin(source)
    lab.execute("INSERT INTO t VALUES (repeat('k', 2500), 1)", "UPDATE t SET v = 2", "DELETE FROM t")
    created, updated, deleted = lines(logged(source, position))
    assert updated["after"] == {"k": "k" * 2500, "v": 2} and updated["unchanged"] is None
    assert deleted["before"]["k"] == created["after"]["k"] == "k" * 2500


def test_a_transaction_of_many_rows_resumes_inside_at_every_batch(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE other (id int PRIMARY KEY)")
    position = begin(source)
    connection = lab.connect()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO other VALUES (1)")
        cursor.execute(
            "BEGIN; TRUNCATE other; INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 50000) i; "
            "TRUNCATE other; COMMIT"
        )
        cursor.execute("INSERT INTO other VALUES (2)")
    connection.close()
    batches = logged(source, position)
    everything = [(line["op"], line["table"], line.get("after")) for line in lines(batches)]
    assert len(everything) == 50_004 and len({str(line[2]) for line in everything if line[1] == "public.t"}) == 50_000
    assert all(sum(c.batch.num_rows for c in batch.changes) <= 10_000 for batch in batches)
    inside = [number for number, batch in enumerate(batches) if batch.partial]
    assert len(inside) >= 4
    for number in inside[:: max(1, len(inside) // 4)]:
        before = lines(batches[: number + 1])
        after = lines(logged(source, batches[number].position, skip=batches[number].partial))
        assert [(line["op"], line["table"], line.get("after")) for line in before + after] == everything


def test_watermarks_are_signals_in_their_place(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(source)
    writer = source.open_watermarks("worker 'one'")
    payload = '{"x": "' + "é\\u0000'" * 2000 + '"}'
    writer.write("first")
    lab.execute("INSERT INTO t VALUES (1)")
    writer.write(payload)
    writer.write(payload)
    writer.close()
    batches = logged(source, position)
    assert [s.payload for batch in batches for s in batch.signals if isinstance(s, WatermarkSeen)][:2] == [
        "first",
        payload,
    ]
    assert [line["table"] for line in lines(batches)] == ["public.t"]
    assert not any(batch.partial for batch in batches)


def test_an_idle_source_moves_its_slot_and_nothing_is_confirmed_by_itself(
    lab: Database, source: PostgresSource
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(source)
    log = source.open_log(position)
    confirmed = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = '{lab.name}'"
    for number in range(3):
        lab.execute("CHECKPOINT", f"CREATE SCHEMA s{number}", f"CREATE TABLE s{number}.elsewhere AS SELECT 1 AS a")
        batches = read_to(source, log, source.current_position())
        assert lab.query(confirmed) == [(source.show(position),)]
    log.acknowledge(batches[-1].position)
    deadline = time.monotonic() + 10
    while lab.query(confirmed) != [(source.show(batches[-1].position),)]:
        assert time.monotonic() < deadline, "the slot did not move"
        log.read(0.05)
    log.close()


def test_a_lost_or_foreign_slot_says_what_is_lost(
    lab: Database, exact: PostgresSource, configure: Callable[..., SourceConfig], logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(exact)
    lab.execute("INSERT INTO t VALUES (1)")
    batches = logged(exact, position, acknowledge=True)
    deadline = time.monotonic() + 10
    while exact.start_position() != batches[-1].position:
        assert time.monotonic() < deadline, "the slot did not move"
    with pytest.raises(LogPositionLost, match="confirmed up to"):
        exact.open_log(position)
    with pytest.raises(LogPositionLost, match="of plugin pgoutput"):
        PostgresSource(configure(plugin="wal2json")).open_log(batches[-1].position)
    with pytest.raises(LogPositionLost, match="ends at"):
        exact.open_log("FFFF/0")
    lab.execute(f"SELECT pg_drop_replication_slot('dblog_{lab.name}')")
    with pytest.raises(LogPositionLost, match="does not exist") as caught:
        exact.open_log(batches[-1].position)
    assert "capture --fresh-start" in caught.value.fix


def test_a_slot_in_use_is_a_passing_trouble(lab: Database, source: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(source)
    log = source.open_log(position)
    with pytest.raises(SourceUnavailable, match=r"process \d+"):
        source.open_log(position)
    log.close()


def test_a_schema_change_is_seen_before_its_first_row(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    position = begin(source)
    lab.execute("INSERT INTO t VALUES (1, 1)", "ANALYZE t")
    first = logged(source, position)
    lab.execute(
        "INSERT INTO t VALUES (2, 2)",
        "ALTER TABLE t ADD w text DEFAULT 'd', ALTER v TYPE bigint",
        "INSERT INTO t VALUES (3, 3)",
        "UPDATE t SET w = NULL WHERE id = 1",
    )
    batches = [*first, *logged(source, first[-1].position)]
    signals = [
        (n, s.sequence, [str(c.type) for c in s.schema.columns])
        for n, b in enumerate(batches)
        for s in b.signals
        if isinstance(s, SchemaSeen)
    ]
    shapes = [shape for _, _, shape in signals]
    assert shapes[0] == ["int32", "int32"] and shapes[-1] == ["int32", "int64", "string"]
    assert [line["after"] for line in lines(batches)] == [
        {"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 3, "v": 3, "w": "d"}, {"id": 1, "v": 1, "w": None},
    ]  # fmt: skip


ALTERS: list[tuple[tuple[str, ...], dict[str, str] | None]] = [
    (("RENAME a TO x",), {"x": "a"}),
    (("RENAME x TO t", "RENAME b TO x", "RENAME t TO b"), {"b": "x", "x": "b"}),
    (("RENAME id TO k", "ADD e int", "ADD f int DEFAULT 5", "ADD g int", "ALTER g SET DEFAULT 6"), {"k": "id"}),
    (("ALTER n TYPE bigint USING -n", "RENAME b TO c"), None),
    (("RENAME c TO b",), {"b": "c"}),
    (("ADD made int GENERATED ALWAYS AS (1) STORED", "RENAME x TO y"), None),
    (("ALTER made DROP EXPRESSION", "RENAME y TO z"), None),
    (("DROP e", "ADD e int DEFAULT 3"), None),
    (("RENAME b TO last",), None),
]
CONSTANTS = {
    "bool": "true",
    "int": "5",
    "numeric(6,3)": "-1.5",
    "float8": "0.1",
    "real": "1.5",
    "text": "'it''s, {\"so}'",
    "varchar(9)": "'a '",
    "char(4)": "'a '",
    "date": "'2024-02-29'",
    "timestamp(3)": "'2024-02-29 01:02:03.5'",
    "timestamptz": "'2024-02-29 01:02:03+05:30'",
    "uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
}
"""By type, what rows from before hold that the catalogue tells."""
UNKNOWN = {"numeric": "1.10", "bytea": "'x'", "text[]": "'{a}'", "jsonb": "'{}'", "interval": "'1 day'"}
"""What a dump brings."""
"""What each makes of columns; None: nobody can tell."""


def test_what_is_told_of_renamed_columns_is_what_the_server_made_of_a_row(
    lab: Database, exact: PostgresSource, logged: Callable[..., list[LogBatch]], tmp_path: Path
) -> None:
    lab.execute("CREATE TABLE w (id int PRIMARY KEY, a text, b text, n int)")
    position = begin(exact)
    lab.execute("INSERT INTO w VALUES (0, 'a', 'b', 7)")
    staging = Staging(str(tmp_path / "staging"), source="s")
    staging.publish(Manifest("s", 1, 1, 1, 0, position, 0, "", None, 0))
    for number, (alters, renamed) in enumerate([((), None), *ALTERS]):
        ((before,),) = lab.query("SELECT row_to_json(w) FROM w WHERE w::text LIKE '(0,%'")
        lab.execute("; ".join(["SELECT", *(f"ALTER TABLE w {part}" for part in alters)]))
        ((after,),) = lab.query("SELECT row_to_json(w) FROM w WHERE w::text LIKE '(0,%'")
        lab.execute(f"INSERT INTO w VALUES ({number + 1})")
        head = staging.head()
        assert head is not None
        log = Sequencer(staging, source="s", epoch=1, head=head, visibility=LogOrder(), rules=Rules({}))  # a restart
        for batch in logged(exact, position):
            log.process(batch)
            position = batch.position
        sealed = log.seal(0)
        staging.publish(sealed)
        (mark,) = [m for m in sealed.marks if m.op == "s"]
        assert mark.renamed == renamed, alters
        assert {n: before[o] for n, o in (mark.renamed or {}).items()} == {n: after[n] for n in mark.renamed or {}}
        assert mark.filled == ({"e": None, "f": 5, "g": None} if "ADD g int" in alters else None)
        assert all(after[n] == value for n, value in (mark.filled or {}).items())


def test_what_is_told_of_added_columns_is_what_rows_hold_in_them(
    lab: Database, exact: PostgresSource, logged: Callable[..., list[LogBatch]], tmp_path: Path
) -> None:
    lab.execute("CREATE TABLE w (id int PRIMARY KEY)")
    position = begin(exact)
    lab.execute("INSERT INTO w VALUES (0)")
    staging = Staging(str(tmp_path / "staging"), source="s")
    staging.publish(Manifest("s", 1, 1, 1, 0, position, 0, "", None, 0))
    head = staging.head()
    assert head is not None
    log = Sequencer(staging, source="s", epoch=1, head=head, visibility=LogOrder(), rules=Rules({}))
    (first,) = logged(exact, position)  # the catalogue has the shape that the log shows
    log.process(first)
    names = {f"c{i}": (kind, value) for i, (kind, value) in enumerate((CONSTANTS | UNKNOWN).items())}
    parts = ", ".join(f"ADD {name} {kind} DEFAULT {value}" for name, (kind, value) in names.items())
    lab.execute(f"ALTER TABLE w {parts}")
    lab.execute("INSERT INTO w VALUES (1)")  # whose row event has the same values
    for batch in logged(exact, first.position):
        log.process(batch)
    staging.publish(log.seal(0))
    marks = [line for line in log_lines(staging) if line["op"] == "s"]
    (row,) = [line["after"] for line in log_lines(staging) if line["op"] == "c" and line["key"] == {"id": 1}]
    filled = marks[-1]["filled"]
    assert filled == {name: row[name] for name in list(names)[: len(CONSTANTS)]}


def test_a_table_without_identity_is_refused_before_it_harms_the_application(
    lab: Database, exact: PostgresSource
) -> None:
    tables = ("good", "keyless")
    user = lab.account.user
    lab.execute("CREATE TABLE keyless (a int)", "CREATE TABLE good (id int PRIMARY KEY)")
    lab.execute(*(f'ALTER TABLE {table} OWNER TO "{user}"' for table in tables))
    lab.execute(f"DROP PUBLICATION dblog_{lab.name}", f'GRANT CREATE ON DATABASE "{lab.name}" TO "{user}"')

    def published() -> set[str]:
        asked = f"SELECT tablename FROM pg_publication_tables WHERE pubname = 'dblog_{lab.name}'"
        return {str(name) for (name,) in lab.query(asked)} & set(tables)

    exact.prepare()
    (problem,) = exact.list_refusals()
    assert problem.table == "public.keyless" and "REPLICA IDENTITY FULL" in problem.fix
    assert published() == {"good"} == {t.table.name for t in exact.tables()}
    lab.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    exact.prepare()
    assert exact.list_refusals() == () and published() == {"good", "keyless"}


def test_an_identity_that_is_not_the_key_is_told_and_its_rows_are_passed_over(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]], plugin: str
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL UNIQUE, v int)")
    position = begin(source)
    lab.execute(
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_other_key", "INSERT INTO t VALUES (1, 2, 3)", "DELETE FROM t"
    )
    assert any("identifies" in problem.what for problem in source.check())
    batches = logged(source, position)
    (told,) = [s for batch in batches for s in batch.signals if isinstance(s, Unreadable)]
    assert told.table.name == "t" and "by (other), and the key is (id)" in told.why
    # wal2json says nothing of an INSERT's identity.
    assert [line["op"] for line in lines(batches)] == ([] if plugin == "pgoutput" else ["c"])


def test_rows_of_a_type_that_was_dropped_since_are_text(lab: Database, source: PostgresSource) -> None:
    lab.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'odd')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN few AS int CHECK (VALUE < 9)",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, p pair, l mood[], n few)",
    )
    position = begin(source)
    lab.execute(
        "INSERT INTO t VALUES (1, 'odd', (7, 'x'), ARRAY['fine', 'odd']::mood[], 5)",
        "ALTER TABLE t ALTER m TYPE text, ALTER p TYPE text, ALTER l TYPE text, ALTER n TYPE text",
        "DROP TYPE mood", "DROP TYPE pair", "DROP DOMAIN few",
        "INSERT INTO t VALUES (2, 'later', NULL, NULL, '6')",
    )  # fmt: skip
    found: list[dict[str, Any]] = []

    def read() -> bool:
        try:
            with closing(source.open_log(position)) as log:
                found[:] = [line["after"] for line in lines(read_to(source, log, source.current_position()))]
        except SourceUnavailable:  # pgoutput is asked for text from now on, once the server has let the slot go
            return False
        return True

    wait_until(read, "the log is read as text")
    found[0]["n"] = str(found[0]["n"])
    assert found == [  # a domain is its base type in wal2json
        {"id": 1, "m": "odd", "p": "(7,x)", "l": "{fine,odd}", "n": "5"},
        {"id": 2, "m": "later", "p": None, "l": None, "n": "6"},
    ]


def test_generated_columns_are_left_out_of_log_and_chunk(
    lab: Database, source: PostgresSource, logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, v text)")
    position = begin(source)
    lab.execute(
        "INSERT INTO t (id, v) VALUES (1, 'a')",
        "UPDATE t SET v = 'b'",
        "DELETE FROM t",
        "INSERT INTO t (id, v) VALUES (2, 'c')",
    )
    batches = logged(source, position)
    assert [line["after"] for line in lines(batches)] == [
        {"id": 1, "v": "a"},
        {"id": 1, "v": "b"},
        None,
        {"id": 2, "v": "c"},
    ]
    chunk = source.open_reader().read(source.tables()[0], after=None, upto=None, limit=5)
    assert chunk.rows.to_pylist() == [{"id": 2, "v": "c"}]
    assert [p.fatal for p in source.check() if "generated" in p.what] == [False]


def test_partitions_come_under_the_name_of_their_root(
    lab: Database, configure: Callable[..., SourceConfig], logged: Callable[..., list[LogBatch]]
) -> None:
    lab.execute(
        "CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 (v text, id int NOT NULL)",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)",
    )
    source = PostgresSource(configure())
    lab.execute(f"ALTER PUBLICATION dblog_{lab.name} SET (publish_via_partition_root = false)")
    assert [p for p in source.check() if p.fatal and "ALTER PUBLICATION" in p.fix]
    lab.execute(f"ALTER PUBLICATION dblog_{lab.name} SET (publish_via_partition_root = true)")
    position = begin(source)
    lab.execute("INSERT INTO p VALUES (1, 'a'), (11, 'b')", "UPDATE p SET id = 12 WHERE id = 1")
    found = [(line["op"], line["table"], line["after"]) for line in lines(logged(source, position))]
    assert {table for _, table, _ in found} == {"public.p"} and found[1][2] == {"id": 11, "v": "b"}
    chunk = source.open_reader().read(source.tables()[0], after=(11,), upto=None, limit=5)
    assert chunk.rows.to_pylist() == [{"id": 12, "v": "a"}]
    assert [p for p in PostgresSource(configure(plugin="wal2json")).check() if p.fatal and "partition" in p.what]


KEYS = {
    "text": ('k text COLLATE "C"', ["'a'", "'B'", "'it''s'", "'x''); DROP TABLE t; --'", "E'back\\\\slash'", "''"]),
    "uuid": ("k uuid", ["'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
    "bytea": ("k bytea", [r"'\x00'", r"'\x'", r"'\xff27'", r"'\x5c'"]),
    "numeric": ("k numeric", ["1e20", "-1.50", "0.000000000000000000000000001", "'NaN'"]),
    "decimal": ("k numeric(20,3)", ["1", "-1.5", "99999999999999999.999"]),
    "varchar": ("k varchar(3)", ["'abc'", "'ab'", "'b'"]),
    "char": ("k char(4)", ["'a'", "'b  c'", "''"]),
    "timestamptz": ("k timestamptz", ["'2024-01-01 00:00:00.000001+05'", "'0001-06-01 00:00Z'"]),
    "date": ("k date", ["'2024-01-01'", "'0001-01-01'"]),
    "float": ("k double precision", ["0.1", "1e300", "'NaN'", "'-Infinity'"]),
    "real": ("k real", ["0.1", "16777216", "3.4e38"]),
    "enum": ("k mood", ["'so, so'", "'fine'"]),
    "boolean": ("k boolean", ["true", "false"]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_chunks_walk_any_key_in_the_order_of_the_database(lab: Database, exact: PostgresSource, kind: str) -> None:
    column, values = KEYS[kind]
    lab.execute("CREATE TYPE mood AS ENUM ('so, so', 'fine')", f"CREATE TABLE t ({column}, b int, PRIMARY KEY (k, b))")
    lab.execute("INSERT INTO t VALUES " + ", ".join(f"({value}, {b})" for value in values for b in (1, 2)))
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    last = reader.last_key(schema)
    whole = reader.read(schema, after=None, upto=None, limit=100).rows.to_pylist()
    walked: list[dict[str, Any]] = []
    after = None
    while rows := reader.read(schema, after=after, upto=last, limit=1).rows.to_pylist():
        walked += rows
        after = tuple(rows[0].values())
    assert str(walked) == str(whole) and len(whole) == 2 * len(values)
    ordered = lab.query("SELECT k::text, b FROM t ORDER BY k, b")
    assert [b for _, b in ordered] == [row["b"] for row in whole]
    keys = [tuple(row.values()) for row in whole[::3]]
    assert str(reader.read_keys(schema, keys).rows.to_pylist()) == str(whole[::3])
    assert reader.read_keys(schema, []).rows.num_rows == 0
    reader.close()


def test_a_bound_is_never_cut_to_the_length_of_its_column(lab: Database, exact: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (k varchar(3) PRIMARY KEY)", "INSERT INTO t VALUES ('abc')")
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    assert reader.read_keys(schema, [("abcd",)]).rows.num_rows == 0
    assert reader.read(schema, after=("abb; DELETE FROM t",), upto=None, limit=5).rows.num_rows == 1
    reader.close()


def test_a_key_that_is_no_value_of_its_type_is_refused_and_the_reader_lives_on(
    lab: Database, exact: PostgresSource
) -> None:
    lab.execute("CREATE TABLE t (k uuid PRIMARY KEY)")
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    for key in ("1' OR '1'='1", "a\0b"):
        with pytest.raises(RequestError):
            reader.read_keys(schema, [(key,)])
    assert reader.read(schema, after=None, upto=None, limit=5).rows.num_rows == 0
    assert reader.last_key(schema) is None
    with pytest.raises(RequestError, match="no table"):
        reader.schema(TableName("public", "t; DROP TABLE t"))
    reader.close()


def test_a_chunk_reads_the_snapshot_that_it_names(lab: Database, exact: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    connection = lab.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (2)")
        cursor.execute("SELECT pg_current_xact_id()::text")
        (running,) = cursor.fetchone()
        chunk = reader.read(schema, after=None, upto=None, limit=5)
        horizon = exact.horizon()
        connection.commit()
    connection.close()
    assert chunk.rows.to_pylist() == [{"id": 1}]
    for snapshot in (chunk.snapshot, horizon):
        assert lab.query(f"SELECT pg_visible_in_snapshot('{running}'::xid8, '{snapshot}'::pg_snapshot)") == [(False,)]
    later = reader.read(schema, after=None, upto=None, limit=5)
    assert lab.query(f"SELECT pg_visible_in_snapshot('{running}'::xid8, '{later.snapshot}'::pg_snapshot)") == [(True,)]
    assert later.rows.num_rows == 2
    reader.close()


def test_a_range_of_a_composite_key_is_an_index_scan(lab: Database) -> None:
    lab.execute(
        "CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT 'k' || i % 100, i, 'v' FROM generate_series(1, 20000) i",
    )
    plan = lab.query(
        "EXPLAIN SELECT * FROM t WHERE (a, b) > ('k5'::text, '5'::integer) AND (a, b) <= ('k7'::text, '7'::integer) "
        "ORDER BY a, b LIMIT 100"
    )
    assert "Index Cond: ((ROW(a, b) > ROW('k5'::text, 5))" in str(plan)


def test_a_wrong_password_and_an_absent_server_are_told_apart_and_nothing_secret_is_said(
    configure: Callable[..., SourceConfig],
) -> None:
    wrong = PostgresSource(configure(password="not-the-secret"))
    with pytest.raises(SourceRefused) as refused:
        wrong.current_position()
    (problem,) = wrong.check()
    for text in (str(refused.value), problem.what, problem.fix, repr(refused.value.__cause__)):
        assert "not-the-secret" not in text
    assert "password" in problem.what and problem.fatal
    with pytest.raises(SourceUnavailable):
        PostgresSource(configure(port=1)).current_position()


def found(problems: list[Problem], words: str) -> list[Problem]:
    return [problem for problem in problems if words in problem.what]


def test_check_is_silent_where_all_is_well(lab: Database, source: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    assert source.check() == []
    source.prepare()
    assert source.check() == []


def test_check_finds_every_problem_at_once(lab: Database, configure: Callable[..., SourceConfig]) -> None:
    user = lab.account.user
    lab.execute(
        "CREATE TABLE keyless (a int)",
        "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        f'REVOKE ALL ON hidden FROM "{user}"',
        "CREATE TABLE guarded (id int PRIMARY KEY)",
        "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE loose (a int, b int NOT NULL)",
        "CREATE TABLE public.dblog_watermark (worker int)",
        f'ALTER ROLE "{user}" NOREPLICATION',
        f"DROP PUBLICATION dblog_{lab.name}",
    )
    config = configure(tables=["public.*", "nowhere.x*"], keys={"public.loose": ["a", "zz"]})
    problems = PostgresSource(config).check()
    for words in (
        "may not replicate",
        "no table matches nowhere.x*",
        "nothing, and its key is (none)",
        "fleeting is unlogged",
        "may not read public.hidden",
        "row security hides rows of public.guarded",
        "no column zz",
        "column a may be null",
        "no unique index",
        "may not write the watermark table",
        "not a watermark table of ours",
        "publication",
    ):
        assert found(problems, words), words
    assert all(problem.fix for problem in problems)
    assert not found(problems, lab.account.password)
    lab.execute(f'ALTER ROLE "{user}" REPLICATION')


def test_the_sql_that_check_prints_mends_what_it_found(lab: Database, configure: Callable[..., SourceConfig]) -> None:
    user = lab.account.user
    lab.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f'REVOKE ALL ON t FROM "{user}"',
        f'REVOKE CREATE ON SCHEMA public FROM "{user}"',
        f'ALTER ROLE "{user}" NOREPLICATION',
        f"DROP PUBLICATION dblog_{lab.name}",
    )
    source = PostgresSource(configure())
    problems = source.check()
    assert len(problems) == 4, problems
    for problem in problems:
        lab.execute(*problem.fix.split("; "))
    assert source.check() == []
    source.prepare()


def test_an_owner_needs_no_administrator(lab: Database, configure: Callable[..., SourceConfig]) -> None:
    lab.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f'ALTER TABLE t OWNER TO "{lab.account.user}"',
        f"DROP PUBLICATION dblog_{lab.name}",
    )
    source = PostgresSource(configure())
    assert source.check() == []
    source.prepare()
    lab.execute("CREATE TABLE later (id int PRIMARY KEY)", f'ALTER TABLE later OWNER TO "{lab.account.user}"')
    source.prepare()
    tables = lab.query(f"SELECT tablename FROM pg_publication_tables WHERE pubname = 'dblog_{lab.name}' ORDER BY 1")
    assert [name for (name,) in tables] == ["dblog_watermark", "later", "t"]


def test_check_names_an_invalid_slot_and_a_filtered_publication(
    lab: Database, configure: Callable[..., SourceConfig]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", f"DROP PUBLICATION dblog_{lab.name}")
    lab.execute(f"CREATE PUBLICATION dblog_{lab.name} FOR TABLE t (id) WHERE (id > 5)")
    lab.execute(f"SELECT pg_create_logical_replication_slot('dblog_{lab.name}', 'test_decoding')")
    problems = PostgresSource(configure()).check()
    assert found(problems, "of plugin test_decoding")
    assert found(problems, "leaves out rows or columns of public.t")
    with pytest.raises(SourceRefused, match="leaves out rows"):
        PostgresSource(configure()).prepare()
    lab.execute(f"DROP PUBLICATION dblog_{lab.name}", f"CREATE PUBLICATION dblog_{lab.name} FOR ALL TABLES")
    with pytest.raises(LogPositionLost, match="of plugin test_decoding"):
        PostgresSource(configure()).prepare()
