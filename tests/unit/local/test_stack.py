"""What `make up` says once all runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dblog_core.local import stack


def test_it_says_for_each_source_that_its_captures_are_paused_and_which_to_unpause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("mysql", "postgres"):
        (tmp_path / f"shop_{kind}.toml").touch()
    up = SimpleNamespace(
        up=lambda: None,
        databases=[],
        servers=[],
        configs=tmp_path,
        airflow=SimpleNamespace(address=lambda: "http://127.0.0.1:8080"),
    )
    monkeypatch.setattr(stack, "Stack", lambda _: up)
    monkeypatch.setattr(stack, "_password", lambda _: "of this stack")
    assert stack.main(["up"]) == 0
    printed = capsys.readouterr().out
    assert "Until the captures are unpaused, nothing is captured. In Airflow, http://127.0.0.1:8080:" in printed
    for name in ("dblog_shop_mysql", "dblog_shop_postgres"):
        assert f"unpause {name}_capture and {name}_capture_standby, then trigger {name}_dump" in printed
