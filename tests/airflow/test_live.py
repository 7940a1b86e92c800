"""The DAGs in a real Airflow, on a real MySQL. The tests share both, in any order."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pyarrow.parquet as pq
import pytest

from dblog_core import control, wiring
from dblog_core.capture import LEASE
from dblog_core.control import DumpStatus
from dblog_core.interfaces import LeaseInfo
from dblog_core.lake import lake_at, read_status, table_location
from dblog_core.local.errors import LocalError
from dblog_core.schema import TableName
from dblog_core.staging.reader import lines
from dblog_core.wiring import open_lake
from tests.fix_airflow import PASSWORD, Live

CAPTURES = ("dblog_live_capture", "dblog_live_capture_standby")
DUMP, MERGE = "dblog_live_dump", "dblog_live_merge"
REPLAY, VERIFY, REPAIR = "dblog_live_replay", "dblog_live_verify", "dblog_live_repair"
MAINTENANCE = "dblog_live_maintenance"
SLICES = 2  # tests/fix_airflow.py says so
PATIENCE = 120.0  # seconds: the machine may be busy with other tests
Found = TypeVar("Found")

pytestmark = pytest.mark.timeout(600)  # the first test waits for the servers too


def until(look: Callable[[], Found], what: str, *, timeout: float = PATIENCE) -> Found:
    """The first true result of `look`."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout:g} s"
        pause.wait(0.3)
    return found


def leader(live: Live) -> LeaseInfo | None:
    with closing(wiring.open_state(live.config)) as state:
        return state.leader(LEASE)


def logs(live: Live) -> dict[str, str]:
    """What the newest run of each capture has written."""
    texts = {}
    for dag in CAPTURES:
        newest = live.client.runs(dag, limit=1)
        running = newest and any(t["state"] == "running" for t in live.client.tasks(dag, newest[0]["dag_run_id"]))
        texts[dag] = live.client.log(dag, newest[0]["dag_run_id"], "capture") if running else ""
    return texts


def capturing(live: Live) -> LeaseInfo:
    """The leader, once the log has begun: of a first one that dies before, the next begins at the log's end of then."""
    until(lambda: wiring.open_staging(live.config).head(), "the place where the log begins is staged")
    return until(lambda: leader(live), "a capture leads")


def staged(live: Live, **wanted: Any) -> list[dict[str, Any]]:
    found = lines(wiring.open_staging(live.config))
    return [line for line in found if all(line[name] == value for name, value in wanted.items())]


def dump_of(live: Live, run: str) -> DumpStatus | None:
    with closing(wiring.open_state(live.config)) as state:
        mine = [d for d in control.dumps(state) if d.requested_by == f"airflow:{DUMP}/{run}"]
    return mine[-1] if mine else None


def in_lake(live: Live) -> None:
    """Rows of both tables are in the lake."""
    capturing(live)
    tables = [f"{live.database.name}.{table}" for table in ("orders", "countries")]

    def merged() -> bool:
        status = read_status(open_lake(live.config))
        return status is not None and all(name in status.tables for name in tables)

    if not merged():
        run = live.client.trigger(DUMP, {"tables": tables})
        assert live.client.wait(DUMP, run, timeout=PATIENCE) == "success"
        until(merged, "the dump is merged", timeout=240)


def states(live: Live, dag: str, run: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for task in live.client.tasks(dag, run):
        found.setdefault(task["task_id"], set()).add(str(task["state"]))
    return found


def test_a_broken_file_is_named_and_costs_no_other_source_its_dags(live: Live) -> None:
    wanted = {*CAPTURES, DUMP, MERGE, REPLAY, VERIFY, REPAIR, MAINTENANCE}
    assert wanted <= set(live.client.dags())
    [error] = until(live.client.import_errors, "the import error is shown")
    assert "broken.toml" in error["stack_trace"]


def test_one_capture_leads_and_the_other_stands_by(live: Live) -> None:
    capturing(live)

    def both() -> bool:
        texts = logs(live).values()
        return any("leading, epoch" in text for text in texts) and any("standing by; leader" in text for text in texts)

    until(both, "both roles are told in the logs")


def test_a_dump_with_parameters_ends_with_its_chunks_in_the_super_changelog(live: Live) -> None:
    capturing(live)
    orders, countries = f"{live.database.name}.orders", f"{live.database.name}.countries"
    run = live.client.trigger(DUMP, {"tables": [orders, countries, ""], "chunk_size": 100, "workers": 2})
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "success"
    result = live.client.xcom(DUMP, run, "complete")
    chunks = [c for m in wiring.open_staging(live.config).manifests() for c in m.chunks if c.dump == result["id"]]
    assert sum(c.rows for c in chunks if c.table == orders) == result["rows"] - 3 >= 500
    assert len([t for t in live.client.tasks(DUMP, run) if t["task_id"] == "work"]) == 2
    assert states(live, DUMP, run)["close"] == {"success"}


def test_keys_arrive_as_json_and_as_lines_of_the_form(live: Live) -> None:
    capturing(live)
    table = f"{live.database.name}.countries"
    run = live.client.trigger(DUMP, {"tables": [table], "pks": ['"de"', "fr", "xx", ""]})
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "success"
    assert live.client.xcom(DUMP, run, "complete")["rows"] == 3
    gone = staged(live, table=table, op="d", origin="dump")
    assert {"code": "xx"} in [line["key"] for line in gone]


def test_a_dry_run_says_what_it_would_read_and_requests_nothing(live: Live) -> None:
    run = live.client.trigger(DUMP, {"dry_run": True})
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "success"
    tables = live.client.xcom(DUMP, run, "plan", "plan")["tables"]
    assert {t["table"] for t in tables} == {f"{live.database.name}.{t}" for t in ("orders", "countries")}
    assert dump_of(live, run) is None


def test_a_wrong_table_fails_at_once_with_the_reason(live: Live) -> None:
    run = live.client.trigger(DUMP, {"tables": [f"{live.database.name}.missing"]})
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "failed"
    log = live.client.log(DUMP, run, "approve", attempt=1)
    assert "is not a captured table" in log
    assert [t["try_number"] for t in live.client.tasks(DUMP, run) if t["task_id"] == "approve"] == [1]
    assert live.database.account.password not in log
    until(
        lambda: live.notified.exists() and run in live.notified.read_text().split(),
        "its failure is told as the configuration says",
    )


@pytest.mark.parametrize(
    "conf", [{"chunk_size": 0}, {"tables": "orders"}, {"workers": 65}, {"key_from": {}}, {"pks": []}], ids=str
)
def test_the_schema_refuses_what_the_form_refuses(live: Live, conf: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="400") as refused:
        live.client.trigger(DUMP, conf)
    assert next(iter(conf)) in str(refused.value)


def large(live: Live) -> str:
    """A dump that waits for somebody's approval."""
    capturing(live)
    run = live.client.trigger(DUMP, {"tables": [f"{live.database.name}.orders"], "pks": list(range(1, 2001))})
    until(lambda: states(live, DUMP, run).get("approve") == {"awaiting_input"}, "it waits")
    # Airflow takes an answer that comes before the asking process has ended for a failure of that, and asks again.
    threading.Event().wait(5)
    assert dump_of(live, run) is None, "nothing is requested yet"
    return run


def test_a_large_dump_that_is_rejected_requests_nothing(live: Live) -> None:
    run = large(live)
    path = f"/dags/{DUMP}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
    assert f"{live.database.name}.orders | 2,000 " in live.client.get(path)["body"]
    live.client.call("PATCH", path, {"chosen_options": ["Reject"], "params_input": {}})
    live.client.wait(DUMP, run, timeout=PATIENCE)
    assert states(live, DUMP, run)["plan"] == {"skipped"}
    assert dump_of(live, run) is None


def test_marking_the_run_as_failed_cancels_its_dump(live: Live) -> None:
    capturing(live)
    conf = {"tables": [f"{live.database.name}.orders"], "chunk_size": 1, "delay_seconds": 2}
    run = live.client.trigger(DUMP, conf)
    until(lambda: (d := dump_of(live, run)) and d.chunks, "the dump has placed a chunk")
    live.client.mark(DUMP, run, "failed")
    until(lambda: (d := dump_of(live, run)) and d.state == "cancelled", "the dump is cancelled")
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "failed"
    until(lambda: "running" not in str(states(live, DUMP, run)), "no task of the run is left")


def test_airflows_notifiers_are_told_what_happens_to_a_dump(live: Live) -> None:
    capturing(live)
    orders = f"{live.database.name}.orders"
    run = live.client.trigger(DUMP, {"tables": [orders], "chunk_size": 100, "delay_seconds": 1, "workers": 1})
    dump = until(lambda: (found := dump_of(live, run)) and found.chunks and found, "the dump has placed a chunk")

    def told() -> list[dict[str, Any]]:
        every = [json.loads(line) for line in live.notices.read_text().splitlines()] if live.notices.exists() else []
        return [notice for notice in every if notice["dump"] == dump.id]

    def events() -> list[str]:
        return [notice["event"] for notice in told()]

    with closing(wiring.open_state(live.config)) as state:
        control.pause(state, dump.id)
        until(lambda: "paused" in events(), "the pause is told")
        control.resume(state, dump.id)
        until(lambda: "resumed" in events(), "its end is told")
    until(lambda: "completed" in events(), "the end is told")
    found = list(dict.fromkeys(event for event in events() if event != "chunk"))
    assert found == ["requested", "started", "paused", "resumed", "table", "completed"]
    assert len({notice["id"] for notice in told() if notice["event"] == "chunk"}) == told()[-1]["chunks"] >= 5
    assert {notice["text"] for notice in told()} == {f"capture: {event}" for event in events()}
    assert told()[0]["requested_by"] == f"airflow:{DUMP}/{run}" and told()[-1]["rows"] >= 500


def test_sealed_segments_start_the_merge_and_the_lake_gets_the_rows(live: Live) -> None:
    capturing(live)
    live.database.execute("INSERT INTO orders VALUES (70001, 'for the lake')")
    table = table_location(lake_at(live.config.lake.path), TableName(live.database.name, "orders")).local
    assert table is not None

    def merged() -> bool:
        commits = sorted(table.glob("_delta_log/*.json"))
        actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
        added, removed = ({a[kind]["path"] for a in actions if kind in a} for kind in ("add", "remove"))
        return any(70001 in pq.ParquetFile(table / file).read(["id"])["id"].to_pylist() for file in added - removed)

    until(merged, "the row is in the lake", timeout=240)
    run = live.client.runs(MERGE, limit=1)[0]
    assert run["run_type"] == "asset_triggered"


def test_a_replay_takes_its_interval_from_the_run_or_from_its_parameters(live: Live) -> None:
    in_lake(live)
    live.client.pause(REPLAY, False)
    live.database.execute("INSERT INTO orders VALUES (71001, 'replayed')")
    orders = f"{live.database.name}.orders"
    begin = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)).isoformat()
    run = live.client.trigger(REPLAY, {"tables": [f"{live.database.name}.ord*"], "from": begin})
    assert live.client.wait(REPLAY, run, timeout=240) == "success"
    (table,) = live.client.xcom(REPLAY, run, "replay")["tables"]
    assert table["table"] == orders and table["keys"] >= 500
    assert table["inserted"] == table["updated"] == table["deleted"] == 0, "nothing was damaged"
    wrong = live.client.trigger(REPLAY, {"tables": ["shop.missing"]})
    assert live.client.wait(REPLAY, wrong, timeout=PATIENCE) == "failed"
    assert "the lake has no table shop.missing" in live.client.log(REPLAY, wrong, "replay", attempt=1)


def backfilled(live: Live, dag: str, first: dt.datetime, last: dt.datetime, runs: int) -> list[dict[str, Any]]:
    """The runs of a backfill, once they have ended; the first first."""
    ends = {"from_date": first.isoformat(), "to_date": last.isoformat()}
    asked = {"dag_id": dag, **ends, "run_backwards": False, "max_active_runs": 1, "reprocess_behavior": "none"}
    try:
        live.client.call("POST", "/backfills", {**asked, "dag_run_conf": {}})
    except LocalError as error:  # a busy server may have made it, and said that its database is locked
        if "already a running backfill" not in error.message:
            raise

    def ended() -> list[dict[str, Any]]:
        every = [run for run in live.client.runs(dag) if run["run_type"] == "backfill"]
        found = [run for run in every if first <= dt.datetime.fromisoformat(run["data_interval_start"]) <= last]
        return found if len(found) == runs and all(run["state"] in ("success", "failed") for run in found) else []

    found = until(ended, f"the backfill of {dag} has ended", timeout=400)
    return sorted(found, key=lambda run: str(run["data_interval_start"]))


def test_a_backfill_replays_its_hour(live: Live) -> None:
    in_lake(live)
    live.client.pause(REPLAY, False)
    hour = dt.timedelta(hours=1)
    last = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0) - 6 * hour  # one that has no run yet
    (run,) = backfilled(live, REPLAY, last, last, 1)
    assert run["state"] == "success"
    log = live.client.log(REPLAY, run["dag_run_id"], "replay")
    assert (
        f"replay from {last:%Y-%m-%d %H:00:00}+00:00 to {last + dt.timedelta(hours=1):%Y-%m-%d %H:00:00}+00:00" in log
    )


def test_a_backfill_of_as_many_days_as_there_are_slices_has_compared_every_row(live: Live) -> None:
    in_lake(live)
    live.client.pause(REPAIR, False)
    last = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0) - dt.timedelta(days=2)
    runs = backfilled(live, REPAIR, last - dt.timedelta(days=SLICES - 1), last, SLICES)
    assert {run["state"] for run in runs} == {"success"}
    tables = [t for run in runs for t in live.client.xcom(REPAIR, run["dag_run_id"], "repair", "tables")]
    rows = {name: sum(t["rows"] for t in tables if t["table"] == name) for name in {t["table"] for t in tables}}
    assert rows[f"{live.database.name}.orders"] >= 500 and rows[f"{live.database.name}.countries"] == 3
    logs = [live.client.log(REPAIR, run["dag_run_id"], "repair") for run in runs]
    numbers = {int(re.search(rf"slice (\d) of {SLICES}", log).group(1)) for log in logs}  # type: ignore[union-attr]
    assert numbers == set(range(1, SLICES + 1))


def test_a_verification_tells_rows_and_fails_with_the_reason(live: Live) -> None:
    in_lake(live)
    live.client.pause(VERIFY, False)
    tables = [f"{live.database.name}.orders", f"{live.database.name}.countries"]
    run = live.client.trigger(VERIFY, {"tables": tables})
    assert live.client.wait(VERIFY, run, timeout=300) == "success"
    found = live.client.xcom(VERIFY, run, "verify", "tables")
    assert {table["table"] for table in found} == set(tables)
    assert all(table["missing_keys"] == table["extra_keys"] == table["different_keys"] == 0 for table in found)
    assert sum(table["rows"] for table in found) >= 503
    wrong = live.client.trigger(VERIFY, {"tables": [f"{live.database.name}.missing"]})
    assert live.client.wait(VERIFY, wrong, timeout=PATIENCE) == "failed"
    assert "is not a captured table" in live.client.log(VERIFY, wrong, "verify", attempt=1)


def test_airflows_metrics_have_our_figures(live: Live) -> None:
    in_lake(live)
    captured = {"leader_epoch", "lag_seconds", "rows_per_second", "staged_offset", "windows"}
    merged = {"merged_offset", "dump.rows", "dump.chunks", "dump.evicted"}
    wanted = {f"dblog.live.{name}" for name in captured | merged}
    until(lambda: wanted <= live.metrics.found.keys(), "all of them are sent")
    assert live.metrics.found["dblog.live.leader_epoch"] >= 1
    head = wiring.open_staging(live.config).head()
    assert head is not None
    assert 503 <= live.metrics.found["dblog.live.merged_offset"] <= head.last_offset


def test_lineage_leads_from_the_source_to_the_lake(live: Live) -> None:
    in_lake(live)
    table = f"{live.database.name}.countries"
    source = (f"mysql://{live.database.server.host}:{live.database.server.port}", table)
    staged = ("file", f"{live.config.staging.path}/live/{table}")
    lake = ("file", str(table_location(lake_at(live.config.lake.path), TableName.parse(table))))

    def told() -> set[tuple[str, tuple[str, str], tuple[str, str]]]:
        found = set()
        for event in map(json.loads, live.lineage.read_text().splitlines() if live.lineage.exists() else ()):
            places = [[(d["namespace"], d["name"]) for d in event.get(side, ())] for side in ("inputs", "outputs")]
            found |= {(event["job"]["name"], *pair) for pair in zip(*places, strict=True)}
        return found

    wanted = {(f"{DUMP}.complete", source, staged), (f"{MERGE}.merge", staged, lake)}
    until(lambda: wanted <= told(), "the dump and the merge are told")


def test_a_merge_that_takes_longer_than_it_may_is_told_while_it_runs_or_after(live: Live) -> None:
    in_lake(live)
    until(live.late.exists, "a late merge is told")  # one that starts Spark takes longer than its second
    assert set(live.late.read_text().split()) <= {run["dag_run_id"] for run in live.client.runs(MERGE, limit=100)}


def test_maintenance_by_hand_says_what_it_did(live: Live) -> None:
    in_lake(live)
    run = live.client.trigger(MAINTENANCE)
    assert live.client.wait(MAINTENANCE, run, timeout=300) == "success"
    found = live.client.xcom(MAINTENANCE, run, "maintain")
    assert {table["table"] for table in found["tables"]} >= {f"{live.database.name}.orders"}


def test_kill_9_of_the_leading_capture_loses_nothing_and_another_leads(live: Live) -> None:
    before = capturing(live)
    live.database.execute("INSERT INTO orders VALUES (80001, 'before')")
    pid = int(re.search(r"\d+$", before.holder).group())  # type: ignore[union-attr]
    psutil.Process(pid).kill()
    live.database.execute("INSERT INTO orders VALUES (80002, 'after')")
    until(lambda: (now := leader(live)) and now.epoch > before.epoch, "another one leads")
    table = f"{live.database.name}.orders"
    until(lambda: len(staged(live, table=table, key={"id": 80002})) == 1, "what was written meanwhile is staged")
    assert len(staged(live, table=table, key={"id": 80001})) == 1


def test_no_task_outlives_its_supervisor_or_a_stop_and_a_start_goes_on(live: Live) -> None:
    before = capturing(live)
    supervisors = until(live.server.task_processes, "a task runs")
    orphans = supervisors[0].children()
    supervisors[0].kill()
    until(lambda: not psutil.wait_procs(orphans, timeout=0)[1], "the orphan ends by itself", timeout=20)
    live.server.stop()
    home = live.server.environment()["AIRFLOW_HOME"]
    running = [p.info for p in psutil.process_iter(["pid", "cmdline", "environ"])]
    assert [p for p in running if (p["environ"] or {}).get("AIRFLOW_HOME") == home] == []
    live.server.start()
    live.database.execute("INSERT INTO orders VALUES (90001, 'after the restart')")
    table = f"{live.database.name}.orders"
    until(lambda: staged(live, table=table, key={"id": 90001}), "the capture goes on")
    assert capturing(live).epoch > before.epoch


def test_the_health_check_of_the_containers_tells_of_each_component(live: Live) -> None:
    check = Path(__file__).parents[2] / "docker" / "airflow" / "healthy"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "AIRFLOW_API": live.server.url}
    for component in ("scheduler", "triggerer", "dag_processor"):
        done = subprocess.run([check, component], env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([check, "oracle"], env=environment, check=False, capture_output=True)
    assert done.returncode != 0, "one that there is not is not well"


def test_no_log_and_no_file_of_airflow_holds_the_password(live: Live) -> None:
    capturing(live)
    home = live.server.environment()["AIRFLOW_HOME"]
    secret = live.server.environment()[PASSWORD].encode()
    assert all(secret not in path.read_bytes() for path in _files(home))


def _files(home: str) -> list[Path]:
    return [path for path in Path(home).rglob("*") if path.is_file()]
