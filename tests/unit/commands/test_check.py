"""`dblog check` says that nothing is captured yet, and what begins it, until a capture leads."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.loader import load
from dblog_core.monitoring import preflight
from dblog_core.state.lease_holder import CAPTURE
from dblog_core.wiring import open_state

BEGINS = "unpause dblog_shop_capture and dblog_shop_capture_standby in Airflow"


def test_captures_that_are_paused_are_told_with_what_begins_one(
    run: Callable[..., Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "findings", lambda *_, **__: [])
    checked = run("check")
    assert checked.exit_code == 0
    assert checked.stdout.splitlines()[-1].startswith("no capture is running yet: `dblog capture`, or ")
    assert BEGINS in checked.stdout
    assert json.loads(run("check", "--json").stdout)["capture_runs"] is False
    with closing(open_state(load(file))) as state:
        lease = state.acquire(CAPTURE, "elsewhere:7", ttl=300)
        assert lease is not None
        assert run("check").stdout == "shop: all is well\n"
        assert json.loads(run("check", "--json").stdout)["capture_runs"] is True
        lease.release()
