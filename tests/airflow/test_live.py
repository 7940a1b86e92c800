"""The DAGs in a real Airflow, on a real MySQL. The tests share both, in any order."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from psycopg2 import sql

from dblog_core import wiring
from dblog_core.errors import LocalError
from dblog_core.lake.lake_status import lake_at, own_directory, table_location
from dblog_core.lake_engine.merging.lock import lake_lock
from dblog_core.model.schema import TableName
from tests.airflow.approvals import large_dump
from tests.airflow.live_source import MASKED
from tests.airflow.own_page import newest_failed_run
from tests.fix_airflow import (
    CAPTURES,
    DUMP,
    MAINTENANCE,
    MERGE,
    REPAIR,
    REPLAY,
    SPARK_SECONDS,
    VERIFY,
    Live,
)
from tests.fix_airflow_lake import Dumped, Merged
from tests.growing_files import files_below, json_lines, whole_lines
from tests.marked import secret_fields
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the servers too


def test_a_broken_file_is_named_and_costs_no_other_source_its_dags(live: Live) -> None:
    own_dag_ids = {*CAPTURES, DUMP, MERGE, REPLAY, VERIFY, REPAIR, MAINTENANCE}
    wait_until(lambda: own_dag_ids <= set(live.client.dags()), "the DAGs are there", describe=live.client.dags)
    [error] = wait_until(live.client.import_errors, "the import error is shown")
    assert "broken.toml" in error["stack_trace"]


def test_one_capture_leads_and_the_other_stands_by(live: Live) -> None:
    live.capturing()

    def both() -> bool:
        texts = _capture_logs(live).values()
        return any("leading, epoch" in text for text in texts) and any("standing by; leader" in text for text in texts)

    wait_until(both, "both roles are in the logs", describe=lambda: _capture_logs(live))


def _capture_logs(live: Live) -> dict[str, str]:
    """What the newest run of each capture has written, where it runs."""
    texts = {}
    for dag in CAPTURES:
        newest = live.client.runs(dag, limit=1)
        running = newest and any(t["state"] == "running" for t in live.client.tasks(dag, newest[0]["dag_run_id"]))
        texts[dag] = live.client.log(dag, newest[0]["dag_run_id"], "capture") if running else ""
    return texts


def test_the_log_of_a_task_has_at_most_one_line_a_minute_that_is_not_ours(live: Live) -> None:
    """Between its first line of ours and its last: before and after it Airflow tells how it begins and ends a task."""
    live.capturing()
    logs = Path(live.server.environment()["AIRFLOW_HOME"], "logs")

    def texts() -> list[list[LogLine]]:
        every = [_lines_of_work(file) for file in logs.glob("dag_id=dblog_live_capture*/*/task_id=capture/*.log")]
        return [text for text in every if _seconds(text) > 20]

    for text in wait_until(texts, "a capture has written for a while"):
        foreign = [(line["logger"], line["event"]) for line in text if not _is_ours(line)]
        assert len(foreign) <= 1 + _seconds(text) // 60, foreign


LogLine = dict[str, Any]


def _lines_of_work(file: Path) -> list[LogLine]:
    text: list[LogLine] = json_lines(file)
    ours = [number for number, line in enumerate(text) if _is_ours(line)]
    return text[ours[0] : ours[-1] + 1] if ours else []


def _is_ours(line: LogLine) -> bool:
    return str(line.get("logger")).startswith("dblog_core.")


def _seconds(text: list[LogLine]) -> float:
    """How long it took to write these lines."""
    if not text:
        return 0.0
    first, last = (dt.datetime.fromisoformat(text[place]["timestamp"]) for place in (0, -1))
    return (last - first).total_seconds()


def test_a_dump_with_parameters_ends_with_its_chunks_in_the_super_changelog(live: Live, finished_dump: Dumped) -> None:
    result = finished_dump.result
    chunks = [c for m in wiring.open_staging(live.config).manifests() for c in m.chunks if c.dump == result["id"]]
    assert sum(c.rows for c in chunks if c.table == live.table("orders")) == result["rows"] - 3 >= 500
    assert len([t for t in live.client.tasks(DUMP, finished_dump.run) if t["task_id"] == "work"]) == 2
    assert live.task_states(DUMP, finished_dump.run)["close"] == {"success"}


def test_a_wrong_table_fails_at_once_with_the_reason(live: Live) -> None:
    run = live.client.trigger(DUMP, {"tables": [live.table("missing")]})
    assert live.end_of(DUMP, run) == "failed"
    log = live.client.log(DUMP, run, "approve", attempt=1)
    assert "is not a captured table" in log
    assert [t["try_number"] for t in live.client.tasks(DUMP, run) if t["task_id"] == "approve"] == [1]
    assert live.database.account.password not in log
    wait_until(
        lambda: live.notified_file.exists() and run in live.notified_file.read_text().split(),
        "the notifier of the configuration is told of its failure",
    )


@pytest.mark.parametrize(
    "conf",
    [{"chunk_size": 0}, {"tables": "orders"}, {"workers": 65}, {"key_from": {}}, {"pks": []}, {"tables": None}],
    ids=str,
)
def test_the_schema_refuses_what_the_form_refuses(live: Live, conf: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="400") as refused:
        live.client.trigger(DUMP, conf)
    assert next(iter(conf)) in str(refused.value)


def test_a_large_dump_that_is_rejected_requests_nothing(live: Live) -> None:
    run = large_dump(live)
    path = f"/dags/{DUMP}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
    assert f"{live.table('orders')} | 2,000 " in live.client.get(path)["body"]
    live.client.call("PATCH", path, {"chosen_options": ["Reject"], "params_input": {}})
    live.end_of(DUMP, run)
    assert live.task_states(DUMP, run)["plan"] == {"skipped"}
    assert live.dump_of(run) is None


def test_airflows_notifiers_are_told_what_happens_to_a_dump(live: Live, finished_dump: Dumped) -> None:
    dump = finished_dump.result["id"]
    wait_until(lambda: "completed" in _events(live, dump), "the end is told", describe=lambda: _events(live, dump))
    notices = live.notices_of(dump)
    order = list(dict.fromkeys(event for event in _events(live, dump) if event != "chunk"))
    assert order == ["requested", "started", "table", "completed"]
    assert len({notice["id"] for notice in notices if notice["event"] == "chunk"}) == notices[-1]["chunks"] >= 6
    assert {notice["text"] for notice in notices} == {f"capture: {event}" for event in _events(live, dump)}
    assert notices[0]["requested_by"] == f"airflow:{DUMP}/{finished_dump.run}"
    assert notices[-1]["rows"] == finished_dump.result["rows"]


def _events(live: Live, dump: str) -> list[str]:
    return [notice["event"] for notice in live.notices_of(dump)]


@pytest.mark.one_of(6)
def test_sealed_segments_start_the_merge_and_the_lake_gets_the_rows(live: Live, merged_lake: Merged) -> None:
    with live.merging():
        live.client.parse_again(MERGE)
        # A run that was queued while the DAG was paused would take the row along before the bell's watch begins, which
        # then has nothing to tell.
        wait_until(
            lambda: not _merges_to_come(live), "no other run is left", timeout=SPARK_SECONDS,
            describe=partial(live.client.runs, MERGE),
        )  # fmt: skip
        earlier = {run["dag_run_id"] for run in live.client.runs(MERGE)}
        live.database.execute("INSERT INTO orders VALUES (70001, 'for the lake')")
        wait_until(lambda: 70001 in merged_lake.orders.rows(), "the row is in the lake", timeout=SPARK_SECONDS)
    new_runs = [run for run in live.client.runs(MERGE) if run["dag_run_id"] not in earlier]
    assert {run["run_type"] for run in new_runs} == {"asset_triggered"}


def _merges_to_come(live: Live) -> list[dict[str, Any]]:
    """Runs of the merge that have begun, or wait for their turn."""
    return [run for state in ("queued", "running") for run in live.client.runs(MERGE, state=state)]


def test_airflows_metrics_have_our_figures(live: Live, merged_lake: Merged) -> None:
    captured = {"leader_epoch", "lag_seconds", "rows_per_second", "staged_offset", "windows"}
    written = {"merged_offset", "dump.rows", "dump.chunks", "dump.evicted"}
    names = {f"dblog.live.{name}" for name in captured | written}
    wait_until(lambda: names <= live.metrics.values.keys(), "all of them are sent", describe=live.metrics.values.keys)
    assert live.metrics.values["dblog.live.leader_epoch"] >= 1
    head = wiring.open_staging(live.config).head()
    assert head is not None
    assert 503 <= live.metrics.values["dblog.live.merged_offset"] <= head.last_offset


def test_lineage_leads_from_the_source_to_the_lake(live: Live, merged_lake: Merged) -> None:
    table = live.table("countries")
    source = (f"mysql://{live.database.server.host}:{live.database.server.port}", table)
    staged = ("file", f"{live.config.staging.path}/live/{table}")
    lake = ("file", str(table_location(lake_at(live.config.lake.path), TableName.parse(table))))
    pairs = {(f"{DUMP}.complete", source, staged), (f"{MERGE}.merge", staged, lake)}
    wait_until(
        lambda: pairs <= _lineage(live), "lineage has the dump and the merge", describe=lambda: sorted(_lineage(live))
    )


def _lineage(live: Live) -> set[tuple[str, tuple[str, str], tuple[str, str]]]:
    """Each job with a dataset that it has read and the one that it has written from it."""
    pairs = set()
    for event in json_lines(live.lineage):
        places = [[(d["namespace"], d["name"]) for d in event.get(side, ())] for side in ("inputs", "outputs")]
        pairs |= {(event["job"]["name"], *pair) for pair in zip(*places, strict=True)}
    return pairs


def test_a_merge_that_takes_longer_than_it_may_is_told_while_it_runs_or_after(live: Live, merged_lake: Merged) -> None:
    wait_until(live.late_file.exists, "a late merge is told")  # one that starts Spark takes longer than its second
    assert set(live.late_file.read_text().split()) <= {run["dag_run_id"] for run in live.client.runs(MERGE)}


def test_a_merge_that_waits_for_the_lake_says_so_and_a_red_one_is_on_the_page(live: Live) -> None:
    """It starts no Spark meanwhile, and is neither red nor done."""
    directory = own_directory(lake_at(live.config.lake.path))
    with (
        live.merging(),
        closing(wiring.open_state(live.config)) as state,
        # A source's own ttl is short: this process may stand still for longer, and the merge would go on.
        lake_lock(directory, state, ttl=SPARK_SECONDS, wait=SPARK_SECONDS),
    ):
        live.write_and_wait("orders", 60101, "to be merged")  # a run that was queued before may have merged all others
        live.client.trigger(MERGE)
        # A segment may have started a run too, and only one of them is at work.
        run = wait_until(partial(_merge_that_waits, live), "a merge waits", describe=partial(live.client.runs, MERGE))
        states = partial(live.task_states, MERGE, run)
        log = partial(live.client.log, MERGE, run, "merge")
        live.client.pause(MERGE)  # no other run begins
        assert states() == {"merge": {"running"}} and "spark-submit" not in log()
        live.client.mark(MERGE, run, "failed")
        assert live.end_of(MERGE, run) == "failed"
    red = newest_failed_run(live, MERGE, run)
    assert (red["part"], red["tasks"]) == ("merge", ["merge"])


def _merge_that_waits(live: Live) -> str | None:
    """The run whose merge says that it waits for the lake."""
    for run in live.client.runs(MERGE, state="running"):
        name = str(run["dag_run_id"])
        if live.task_states(MERGE, name).get("merge") == {"running"}:
            return name if "waits for the lake: " in live.client.log(MERGE, name, "merge") else None
    return None


@pytest.mark.one_of(6)
def test_maintenance_by_hand_says_what_it_did(live: Live, merged_lake: Merged) -> None:
    run = live.client.trigger(MAINTENANCE)
    assert live.end_of(MAINTENANCE, run, timeout=SPARK_SECONDS) == "success"
    result = live.client.xcom(MAINTENANCE, run, "maintain")
    assert {table["table"] for table in result["tables"]} >= {live.table("orders")}


@pytest.mark.parametrize(
    ("dag", "task", "reason"),
    [(REPLAY, "replay", "the lake has no table {}"), (VERIFY, "verify", "'{}' is not a captured table")],
    ids=["replay", "verify"],
)
def test_a_table_that_there_is_not_fails_the_first_attempt(live: Live, dag: str, task: str, reason: str) -> None:
    live.capturing()
    live.unpause(dag)
    table = live.table("missing")
    run = live.client.trigger(dag, {"tables": [table]})
    assert live.end_of(dag, run, timeout=SPARK_SECONDS) == "failed"  # that of a schedule may begin before it
    assert reason.format(table) in live.client.log(dag, run, task, attempt=1)
    assert [task["try_number"] for task in live.client.tasks(dag, run)] == [1]


def test_kill_9_of_the_leading_capture_loses_nothing_and_another_leads(live: Live) -> None:
    before = live.capturing()
    live.database.execute("INSERT INTO orders VALUES (80001, 'before')")
    pid = int(re.search(r"\d+$", before.holder).group())  # type: ignore[union-attr]
    psutil.Process(pid).kill()
    live.database.execute("INSERT INTO orders VALUES (80002, 'after')")
    _wait_for_another(live, before.epoch)
    wait_until(_staged_once(live, 80002), "what was written meanwhile is staged", describe=live.leader)
    assert _staged_once(live, 80001)()


@pytest.mark.one_of(6)
def test_no_task_outlives_its_supervisor_or_a_stop_and_a_start_goes_on(live: Live) -> None:
    before = live.capturing()
    supervisors = wait_until(live.server.task_processes, "a task runs")
    orphans = supervisors[0].children()
    supervisors[0].kill()
    wait_until(lambda: not psutil.wait_procs(orphans, timeout=0)[1], "the orphan ends by itself")
    live.server.stop()
    home = live.server.environment()["AIRFLOW_HOME"]
    running = [p.info for p in psutil.process_iter(["pid", "cmdline", "environ"])]
    assert [p for p in running if (p["environ"] or {}).get("AIRFLOW_HOME") == home] == []
    live.server.start()
    live.write_and_wait("orders", 90001, "after the restart")
    _wait_for_another(live, before.epoch)


def _wait_for_another(live: Live, epoch: int) -> None:
    wait_until(lambda: (now := live.leader()) and now.epoch > epoch, "another one leads", describe=live.leader)


def _staged_once(live: Live, key: int) -> Callable[[], bool]:
    return lambda: len(live.staged_lines(table=live.table("orders"), key={"id": key}, origin="log")) == 1


def test_the_health_check_of_the_containers_tells_of_each_component(live: Live) -> None:
    check = Path(__file__).parents[2] / "docker" / "airflow" / "healthy"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "AIRFLOW_API": live.server.url}

    def check_component(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([check, name], env=environment, check=False, capture_output=True, text=True)

    for component in ("scheduler", "triggerer", "dag_processor"):
        wait_until(lambda name=component: check_component(name).returncode == 0, f"{component} is healthy")
    assert check_component("oracle").returncode != 0, "one that there is not is not well"


def test_nothing_that_airflow_keeps_or_tells_holds_a_secret_or_a_masked_value(
    live: Live, finished_dump: Dumped
) -> None:
    """Its logs and files, with those of notifiers and of OpenLineage; its database, with serialized DAGs, XCom, and
    what runs were asked for; and its metrics."""
    live.capturing()
    live.database.execute("UPDATE countries SET motto = CONCAT(motto, '!') WHERE code = 'pt'")
    wait_until(lambda: live.staged_lines(table=live.table("countries"), op="u"), "the log has brought the masked value")
    dump = finished_dump.result["id"]
    wait_until(lambda: "completed" in _events(live, dump), "the end is told", describe=lambda: _events(live, dump))
    wait_until(lambda: DUMP in str(whole_lines(live.lineage)) and live.metrics.values, "lineage and metrics are told")
    unplanted = secret_fields() - live.planted.planted_fields()
    assert unplanted == {("StateConfig", "password")}, "a state store in a file has none"
    secrets = [secret.encode() for secret in (*live.planted.secrets.values(), MASKED)]
    contents_by_path = ((path, _content(path)) for path in files_below(live.root))  # with staging, lake and lineage
    seen = set()
    metrics = ("metrics", repr(live.metrics.values).encode())
    for place, content in (*contents_by_path, *_tables(live.metadata), metrics):
        assert [secret for secret in secrets if secret in content or secret.hex().encode() in content] == [], place
        if DUMP.encode() in content:
            seen.add(place)
    assert {"serialized_dag", "xcom", "dag_run", live.lineage, live.notices} <= seen, (
        "the search sees what it looks for"
    )
    assert any("task_id=work" in str(place) for place in seen if isinstance(place, Path)), "and the logs of tasks"


def _tables(url: str) -> Iterator[tuple[str, bytes]]:
    """Every table of Airflow's database, as text."""
    with closing(psycopg2.connect(url.replace("+psycopg2", ""))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        for (name,) in cursor.fetchall():
            cursor.execute(sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(name)))
            yield name, "\n".join(row for (row,) in cursor.fetchall()).encode()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # Airflow goes on, and removes files
        return b""
