"""What the tasks on the lake make of a run's parameters and interval, and what they tell; no Airflow runs."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from dblog_core import wiring
from dblog_core.airflow import in_process, lake_operators, run_notes
from dblog_core.airflow.connections import on_connection
from dblog_core.airflow.params import verify_request
from dblog_core.config.settings import Config
from dblog_core.dumps.dump_records import Refusal
from dblog_core.errors import RequestError
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at, own_directory
from dblog_core.lake.replay_interval import IntervalEnd
from dblog_core.lake.task_requests import ReplayRequest
from dblog_core.lake.task_results import ReplayCounts, ReplayedTable, ReplayResult
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.verify import verification as verification
from dblog_core.verify.compared_columns import NotCompared
from dblog_core.verify.report import Differences, Repair, Report, TableReport
from dblog_core.verify.slice_times import record_compared
from dblog_core.verify.slices import Slice
from dblog_core.verify.verification import VerifyRequest
from tests.airflow.test_factory import write

HOUR = dt.timedelta(hours=1)
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def run(
    params: dict[str, Any], begin: dt.datetime | None = None, end: dt.datetime | None = None, kind: str = "manual"
) -> dict[str, Any]:
    dag_run = SimpleNamespace(run_type=kind)
    return {"params": params, "data_interval_start": begin, "data_interval_end": end, "dag_run": dag_run}


def test_an_interval_is_the_runs_unless_its_parameters_say_one() -> None:
    assert lake_operators.ends(run({}, NOON, NOON + HOUR)) == ("2026-11-21T12:00:00+00:00", "2026-11-21T13:00:00+00:00")
    assert lake_operators.ends(run({"from": "5", "to": ""}, NOON, NOON + HOUR)) == ("5", None)
    assert lake_operators.ends(run({})) == lake_operators.ends(run({}, NOON, NOON)) == (None, None)


def test_an_empty_form_asks_for_all_rows_of_all_tables() -> None:
    request = verify_request({"tables": ["*.*"], "repair": False, "sample_rows": None, "rows_per_second": None})
    assert (request.tables, request.repair, request.sample.is_sample, request.rate) == (None, False, False, 0)
    request = verify_request({"tables": ["a.b", ""], "repair": True, "sample_rows": 9, "rows_per_second": 70})
    assert (request.tables, request.repair, request.sample.rows, request.rate) == (("a.b",), True, 9, 70)


def test_what_differs_is_told_by_key_and_no_more_than_a_page_of_it() -> None:
    report = TableReport("shop.a", rows=50, missing=tuple(range(30)), different=((77, ("name",)),))
    assert (
        lake_operators.summary(report)["missing"] == list(range(lake_operators.SHOWN))
        and lake_operators.summary(report)["missing_keys"] == 30
    )
    line = lake_operators.describe_table(report)
    assert line.startswith("shop.a: 31 keys differ, 50 rows: missing 0; ") and line.endswith("and 11 more")
    assert lake_operators.describe_table(TableReport("shop.a", extra=(3,), different=((7, ("x", "y")),))).endswith(
        "extra 3; different 7 (x, y)"
    )
    assert lake_operators.describe_table(TableReport("shop.a", error="it has no key")) == "shop.a: it has no key"
    first = Repair("d1", Differences(missing=(5,), extra=tuple(range(30))))
    mended = TableReport("shop.a", repaired=first)
    assert lake_operators.describe_table(mended).startswith(
        "shop.a: equal, 0 rows; repaired by dump d1: missing 5; extra 0; "
    )
    repaired_summary = lake_operators.summary(mended)["repaired"]
    assert (repaired_summary["missing"], repaired_summary["extra_keys"], len(repaired_summary["extra"])) == (
        [5],
        30,
        lake_operators.SHOWN,
    )


def test_intervals_of_a_backfill_have_all_slices_whichever_is_the_first() -> None:
    day = dt.timedelta(days=1)
    numbers = [lake_operators.slice_of(NOON + n * day, 30, day.total_seconds()) for n in range(90)]
    assert all(sorted(numbers[i : i + 30]) == list(range(1, 31)) for i in range(60))


@pytest.mark.parametrize(
    ("kind", "params", "number"),
    [("scheduled", {"slice": 3}, 3), ("backfill", {"slice": None}, 19), ("backfill", {}, 19), ("scheduled", {}, 2)],
)
def test_a_repair_takes_the_slice_of_its_form_or_backfill_or_the_one_that_waited_longest(
    tmp_path: Path, kind: str, params: dict[str, Any], number: int
) -> None:
    with closing(wiring.open_state(config(tmp_path))) as state:
        for compared in (1, *range(3, 31)):
            record_compared(state, Slice(compared, 30), began_us=compared)
    task = lake_operators.RepairSlice(task_id="repair", config_file="shop.toml", slices=30, period=86_400.0)
    context = run({"tables": ["shop.a"], "rows_per_second": 70, **params}, NOON, NOON + 24 * HOUR, kind)
    with task.take_request(context, config(tmp_path)) as request:
        assert request.slice == Slice(number, 30)
    assert (request.tables, request.repair, request.rate) == (("shop.a",), True, 70)


@pytest.mark.parametrize(
    ("report", "rows"),
    [(Report(), None), (Report((TableReport("shop.a", rows=70), TableReport("shop.b", rows=2))), 72)],
)
def test_a_run_that_has_compared_nothing_is_no_success(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    report: Report,
    rows: int | None,
) -> None:
    monkeypatch.setattr(verification, "verify", lambda *_, **__: report)
    monkeypatch.setattr(in_process, "configuration", lambda _: config(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    task = lake_operators.RepairSlice(task_id="repair", config_file="shop.toml", slices=30, period=86_400.0)
    pushed: dict[str, Any] = {}
    context = {**run({"slice": 19}), "ti": SimpleNamespace(xcom_push=pushed.__setitem__)}
    if rows is None:
        with pytest.raises(AirflowSkipException, match=r"nothing was compared: .* whole in slice 1"):
            task.execute(context)
        assert pushed[run_notes.NOTE].startswith("slice 19 of 30: nothing was compared: ")
        return
    with caplog.at_level(logging.INFO, logger=lake_operators.log.name):
        assert task.execute(context) == {"equal": True, "tables": 2, "rows": rows}
    assert (
        pushed[run_notes.NOTE] == f"slice 19 of 30: compared {rows} rows of 2 tables: equal"
        and pushed[run_notes.NOTE] in caplog.text
    )


def test_a_note_says_what_was_mended_and_what_differs_still(tmp_path: Path) -> None:
    first = Repair("d1", Differences(missing=(5,), extra=(6,)))
    mended = TableReport("shop.a", rows=1, repaired=first)
    still = TableReport("shop.b", missing=(1, 2), repaired=first)
    task = lake_operators.VerifyTables(task_id="verify", config_file="shop.toml")
    note = task.note(verify_request({}), Report((mended, still, TableReport("shop.c", error="no key"))))
    assert (
        note
        == "compared 1 row of 3 tables: 2 keys of shop.a repaired; shop.b: 2 keys differ; shop.c: cannot be compared"
    )


def test_columns_that_are_not_compared_are_in_note_log_and_xcom() -> None:
    columns = (NotCompared("mail", "hashed with hash_key"), NotCompared("gone", "only the lake has it"))
    table = TableReport("shop.a", rows=1, not_compared=columns)
    task = lake_operators.VerifyTables(task_id="verify", config_file="shop.toml")
    note = task.note(verify_request({}), Report((table, TableReport("shop.b"))))
    assert note == "compared 1 row of 2 tables: equal; columns not compared: shop.a (mail, gone)"
    described = lake_operators.describe_table(table)
    assert described.endswith("; not compared: mail (hashed with hash_key), gone (only the lake has it)")
    assert [c["column"] for c in lake_operators.summary(table)["not_compared"]] == ["mail", "gone"]


def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "postgres", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(tmp_path / "staging")},
            "state": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
            "lake": {"path": str(tmp_path / "lake")},
        }
    )


def test_a_run_that_had_to_leave_a_table_out_fails_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "configuration", lambda _: config(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    refused = (Refusal("shop.v", "shop.v: it is system-versioned", "leave it out"),)

    def report_refused(_: Config, request: VerifyRequest, **__: Any) -> Report:
        return Report((TableReport("shop.a"),), refused, request.pass_over_refused)

    monkeypatch.setattr(verification, "verify", report_refused)
    task = lake_operators.VerifyTables(task_id="verify", config_file="shop.toml")
    context = {**run({}), "ti": SimpleNamespace(xcom_push=lambda *_: None)}
    with pytest.raises(AirflowFailException, match=r"not compared: shop\.v: .* \(fix: leave it out\)"):
        task.execute(context)
    assert task.execute({**context, "params": {"pass_over_refused": True}})["equal"]


def test_tables_of_the_lake_are_named_or_matched(tmp_path: Path) -> None:
    job_config = config(tmp_path)
    with pytest.raises(RequestError, match=r"no table shop\.a") as none:
        lake_operators.of_lake(job_config, ["shop.a"])
    assert "nothing is merged" in none.value.fix
    tables = {name: TableStatus(State.OK, None, 1, 9, 1) for name in ("shop.a", "shop.b1", "shop.b2")}
    Records(own_directory(lake_at(job_config.lake.path))).finish(LakeStatus(merge=1, tables=tables))
    assert lake_operators.of_lake(job_config, ["shop.b*", "shop.b1", "shop.a"]) == ["shop.b1", "shop.b2", "shop.a"]
    with pytest.raises(RequestError, match=r"no table shop\.c") as missing:
        lake_operators.of_lake(job_config, ["shop.a", "shop.c"])
    assert "shop.a, shop.b1, shop.b2" in missing.value.fix


@pytest.mark.parametrize(
    ("params", "begin", "end"),
    [
        ({}, NOON, NOON + HOUR),
        ({"from": "2026-11-20T03:00:00Z", "to": "2026-11-20T05:00:00Z"}, NOON - 33 * HOUR, NOON - 31 * HOUR),
    ],
    ids=["the run's", "the form's"],
)
def test_a_replay_is_of_the_tables_and_the_interval_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], begin: dt.datetime, end: dt.datetime
) -> None:
    requests: list[Any] = []

    def carry_out(config: Config, request: ReplayRequest, _: type[ReplayResult], **__: Any) -> ReplayResult:
        requests.append((config.spark.master, request))
        return ReplayResult(request.start, request.end, (ReplayedTable("shop.a", ReplayCounts(keys=2_000)),))

    monkeypatch.setattr(lake_tasks, "carry_out", carry_out)
    monkeypatch.setattr(in_process, "configuration", lambda _: config(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    tables = {name: TableStatus(State.OK, None, 1, 9, 1) for name in ("shop.a", "shop.b")}
    Records(own_directory(lake_at(config(tmp_path).lake.path))).finish(LakeStatus(merge=1, tables=tables))
    task = lake_operators.ReplayInterval(task_id="replay", config_file="shop.toml")
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=pushed.__setitem__)
    xcom = task.execute({**run({"tables": ["shop.a*"], **params}, NOON, NOON + HOUR), "ti": ti})
    assert pushed == {run_notes.NOTE: "looked at 2,000 keys of 1 table: nothing to repair"}
    ends = IntervalEnd.at(begin), IntervalEnd.at(end)
    assert requests == [("local[2]", ReplayRequest(*ends, ("shop.a",)))]
    counts = {"keys": 2_000, "inserted": 0, "updated": 0, "deleted": 0, "withheld": 0}
    assert xcom == {
        "from": {"time": ends[0].value}, "to": {"time": ends[1].value},
        "tables": [{"table": "shop.a", **counts, "error": None}],
    }  # fmt: skip


def test_the_note_of_a_replay_sums_what_it_has_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replayed = (
        ReplayedTable("shop.a", ReplayCounts(9_000, inserted=1_000, deleted=2)),
        ReplayedTable("shop.b", ReplayCounts(70)),
        ReplayedTable("shop.c", ReplayCounts(5, inserted=1, withheld=3)),
        ReplayedTable("shop.d", None, "its files are gone"),
    )
    pushed: dict[str, Any] = {}
    context = {"ti": SimpleNamespace(xcom_push=pushed.__setitem__)}
    with caplog.at_level(logging.INFO, logger=lake_operators.log.name):
        lake_operators._tell_of_replay(context, replayed)
    assert pushed[run_notes.NOTE] == "looked at 9,075 keys of 4 tables: inserted 1,001; deleted 2; withheld 3"
    assert [record.getMessage() for record in caplog.records] == [
        "shop.a: keys 9,000, inserted 1,000, deleted 2",
        "shop.c: keys 5, inserted 1, withheld 3",
        "shop.d: its files are gone",
    ]
    lake_operators._tell_of_replay(context, replayed[3:])
    assert pushed[run_notes.NOTE] == "looked at 0 keys of 1 table: see the log"


def test_a_replay_of_which_a_table_failed_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = IntervalEnd.at(9)
    result = ReplayResult(end, end, (ReplayedTable("shop.a", None, "gone"),))
    monkeypatch.setattr(lake_tasks, "carry_out", lambda *_, **__: result)
    monkeypatch.setattr(in_process, "configuration", lambda _: config(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    task = lake_operators.ReplayInterval(task_id="replay", config_file="shop.toml")
    with pytest.raises(AirflowFailException, match=r"shop\.a: gone"):
        task.execute(run({}, NOON, NOON + HOUR))


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ('{"conn_type": "spark", "host": "local[2]"}', "local[2]"),
        ('{"conn_type": "spark", "host": "spark://10.0.0.1", "port": 7077}', "spark://10.0.0.1:7077"),
        ("spark://10.0.0.1:7077", "spark://10.0.0.1:7077"),
    ],
)
def test_spark_runs_where_the_connection_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: str, master: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", connection)
    assert on_connection(config(tmp_path)).spark.master == master


def test_a_missing_connection_is_an_error_only_where_spark_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_DBLOG_SPARK", raising=False)
    usual = config(tmp_path)
    engines = {engine: usual.lake.model_copy(update={"engine": engine}) for engine in ("local", "spark")}
    assert on_connection(usual.model_copy(update={"lake": engines["local"]})).spark == usual.spark
    with pytest.raises(AirflowException, match="dblog_spark"):
        on_connection(usual.model_copy(update={"lake": engines["spark"]}))


def test_a_task_writes_no_line_of_zookeepers_client(
    tmp_path: Path, zookeeper_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be four for each session, and a capture has one every second or so."""
    (tmp_path / "sources").mkdir()
    write(tmp_path / "sources", "shop.toml", name="shop")
    file = tmp_path / "sources" / "shop.toml"
    file.write_text(file.read_text().replace("sqlite:////nowhere/state.db", zookeeper_url))
    monkeypatch.setenv("A_SECRET_THAT_IS_NOT_SET", "long enough for Airflow to mask")
    task = lake_operators.MaintainLake(task_id="maintain", config_file=str(file))

    def look(config: Config, _: threading.Event) -> None:
        for _ in range(3):
            with closing(wiring.open_state(config)) as state:
                state.children("dumps")
        logging.getLogger("dblog_core").info("looked")

    with caplog.at_level(logging.INFO):
        task.run_engine(look)
    assert [record.getMessage() for record in caplog.records] == ["looked"]
