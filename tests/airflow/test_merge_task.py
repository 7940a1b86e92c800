"""What the merge's task does while somebody else holds the lake; no Airflow and no Spark runs."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dblog_core import wiring
from dblog_core.airflow import merge_operator
from dblog_core.airflow.in_process import configuration
from dblog_core.config.secret_settings import LAKE
from dblog_core.errors import LakeError
from dblog_core.interfaces import Lease
from dblog_core.lake import lake_status, lake_tasks
from dblog_core.lake.lake_status import LakeStatus, TableStatus, lake_at, own_directory
from dblog_core.lake.merge_options import MergeOptions
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.replay_interval import IntervalEnd
from dblog_core.lake.spark_submit import secret_settings
from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.lake.task_requests import MaintainRequest, ReplayRequest
from dblog_core.lake_engine.merging.merge_records import Intent, Records, TaskIntent
from tests.airflow.test_lake_tasks import config
from tests.unit.config.test_secret_settings import FIELDS, SECRETS
from tests.unit.staged import manifest

State = dict[str, bool]


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    """The lake's, held by a replay that runs."""
    interval = ReplayRequest(IntervalEnd.at(1), IntervalEnd.at(9))
    lake_tasks.file_task(lake_at(config(tmp_path).lake.path), interval)
    with closing(wiring.open_state(config(tmp_path))) as state:
        foreign_lease = state.acquire("merge", "elsewhere:7", ttl=300)
        assert foreign_lease is not None
        yield foreign_lease
        foreign_lease.release()


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> merge_operator.DblogMergeOperator:
    monkeypatch.setattr(merge_operator, "configuration", lambda *_: config(tmp_path))
    monkeypatch.setattr(merge_operator.DblogMergeOperator, "_take", lambda *_: None)
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    return merge_operator.DblogMergeOperator(task_id="merge", config_file="shop.toml")


@pytest.fixture
def merge_state(monkeypatch: pytest.MonkeyPatch) -> State:
    """Whether the lake has all, and whether Spark was started."""
    state = {"has all": False, "spark": False}
    monkeypatch.setattr(merge_operator, "up_to_date", lambda _: state["has all"])
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

    monkeypatch.setattr("dblog_core.airflow.merge_operator.time.sleep", pause)


def test_a_merge_waits_for_the_lake_and_says_so_once_a_minute(
    task: merge_operator.DblogMergeOperator,
    lease: Lease,
    merge_state: State,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    at_the_third_look(monkeypatch, lease.release, merge_state)
    with caplog.at_level(logging.INFO, logger=merge_operator.log.name):
        task.execute({})
    assert merge_state["spark"]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["waits for the lake: elsewhere:7 is at work on it (replay)"]


def test_what_the_holder_of_the_lake_has_merged_meanwhile_needs_no_spark(
    task: merge_operator.DblogMergeOperator, lease: Lease, merge_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_third_look(monkeypatch, lambda: merge_state.update({"has all": True}), merge_state)
    task.execute({})
    assert not merge_state["spark"] and lease.valid()


def test_a_merge_that_waits_ends_when_it_is_told_to(
    task: merge_operator.DblogMergeOperator, lease: Lease, merge_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_third_look(monkeypatch, task.on_kill, merge_state)
    with pytest.raises(AirflowException, match="asked to stop while it waited for the lake"):
        task.execute({})
    assert not merge_state["spark"] and lease.valid()


@pytest.mark.parametrize("code", [0, 1])
def test_a_merge_of_the_local_engine_runs_in_the_task(
    task: merge_operator.DblogMergeOperator,
    merge_state: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """It needs no connection of Spark, and ends in order when the task is told to."""
    usual = config(tmp_path)
    local = usual.model_copy(update={"lake": usual.lake.model_copy(update={"engine": "local"})})
    monkeypatch.setattr(merge_operator, "configuration", lambda *_: local)
    monkeypatch.delenv("AIRFLOW_CONN_DBLOG_SPARK")
    ran: list[object] = []

    def run_merge(
        given: object, options: MergeOptions, *, stop: threading.Event, is_wanted: Callable[[], bool], **_: object
    ) -> int:
        ran.extend([given, options, stop.is_set(), is_wanted()])
        task.on_kill()
        ran.append(stop.is_set())
        return code

    monkeypatch.setattr(wiring, "run_merge", run_merge)
    if code:
        with pytest.raises(AirflowException, match="the lines above say why"):
            task.execute({})
    else:
        task.execute({})
    assert ran == [local, MergeOptions(wait_seconds=3600), False, True, True]
    assert not merge_state["spark"]


def merged_lake(root: Path) -> Records:
    """A lake that has the only segment of its staging."""
    staging = wiring.open_staging(config(root))
    staging.publish(manifest(1, 1, 3))
    records = Records(own_directory(lake_at(config(root).lake.path)))
    records.finish(LakeStatus(1, 1, 3, "log1"))
    return records


def test_a_lake_that_has_all_rows_is_up_to_date(tmp_path: Path) -> None:
    merged_lake(tmp_path)
    assert merge_operator.up_to_date(config(tmp_path))


def test_a_filed_task_and_a_merge_without_an_outcome_wait_for_no_row(tmp_path: Path) -> None:
    records = merged_lake(tmp_path)
    lake_tasks.file_task(lake_at(config(tmp_path).lake.path), MaintainRequest())
    assert not merge_operator.up_to_date(config(tmp_path))
    shutil.rmtree(tmp_path / "lake/_dblog/tasks")
    assert merge_operator.up_to_date(config(tmp_path))
    records.begin(Intent(2, Span(2, 1, 4, 3, "log1", None), {}, TaskIntent("t", MaintainPlan())))
    assert not merge_operator.up_to_date(config(tmp_path))


@pytest.mark.parametrize("kind", [merge_operator.DblogMergeOperator, merge_operator.MergeSlice])
def test_a_staging_that_the_lake_does_not_continue_is_red_and_starts_no_spark(
    task: merge_operator.DblogMergeOperator,
    kind: type[merge_operator.DblogMergeOperator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It went back: the lake has all offsets that it has, and is not up to date."""
    merged_lake(tmp_path)
    started: State = {}
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda *_: started.update(spark=True))
    shutil.rmtree(tmp_path / "staging")
    wiring.open_staging(config(tmp_path)).publish(manifest(1, 1, 2))
    slices = {"slice_seconds": 5.0} if kind is merge_operator.MergeSlice else {}
    with pytest.raises(AirflowFailException, match=r"segment 1, offset 3.*ends at offset 2"):
        kind(task_id="m", config_file="shop.toml", **slices).execute({})
    assert not started
    with pytest.raises(LakeError):
        merge_operator.up_to_date(config(tmp_path))


OF_SPARK = {
    "spark.kubernetes.authenticate.submission.oauthToken": "qZx7-kubernetes-1-of-sixteen",
    "spark.kubernetes.driverEnv.AWS_SECRET_ACCESS_KEY": "qZx7-kubernetes-2-of-sixteen",
    "spark.executorEnv.DBLOG_PASSWORD": "qZx7-kubernetes-3-of-sixteen",
    "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": "qZx7-azure-1-of-sixteen",
    "spark.hadoop.fs.azure.sas.lake.shop.blob.core.windows.net": "qZx7-azure-2-of-sixteen",
    "spark.hadoop.fs.gs.auth.service.account.private.key": "qZx7-google-1-of-sixteen",
}
"""Secrets that Spark's own settings of Kubernetes and of other stores may hold, by setting."""


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://127.0.0.1:6443"])
@pytest.mark.parametrize("connection", [False, True])
def test_no_secret_stands_among_the_arguments_or_in_the_environment_of_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, connection: bool
) -> None:
    """For some masters Airflow makes arguments of the environment, and writes them into the task's log."""
    # Of the provider for Kubernetes, which is not among our packages, the hook asks here whether it is there.
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    more = "".join(f'"{name}" = "{value}"\n' for name, value in OF_SPARK.items())
    text = FIELDS.format(*SECRETS).replace("[spark.conf]", f"[spark.conf]\n{more}")
    if connection:
        text = text.replace(f'password = "{SECRETS[0]}"', 'airflow_connection = "not_asked_for"')
    (tmp_path / "shop.toml").write_text(text)
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", json.dumps({"conn_type": "spark", "host": master}))
    task = merge_operator.DblogMergeOperator(task_id="merge", config_file=str(tmp_path / "shop.toml"))
    job_configuration = configuration(task.config_file, LAKE)
    with secret_settings(job_configuration) as secrets:
        task._take(job_configuration, secrets, [])
        hook = task._get_hook()
        command_and_environment = [
            *hook._build_spark_submit_command(task.application),
            json.dumps(task.env_vars),
            repr(task.conf),
        ]
        if master.startswith("k8s"):
            assert "spark.kubernetes.driverEnv." in " ".join(command_and_environment), "made an argument"
        all_secrets = [*SECRETS, *OF_SPARK.values()]
        assert not [secret for secret in all_secrets if any(secret in part for part in command_and_environment)]
        assert secrets is not None and str(secrets) in command_and_environment
        assert secrets.stat().st_mode & 0o077 == 0
        settings = {**OF_SPARK, "spark.hadoop.javax.net.ssl.trustStorePassword": SECRETS[11]}
        assert dict(line.split() for line in secrets.read_text().splitlines()) == settings
    assert not secrets.exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_slice_that_fails_is_tried_again_unless_a_table_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    given_arguments: list[str] = []
    lake = lake_status.LakeStatus(
        tables={"shop.orders": TableStatus(lake_status.State.STOPPED, "the key changed", 4, 9)}
    )
    monkeypatch.setattr(merge_operator, "configuration", lambda *_: config(tmp_path))
    monkeypatch.setattr(merge_operator, "_status", lambda _: lake if stopped else lake_status.LakeStatus())
    monkeypatch.setattr(merge_operator.DblogMergeOperator, "_take", lambda *more: given_arguments.extend(more[-1]))
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    task = merge_operator.MergeSlice(task_id="merge", config_file="shop.toml", slice_seconds=1370.0)

    def fail(*_: object) -> None:
        raise AirflowException("the job has failed")

    monkeypatch.setattr(SparkSubmitOperator, "execute", fail)
    with pytest.raises(AirflowException) as failure:
        task.execute({})
    assert given_arguments == ["--continuous", "--slice", "1370.0"]
    assert isinstance(failure.value, AirflowFailException) is stopped
    assert ("shop.orders is stopped: the key changed" in str(failure.value)) is stopped
