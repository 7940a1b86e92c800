"""What `status`, `check` and the page say once the staging was replaced by one that the lake does not continue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.commands.status import text
from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, own_directory
from dblog_core.lake.merge_dry_run import merge_plan
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.monitoring import preflight
from dblog_core.monitoring.lag_history import LagHistory
from dblog_core.monitoring.status import read_source_status
from tests.unit.monitoring.test_metrics import config as make_config
from tests.unit.staged import manifest

WHY = "the lake is at segment 2, the staging ends before it, with segment 1"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The lake has two segments of three rows; the staging has one now."""
    config = make_config("shop", tmp_path)
    staging = wiring.open_staging(config)
    for number in (1, 2):
        staging.publish(manifest(number, 3 * number - 2, 3 * number))
    tables = {"shop.a": TableStatus(State.OK, None, 2, 6)}
    Records(own_directory(wiring.open_lake(config))).finish(LakeStatus(1, 2, 6, "log2", tables=tables))
    assert [table.state for table in read_source_status(config).tables] == ["ok"]
    assert read_source_status(config).merge.lag_seconds == 0.0
    assert not list(preflight._lake(config))
    shutil.rmtree(tmp_path / "staging")
    wiring.open_staging(config).publish(manifest(1, 1, 3))
    return config


def test_status_shows_every_table_as_stopped_with_the_way_out_and_no_lag(config: Config) -> None:
    status = read_source_status(config)
    assert (status.merge.offset, status.merge.lag_seconds) == (6, None)
    assert WHY in (status.merge.error or "") and "`dblog lake adopt`" in (status.merge.fix or "")
    (table,) = status.tables
    assert table.state == "stopped" and WHY in (table.cause or "") and table.fix == status.merge.fix
    assert f"nothing is merged: {config.staging.path}/shop: {WHY}\n  fix: put the staging back" in text(status)


def test_check_warns_and_a_dry_run_refuses(config: Config) -> None:
    (problem,) = preflight._lake(config)
    assert WHY in problem.what and "`dblog lake adopt`" in problem.fix and not problem.fatal
    with pytest.raises(LakeError, match="the staging ends before it"):
        merge_plan(config)


def test_the_lag_of_the_past_begins_again_with_the_staging(config: Config, tmp_path: Path) -> None:
    history = LagHistory(wiring.open_staging(config))
    history._seen = 7
    history.look()
    assert history._seen == 1
