"""Looks at the catalogue answer while somebody keeps one table locked: a capture does nothing else meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.dumps import filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import DblogError, TableLocked
from dblog_core.interfaces import Source
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.sources.mysql.sql import key_order
from dblog_core.sources.mysql.sql.key_order import KeyOrder
from tests.fix_servers import Database
from tests.integration.locks import locked, renaming
from tests.waiting import PATIENCE_SECONDS

Lock = Callable[[Database, str], AbstractContextManager[Any]]


def answers(source: Source) -> dict[str, Any]:
    """What a capture asks of the catalogue, at its start and while it leads."""
    return {
        "problems": sorted(problem.what for problem in source.check()),
        "tables": sorted(str(schema.table) for schema in source.tables()),
        "refusals": sorted(str(problem.table) for problem in source.list_refusals()),
        "unshown": source.prepare(),
        "identities": source.identities(),
        "stamps": source.stamps(),
    }


def ask_while_locked(
    database: Database, source: Source, lock: Lock, table: str, ask: Callable[[Source], Any] = answers
) -> Any:
    """The answers while the table is locked. Where one of them waits for the lock, the test fails before it is free."""
    with ThreadPoolExecutor(1) as pool, lock(database, table):
        return pool.submit(ask, source).result(timeout=PATIENCE_SECONDS / 4)


def test_every_look_at_the_catalogue_answers_while_a_table_is_locked(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY, v int)")
    source = wiring.open_source(database.config(tmp_path).source)
    source.prepare()
    free = answers(source)
    assert free["tables"] == [f"{database.schema}.{name}" for name in "ab"]
    assert ask_while_locked(database, source, locked, "b") == free


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("part", ["p", "p_1", "p_2", "p_21"])
def test_a_locked_partition_keeps_no_look_at_the_catalogue_waiting(
    database: Database, tmp_path: Path, part: str
) -> None:
    """One that was made as such, and one that was attached, with a tree below it."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p_2 (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_21 PARTITION OF p_2 FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (1), (11)",
    )
    source = wiring.open_source(database.config(tmp_path).source)
    source.prepare()
    free = answers(source)
    assert len(free["identities"]) == 5 and len(free["stamps"]["public.p"].files) == 2
    assert ask_while_locked(database, source, locked, part) == free


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_partition_that_is_attached_and_locked_may_have_brought_rows(database: Database, tmp_path: Path) -> None:
    """An empty one has brought none; of a locked one nobody knows its size."""
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        *(f"CREATE TABLE p_{n} (id int PRIMARY KEY)" for n in range(4)),
        "INSERT INTO p_3 VALUES (30)",
        *(f"ALTER TABLE p ATTACH PARTITION p_{n} FOR VALUES FROM ({n}0) TO ({n + 1}0)" for n in range(4)),
    )
    oids = dict(database.query("SELECT relname, oid::int FROM pg_class WHERE relname LIKE 'p__'"))
    source = wiring.open_source(database.config(tmp_path).source)

    def brought_rows(source: Source) -> list[str]:
        entries = [entry for entry in source.identities() or () if entry.endswith("!")]
        return sorted(name for name in oids if any(entry.endswith(f"/{oids[name]}!") for entry in entries))

    assert brought_rows(source) == ["p_3"]
    assert ask_while_locked(database, source, locked, "p_1", brought_rows) == ["p_1", "p_3"]


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_the_publication_takes_in_all_others_while_one_table_is_locked(database: Database, tmp_path: Path) -> None:
    names = [f"t{n:02d}" for n in range(20)]
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    config = database.owner_config(tmp_path).source
    source = wiring.open_source(config)
    published_sql = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'own' ORDER BY 1"

    def published() -> list[str]:
        return [str(name) for (name,) in database.query(published_sql) if name != "dblog_watermark"]

    first = wiring.open_source(config.model_copy(update={"tables": ("public.t00",)}))
    assert first.prepare() == frozenset() and published() == ["t00"]
    with locked(database, "t07"), locked(database, "t19"):
        assert source.prepare() == {"public.t07", "public.t19"}
        assert source.prepare() == {"public.t07", "public.t19"}
    assert published() == [name for name in names if name not in ("t07", "t19")]
    assert source.prepare() == frozenset() and published() == names
    database.execute("DROP PUBLICATION own")
    with locked(database, "t03"):
        assert source.prepare() == {"public.t03"}
    assert source.prepare() == frozenset() and published() == names


def make_a_b_and_z(database: Database) -> None:
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in "abz"))


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_table_of_others_whose_definition_is_locked_keeps_no_look_at_the_catalogue_waiting(
    database: Database, tmp_path: Path
) -> None:
    """As CREATE TABLE … SELECT has that of its table for as long as it takes. MariaDB waits for it otherwise."""
    make_a_b_and_z(database)
    source = wiring.open_source(database.config(tmp_path, source={"tables": [f"{database.schema}.a"]}).source)
    source.prepare()
    free = answers(source)
    assert ask_while_locked(database, source, renaming, "b") == free


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_a_table_whose_definition_is_locked_is_seen_by_mysql_as_it_was(database: Database, tmp_path: Path) -> None:
    make_a_b_and_z(database)
    source = wiring.open_source(database.config(tmp_path).source)
    source.prepare()
    free = answers(source)
    assert ask_while_locked(database, source, renaming, "b") == free


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
@pytest.mark.parametrize("name", ["b", "it's"])
def test_a_table_whose_definition_is_locked_is_no_table_that_is_gone(
    database: Database, tmp_path: Path, name: str
) -> None:
    """MariaDB shows nothing of it: no answer lacks it without a word, and none waits for it."""
    database.execute(*(f"CREATE TABLE `{table}` (id int PRIMARY KEY)" for table in ("a", name, "z")))
    tables = [f"{database.schema}.{table}" for table in ("a", name, "z")]
    source = wiring.open_source(database.config(tmp_path, source={"tables": tables}).source)
    source.prepare()

    def refuses(source: Source) -> list[str]:
        said = [
            problem.what for problem in source.check() if not problem.fatal and "nothing can be said" in problem.what
        ]
        for look in (source.tables, source.list_refusals):
            with pytest.raises(TableLocked) as refusal:
                look()
            said.append(refusal.value.message)
        return said

    said = ask_while_locked(database, source, renaming, name, refuses)
    assert len(said) == 3 and all(f"shows nothing of {database.schema}.{name} while" in text for text in said)
    assert len(source.tables()) == 3


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
def test_a_dump_that_another_tables_lock_refuses_names_that_table_and_who_tries_again(
    database: Database, tmp_path: Path
) -> None:
    """The server's own words, "Table b was skipped", would read as if the dump of `a` had left it out."""
    make_a_b_and_z(database)
    config = database.config(tmp_path)

    def refuse(_: Source) -> DblogError:
        with pytest.raises(TableLocked) as refusal:
            filing.submit(config, DumpRequest((f"{database.schema}.a",)))
        return refusal.value

    refused = ask_while_locked(database, wiring.open_source(config.source), renaming, "b", refuse)
    assert refused.message == (
        f"the catalogue cannot be read whole: MariaDB shows nothing of {database.schema}.b while a statement changes it"
    )
    # Nobody requests again what a person has asked for.
    assert refused.fix == "try again once that statement is over; a capture does so automatically"


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_the_reader_knows_shape_and_order_of_a_locked_table(database: Database, tmp_path: Path) -> None:
    """Also of one of which the server has no statistics, which a look would open the table for."""
    shape = "(id int PRIMARY KEY, v varchar(9))"
    database.execute(f"CREATE TABLE a {shape}", f"CREATE TABLE b {shape}", "CREATE TABLE z (id int PRIMARY KEY)")
    source = wiring.open_source(database.config(tmp_path).source)
    like, free, _ = source.tables()
    with closing(source.open_reader()) as reader:
        order = reader.key_order(like)
    for lock in (locked, renaming):
        with lock(database, "b"), closing(source.open_reader(lock_seconds=1)) as reader:
            assert reader.key_order(free) == order
            assert reader.schema(TableName(database.schema, "b")).fingerprint == free.fingerprint


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_an_index_that_the_optimizer_must_not_use_is_no_order_to_read_in(database: Database) -> None:
    word = "INVISIBLE" if database.kind == "mysql" else "IGNORED"
    database.execute(f"CREATE TABLE a (n int NOT NULL, k int NOT NULL, UNIQUE u (n), UNIQUE z (k) {word})")
    columns = tuple(Column(name, "int", pa.int32()) for name in "nk")
    with closing(database.connect()) as connection:
        indexes = key_order.list_unique_indexes(connection, TableName(database.schema, "a"))
        gone = key_order.list_unique_indexes(connection, TableName(database.schema, "gone"))
    orders = {k: key_order.of_indexes(indexes, TableSchema(TableName("s", "a"), columns, (k,))) for k in "nk"}
    assert orders == {"n": KeyOrder("u"), "k": KeyOrder()} and gone == []
