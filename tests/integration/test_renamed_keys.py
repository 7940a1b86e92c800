"""A key column that is dropped, and one of PostgreSQL that is renamed: in the transaction that changes rows, with
REPLICA IDENTITY FULL, and while the catalogue is read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.monitoring.status import read_source_status
from dblog_core.sources.postgres.source import PostgresSource
from dblog_core.sources.postgres.sql import catalogue
from dblog_core.staging.reader import lines
from dblog_core.state import stopped_tables
from tests.fix_servers import Database
from tests.integration.test_lost_watermark_table import Shop
from tests.waiting import wait_until


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("has_rows", [True, False])
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
def test_rows_of_before_a_key_was_renamed_in_their_transaction_have_their_key(
    database: Database, tmp_path: Path, plugin: str, has_rows: bool
) -> None:
    """`has_rows`: the table has a key in staging."""
    shop = Shop(database, tmp_path, plugin=plugin)
    shop.make()
    database.execute("ALTER TABLE a REPLICA IDENTITY FULL")

    def staged() -> list[tuple[Any, Any]]:
        found = [line for line in lines(wiring.open_staging(shop.config)) if line["table"] == "public.a"]
        return [(line["key"], line["after"]["v"]) for line in found if line["op"] == "u"]

    if has_rows:
        with shop.capturing():
            shop.change(1, "before")
    # The first row of a term: the log describes the table with it, and the catalogue knows the new name alone.
    with shop.capturing():
        shop.await_published()
        database.execute("BEGIN; UPDATE a SET v = 'same' WHERE id = 2; ALTER TABLE a RENAME id TO id2; COMMIT")
        wait_until(lambda: ({"id": 2}, "same") in staged(), "the row of before is staged", describe=staged)
        database.execute("UPDATE a SET v = 'after' WHERE id2 = 3")
        wait_until(lambda: ({"id2": 3}, "after") in staged(), "the row after it is staged", describe=staged)
        with closing(wiring.open_state(shop.config)) as state:
            assert stopped_tables.read(state) == {}


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_key_that_is_renamed_while_the_catalogue_is_read_stops_no_table(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns were read with the old name, and its indexes with the new one: a table without its key column."""
    shop = Shop(database, tmp_path)
    shop.make()
    read_names = catalogue.type_names
    names = ["id", "id2"]

    def rename_and_read(*arguments: Any) -> dict[catalogue.Kind, str]:
        database.execute(f"ALTER TABLE a RENAME {names[0]} TO {names[1]}")
        names.reverse()
        return read_names(*arguments)

    monkeypatch.setattr(catalogue, "type_names", rename_and_read)  # between the two questions
    source = PostgresSource(shop.config.source)
    assert source.list_refusals() == ()
    assert [(table.key, [column.name for column in table.columns]) for table in source.tables()] == [
        (("id2",), ["id2", "v"])
    ]
    assert names == ["id", "id2"]


@pytest.mark.in_turn
def test_a_table_that_loses_a_column_of_its_key_stops_and_names_the_new_key(
    database: Database, tmp_path: Path, merged_here: Callable[[Config], int]
) -> None:
    config = database.config(tmp_path)
    database.execute("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b))")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 1, 1)")
    run_capture(config, stop=threading.Event(), until_current=True)
    assert merged_here(config) == 0
    new_key = ["ALTER TABLE t ADD PRIMARY KEY (a)"] if database.kind == "postgres" else []
    drop = "DROP COLUMN b" if database.kind != "mariadb" else "DROP PRIMARY KEY, DROP COLUMN b, ADD PRIMARY KEY (a)"
    database.execute(f"ALTER TABLE t {drop}", *new_key, "INSERT INTO t VALUES (2, 2)")
    run_capture(config, stop=threading.Event(), until_current=True)
    merged_here(config)
    (table,) = read_source_status(config).to_json()["tables"]
    assert table["state"] == "stopped"
    assert "the key was (a, b) and is (a)" in table["error"] and "dblog schema accept" in table["error"]
