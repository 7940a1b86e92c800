"""The process that works on dumps of the system: what it is given, when it ends, and what is made of its death."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core import wiring
from dblog_core.capture import dump_process
from dblog_core.capture.dump_process import work
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store
from dblog_core.dumps.dump_records import DumpRecord
from dblog_core.errors import DblogError
from dblog_core.lake.spark_submit import config_json
from dblog_core.local.servers import ports
from dblog_core.state.memory import MemoryState
from tests.unit.workers_world import OPTIONS, DrawnClock
from tests.waiting import PATIENCE_SECONDS, wait_until

SECRET = "pw-that-nobody-may-see"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A source that nobody can reach."""
    return Config.model_validate(
        {
            "source": {
                "name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"],
                "host": "127.0.0.1", "port": ports.find_free_port(), "user": "dblog", "password": SECRET,
            },
            "staging": {"path": str(tmp_path / "staging")},
            "state": {"url": f"sqlite:///{tmp_path}/state.db"},
            "lake": {"path": str(tmp_path / "lake")},
        }
    )  # fmt: skip


def request(config: Config, by: str) -> None:
    task = {
        "table": "shop.orders", "keys": None, "key_from": None, "after": None, "key_to": None, "filters": [],
        "parts": 1, "heals": None, "estimated": None, "attempt": 0,
    }  # fmt: skip
    record = {
        "tables": ["shop.orders"], "options": OPTIONS, "state": "requested", "error": None,
        "requested_at": "2026-11-21T09:00:00+00:00", "requested_by": by, "refused": [],
    }  # fmt: skip
    with closing(wiring.open_state(config)) as state:
        state.create("dumps/d1/tasks/0/task", orjson.dumps(task))
        dump_store.file_dump(state, "d1", DumpRecord.from_json(record))


def test_it_has_the_configuration_and_no_secret_in_arguments_or_environment(config: Config) -> None:
    with dump_process._start_process(config) as process:
        assert process.stdin is not None
        place = Path(f"/proc/{process.pid}")
        arguments = wait_until((place / "cmdline").read_bytes, "a process that has begun its program")
        visible_bytes = arguments + (place / "environ").read_bytes()
        assert b"dblog_core.capture.dump_process" in visible_bytes and SECRET.encode() not in visible_bytes
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0, "the end of its pipe is the word to stop"


def test_one_that_has_nothing_left_to_do_ends_well_while_its_pipe_is_open(config: Config) -> None:
    program = "import sys; from dblog_core.capture import dump_process as p; p.LINGER = 0; sys.exit(p._main())"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(orjson.dumps({"config": config_json(config), "level": logging.INFO}) + b"\n")
        process.stdin.flush()
        assert (process.stderr.read(), process.wait(PATIENCE_SECONDS)) == (b"", 0)


@pytest.mark.thorough
def test_what_it_logs_is_logged_here_and_a_fault_that_it_has_told_is_no_death(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    request(config, dump_records.SYSTEM)
    stop = threading.Event()
    faults = list[DblogError]()
    description = "a dump that the system or a signal requested"
    with caplog.at_level(logging.INFO), closing(wiring.open_state(config)) as state:
        worker = threading.Thread(
            target=work, args=(config, state, wiring_clock(), stop), kwargs={"on_fault": faults.append}
        )
        worker.start()
        try:
            wait_until(
                lambda: any(description in r.getMessage() and "reading" not in r.name for r in caplog.records),
                description,
            )
        finally:
            stop.set()
            worker.join(timeout=PATIENCE_SECONDS)
    assert not worker.is_alive() and faults == []
    assert SECRET not in caplog.text


def wiring_clock() -> Any:
    from dblog_core.clock import SystemClock

    return SystemClock()


class Scripted:
    """In the place of processes: each ends as the script says; the last one stops the capture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *codes: int) -> None:
        self.clock = DrawnClock()
        self.stop = threading.Event()
        self.codes = list(codes)
        self.began: list[float] = []
        self.faults: list[DblogError] = []
        self.state = MemoryState()
        monkeypatch.setattr(dump_process, "_run", self.run)

    def run(self, config: Config, stop: threading.Event) -> int:
        self.began.append(self.clock.now)
        code = self.codes.pop(0)
        if not self.codes:
            self.stop.set()
        return code

    def work(self, config: Config) -> None:
        work(config, self.state, self.clock, self.stop, on_fault=self.faults.append)


def file_dump(state: MemoryState, by: str) -> None:
    state.create("dumps/d1/tasks/0/task", orjson.dumps({"table": "a.b", "keys": None, "key_from": None, "attempt": 0,
                                                        "key_to": None}))  # fmt: skip
    record = {"tables": ["a.b"], "options": OPTIONS, "state": "requested", "error": None, "requested_by": by,
              "requested_at": "2026-11-21T09:00:00+00:00"}  # fmt: skip
    dump_store.file_dump(state, "d1", DumpRecord.from_json(record))


def test_a_process_that_dies_is_replaced_later_each_time_and_its_death_is_told(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Scripted(monkeypatch, -signal.SIGKILL, 1, dump_process.FAULT, -signal.SIGKILL, 0)
    file_dump(script.state, dump_records.SYSTEM)
    script.work(config)
    waits = [b - a for a, b in zip(script.began, script.began[1:], strict=False)]
    assert waits == [2.0, 4.0, 8.0, 16.0]
    assert [str(f).splitlines()[0].rpartition("system ")[2] for f in script.faults] == [
        "was killed by signal 9", "ended with exit code 1", "was killed by signal 9",
    ]  # fmt: skip
    assert "chunk_bytes" in script.faults[0].fix


def test_no_process_is_started_for_dumps_of_people_or_for_none(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch, 0)
    file_dump(script.state, dump_records.USER)

    def over() -> None:
        if script.clock.now > 1_010:
            script.stop.set()

    script.clock.hooks.append(over)
    script.work(config)
    assert script.began == []


def test_a_process_that_does_not_end_is_ended(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = ["python3", "-c", "import signal,time; signal.signal(15, lambda *_: 0); time.sleep(600)"]
    process = subprocess.Popen(stubborn, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    monkeypatch.setattr(dump_process, "_start_process", lambda config: process)
    monkeypatch.setattr(dump_process, "GRACE", 0.1)
    stop = threading.Event()
    stop.set()
    assert dump_process._run(config, stop) == -signal.SIGKILL
