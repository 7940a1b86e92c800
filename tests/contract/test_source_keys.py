"""[source.keys]: only columns of which the database itself says that they are unique and never null."""

from __future__ import annotations

from contextlib import closing

import pytest

from dblog_core.config.settings import Config
from dblog_core.interfaces import Source
from dblog_core.wiring import open_source
from tests.contract.keyed import (
    every_way,
    shape,
)
from tests.contract.test_source import run
from tests.fix_servers import Database

UNIQUE = {
    "unique": "n int NOT NULL, k int NOT NULL, UNIQUE (k, n)",
    "nullable": "n int NOT NULL, k int, UNIQUE (k, n)",
    "not unique": "n int NOT NULL, k int NOT NULL",
    "only a part is unique": "n int NOT NULL, k int NOT NULL, UNIQUE (k)",
    "more is unique": "n int NOT NULL, k int NOT NULL, j int NOT NULL, UNIQUE (k, n, j)",
    "no such column": "n int NOT NULL, other int NOT NULL UNIQUE",
}


@pytest.mark.parametrize("case", UNIQUE)
def test_source_keys_names_unique_and_never_null_columns(
    database: Database, source: Source, source_config: Config, case: str
) -> None:
    run(database, f"CREATE TABLE a ({UNIQUE[case]})")
    if database.kind == "postgres":
        run(database, "ALTER TABLE a REPLICA IDENTITY FULL")
    table = f"{database.schema}.a"
    keyed = open_source(source_config.source.model_copy(update={"keys": {table: ["k", "n"]}}))
    problems = [p for p in keyed.check() if p.fatal and table in p.what]
    assert (problems == []) == (case == "unique")
    assert all(p.fix for p in problems)
    if case == "only a part is unique":
        assert f'[source.keys] "{table}" = ["k"]' in problems[0].fix
    if case == "unique":
        run(database, "INSERT INTO a (n, k) VALUES (1, 5), (2, 5), (3, 5), (4, 5), (5, 2), (6, 9)")
        with closing(keyed.open_reader()) as reader:
            every_way(database, reader, shape(database, reader))


def test_an_entry_beside_a_primary_key_names_its_columns_or_is_refused(
    database: Database, source: Source, source_config: Config
) -> None:
    run(database, "CREATE TABLE a (n int NOT NULL, k int NOT NULL, v int NOT NULL UNIQUE, PRIMARY KEY (k, n))")
    if database.kind == "postgres":
        run(database, "ALTER TABLE a REPLICA IDENTITY FULL")
    table = f"{database.schema}.a"

    def open_keyed(*columns: str) -> Source:
        return open_source(source_config.source.model_copy(update={"keys": {table: columns}}))

    same = open_keyed("n", "k")
    assert [p for p in same.check() if p.fatal and table in p.what] == []
    with closing(same.open_reader()) as reader:
        assert sorted(shape(database, reader).key) == ["k", "n"]
    other = open_keyed("v")
    (problem,) = [p for p in other.check() if p.fatal and table in p.what]
    assert problem.what == f'[source.keys] "{table}" names (v), and its primary key is (k, n)'
    assert problem.fix == f'remove [source.keys] "{table}": it is for a table without a primary key'
    assert problem in other.list_refusals()


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_deferrable_primary_key_is_refused_unless_another_index_vouches_for_its_columns(
    database: Database, source: Source, source_config: Config
) -> None:
    run(database, "CREATE TABLE a (n int, k int, PRIMARY KEY (k, n) DEFERRABLE)", "ALTER TABLE a REPLICA IDENTITY FULL")
    (problem,) = source.list_refusals()
    assert problem.what.startswith("public.a: its primary key is deferrable")
    run(database, "CREATE UNIQUE INDEX ON a (n, k)")
    assert source.list_refusals() == ()
    run(database, "DROP INDEX a_n_k_idx", problem.fix)
    assert source.list_refusals() == ()
    with closing(source.open_reader()) as reader:
        assert shape(database, reader).key == ("k", "n")


PREFIX = "CREATE UNIQUE INDEX u ON a (t(5))"
INDEXES = {
    "postgres": [
        "CREATE UNIQUE INDEX u ON a (n) WHERE n > 0",
        "CREATE UNIQUE INDEX u ON a ((n + 1))",
        "ALTER TABLE a ADD CONSTRAINT u UNIQUE (n) DEFERRABLE",
    ],
    "mysql": ["CREATE UNIQUE INDEX u ON a ((n + 1))", "CREATE UNIQUE INDEX u ON a (n, (t + 1))", PREFIX],
    "mariadb": [PREFIX],
}


@pytest.mark.parametrize(
    ("source_kind", "index"), [(k, i) for k, indexes in INDEXES.items() for i in indexes], indirect=["source_kind"]
)
def test_an_index_that_does_not_vouch_for_whole_columns_makes_no_key(
    database: Database, source: Source, source_config: Config, index: str
) -> None:
    run(database, "CREATE TABLE a (n int NOT NULL, t varchar(50) NOT NULL)", index)
    if database.kind == "postgres":
        run(database, "ALTER TABLE a REPLICA IDENTITY FULL")
    table = f"{database.schema}.a"
    column = "t" if index == PREFIX else "n"
    keyed = open_source(source_config.source.model_copy(update={"keys": {table: [column]}}))
    assert [p for p in keyed.check() if p.fatal and table in p.what and "unique" in p.what]
