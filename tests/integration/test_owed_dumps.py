"""Dumps that the system owes go on when the server lets them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_records, dump_store, filing, task_store
from dblog_core.dumps.requests import WHOLE
from dblog_core.dumps.worker import FAULTY_ATTEMPTS
from dblog_core.lake.lake_status import table_location
from dblog_core.lake.merge_plan import lacks_since, plan_works
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.monitoring.status import read_source_status
from dblog_core.staging.reader import lines
from dblog_core.state import capture_status, owed_dumps
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration.test_mysql_sessions import capturing
from tests.records import read_records
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.one_of(4)
ReadLake = Callable[[Any], list[dict[str, Any]]]


@contextmanager
def read_only(database: Database) -> Iterator[None]:
    """The server takes no writes of the capture's user, as a primary that is being switched over."""
    if database.kind == "postgres":
        switch = f"ALTER DATABASE {database.name} SET default_transaction_read_only = %s"
    else:
        switch = "SET GLOBAL read_only = %s"
    database.execute(switch % "on")
    try:
        yield
    finally:
        off = switch % "off"
        database.execute(*(["SET default_transaction_read_only = off", off] if database.kind == "postgres" else [off]))


@contextmanager
def statement_timeouts(database: Database) -> Iterator[None]:
    """PostgreSQL ends each SELECT of the capture's user: somebody has locked the table for longer than statements may
    take."""
    role = f'ALTER ROLE "{database.account.user}"'
    database.execute(f"{role} SET statement_timeout = '300ms'")
    try:
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        database.execute(f"{role} RESET statement_timeout")


OBSTACLES = {"read-only": read_only, "statement timeout": statement_timeouts}


@pytest.mark.in_turn("source_kind", "obstacle")
@pytest.mark.parametrize(
    ("source_kind", "obstacle"),
    [*((kind, "read-only") for kind in ("mysql", "mariadb", "postgres")), ("postgres", "statement timeout")],
    indirect=["source_kind"],
)
def test_a_dump_that_the_system_owes_outlives_what_the_server_refuses_for_a_while(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    stop = threading.Event()
    with closing(wiring.open_state(config)) as state, ThreadPoolExecutor(1) as pool:
        dump_id = filing.submit(config, WHOLE, requested_by=dump_records.SYSTEM, state=state)
        control.pause(state, dump_id)
        before = capture_status.read_status(state)
        capture = pool.submit(run_capture, config, stop=stop)
        try:
            wait_until(
                lambda: capture_status.read_status(state) != before or capture.done(), "a capture that reads the log"
            )
            with OBSTACLES[obstacle](database):
                control.resume(state, dump_id)
                wait_until(
                    lambda: (
                        task_store.read_task(state, TaskId(dump_id, 0)).record.attempt > FAULTY_ATTEMPTS
                        or capture.done()
                    ),
                    "attempts while nothing may be written",
                    describe=lambda: task_store.read_task(state, TaskId(dump_id, 0)),
                )
                assert task_store.read_task(state, TaskId(dump_id, 0)).error is None
                assert obstacle in caplog.text
            wait_until(
                lambda: dump_store.read_dump(state, dump_id).state == "done" or capture.done(), "the dump that is owed"
            )
        finally:
            stop.set()
        capture.result(timeout=PATIENCE_SECONDS)
        assert dump_store.read_dump(state, dump_id).rows == 2


VALUES = {
    "mysql": ("date", "0000-00-00"),
    "mariadb": ("date", "0000-00-00"),
    "postgres": ("numeric(3,2)", "NaN"),
}
"""A column's type, and a value of it that no dump reads as it is configured."""


def lacks(config: Config, table: str) -> int | None:
    """What the lake would say of a table, once all that is staged is merged."""
    works = plan_works(wiring.open_staging(config).manifests(), lambda _: 0)
    return lacks_since(works[table], 0)


def count_staged(config: Config, table: str, op: str) -> int:
    """How many lines of the kind the table has."""
    return sum(line["op"] == op and line["table"] == table for line in lines(wiring.open_staging(config)))


def lake_states(config: Config) -> dict[str, str]:
    """How `status` shows the tables of the lake."""
    return {table["table"]: table["state"] for table in read_source_status(config).to_json()["tables"]}


@pytest.mark.in_turn
def test_a_first_dump_that_fails_is_made_again_once_its_cause_is_gone(
    database: Database, tmp_path: Path, merge_here: Callable[[Config], None], verify_here: Verify, read_lake: ReadLake
) -> None:
    """Until that dump is merged the lake's table is incomplete, whatever comes by the log; one that is made meanwhile
    never is."""
    t, u = (f"{database.schema}.{name}" for name in "tu")
    loose = () if database.kind == "postgres" else ("SET SESSION sql_mode = ''",)
    column, odd = VALUES[database.kind]
    create = f"CREATE TABLE t (id int PRIMARY KEY, d {column})"
    database.execute(*loose, create, f"INSERT INTO t VALUES (1, NULL), (2, '{odd}')")
    config = database.config(tmp_path, source={"start": "initial"})
    others = {}
    with capturing(config), closing(wiring.open_state(config)) as state:
        wait_until(
            lambda: t in owed_dumps.read(read_records(config)),
            "the fault of the first dump",
            describe=lambda: dump_store.list_dumps(state),
        )
        database.execute("INSERT INTO t VALUES (3, NULL)")
        if database.kind != "postgres":  # whose log tells of no CREATE
            database.execute("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
            wait_until(lambda: count_staged(config, u, "c"), "a row of the new table")
            assert lacks(config, u) is None and count_staged(config, u, "f") == 0
            others = {u: "ok"}
        wait_until(lambda: count_staged(config, t, "c"), "a row by the log")
        assert lacks(config, t) == 0
        merge_here(config)
        assert lake_states(config) == {t: "incomplete", **others}
        (report,) = verify_here(config, t).tables
        assert report.missing == (1, 2)
        if database.kind == "postgres":
            database.execute("ALTER TABLE t DROP COLUMN d")
            wait_until(lambda: count_staged(config, t, "f"), "the dump after the statement")
    if database.kind != "postgres":
        config = database.config(tmp_path, source={"start": "initial", "zero_dates": "null"})
        with capturing(config):
            wait_until(lambda: count_staged(config, t, "f"), "the dump after the start")
    with closing(wiring.open_state(config)) as state:
        wait_until(
            lambda: owed_dumps.read(read_records(config)) == {},
            "nothing is owed any more",
            describe=lambda: dump_store.list_dumps(state),
        )
    assert lacks(config, t) is None
    merge_here(config)
    assert lake_states(config) == {t: "ok", **others}
    assert {row["id"] for row in read_lake(table_location(wiring.open_lake(config), TableName.parse(t)))} == {1, 2, 3}
