"""What PostgreSQL's log and catalogue tell of changes of a table's columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.config.source import SourceConfig
from dblog_core.model.events import LogBatch, SchemaSeen
from dblog_core.model.schema import TableName
from dblog_core.rows.column_rules import Rules
from dblog_core.sources.postgres.source import PostgresSource
from dblog_core.sources.postgres.sql import catalogue
from dblog_core.sources.postgres.sql.connection import session
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.reader import lines as log_lines
from tests.fix_servers import Database
from tests.integration.postgres_source.log_rows import begin, lines


def test_a_schema_change_is_seen_before_its_first_row(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    position = begin(source)
    lab.execute("INSERT INTO t VALUES (1, 1)", "ANALYZE t")
    first = read_log(source, position)
    lab.execute(
        "INSERT INTO t VALUES (2, 2)",
        "ALTER TABLE t ADD w text DEFAULT 'd', ALTER v TYPE bigint",
        "INSERT INTO t VALUES (3, 3)",
        "UPDATE t SET w = NULL WHERE id = 1",
    )
    batches = [*first, *read_log(source, first[-1].position)]
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


def test_a_key_that_is_asked_for_alone_is_that_of_the_whole_description(
    lab: Database, configure: Callable[..., SourceConfig]
) -> None:
    lab.execute(
        "CREATE TABLE one (id int PRIMARY KEY, v int UNIQUE)",
        "CREATE TABLE two (a int, gone int, b int, c int)",
        "ALTER TABLE two DROP COLUMN gone, ADD PRIMARY KEY (c, a) INCLUDE (b) DEFERRABLE",
        "CREATE TABLE none (a int NOT NULL UNIQUE)",
        "CREATE TABLE named (x int, y int, PRIMARY KEY (x, y))",
        "CREATE TABLE parted (id int, at int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
        "CREATE VIEW view AS SELECT 1 AS id",
        'CREATE TABLE "odd.Näme" ("i ""d" int PRIMARY KEY)',
    )
    config = configure(keys={"public.none": ["a"], "public.named": ["y", "x"], "public.gone": ["k"]})
    names = [TableName("public", n) for n in ("one", "two", "none", "named", "parted", "view", "odd.Näme", "gone")]
    with session(config) as connection:
        whole = [catalogue.find_table(connection, name) for name in names]
        keys = [catalogue.find_key(connection, name, config) for name in names]
        assert keys == [
            table.key(config) if table else tuple(config.keys.get(str(name), ()))
            for name, table in zip(names, whole, strict=True)
        ]
    assert keys == [("id",), ("c", "a"), ("a",), ("y", "x"), ("at", "id"), (), ('i "d',), ("k",)]


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
    lab: Database, exact: PostgresSource, read_log: Callable[..., list[LogBatch]], tmp_path: Path
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
        for batch in read_log(exact, position):
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
    lab: Database, exact: PostgresSource, read_log: Callable[..., list[LogBatch]], tmp_path: Path
) -> None:
    lab.execute("CREATE TABLE w (id int PRIMARY KEY)")
    position = begin(exact)
    lab.execute("INSERT INTO w VALUES (0)")
    staging = Staging(str(tmp_path / "staging"), source="s")
    staging.publish(Manifest("s", 1, 1, 1, 0, position, 0, "", None, 0))
    head = staging.head()
    assert head is not None
    log = Sequencer(staging, source="s", epoch=1, head=head, visibility=LogOrder(), rules=Rules({}))
    (first,) = read_log(exact, position)  # the catalogue has the shape that the log shows
    log.process(first)
    names = {f"c{i}": (kind, value) for i, (kind, value) in enumerate((CONSTANTS | UNKNOWN).items())}
    parts = ", ".join(f"ADD {name} {kind} DEFAULT {value}" for name, (kind, value) in names.items())
    lab.execute(f"ALTER TABLE w {parts}")
    lab.execute("INSERT INTO w VALUES (1)")  # whose row event has the same values
    for batch in read_log(exact, first.position):
        log.process(batch)
    staging.publish(log.seal(0))
    marks = [line for line in log_lines(staging) if line["op"] == "s"]
    (row,) = [line["after"] for line in log_lines(staging) if line["op"] == "c" and line["key"] == {"id": 1}]
    filled = marks[-1]["filled"]
    assert filled == {name: row[name] for name in list(names)[: len(CONSTANTS)]}
