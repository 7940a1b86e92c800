"""A whole capture with its workers in this process, on a fake source."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import CaptureOutcome, run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.staging import Staging
from dblog_core.staging.reader import lines
from dblog_core.state.memory import MemoryState
from tests.fake_source import ORDERS, FakeDatabase, FakeSource
from tests.waiting import PATIENCE_SECONDS


class World:
    """A source, a state store and staging; `replay` is what any keyed consumer of `log` ends with."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = FakeDatabase()
        self.source = FakeSource(self.database)
        self.state = MemoryState()
        self.config = Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(path / "staging"), "max_age": 0.05},
                "state": {"url": "sqlite:///unused"},
                "lake": {"path": str(path / "lake")},
            }
        )
        monkeypatch.setattr(wiring, "open_source", lambda config: self.source)
        monkeypatch.setattr(wiring, "open_state", lambda config: MemoryState(shared=self.state))

    @property
    def staging(self) -> Staging:
        return wiring.open_staging(self.config)

    def capture(self) -> None:
        """Stages all that is committed now."""
        assert run_capture(self.config, stop=threading.Event(), until_current=True) is CaptureOutcome.CURRENT

    def capture_until_dumped(self, *, fresh_start: bool) -> None:
        """Captures until the dump that the capture itself requests and works on is done."""
        stop = threading.Event()
        pause = threading.Event()
        more = {"stop": stop, "fresh_start": fresh_start}
        thread = threading.Thread(target=run_capture, args=(self.config,), kwargs=more)
        thread.start()
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not any(d.state == "done" for d in dump_store.list_dumps(self.state)):
                assert time.monotonic() < deadline, "the dump is not done"
                pause.wait(0.05)
        finally:  # a thread that goes on would keep the whole run from ending
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)

    def lines(self) -> list[dict[str, Any]]:
        return list(lines(self.staging))

    def replay(self) -> dict[int, Any]:
        rows: dict[int, Any] = {}
        seen: dict[int, int] = {}
        for line in self.lines():
            if line["op"] == "t":
                rows.clear()
            if line["op"] in "cudr":
                key = line["key"]["id"]
                seen[key] = line["offset"]
                old = rows.pop(key, {})
                if line["op"] != "d":
                    rows[key] = {**{c: old.get(c) for c in line["unchanged"]}, **line["after"]}
            if line["op"] == "f":
                rows = {k: v for k, v in rows.items() if seen[k] > line["since"]}
        return rows

    def rows(self) -> dict[int, Any]:
        return {key[0]: row for key, row in self.database.rows.get(ORDERS.table, {}).items()}

    def put(self, *keys: int, name: str = "n") -> None:
        self.database.commit(*(self.database.put({"id": k, "name": name, "big": "b"}) for k in keys))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.fixture
def running(world: World) -> Iterator[World]:
    """The world with a capture that runs beside the test."""
    world.capture()
    stop = threading.Event()
    thread = threading.Thread(target=run_capture, args=(world.config,), kwargs={"stop": stop})
    thread.start()
    yield world
    stop.set()
    thread.join(timeout=PATIENCE_SECONDS)
    assert not thread.is_alive()
