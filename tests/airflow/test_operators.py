"""The operators and sensors of people's own DAGs, without a running Airflow: arguments, attempts, waits, assets."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import json
import re
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from dblog_core import wiring
from dblog_core.airflow import dump_operators, in_process, merge_operator, triggers
from dblog_core.airflow.operators import (
    DblogDumpOperator,
    DblogMergeOperator,
    DblogRepairOperator,
    DblogVerifyOperator,
    lake_table_asset,
)
from dblog_core.airflow.provider import provider_info
from dblog_core.airflow.sensors import DblogFreshnessSensor, DblogProvenSensor
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.config import loader
from dblog_core.dumps import control, dump_store, task_store, work_loop
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import ConfigError, LakeError, RequestError, StateUnavailable
from dblog_core.interfaces import StateStore
from dblog_core.lake.lake_status import LakeStatus, MergeCounts, State, TableStatus
from dblog_core.model.task_id import TaskId
from dblog_core.monitoring import freshness
from dblog_core.monitoring.freshness import Freshness, LogEnd
from dblog_core.verify import last_results
from dblog_core.verify.report import TableReport
from dblog_core.verify.slices import Slice
from tests.airflow.test_factory import write
from tests.unit.requests_world import ORDERS, World, make

TI = SimpleNamespace(dag_id="nightly", run_id="manual__1", task_id="dump", map_index=-1)
CONTEXT = {"ti": TI}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    task_world = make(tmp_path, monkeypatch)
    task_world.fill(ORDERS, [(1,), (2,)])
    monkeypatch.setattr(in_process, "configuration", lambda *_: task_world.config)
    monkeypatch.setattr(loader, "load", lambda *_, **__: task_world.config)
    return task_world


# Arguments ------------------------------------------------------------------------------------------------------------


def test_a_source_is_named_by_its_file_or_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLOG_CONFIG_DIR", str(tmp_path))
    assert in_process.source_file("/etc/shop.toml", None) == "/etc/shop.toml"
    assert in_process.source_file(None, "shop") == str(tmp_path / "shop.toml")
    for wrong in ((None, None), ("/etc/shop.toml", "shop")):
        with pytest.raises(ConfigError, match="either config_file or source"):
            in_process.source_file(*wrong)
    monkeypatch.delenv("DBLOG_CONFIG_DIR")
    with pytest.raises(ConfigError, match="DBLOG_CONFIG_DIR is not set"):
        in_process.source_file(None, "shop")


def read_dump(world: World, dump_id: str) -> DumpStatus:
    return dump_store.read_dump(world.state, dump_id)


def dump_operator(**arguments: Any) -> DblogDumpOperator:
    return DblogDumpOperator(task_id="dump", config_file="shop.toml", **{"tables": ["shop.orders"], **arguments})


def finish_all(state: StateStore) -> None:
    for dump in dump_store.list_unfinished_dumps(state):
        for task in dump.tasks:
            task_store.put_progress(state, TaskId(dump.id, task.number), TaskProgress(task.table, attempt=1, done=True))


@pytest.fixture
def worker_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Workers that finish what they are given; the ids that they got."""
    ids: list[str | None] = []

    def work(*_: Any, dump_id: str | None = None, **__: Any) -> None:
        ids.append(dump_id)
        finish_all(world.state)

    monkeypatch.setattr(work_loop, "work", work)
    return ids


def test_a_dump_takes_templates_that_gave_text_as_its_form_would(world: World, worker_calls: list[str | None]) -> None:
    task = dump_operator(
        tables="shop.orders", pks="[1, 2]", chunk_size="500", delay_seconds="0.5", workers="", adaptive="True"
    )
    result = task.execute(CONTEXT)
    assert (result["state"], result["tables"], worker_calls) == ("done", ["shop.orders"], [result["id"]])
    dump = read_dump(world, result["id"])
    assert (dump.options.chunk_size, dump.options.delay, dump.options.adaptive) == (500, 0.5, True)
    assert dump.options.workers == world.config.dump.workers
    (dumped,) = dump.tasks
    assert dumped.record.keys == (1, 2)
    assert dump.requested_by.startswith("airflow:nightly/manual__1/dump#")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"chunk_size": 0}, "chunk_size"),
        ({"workers": "many"}, "workers"),
        ({"tables": []}, "tables"),
        ({"tables": None, "rendered": ""}, "tables"),
        ({"pks": "[]"}, "pks"),
        ({"max_retained": "10 things"}, "max_retained"),
    ],
)
def test_an_argument_that_the_form_would_refuse_files_nothing(
    world: World, arguments: dict[str, Any], where: str
) -> None:
    rendered = arguments.pop("rendered", None)
    task = dump_operator(**arguments)
    if rendered is not None:
        task.tables = rendered
    with pytest.raises(RequestError) as refused:
        task.execute(CONTEXT)
    assert refused.value.where == where
    assert dump_store.list_dumps(world.state) == []


def test_the_arguments_of_every_form_are_templates_of_its_operator(world: World) -> None:
    from dblog_core.airflow.params import form, verify_form

    assert set(DblogDumpOperator.template_fields) == form(world.config).keys() - {"dry_run"}
    assert set(DblogVerifyOperator.template_fields) == verify_form(world.config).keys()


# Attempts -------------------------------------------------------------------------------------------------------------


def test_a_further_attempt_continues_its_dump_and_another_request_replaces_it(world: World) -> None:
    task = dump_operator(work=False, deferrable=True)
    for _ in range(2):
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(CONTEXT)
    (dump,) = dump_store.list_dumps(world.state)
    assert deferred.value.trigger.dump_id == dump.id
    with pytest.raises(TaskDeferred):
        dump_operator(work=False, deferrable=True, pks=[1]).execute(CONTEXT)
    mapped = SimpleNamespace(**{**vars(TI), "map_index": 0})
    with pytest.raises(TaskDeferred):
        task.execute({"ti": mapped})
    assert [str(d.state) for d in dump_store.list_dumps(world.state)].count("cancelled") == 1
    assert read_dump(world, dump.id).state == "cancelled", "the dump of another request"
    assert len(dump_store.list_unfinished_dumps(world.state)) == 2, "a mapped task has a dump of its own"


def test_a_task_that_is_cleared_after_its_dump_dumps_again(world: World, worker_calls: list[str | None]) -> None:
    first, second = (dump_operator().execute(CONTEXT)["id"] for _ in range(2))
    assert first != second and worker_calls == [first, second]


@pytest.mark.parametrize(("cancel_on_kill", "state"), [(True, "cancelled"), (False, "requested")])
def test_a_task_that_is_ended_by_hand_cancels_its_dump_unless_told_otherwise(
    world: World, monkeypatch: pytest.MonkeyPatch, cancel_on_kill: bool, state: str
) -> None:
    task = dump_operator(cancel_on_kill=cancel_on_kill)

    def work(*_: Any, stop: threading.Event, **__: Any) -> None:
        task.on_kill()
        assert stop.is_set()

    monkeypatch.setattr(work_loop, "work", work)
    with pytest.raises(AirflowException, match="asked to stop"):
        task.execute(CONTEXT)
    (dump,) = dump_store.list_dumps(world.state)
    assert dump.state == state


def test_a_task_that_is_ended_while_it_files_its_dump_cancels_it(
    world: World, worker_calls: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = dump_operator()
    file_dump = dump_operators.file_dump

    def file_late(*arguments: Any) -> Any:
        task.on_kill()
        return file_dump(*arguments)

    monkeypatch.setattr(dump_operators, "file_dump", file_late)
    with pytest.raises(AirflowException, match="asked to stop"):
        task.execute(CONTEXT)
    (dump,) = dump_store.list_dumps(world.state)
    assert (dump.state, worker_calls) == ("cancelled", [])


def test_a_dump_that_somebody_cancels_fails_its_task_for_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_loop, "work", lambda *_, dump_id, **__: control.cancel(world.state, dump_id))
    with pytest.raises(AirflowFailException, match="is cancelled"):
        dump_operator().execute(CONTEXT)


def test_a_task_that_works_cannot_be_deferred() -> None:
    with pytest.raises(ValueError, match="work=False"):
        dump_operator(work=True, deferrable=True)


# Waits ----------------------------------------------------------------------------------------------------------------


def remake(trigger: triggers.Wait) -> triggers.Wait:
    """As a triggerer makes it anew."""
    path, kwargs = trigger.serialize()
    assert path == f"dblog_core.airflow.triggers.{type(trigger).__name__}"
    return type(trigger)(**kwargs)


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """In a thread, since the browser of other tests may have a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def event_of(trigger: triggers.Wait) -> Any:
    async def first() -> Any:
        return await anext(aiter(trigger.run()))

    return run_to_end(first()).payload


def test_a_deferred_dump_waits_for_its_end(world: World) -> None:
    task = dump_operator(work=False, deferrable=True, poll_interval=0.01)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(CONTEXT)
    wait = remake(deferred.value.trigger)
    assert wait.try_look() is None
    finish_all(world.state)
    event = event_of(wait)
    resumed = getattr(dump_operator(work=False, deferrable=True), deferred.value.method_name)(CONTEXT, event)
    assert (resumed["state"], resumed["id"]) == ("done", event["dump_id"])


@pytest.mark.parametrize(("cancel_on_kill", "state"), [(True, "cancelled"), (False, "requested")])
def test_a_deferred_dump_that_is_ended_by_hand_is_cancelled(world: World, cancel_on_kill: bool, state: str) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        dump_operator(work=False, deferrable=True, cancel_on_kill=cancel_on_kill).execute(CONTEXT)
    run_to_end(remake(deferred.value.trigger).on_kill())
    assert dump_store.list_dumps(world.state)[0].state == state


def test_a_wait_outlives_a_store_that_is_away_and_tells_the_task_what_no_look_will_mend(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = triggers.DumpOver(dump_id="gone", cancel_on_kill=True, config_file="shop.toml", interval=0.01)
    answers = iter([StateUnavailable("no route"), RequestError("there is no dump gone")])

    def fail(_: Any) -> StateStore:
        raise next(answers)

    monkeypatch.setattr(wiring, "open_state", fail)
    assert event_of(wait) == {"error": "there is no dump gone"}
    with pytest.raises(AirflowException, match="no dump gone"):
        dump_operator(work=False, deferrable=True).end_wait(CONTEXT, {"error": "there is no dump gone"})


def fresh_sensor(**arguments: Any) -> DblogFreshnessSensor:
    usual = {"table": "shop.orders", "as_new_as": "2026-11-21T10:00:00Z", "poke_interval": 0.01}
    return DblogFreshnessSensor(task_id="fresh", config_file="shop.toml", **{**usual, **arguments})


@pytest.mark.parametrize(
    "as_new_as", ["2026-11-21 10:00:00+00:00", "2026-11-21T10:00:00", dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)]
)
def test_a_sensor_looks_at_its_time(world: World, monkeypatch: pytest.MonkeyPatch, as_new_as: Any) -> None:
    looks: list[Any] = []

    def look(_: Any, table: str, time_us: int, **__: Any) -> Freshness:
        looks.append((table, time_us))
        return Freshness(table, len(looks) > 1, "why", 7)

    monkeypatch.setattr(freshness, "look", look)
    sensor = fresh_sensor(as_new_as=as_new_as)
    assert not sensor.poke(CONTEXT).is_done
    assert sensor.poke(CONTEXT).xcom_value == {"table": "shop.orders", "fresh": True, "reason": "why", "offset": 7}
    assert set(looks) == {("shop.orders", 1_795_255_200_000_000)}


def test_what_is_no_time_is_refused(world: World) -> None:
    with pytest.raises(RequestError, match="'None' is no time"):
        fresh_sensor(as_new_as="None").poke(CONTEXT)


def test_a_deferred_sensor_asks_the_source_itself_and_the_triggerer_goes_on_with_its_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str | None] = []

    def judge(_: Any, table: str, __: int, *, end: str | None = None) -> Freshness:
        ends.append(end)
        return Freshness(table, end == "its end" and len(ends) > 3, "why", 7)

    monkeypatch.setattr(freshness, "judge", judge)
    answers = iter([LogEnd(None, 0.05), LogEnd("its end")])
    monkeypatch.setattr(freshness, "find_log_end", lambda *_: next(answers))
    sensor = fresh_sensor(deferrable=True, timeout=60)
    with pytest.raises(TaskDeferred) as early:
        sensor.execute(CONTEXT)
    assert early.value.timeout == dt.timedelta(seconds=60)
    assert remake(early.value.trigger).try_look() is None, "the source's clock is not there yet"
    assert event_of(early.value.trigger) == {"ask": True}
    with pytest.raises(TaskDeferred) as later:
        sensor.end_wait(CONTEXT, {"ask": True})
    event = event_of(remake(later.value.trigger))
    assert sensor.end_wait(CONTEXT, event)["fresh"]


def test_a_lake_that_does_not_continue_its_staging_fails_a_deferred_sensor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Freshness:
        raise LakeError("another staging")

    monkeypatch.setattr(freshness, "judge", refuse)
    wait = triggers.TableFresh(
        table="shop.orders", time_us=1, end="e", ask_at=0.0, config_file="shop.toml", interval=0.01
    )
    with pytest.raises(AirflowException, match="another staging"):
        fresh_sensor(deferrable=True).end_wait(CONTEXT, event_of(wait))


def proven_sensor(**arguments: Any) -> DblogProvenSensor:
    usual = {"table": "shop.orders", "within": dt.timedelta(hours=1), "poke_interval": 0.01}
    return DblogProvenSensor(task_id="proven", config_file="shop.toml", **{**usual, **arguments})


def record_verification(world: World, report: TableReport, *, ago: float, whole: bool = True) -> None:
    last_results.record_results(world.state, [report], whole=whole, now_seconds=time.time() - ago)


def test_a_proof_is_a_whole_comparison_of_the_last_time(world: World) -> None:
    sensor = proven_sensor()
    assert not sensor.poke(CONTEXT)
    record_verification(world, TableReport("shop.orders"), ago=7200)
    assert not sensor.poke(CONTEXT), "too long ago"
    record_verification(world, TableReport("shop.orders", missing=(1,)), ago=60)
    assert not sensor.poke(CONTEXT), "it differed"
    record_verification(world, TableReport("shop.orders"), ago=50, whole=False)
    assert not sensor.poke(CONTEXT), "a sample"
    record_verification(world, TableReport("shop.orders"), ago=40)
    assert sensor.poke(CONTEXT).xcom_value["table"] == "shop.orders"
    assert not proven_sensor(within=30.0).poke(CONTEXT)
    with pytest.raises(RequestError, match="not a captured table"):
        proven_sensor(table="other.orders").poke(CONTEXT)


def test_a_deferred_sensor_waits_for_a_proof(world: World) -> None:
    sensor = proven_sensor(deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(CONTEXT)
    wait = remake(deferred.value.trigger)
    assert wait.try_look() is None
    record_verification(world, TableReport("shop.orders"), ago=1)
    assert sensor.end_wait(CONTEXT, event_of(wait))["table"] == "shop.orders"
    assert sensor.execute(CONTEXT)["table"] == "shop.orders", "there is nothing to wait for"


# Verify and repair ----------------------------------------------------------------------------------------------------


def request_of(world: World, task: DblogVerifyOperator | DblogRepairOperator) -> Any:
    with task.take_request(CONTEXT, world.config) as request:
        return request


def test_verify_and_repair_compare_what_their_arguments_say(world: World) -> None:
    verify = DblogVerifyOperator(
        task_id="v", config_file="shop.toml", tables="['shop.orders']", sample_rows="9", repair="True"
    )
    request = request_of(world, verify)
    assert (request.tables, request.sample.rows, request.repair) == (("shop.orders",), 9, True)
    repair = DblogRepairOperator(task_id="r", config_file="shop.toml", rows_per_second=70)
    request = request_of(world, repair)
    assert (request.tables, request.repair, request.slice, request.rate) == (None, True, None, 70)
    with pytest.raises(RequestError) as refused:
        request_of(world, DblogVerifyOperator(task_id="v", config_file="shop.toml", sample_rows=0))
    assert refused.value.where == "sample_rows"


def test_a_repair_takes_the_slice_that_waited_longest_or_the_one_that_it_names(world: World) -> None:
    def repair(**arguments: Any) -> Any:
        return request_of(world, DblogRepairOperator(task_id="r", config_file="shop.toml", slices=4, **arguments))

    assert repair().slice == repair().slice == Slice(1, 4), "another attempt of the same task takes its slice again"
    assert repair(slice_number="3").slice == Slice(3, 4)
    for wrong in ("5", "0", "x"):
        with pytest.raises(RequestError, match="there is no slice"):
            repair(slice_number=wrong)
    with pytest.raises(ValueError, match="slices"):
        DblogRepairOperator(task_id="r", config_file="shop.toml", slice_number=3)


# Assets ---------------------------------------------------------------------------------------------------------------


def table_status(version: int, *, merge: int, history: int = 0) -> TableStatus:
    return TableStatus(State.OK, None, 1, 9, version, merged=MergeCounts(merge, history=history))


def test_a_merge_emits_an_event_of_each_table_that_it_has_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: table_status(3, merge=1) for name in ("shop.a", "shop.b", "shop.c", "shop.d")}
    changed = {
        "shop.b": table_status(4, merge=3),
        "shop.c": table_status(3, merge=3),
        "shop.new": table_status(0, merge=2),
    }
    changed |= {"shop.d": table_status(3, merge=3, history=2)}
    statuses = iter([LakeStatus(1, tables=before), LakeStatus(3, offset=9, tables={**before, **changed})])
    monkeypatch.setattr(merge_operator, "_status", lambda _: next(statuses))
    monkeypatch.setattr(DblogMergeOperator, "_begin", lambda _: world.config)
    monkeypatch.setattr(DblogMergeOperator, "_run", lambda *_: None)
    monkeypatch.setattr(merge_operator, "up_to_date", lambda _: False)
    task = DblogMergeOperator(task_id="merge", config_file="shop.toml", outlets=[Asset("mine")])
    assert task.outlets == [Asset("mine"), triggers.LAKE_TABLES]
    events: list[tuple[Asset, dict[str, Any]]] = []
    outlet = SimpleNamespace(add=lambda asset, extra: events.append((asset, extra)))
    result = task.execute({"outlet_events": {triggers.LAKE_TABLES: outlet}})
    assert result["tables"].keys() == {"shop.b", "shop.new", "shop.d"}, "and not what has the rows that it had"
    assert [asset.uri for asset, _ in events] == [f"x-dblog://shop/lake/shop/{name}" for name in ("b", "d", "new")]
    path = f"{world.config.lake.path}/shop/b"
    assert events[0][1] == {"merge": 3, "path": path, "version": 4, "offset": 9}
    assert events[0][0] == lake_table_asset("shop.toml", "shop.b") and events[0][0].extra["path"] == path


def test_the_name_of_any_table_makes_an_asset(tmp_path: Path) -> None:
    write(tmp_path / "sources", "shop.toml", name="shop")
    asset = lake_table_asset(str(tmp_path / "sources/shop.toml"), 'shop.straße/"x y"')
    assert asset.name.isascii() and asset.uri.isascii() and " " not in asset.uri
    assert asset.extra["path"].endswith('/shop/straße~2F"x y"')


# The provider ---------------------------------------------------------------------------------------------------------


def test_the_provider_names_the_modules_that_people_import_from() -> None:
    info = provider_info()
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    for part, names in (
        ("operators", ("DblogDumpOperator", "DblogMergeOperator", "DblogRepairOperator", "DblogVerifyOperator")),
        ("sensors", ("DblogFreshnessSensor", "DblogProvenSensor")),
        ("triggers", ("SegmentsSealed", "DumpOver", "TableFresh", "TableProven")),
        ("hooks", ("MysqlSourceHook", "PostgresSourceHook")),
    ):
        ((module,),) = (entry["python-modules"] for entry in info[part])
        assert all(hasattr(importlib.import_module(module), name) for name in names), part
    plugin = info["plugins"][0]["plugin-class"].rpartition(".")
    assert hasattr(importlib.import_module(plugin[0]), plugin[2])


# Documentation --------------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_are_the_dags_that_run() -> None:
    page = (ROOT / "docs" / "airflow.md").read_text()
    section = page[page.index("\n## Your own DAGs\n") :]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    files = [file.read_text() for file in (ROOT / "tests/airflow/example_dags").glob("*.py")]
    assert sorted(blocks) == sorted(files)


@pytest.mark.parametrize("kind", [DblogDumpOperator, DblogRepairOperator, DblogVerifyOperator])
def test_what_cannot_be_carried_out_is_not_tried_again(kind: Callable[..., Any]) -> None:
    assert kind(task_id="t", config_file="shop.toml").retry_policy is in_process.ONLY_TRANSIENT
