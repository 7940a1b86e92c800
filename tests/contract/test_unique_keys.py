"""A table without a primary key: a unique key that is never null stands for one, the same in the log and in dumps.

The servers of MySQL and MariaDB choose it by themselves, and their log names it like a primary key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dblog_core.config.settings import Config
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.model.events import SchemaSeen, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.wiring import open_source
from tests.contract.keyed import every_way
from tests.contract.test_source import log, run
from tests.fix_servers import Database

Case = tuple[str, list[str], tuple[str, ...]]
"""The table's columns and constraints, statements behind it, and the key."""

COMMON: dict[str, Case] = {
    "one": ("n int NOT NULL, k int NOT NULL, UNIQUE (k, n)", [], ("k", "n")),
    "none": ("n int NOT NULL, k int NOT NULL", [], ()),
    "one may be null": ("n int NOT NULL, k int, UNIQUE (k), UNIQUE (n)", [], ("n",)),
    "all may be null": ("n int, k int, UNIQUE (k), UNIQUE (n)", [], ()),
    "of two parts one may be null": ("n int NOT NULL, k int, UNIQUE (n, k)", [], ()),
    "text": ("n int NOT NULL, k varchar(40) NOT NULL, UNIQUE (k)", [], ("k",)),
}
TWO = "n int NOT NULL, k int NOT NULL, CONSTRAINT z UNIQUE (n), CONSTRAINT b UNIQUE (k)"
MYSQL: dict[str, Case] = {
    "the first that was made": (TWO, [], ("n",)),
    "the other made first": (
        "n int NOT NULL, k int NOT NULL",
        ["CREATE UNIQUE INDEX z ON a (k)", "CREATE UNIQUE INDEX b ON a (n)"],
        ("k",),
    ),
    "a nullable one made first": ("n int NOT NULL, k int, UNIQUE a (k)", ["CREATE UNIQUE INDEX z ON a (n)"], ("n",)),
    "longer one made first": (
        "n int NOT NULL, k int NOT NULL, UNIQUE z (k, n)",
        ["CREATE UNIQUE INDEX b ON a (n)"],
        ("k", "n"),
    ),
    "a beginning": (
        "n int NOT NULL, k varchar(40) NOT NULL, UNIQUE a (k(5))",
        ["CREATE UNIQUE INDEX z ON a (n)"],
        ("n",),
    ),
    "the beginning that is all": ("n int NOT NULL, k varchar(40) NOT NULL, UNIQUE a (k(40))", [], ("k",)),
    "a beginning alone": ("n int NOT NULL, k text NOT NULL, UNIQUE a (k(5))", [], ()),
    "a whole tinytext": ("n int NOT NULL, k tinytext NOT NULL, UNIQUE a (k(63))", [], ()),
    "generated": ("n int NOT NULL, k int AS (n + 1) STORED, UNIQUE (k)", [], ()),
    "bits": ("n int NOT NULL, k bit(12) NOT NULL, UNIQUE (k)", [], ("k",)),
    "bits in MyISAM": ("n int NOT NULL, k bit(12) NOT NULL, UNIQUE (k)", ["ALTER TABLE a ENGINE = MyISAM"], ("k",)),
    "in memory": ("n int NOT NULL, k int NOT NULL, UNIQUE (k)", ["ALTER TABLE a ENGINE = MEMORY"], ("k",)),
    "descending": ("n int NOT NULL, k int NOT NULL, UNIQUE (k DESC)", [], ("k",)),
    "labels": ("n int NOT NULL, k enum('z', 'y') NOT NULL, UNIQUE (k)", [], ("k",)),
}
BY_KIND: dict[str, dict[str, Case]] = {
    "mysql": {
        **MYSQL,
        "an expression": ("n int NOT NULL, k int NOT NULL, UNIQUE a ((k + 1)), UNIQUE z (n)", [], ("n",)),
        "never null, virtual": ("n int NOT NULL, k int AS (n + 1) VIRTUAL NOT NULL, UNIQUE (k)", [], ()),
        "never null, stored": ("n int NOT NULL, k int AS (n + 1) STORED NOT NULL, UNIQUE (k)", [], ("k",)),
        "not seen": ("n int NOT NULL, k int NOT NULL, UNIQUE a (k) , UNIQUE z (n) INVISIBLE", [], ("k",)),
    },
    "mariadb": {
        **MYSQL,
        "virtual": ("n int NOT NULL, k int AS (n + 1) VIRTUAL, UNIQUE (k)", [], ()),
        "by a hash": ("n int NOT NULL, k text NOT NULL, UNIQUE a (k)", [], ()),
        "a hash of an integer": ("n int NOT NULL, k int NOT NULL, UNIQUE a (k) USING HASH", [], ()),
        "a hash of a long text": ("n int NOT NULL, k varchar(1000) NOT NULL, UNIQUE a (k)", [], ()),
        "by a hash, and another": ("n int NOT NULL, k text NOT NULL, UNIQUE a (k), UNIQUE z (n)", [], ("n",)),
    },
    "postgres": {
        "the first in the table": (TWO, [], ("n",)),
        "the first in the table, made last": (
            "k int NOT NULL, n int NOT NULL, UNIQUE (n)",
            ["CREATE UNIQUE INDEX z ON a (k)"],
            ("k",),
        ),
        "the one that the log shows": (TWO, ["ALTER TABLE a REPLICA IDENTITY USING INDEX b"], ("k",)),
        "in part": (
            "n int NOT NULL, k int NOT NULL, UNIQUE (k)",
            ["CREATE UNIQUE INDEX ON a (n) WHERE n > 0"],
            ("k",),
        ),
        "deferrable": ("n int NOT NULL, k int NOT NULL, UNIQUE (n) DEFERRABLE, UNIQUE (k)", [], ("k",)),
        "generated": ("n int NOT NULL, k int NOT NULL GENERATED ALWAYS AS (n + 1) STORED, UNIQUE (k)", [], ()),
        "an expression": ("n int NOT NULL, k int NOT NULL", ["CREATE UNIQUE INDEX ON a ((n + 1))"], ()),
        "by another collation": (
            'n int NOT NULL, k text COLLATE "no_case" NOT NULL',
            ['CREATE UNIQUE INDEX ON a (k COLLATE "C")', 'CREATE UNIQUE INDEX ON a (n, k COLLATE "C")'],
            (),
        ),
        "by a collation that tells less": (
            "n int NOT NULL, k text NOT NULL",
            ['CREATE UNIQUE INDEX ON a (k COLLATE "no_case")'],
            ("k",),
        ),
        "by another equality": (
            "n int NOT NULL, k citext NOT NULL",
            ["CREATE UNIQUE INDEX ON a (k text_ops)", "CREATE UNIQUE INDEX ON a (n, k text_ops)"],
            (),
        ),
        "by patterns": (
            "n int NOT NULL, k citext NOT NULL",
            ["CREATE UNIQUE INDEX ON a (k citext_pattern_ops)"],
            ("k",),
        ),
        "with more": ("n int NOT NULL, k int NOT NULL", ["CREATE UNIQUE INDEX ON a (k) INCLUDE (n)"], ("k",)),
        "partitioned": ("n int NOT NULL, k int NOT NULL, UNIQUE (k, n)", [], ("k", "n")),
    },
}
CASES = [(kind, name) for kind, cases in BY_KIND.items() for name in (*COMMON, *cases)]


def values(case: str, number: int) -> str:
    second = {"text": f"'t{number}'", "labels": "'y'" if number % 2 else "'z'"}.get(case, str(number + 7))
    return f"({number}, {second})"


def logged(source: Source, start: str) -> Iterator[tuple[str, ...]]:
    """The keys of the shapes that the log shows of the table."""
    for batch in log(source, start):
        for signal in batch.signals:
            assert not isinstance(signal, Unreadable), signal
            if isinstance(signal, SchemaSeen):
                yield signal.schema.key


@pytest.mark.parametrize(("source_kind", "case"), CASES, indirect=["source_kind"])
def test_the_log_and_the_dumps_take_the_same_unique_key(
    database: Database, source: Source, reader: ChunkReader, source_kind: str, case: str
) -> None:
    columns, more, key = (COMMON | BY_KIND[database.kind])[case]
    ending = " PARTITION BY RANGE (n)" if case == "partitioned" else ""
    full = ["ALTER TABLE a REPLICA IDENTITY FULL"] if database.kind == "postgres" else []
    parts = ["CREATE TABLE p PARTITION OF a DEFAULT", "ALTER TABLE p REPLICA IDENTITY FULL"] if ending else []
    extension = ["CREATE EXTENSION citext"] if "citext" in columns else []
    run(database, *extension, f"CREATE TABLE a ({columns}){ending}", *full, *parts, *more)
    source.prepare()
    start = source.current_position()
    names = "n" if "AS (n + 1)" in columns else "n, k"
    rows = "(1), (2)" if names == "n" else f"{values(case, 1)}, {values(case, 2)}"
    run(database, f"INSERT INTO a ({names}) VALUES {rows}", "UPDATE a SET n = 5 WHERE n = 1")
    assert set(logged(source, start)) == {key}
    schema = reader.schema(TableName(database.schema, "a"))
    assert schema.key == key
    problems = [p for p in source.check() if p.table == f"{database.schema}.a" and "key" in p.what]
    assert [p.fatal for p in problems] == ([] if key else [False])
    if key:
        every_way(database, reader, schema)


def test_an_entry_in_source_keys_overrides_the_unique_key(
    database: Database, source: Source, source_config: Config
) -> None:
    """The log of MySQL and MariaDB names the other one, as it names a primary key."""
    full = ["ALTER TABLE a REPLICA IDENTITY FULL"] if database.kind == "postgres" else []
    run(database, f"CREATE TABLE a ({TWO})", *full)
    keyed = open_source(source_config.source.model_copy(update={"keys": {f"{database.schema}.a": ["k"]}}))
    keyed.prepare()
    start = keyed.current_position()
    run(database, "INSERT INTO a (n, k) VALUES (1, 8), (2, 7)", "UPDATE a SET n = 5 WHERE k = 7")
    assert set(logged(keyed, start)) == {("k",)}
    assert [problem for problem in keyed.check() if problem.table == f"{database.schema}.a"] == []
    with closing(keyed.open_reader()) as reader:
        every_way(database, reader, reader.schema(TableName(database.schema, "a")))


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_the_log_tells_an_entry_beside_a_primary_key_from_one_beside_a_unique_key(
    database: Database, source: Source, source_config: Config
) -> None:
    run(database, "CREATE TABLE a (n int NOT NULL, k int NOT NULL, PRIMARY KEY (n), UNIQUE (k))")
    keyed = open_source(source_config.source.model_copy(update={"keys": {f"{database.schema}.a": ["k"]}}))
    start = keyed.current_position()
    run(database, "INSERT INTO a VALUES (1, 8), (2, 7)", "INSERT INTO a VALUES (3, 9)")
    (refused, *_) = [s for b in log(keyed, start) for s in b.signals if isinstance(s, Unreadable)]
    assert "names (k), and its primary key is (n)" in refused.why
    assert refused.fix.startswith(f'remove [source.keys] "{database.schema}.a"')


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_table_whose_log_shows_no_old_row_is_refused_with_the_index_that_would_do(
    database: Database, source: Source, source_config: Config
) -> None:
    run(database, "CREATE TABLE a (n int NOT NULL, k int NOT NULL, CONSTRAINT b UNIQUE (k))")
    (problem,) = source.list_refusals()
    assert problem.fix == "ALTER TABLE public.a REPLICA IDENTITY USING INDEX b, or FULL"
    run(database, problem.fix.removesuffix(", or FULL"))
    assert source.list_refusals() == ()
    source.prepare()
    start = source.current_position()
    run(database, "INSERT INTO a VALUES (1, 8), (2, 7)", "UPDATE a SET k = 5 WHERE k = 7", "DELETE FROM a")
    assert set(logged(source, start)) == {("k",)}


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_wal2json_takes_the_same_unique_key(database: Database, source_config: Config) -> None:
    """What it prints names a primary key alone."""
    by_wal2json = source_config.source.model_copy(update={"plugin": "wal2json"})
    run(database, f"CREATE TABLE a ({TWO})", "ALTER TABLE a REPLICA IDENTITY FULL")
    source = open_source(by_wal2json)
    source.prepare()
    start = source.current_position()
    run(database, "INSERT INTO a VALUES (1, 8), (2, 7)", "UPDATE a SET k = 5 WHERE n = 2", "DELETE FROM a WHERE n = 1")
    assert set(logged(source, start)) == {("n",)}
