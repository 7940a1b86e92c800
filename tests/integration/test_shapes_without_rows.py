"""A table that is altered, and of which no row comes afterwards: its new shape is in the super-changelog too."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import dump_store
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_mysql_sessions import capturing
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn]


def shapes(config: Any, table: str) -> list[dict[str, Any]]:
    staged_lines = lines(wiring.open_staging(config))
    return [line for line in staged_lines if line["op"] == "s" and line["table"].endswith(f".{table}")]


def columns(line: dict[str, Any]) -> list[str]:
    return [column["name"] for column in line["schema"]]


@pytest.mark.one_of(2)
def test_a_statement_is_followed_without_a_later_row(database: Database, tmp_path: Path) -> None:
    logged = database.kind != "postgres"  # whose log has no statement: the catalogue tells of the shape alone
    config = database.config(tmp_path)
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (v int)", "CREATE TABLE c (v int)")
    if not logged:  # where a table has no key, the log is to identify its rows
        database.execute("ALTER TABLE b REPLICA IDENTITY FULL", "ALTER TABLE c REPLICA IDENTITY FULL")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO a VALUES (1, 1), (2, 2)", "INSERT INTO b VALUES (1)")
    with capturing(config):
        wait_until(lambda: shapes(config, "a"), "the first shape")
        database.execute("ALTER TABLE b ADD COLUMN w int", "DROP TABLE c", "ALTER TABLE a ADD COLUMN w int DEFAULT 5")
        wait_until(lambda: columns(shapes(config, "a")[-1]) == ["id", "v", "w"], "the added column")
        assert not logged or shapes(config, "a")[-1]["filled"] == {"w": 5}
        database.execute("ALTER TABLE a RENAME COLUMN v TO x")
        wait_until(lambda: columns(shapes(config, "a")[-1]) == ["id", "x", "w"], "the renamed column")
        assert not logged or shapes(config, "a")[-1]["renamed"] == {"x": "v"}
        database.execute("ALTER TABLE a DROP COLUMN w")
        wait_until(lambda: columns(shapes(config, "a")[-1]) == ["id", "x"], "the column that is gone")
        wider = "MODIFY x bigint" if logged else "ALTER x TYPE bigint"
        database.execute(f"ALTER TABLE a {wider}")
        wait_until(lambda: shapes(config, "a")[-1]["schema"][1]["type"] == "int64", "the wider type")
    state = wiring.open_state(config)
    try:
        assert {dump.error for dump in dump_store.list_dumps(state)} == {None}
    finally:
        state.close()
