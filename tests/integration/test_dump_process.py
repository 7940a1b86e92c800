"""A dump of the system that kills its process, by its memory say, kills neither the capture nor itself."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import control, dump_records, dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.state import recent_errors
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS, wait_until


def processes() -> set[int]:
    """Those that work on dumps of our captures."""
    process_ids = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (directory / "cmdline").read_bytes().split(b"\0")
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
        if b"dblog_core.capture.dump_process" in arguments and parent == os.getpid():
            process_ids.add(int(directory.name))
    return process_ids


@pytest.mark.one_of(2)
@pytest.mark.in_turn
def test_the_capture_outlives_the_process_of_its_dumps_and_the_dump_does_too(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    database.execute(f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(60))}")
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    stop = threading.Event()
    with closing(wiring.open_state(config)) as state, ThreadPoolExecutor(1) as pool:
        slow = DumpRequest(tables=None, ranges=1, chunk_size=2, delay=0.3)
        dump_id = filing.submit(config, slow, requested_by=dump_records.SYSTEM, state=state)
        capture = pool.submit(run_capture, config, stop=stop)
        try:
            wait_until(lambda: dump_store.read_dump(state, dump_id).rows > 0 or capture.done(), "first chunks")
            (first,) = processes()
            os.kill(first, signal.SIGKILL)
            control.retune(state, dump_id, delay=0)
            wait_until(
                lambda: dump_store.read_dump(state, dump_id).state == "done" or capture.done(), "the end of the dump"
            )
            others = processes() - {first}
            assert len(others) == 1
        finally:
            stop.set()
        capture.result(timeout=PATIENCE_SECONDS)
        assert dump_store.read_dump(state, dump_id).rows == 60
        assert any("was killed by signal 9" in error.error for error in recent_errors.read(state))
    wait_until(lambda: not processes(), "the end of the other process, with its capture")
