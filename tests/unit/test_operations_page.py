"""The operator's page names every state that `status` can show: what the code can say, the page explains."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.commands import status as command
from dblog_core.config.settings import Config
from dblog_core.dumps.dump_records import OVER, TaskRecord, TaskStatus
from dblog_core.dumps.status import state_of
from dblog_core.lake.lake_status import State
from dblog_core.maintenance import retention_needs
from dblog_core.monitoring.status import read_source_status
from dblog_core.state.memory import MemoryState

DOCS = Path(__file__).parents[2] / "docs"
_TASK = TaskStatus(0, TaskRecord("shop.a"), TaskProgress("shop.a"))


@pytest.fixture(scope="module")
def rows() -> str:
    """The first cells of the tables that explain states."""
    page = (DOCS / "operations.md").read_text()
    part = page[page.index("## What `status` shows") : page.index("## Starting, stopping, moving")]
    tables = [line for line in part.splitlines() if line.startswith("| ")]
    assert all(len(line.split(" | ")) == 3 for line in tables), "each state says what it means and what to do"
    return "\n".join(line.split(" | ")[0] for line in tables)


def _is_named(word: str, rows: str) -> bool:
    return re.search(rf"(?<![a-z_]){re.escape(word)}(?![a-z_])", rows) is not None


def _dump_states() -> set[str]:
    begun = replace(_TASK, progress=TaskProgress("shop.a", attempt=1))
    done = replace(_TASK, progress=TaskProgress("shop.a", attempt=1, done=True))
    states = {state_of(r, [t]) for r in ("requested", "paused", *OVER) for t in (_TASK, begun, done)}
    return states | {state_of("requested", [replace(_TASK, error="no")])}


def test_every_state_of_a_table_is_explained(rows: str) -> None:
    assert [s for s in State if not _is_named(f"table … {s}", rows)] == []


def test_every_state_of_a_dump_is_explained(rows: str) -> None:
    assert _dump_states() == {"requested", "running", "paused", "done", "failed", "cancelled"}
    assert [s for s in _dump_states() if f"`{s}`" not in rows] == []


def test_every_line_that_status_prints_is_explained(rows: str) -> None:
    printed = set(re.findall(r'f?"([a-z]+) {2,}', inspect.getsource(command)))
    assert {"leader", "offset", "lake", "table", "window", "staging", "held", "size"} <= printed
    assert [word for word in printed - {"source", "dump"} if not _is_named(word, rows)] == []


def test_every_field_of_the_json_is_explained(rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "open_state", lambda _: MemoryState())
    config = Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(tmp_path / "staging")},
            "state": {"url": "sqlite:///unused"},
            "lake": {"path": str(tmp_path / "lake")},
        }
    )
    status_json: dict[str, Any] = read_source_status(config).to_json()
    documented_names = {
        "tables": "table",
        "windows": "window",
        "dumps": "running",
        "lag_seconds": "lag",
        "storage": "staging",
    }
    fields = {*status_json, *status_json["storage"]["staging"], "retention"} - {"source"}
    assert [name for name in fields if not _is_named(documented_names.get(name, name), rows)] == []


def test_everything_that_holds_back_retention_is_explained(rows: str) -> None:
    """By the texts of `needs`, with what stands in their places left out."""
    source = inspect.getsource(retention_needs)
    whys = [re.sub(r"\{[^}]*\}", "…", text) for text in re.findall(r'Need\([^"]*f?"([^"]+)"', source)]
    assert len(whys) == 9
    page = re.sub(r"\b(N|ID|T|NAME)\b", "…", rows)
    parts = [max(why.split("…"), key=len).strip() for why in whys]
    assert [part for part in parts if part not in page] == []


def test_the_picture_is_there() -> None:
    for name in re.findall(r"\]\((images/[^)]+)\)", (DOCS / "operations.md").read_text()):
        assert (DOCS / name).is_file(), name
