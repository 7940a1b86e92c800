"""Values without an exact form: their table stops alone, in the log and in dumps, and a setting takes it in again."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store, filing
from dblog_core.dumps.dry_run import plan
from dblog_core.dumps.requests import DumpRequest
from tests.fix_servers import Database
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing, copies, source_rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn]
ODD = {"mysql": "0000-00-00", "mariadb": "0000-00-00", "postgres": "infinity"}


def capture_all(config: Config) -> None:
    run_capture(config, stop=threading.Event(), until_current=True)


def run(database: Database, *statements: str) -> None:
    """On MySQL and MariaDB as a server that takes dates which do not exist."""
    loose = () if database.kind == "postgres" else ("SET SESSION sql_mode = ''",)
    database.execute(*loose, *statements)


def await_task_errors(config: Config, dump_id: str) -> dict[str, str | None]:
    """What each table's task of a dump came to, by name: None where it is done."""
    with contextlib.closing(wiring.open_state(config)) as state:
        wait_until(lambda: dump_store.read_dump(state, dump_id).state in dump_records.OVER, f"dump {dump_id} is over")
        return {task.table.partition(".")[2]: task.error for task in dump_store.read_dump(state, dump_id).tasks}


def test_a_value_without_an_exact_form_stops_its_table_alone_until_a_setting_takes_it(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path)
    odd = ODD[database.kind]
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20), d date)")
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v varchar(20))")
    capture_all(config)
    run(
        database,
        f"INSERT INTO t VALUES (1, 'before', NULL), (2, 'odd', '{odd}'), (3, 'behind', NULL)",
        "INSERT INTO u VALUES (1, 'other')",
        "INSERT INTO t VALUES (4, 'later', NULL)",
        f"INSERT INTO t VALUES (5, 'odd too', '{odd}')",
    )
    with capturing(config) as wait:
        wait({"t": {1: "before"}, **source_rows(database, "u")})
        stopped_tables = stop_reasons(config)["t"]
        assert f"{database.schema}.t" in stopped_tables and "transaction" in stopped_tables
        assert "or_null" in stopped_tables and "start the capture again, which dumps the table" in stopped_tables
        dump_id = filing.submit(config, DumpRequest(None), requested_by=dump_records.SYSTEM)
        tasks = await_task_errors(config, dump_id)
        assert tasks["u"] is None and str(tasks["t"])
    assert copies(config) == {"t": {1: "before"}, **source_rows(database, "u")}
    mended = database.config(tmp_path, source={"columns": {f"{database.schema}.t": {"staged_as": {"d": "or_null"}}}})
    stop = threading.Event()
    thread = threading.Thread(target=lambda: run_capture(mended, stop=stop), daemon=True)
    thread.start()
    try:
        wait_until(lambda: copies(mended) == source_rows(database, "t", "u"), "t is dumped")
    finally:
        stop.set()
        thread.join()
    assert stop_reasons(mended) == {}


KEYS = {
    "mysql": ("d date", ["'0000-00-00'", "'2024-00-00'", "'2024-01-01'"]),
    "mariadb": ("d date", ["'0000-00-00'", "'2024-00-00'", "'2024-01-01'"]),
    "postgres": ("d numeric(5,2)", ["'NaN'", "2", "1"]),
}


@pytest.mark.one_of(2)
def test_such_a_value_in_a_key_stops_its_table_alone_in_log_plan_and_the_captures_own_dump(
    database: Database, tmp_path: Path
) -> None:
    """With `zero_dates = "null"` too: rows whose keys differ in such a value alone would be one."""
    column, values = KEYS[database.kind]
    more: dict[str, Any] = {} if database.kind == "postgres" else {"zero_dates": "null"}
    config = database.config(tmp_path, source={"start": "initial", **more})
    database.execute(f"CREATE TABLE t (id int, v varchar(20), {column}, PRIMARY KEY (d, id))")
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v varchar(20))", "INSERT INTO u VALUES (1, 'other')")
    run(database, *(f"INSERT INTO t VALUES (1, 'first', {value})" for value in values))
    capture_all(config)
    with contextlib.closing(wiring.open_state(config)) as state:
        (first,) = dump_store.list_dumps(state)
    assert [table.partition(".")[2] for table in first.tables] == ["u"]
    assert [refusal.table.partition(".")[2] for refusal in first.refused] == ["t"]
    dump_plan = plan(config, DumpRequest(None))
    assert [t.table for t in dump_plan.tables] == list(first.tables) and [r.table for r in dump_plan.refused]
    run(database, f"INSERT INTO t VALUES (2, 'second', {values[0]})", "INSERT INTO u VALUES (2, 'goes on')")
    with capturing(config) as wait:
        wait(source_rows(database, "u"))
        assert set(stop_reasons(config)) == {"t"}
    capture_all(config)  # a start does not end by it either
