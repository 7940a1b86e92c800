"""Tables are made, attached and replaced all the time: the term that runs takes them in, and no other table pays."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload, run_capture, term
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_lost_watermark_table import Shop
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.one_of(2)

B = "public.b"
TABLES = 30
SELECT_SECONDS = 12.0


@pytest.fixture
def terms(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The terms that have begun."""
    begun: list[object] = []

    def run_term(*arguments: Any, **options: Any) -> None:
        begun.append(arguments)
        term.run_term(*arguments, **options)

    monkeypatch.setattr(run_capture, "run_term", run_term)
    monkeypatch.setattr(config_reload, "NEWCOMERS", 1.0)
    return begun


@contextmanager
def lasting(database: Database, statement: str) -> Iterator[None]:
    """A transaction that is open meanwhile."""
    connection = database.connect()
    if database.kind == "postgres":
        connection.autocommit = False
    else:
        connection.autocommit(False)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(statement)
        yield
        connection.commit()


def make_tables(shop: Shop, stop: threading.Event) -> list[str]:
    """One a second, with a row before the capture can know of it and one after."""
    names: list[str] = []
    for number in range(TABLES):
        if stop.is_set():
            break
        name = f"made_{number}"
        shop.database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20))", f"INSERT INTO {name} VALUES (1, 'first')"
        )
        names.append(name)
        if number:
            shop.database.execute(f"INSERT INTO {names[-2]} VALUES (2, 'second')")
        stop.wait(1.0)
    return names


def slow_down(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each SELECT of a chunk of `a` lasts, after its snapshot is taken, until `SELECT_SECONDS` are over."""
    reader = type(wiring.open_source(shop.config.source).open_reader())
    read = reader.read

    def slow(self: Any, schema: Any, **options: Any) -> Any:
        chunk = read(self, schema, **options)
        if schema.table.name == "a":
            time.sleep(SELECT_SECONDS)
        return chunk

    monkeypatch.setattr(reader, "read", slow)


def test_a_table_each_second_ends_no_term_and_voids_no_window(
    database: Database, tmp_path: Path, terms: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(database, tmp_path)
    shop.config = shop.config.model_copy(update={"dump": shop.config.dump.model_copy(update={"chunk_size": 1000})})
    shop.make()
    slow_down(shop, monkeypatch)
    stop = threading.Event()
    with shop.capturing():
        wait_until(lambda: terms, "a term has begun")
        shop.change(1, "before")
        names: list[str] = []
        maker = threading.Thread(target=lambda: names.extend(make_tables(shop, stop)))
        maker.start()
        try:
            began = time.monotonic()
            shop.dump()()
            took = time.monotonic() - began
        finally:
            maker.join(timeout=PATIENCE_SECONDS)
        assert SELECT_SECONDS <= took < 1.9 * SELECT_SECONDS, "the chunk was read once"
        for name in names:
            wait_until(lambda name=name: shop.rows(name) == shop.source_rows(name), f"{name} is captured")  # type: ignore[misc]
        shop.change(1, "after")
        assert len(terms) == 1
    assert len(names) == TABLES
    assert shop.rows() == shop.source_rows()


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_partitions_and_tables_that_are_replaced_are_taken_in_by_the_term_too(
    database: Database, tmp_path: Path, terms: list[object]
) -> None:
    shop = Shop(database, tmp_path)
    shop.make()
    database.execute(
        "CREATE TABLE parted (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "INSERT INTO parted VALUES (1, 'x')",
        "CREATE TABLE plain (v varchar(20))",
        "ALTER TABLE plain REPLICA IDENTITY FULL",
    )
    with shop.capturing():
        shop.change(1, "before")
        shop.change(1, "y", "parted")
        shop.dump()()
        for number in range(2, 6):
            first = number * 100
            database.execute(
                f"CREATE TABLE parted_{number} (id int PRIMARY KEY, v varchar(20))",
                f"INSERT INTO parted_{number} VALUES ({first}, 'brought')",
                f"ALTER TABLE parted ATTACH PARTITION parted_{number} FOR VALUES FROM ({first}) TO ({first + 100})",
                "DROP TABLE a",
            )
            shop.make(last=number)
            wait_until(lambda: shop.rows("parted") == shop.source_rows("parted"), "the partition's rows are captured")
            wait_until(lambda: shop.rows() == shop.source_rows(), "the other table is captured", describe=shop.rows)
        database.execute("ALTER TABLE parted DETACH PARTITION parted_1")
        wait_until(lambda: shop.rows("parted") == shop.source_rows("parted"), "its rows are gone")
        database.execute("CREATE TABLE late (v varchar(20))", "INSERT INTO late VALUES ('x')")
        wait_until(lambda: "public.late" in shop.knows(), "the table without a key is captured")
        assert len(terms) == 1
    with shop.capturing():
        shop.change(1, "restarted")
    assert shop.rows() == shop.source_rows()


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_dump_of_a_new_table_sees_what_was_written_before_the_publication_had_it(
    database: Database, tmp_path: Path, terms: list[object]
) -> None:
    """A transaction that wrote before, and commits long after: no log has its first rows, and a chunk waits for it. A
    capture that ends meanwhile does so too, and other tables are dumped. It has begun again before the table, which is
    another owner's, was in the publication."""
    shop = Shop(database, tmp_path)
    shop.make()
    database.execute(f"DROP PUBLICATION dblog_{database.name}")
    database.execute(f'GRANT CREATE ON DATABASE {database.name} TO "{database.account.user}"')
    database.execute(f'ALTER TABLE a OWNER TO "{database.account.user}"')
    with shop.capturing():
        shop.change(1, "first")
    database.execute("CREATE TABLE b (id int PRIMARY KEY, v varchar(20))", "INSERT INTO b VALUES (1, 'first')")
    database.execute(f'GRANT SELECT ON b TO "{database.account.user}"')
    with lasting(database, "INSERT INTO b VALUES (2, 'open')"):
        with shop.capturing():
            shop.change(1, "before")
            database.execute(f"ALTER PUBLICATION dblog_{database.name} ADD TABLE b")
            wait_until(shop.starts, "b is taken in", describe=shop.errors)
            shop.dump()()
            assert len(terms) == 2, "one each capture"
        with shop.capturing():
            shop.dump()()
            assert shop.starts().keys() == {"public.b"} and 2 not in shop.rows("b")
            assert "f" not in {line["op"] for line in lines(wiring.open_staging(shop.config)) if line["table"] == B}
    with shop.capturing():
        wait_until(lambda: shop.rows("b") == shop.source_rows("b"), "b is captured", describe=lambda: shop.rows("b"))
        wait_until(lambda: not shop.starts(), "every SELECT sees what b had")
    assert {line["op"] for line in lines(wiring.open_staging(shop.config)) if line["table"] == B} >= {"f"}
