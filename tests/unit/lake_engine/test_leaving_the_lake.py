"""A merge whose slice is over leaves the lake to the next one at once."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config import loader
from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import lake_at
from dblog_core.lake_engine.lake_job import Caller, open_lake_job
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.lock import LEASE
from dblog_core.lake_engine.tables import checkpoints
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
    """Only readers gain by it."""
    file = tmp_path / "shop.toml"
    file.write_text(_TOML.format(root=tmp_path))
    events: list[str] = []
    may_end = threading.Event()

    def start_carrier(lake: Lake, stack: ExitStack) -> Lake:
        stack.callback(events.append, "the carrier stops")
        return lake

    def write(*_: Any) -> None:
        events.append("a checkpoint begins")
        assert may_end.wait(PATIENCE_SECONDS)
        events.append("the checkpoint is made")

    monkeypatch.setattr(checkpoints, "write", write)
    config = loader.load(file, secrets=False)
    caller = Caller(threading.Event(), print, start_carrier=start_carrier)

    def merge() -> None:
        with open_lake_job(config, "merge", caller, wait_seconds=0, hands_over=True) as job:
            job.lake.open_tables.checkpoints.ask(lake_at(str(tmp_path)))
            wait_until(lambda: events, "the checkpoint begins")

    with closing(wiring.open_state(config)) as state:
        thread = threading.Thread(target=merge)
        thread.start()
        try:
            wait_until(lambda: events and state.leader(LEASE) is None, "the lake is free", timeout=PATIENCE_SECONDS / 2)
            assert events == ["a checkpoint begins"]
        finally:
            may_end.set()
            thread.join()
    assert events == ["a checkpoint begins", "the checkpoint is made", "the carrier stops"]


def test_a_lake_whose_place_cannot_be_made_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file in its place")
    file = tmp_path / "shop.toml"
    file.write_text(_TOML.format(root=tmp_path))
    caller = Caller(threading.Event(), print)
    with (
        pytest.raises(LakeError, match="the lake's lock cannot be opened: Not a directory") as caught,
        open_lake_job(loader.load(file, secrets=False), "merge", caller, wait_seconds=0),
    ):
        pytest.fail("there is no lake")
    assert caught.value.where.endswith("lake/_dblog/lock") and "[lake] path" in (caught.value.fix or "")
