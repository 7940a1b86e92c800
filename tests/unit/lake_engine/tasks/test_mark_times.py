"""Since when rows of a table may be marked: by what the last maintenance has left, and by what was purged since."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dblog_core.config.settings import Config
from dblog_core.lake.lake_status import lake_at
from dblog_core.lake_engine.tasks.mark_times import PURGE, Marks
from dblog_core.maintenance import schedule
from dblog_core.maintenance.schedule import TableSize

HOUR = 3600.0
NOW = 1_800_000_000.0


def size(table: str, *, deleted: int, marked_at: float | None) -> TableSize:
    return TableSize(table, 1, 1, 100, deleted, 1, 1, marked_at)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(tmp_path / "staging")},
            "state": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
            "lake": {"path": str(tmp_path / "lake"), "keep": "10h"},
        }
    )


def marks(config: Config, sizes: list[TableSize], *, last: float, purged: dict[str, float] | None = None) -> Marks:
    lake = lake_at(config.lake.path)
    schedule.write_maintained(lake, last, sizes)
    tools: Any = mock.Mock(purged=purged or {})
    tools.lake.location = lake
    return Marks.of(tools, config, NOW)


def test_rows_that_may_be_marked_for_long_are_purged_however_few(config: Config) -> None:
    sizes = [
        size("shop.old", deleted=1, marked_at=NOW - 11 * HOUR),
        size("shop.new", deleted=1, marked_at=NOW - 9 * HOUR),
        size("shop.none", deleted=0, marked_at=None),
    ]
    shares = marks(config, sizes, last=NOW - HOUR).shares(["shop.old", "shop.new", "shop.none", "shop.unknown"])
    assert shares == {"shop.old": 0.0, "shop.new": PURGE, "shop.none": PURGE, "shop.unknown": PURGE}


def test_what_was_purged_beside_the_merges_is_young_again(config: Config) -> None:
    sizes = [size("shop.old", deleted=5, marked_at=NOW - 11 * HOUR)]
    judged = marks(config, sizes, last=NOW - HOUR, purged={"shop.old": NOW - 0.1 * HOUR})
    now_marked = size("shop.old", deleted=2, marked_at=None)
    assert not judged.are_old(now_marked)
    assert judged.with_mark_time(now_marked, purged=False).marked_at == NOW - 0.1 * HOUR


def test_a_purge_from_before_the_last_maintenance_makes_nothing_older(config: Config) -> None:
    """No row was marked when that ended: none has been so for longer."""
    sizes = [size("shop.t", deleted=0, marked_at=None), size("shop.u", deleted=3, marked_at=NOW - 2 * HOUR)]
    purged = {"shop.t": NOW - 30 * HOUR, "shop.u": NOW - 30 * HOUR}
    judged = marks(config, sizes, last=NOW - HOUR, purged=purged)
    assert judged.since(size("shop.t", deleted=1, marked_at=None)) == NOW - HOUR
    assert judged.since(size("shop.u", deleted=1, marked_at=None)) == NOW - 2 * HOUR
