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
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing, copies, source_rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn]
ZERO_DATE = {"t": ("date", "0000-00-00", "or_null", None)}
ODD: dict[str, dict[str, tuple[str, str, str, str | None]]] = {
    "mysql": ZERO_DATE,
    "mariadb": ZERO_DATE,
    "postgres": {
        "t": ("date", "infinity", "or_null", None),
        "numbers": ("numeric(5,2)", "NaN", "text", "NaN"),
        "early": ("timestamptz", "0044-03-15 12:00 BC", "or_null", None),
    },
}
"""By table: a column's type, a value of it without an exact form, the form that takes it, and what is staged then."""


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
    cases = ODD[database.kind]
    before = {name: {1: "before"} for name in cases}
    database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20), d {kind})" for name, (kind, *_) in cases.items()),
        "CREATE TABLE u (id int PRIMARY KEY, v varchar(20))",
    )
    capture_all(config)
    for name, (_, odd, _, _) in cases.items():
        run(
            database,
            f"INSERT INTO {name} VALUES (1, 'before', NULL), (2, 'odd', '{odd}'), (3, 'behind', NULL)",
            f"INSERT INTO {name} VALUES (4, 'later', NULL), (5, 'odd too', '{odd}')",
        )
    database.execute("INSERT INTO u VALUES (1, 'other')")
    with capturing(config) as wait:
        wait({**before, **source_rows(database, "u")})
        for name, (_, _, form, _) in cases.items():
            reason = stop_reasons(config)[name]
            assert f"{database.schema}.{name}" in reason and "transaction" in reason
            assert f'"{form}"' in reason and "staged_as" in reason
            assert "start the capture again, which dumps the table" in reason
        dump_id = filing.submit(config, DumpRequest(None), requested_by=dump_records.SYSTEM)
        tasks = await_task_errors(config, dump_id)
        assert tasks.pop("u") is None and set(tasks) == {name for name, error in tasks.items() if error} == set(cases)
    assert copies(config) == {**before, **source_rows(database, "u")}
    rules = {f"{database.schema}.{name}": {"staged_as": {"d": form}} for name, (_, _, form, _) in cases.items()}
    mended = database.config(tmp_path, source={"columns": rules})
    stop = threading.Event()
    thread = threading.Thread(target=lambda: run_capture(mended, stop=stop), daemon=True)
    thread.start()
    try:
        wait_until(lambda: copies(mended) == source_rows(database, "u", *cases), "the tables are dumped")
    finally:
        stop.set()
        thread.join()
    assert stop_reasons(mended) == {}
    dumped = [line for line in lines(wiring.open_staging(mended)) if line["op"] == "r" and line["after"].get("d")]
    staged = {(line["table"].partition(".")[2], line["after"]["d"]) for line in dumped}
    assert staged == {(name, text) for name, (_, _, _, text) in cases.items() if text is not None}


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


@pytest.mark.one_of(2)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "beside the stopped one"])
def test_another_table_is_dumped_by_the_system_while_such_a_value_in_a_key_has_stopped_one(
    database: Database, tmp_path: Path, together: bool
) -> None:
    """`together`: the log shows changes of both at the same time that only a dump brings; the stopped one waits."""
    column, (value, *_) = KEYS[database.kind]
    in_parts, rewrite = "", "ALTER TABLE {} ALTER v TYPE text USING 'again ' || v"
    if database.kind != "postgres":
        in_parts = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
        rewrite = "ALTER TABLE {} DROP PARTITION p1"
    config = database.config(tmp_path)
    database.execute(
        f"CREATE TABLE t (id int, v varchar(20), {column}, PRIMARY KEY (d, id)) {in_parts}",
        f"CREATE TABLE u (id int PRIMARY KEY, v varchar(20)) {in_parts}",
    )
    capture_all(config)
    run(database, f"INSERT INTO t VALUES (1, 'odd', {value})", "INSERT INTO u VALUES (1, 'other'), (11, 'behind')")
    capture_all(config)
    assert set(stop_reasons(config)) == {"t"} and copies(config) == source_rows(database, "u")
    rewritten = ("t", "u") if together else ("u",)
    with contextlib.closing(wiring.open_state(config)) as state:
        assert dump_store.list_dumps(state) == []
        with capturing(config) as wait:
            run(database, *(rewrite.format(name) for name in rewritten))
            wait_until(lambda: copies(config) == source_rows(database, "u"), "the dump of the other table")
            wait(source_rows(database, "u"))
            assert set(stop_reasons(config)) == {"t"}
        dumps = dump_store.list_dumps(state)
    assert [(dump.requested_by, dump.state) for dump in dumps] == [(dump_records.SYSTEM, "done")]
    assert [table.partition(".")[2] for table in dumps[0].tables] == ["u"]
    assert {line["dump"] for line in lines(wiring.open_staging(config)) if line["op"] == "f"} == {dumps[0].id}
