"""What the merge's task does while somebody else holds the lake; no Airflow and no Spark runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from dblog_core import lake_tasks, wiring
from dblog_core.airflow import merge
from dblog_core.interfaces import Lease
from dblog_core.lake import lake_at
from tests.airflow.test_lake_tasks import config

State = dict[str, bool]


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    """The lake's, held by a replay that runs."""
    lake_tasks.file(lake_at(config(tmp_path).lake.path), "replay", {})
    with closing(wiring.open_state(config(tmp_path))) as state:
        held = state.acquire("merge", "elsewhere:7", ttl=300)
        assert held is not None
        yield held
        held.release()


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> merge.MergeOperator:
    monkeypatch.setattr(merge, "configuration", lambda _: config(tmp_path))
    monkeypatch.setattr(merge, "refuse_shown_environment", lambda *_: None)  # it reads the file
    monkeypatch.setattr(merge.MergeOperator, "_take", lambda *_: None)
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    return merge.MergeOperator(task_id="merge", config_file="shop.toml")


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> State:
    """Whether the lake has all, and whether Spark was started."""
    state = {"has all": False, "spark": False}
    monkeypatch.setattr(merge, "up_to_date", lambda _: state["has all"])
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda *_: state.update(spark=True))
    return state


def at_the_third_look(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object], merged: State) -> None:
    """Takes the step instead of the third pause; Spark has not started until then."""
    looks = []

    def pause(_: float) -> None:
        looks.append(1)
        assert not merged["spark"]
        if len(looks) == 3:
            step()

    monkeypatch.setattr(merge.time, "sleep", pause)


def test_a_merge_waits_for_the_lake_and_says_so_once_a_minute(
    task: merge.MergeOperator,
    lease: Lease,
    merged: State,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    at_the_third_look(monkeypatch, lease.release, merged)
    with caplog.at_level(logging.INFO, logger=merge.log.name):
        task.execute({})
    assert merged["spark"]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["waits for the lake: elsewhere:7 is at work on it (replay)"]


def test_what_the_holder_of_the_lake_has_merged_meanwhile_needs_no_spark(
    task: merge.MergeOperator, lease: Lease, merged: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_third_look(monkeypatch, lambda: merged.update({"has all": True}), merged)
    task.execute({})
    assert not merged["spark"] and lease.valid()


def test_a_merge_that_waits_ends_when_it_is_told_to(
    task: merge.MergeOperator, lease: Lease, merged: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_third_look(monkeypatch, task.on_kill, merged)
    with pytest.raises(AirflowException, match="told to stop while it waited for the lake"):
        task.execute({})
    assert not merged["spark"] and lease.valid()
