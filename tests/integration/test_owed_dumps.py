"""Dumps that the system owes go on when the server lets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dblog_core import control, requests, wiring
from dblog_core.capture import run_capture
from dblog_core.requests import WHOLE
from dblog_core.worker import PATIENCE
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS, wait_until


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


@pytest.mark.in_turn
def test_a_dump_that_the_system_owes_outlives_a_read_only_primary(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    stop = threading.Event()
    with closing(wiring.open_state(config)) as state, ThreadPoolExecutor(1) as pool:
        dump_id = requests.submit(config, WHOLE, requested_by=control.SYSTEM, state=state)
        control.pause(state, dump_id)
        before = control.read_status(state)
        capture = pool.submit(run_capture, config, stop=stop)
        try:
            wait_until(lambda: control.read_status(state) != before or capture.done(), "a capture that reads the log")
            with read_only(database):
                control.resume(state, dump_id)
                wait_until(
                    lambda: control.task(state, dump_id, 0).attempt > PATIENCE or capture.done(),
                    "attempts while nothing may be written",
                    describe=lambda: control.task(state, dump_id, 0),
                )
                assert control.task(state, dump_id, 0).error is None
            wait_until(lambda: control.dump(state, dump_id).state == "done" or capture.done(), "the dump that is owed")
        finally:
            stop.set()
        capture.result(timeout=PATIENCE_SECONDS)
        assert control.dump(state, dump_id).rows == 2
