"""A state store that is lost, or put back from an older copy, beside a staging that has lived on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.errors import StateError
from dblog_core.monitoring.status import read_source_status
from tests.fix_servers import Database
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing, copies, source_rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn]
SHAPE = "(id int PRIMARY KEY, v varchar(20), d date)"


def read_up(config: Config) -> None:
    run_capture(config, stop=threading.Event(), until_current=True)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "older"])
def test_a_state_store_that_has_forgotten_stopped_tables_costs_dumps_and_no_row(
    database: Database, tmp_path: Path, is_lost: bool
) -> None:
    config = database.config(tmp_path)
    database.execute(f"CREATE TABLE t {SHAPE}", f"CREATE TABLE u {SHAPE}")
    read_up(config)
    database.execute("INSERT INTO t VALUES (1, 'a', NULL)", "INSERT INTO u VALUES (1, 'other', NULL)")
    read_up(config)
    store, copy = tmp_path / "state.db", tmp_path / "copy.db"
    shutil.copy(store, copy)
    with capturing(config):
        # A value without an exact form stops the table, and the rows after it are passed over.
        if database.kind == "postgres":
            database.execute("INSERT INTO t VALUES (3, 'bad', 'infinity')")
        else:
            database.execute("SET sql_mode = ''", "INSERT INTO t VALUES (3, 'bad', '0000-00-00')")
        wait_until(lambda: "t" in stop_reasons(config), "the table stops")
        database.execute("INSERT INTO t VALUES (4, 'passed over', NULL)", "DELETE FROM t WHERE id IN (1, 3)")
        database.execute("INSERT INTO u VALUES (2, 'goes on', NULL)")
        wait_until(lambda: 2 in copies(config)["u"], "the other table goes on")
    assert copies(config)["t"] == {1: "a"}

    for file in tmp_path.glob("state.db*"):
        file.unlink()
    if not is_lost:
        shutil.copy(copy, store)
    database.execute("INSERT INTO u VALUES (3, 'later', NULL)")
    with pytest.raises(StateError, match="it was replaced"):
        read_up(config)
    with capturing(config) as wait:
        wait(source_rows(database, "t", "u"))
    assert copies(config)["t"] == {4: "passed over"}
    fixes = [error.fix for error in read_source_status(config).errors]
    assert any("all tables are dumped" in fix for fix in fixes), fixes
