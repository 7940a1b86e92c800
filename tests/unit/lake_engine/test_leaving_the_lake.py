"""A merge whose slice is over leaves the lake to the next one at once."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config import loader
from dblog_core.lake.lake_status import lake_at
from dblog_core.lake_engine.merging.lock import LEASE
from dblog_core.lake_engine.tables import delta_log_checkpoint
from spark_jobs import delta_log_store, entry_point
from tests.waiting import PATIENCE_SECONDS, wait_until

_TOML = """
[source]
name = "shop"
kind = "mysql"
database = "shop"
tables = ["shop.t"]
[staging]
path = "{root}/staging"
[state]
url = "sqlite:///{root}/state.db"
[lake]
path = "{root}/lake"
"""


def test_the_lake_is_free_while_a_checkpoint_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes seconds for one where it has just started; readers alone gain by it."""
    file = tmp_path / "shop.toml"
    file.write_text(_TOML.format(root=tmp_path))
    events: list[str] = []
    may_end = threading.Event()

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[Any]:
        yield SimpleNamespace(
            sparkContext=SimpleNamespace(master="local[2]", getConf=lambda: SimpleNamespace(getAll=list))
        )
        events.append("Spark stops")

    def write(*_: Any) -> None:
        events.append("a checkpoint begins")
        assert may_end.wait(PATIENCE_SECONDS)
        events.append("the checkpoint is made")

    monkeypatch.setattr(entry_point, "session", session)
    monkeypatch.setattr(entry_point, "stop_on_signals", threading.Event)  # only the main thread may ask for signals
    monkeypatch.setattr(delta_log_checkpoint, "write", write)
    monkeypatch.setattr(delta_log_store, "check_excludes", lambda *_: None)  # it asks the JVM
    options = argparse.Namespace(config=file, wait=0.0, json=False)

    def merge() -> None:
        with entry_point.open_lake_job(options, "merge", hands_over=True) as job:
            assert job.lake.open_tables is not None
            job.lake.open_tables.checkpoints.ask(lake_at(str(tmp_path)))
            wait_until(lambda: events, "the checkpoint begins")

    with closing(wiring.open_state(loader.load(file, secrets=False))) as state:
        thread = threading.Thread(target=merge)
        thread.start()
        try:
            wait_until(lambda: events and state.leader(LEASE) is None, "the lake is free", timeout=PATIENCE_SECONDS / 2)
            assert events == ["a checkpoint begins"]
        finally:
            may_end.set()
            thread.join()
    assert events == ["a checkpoint begins", "the checkpoint is made", "Spark stops"]
