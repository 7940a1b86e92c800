"""The files of lake tasks: what earlier versions wrote is read, and what is written is what they wrote.

The texts are those of version 0.1.0 before its tasks had records with types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.errors import LakeError
from dblog_core.lake import lake_tasks
from dblog_core.lake.accept_schema import Way
from dblog_core.lake.lake_status import lake_at, own_directory
from dblog_core.lake.lake_tasks import LakeTask, Outcome
from dblog_core.lake.replay_interval import IntervalEnd, Unit
from dblog_core.lake.task_plans import (
    AcceptPlan,
    AdoptPlan,
    MaintainPlan,
    Past,
    RebuildPlan,
    ReplayPlan,
    ResetPlan,
    TaskPlan,
    UnknownPlan,
)
from dblog_core.lake.task_requests import (
    AcceptRequest,
    AdoptRequest,
    MaintainRequest,
    RebuildRequest,
    ReplayRequest,
    ResetRequest,
    TaskRequest,
    UnknownRequest,
)
from dblog_core.lake.task_results import (
    AcceptResult,
    RebuildResult,
    ReplayCounts,
    ReplayedTable,
    ReplayResult,
    ResetResult,
    TaskResult,
)
from dblog_core.lake_engine.merging.merge_records import Intent, Records, TaskIntent
from dblog_core.maintenance.maintain_result import (
    FailedPlace,
    MaintainedCuts,
    MaintainedStaging,
    MaintainedTable,
    MaintainResult,
)
from dblog_core.maintenance.schedule import TableSize
from dblog_core.staging.log_start import Need
from dblog_core.storage.location import Location

ONE = IntervalEnd(Unit.OFFSET, 1)
MOMENT = IntervalEnd(Unit.TIME, 1_764_000_000_123_456)
RESET = ResetPlan("shop.t", "abc", 2, 9, 7)
REQUESTS: list[tuple[str, TaskRequest]] = [
    (
        '{"kind":"replay","arguments":{"from":{"offset":1},"to":{"time":1764000000123456},"tables":[]}}',
        ReplayRequest(ONE, MOMENT),
    ),
    (
        '{"kind":"replay","arguments":{"from":{"offset":1},"to":{"offset":1},"tables":["shop.t","shop.u"]}}',
        ReplayRequest(ONE, ONE, ("shop.t", "shop.u")),
    ),
    ('{"kind":"rebuild","arguments":{"table":"shop.t"}}', RebuildRequest("shop.t")),
    ('{"kind":"reset","arguments":{"table":"shop.t"}}', ResetRequest("shop.t")),
    ('{"kind":"accept","arguments":{"table":"shop.t"}}', AcceptRequest("shop.t")),
    ('{"kind":"adopt","arguments":{}}', AdoptRequest()),
    ('{"kind":"maintain","arguments":{"tables":[]}}', MaintainRequest()),
    ('{"kind":"maintain","arguments":{"tables":["shop.t"]}}', MaintainRequest(("shop.t",))),
    ('{"kind":"of tomorrow","arguments":{"some":["thing"]}}', UnknownRequest("of tomorrow", {"some": ["thing"]})),
]
PLANS: list[tuple[str, TaskPlan]] = [
    (
        '"kind":"replay","arguments":{"from":{"offset":1},"to":{"time":1764000000123456},"tables":["shop.t"],"after":0}',
        ReplayPlan(ONE, MOMENT, ("shop.t",), 0),
    ),
    (
        '"kind":"rebuild","arguments":{"table":"shop.t","after":0,"from":"the first segment"}',
        RebuildPlan("shop.t", 0, "the first segment"),
    ),
    (
        '"kind":"rebuild","arguments":{"table":"shop.t","after":2,"from":"its history","history":{"lower":0,"upto":7}}',
        RebuildPlan("shop.t", 2, "its history", Past(0, 7)),
    ),
    (
        '"kind":"reset","arguments":{"table":"shop.t","schema":"abc","segment":2,"offset":9,"renamed":7}',
        RESET,
    ),
    (
        '"kind":"accept","arguments":{"table":"shop.t","way":"follow","schema":"abc","offset":9,'
        '"changes":["column b was added (string)"],"does":"the next merge follows"}',
        AcceptPlan("shop.t", Way.FOLLOW, "abc", 9, ("column b was added (string)",), "the next merge follows"),
    ),
    (
        '"kind":"accept","arguments":{"table":"shop.t","way":"replace","schema":"abc","offset":9,"segment":2,'
        '"renamed":7,"changes":[],"does":"it takes the newest shape"}',
        AcceptPlan("shop.t", Way.REPLACE, "abc", 9, (), "it takes the newest shape", RESET),
    ),
    ('"kind":"adopt","arguments":{"staging":"77aa","segment":2,"offset":9}', AdoptPlan("77aa", 2, 9)),
    ('"kind":"maintain","arguments":{"tables":["shop.t"]}', MaintainPlan(("shop.t",))),
    ('"kind":"of tomorrow","arguments":{"some":["thing"]}', UnknownPlan("of tomorrow", {"some": ["thing"]})),
]
RESULTS: list[tuple[str, TaskResult]] = [
    (
        '{"from":{"offset":1},"to":{"time":1764000000123456},"tables":['
        '{"table":"shop.t","keys":5,"inserted":1,"updated":2,"deleted":0,"withheld":4,"error":null},'
        '{"table":"shop.u","error":"its files are gone"}]}',
        ReplayResult(
            ONE,
            MOMENT,
            (
                ReplayedTable("shop.t", ReplayCounts(5, 1, 2, 0, 4)),
                ReplayedTable("shop.u", None, "its files are gone"),
            ),
        ),
    ),
    (
        '{"table":"shop.t","from":"dump d1","rows":3,"withheld":0}',
        RebuildResult("shop.t", "dump d1", 3, 0),
    ),
    ('{"table":"shop.t","dump":"d7","offset":9}', ResetResult("shop.t", "d7", 9)),
    (
        '{"table":"shop.t","way":"take","does":"it takes the newest shape","changes":["column b was dropped"],'
        '"dump":"d7"}',
        AcceptResult("shop.t", Way.TAKE, "it takes the newest shape", ("column b was dropped",), "d7"),
    ),
    (
        '{"table":"shop.t","way":"follow","does":"the next merge follows","changes":[],"dump":null}',
        AcceptResult("shop.t", Way.FOLLOW, "the next merge follows", (), None),
    ),
    (
        '{"tables":[{"table":"shop.t__history","files":1,"bytes":2000,"rows":30,"deleted":null,"disk_files":4,'
        '"disk_bytes":9000,"marked_at":1764000000.5,"done":["joined","purged"],"removed_files":2}],'
        '"cuts":{"oldest":null,"removed":1},"staging":{"segment":3,"offset":12,"removed_files":6,'
        '"held":[{"segment":4,"why":"shop.t is incomplete: it waits for a dump"}]},'
        '"failed":[{"name":"shop.u","error":"a data file is missing","fix":"reset it"}]}',
        MaintainResult(
            (
                MaintainedTable(
                    TableSize("shop.t__history", 1, 2000, 30, None, 4, 9000, 1764000000.5), ("joined", "purged"), 2
                ),
            ),
            MaintainedCuts(None, 1),
            MaintainedStaging(3, 12, 6, (Need(4, "shop.t is incomplete: it waits for a dump"),)),
            (FailedPlace("shop.u", "a data file is missing", "reset it"),),
        ),
    ),
]


@pytest.fixture
def lake(tmp_path: Path) -> Location:
    return lake_at(str(tmp_path / "lake"))


def _ids(cases: list[tuple[str, Any]]) -> list[str]:
    return [type(record).__name__ for _, record in cases]


@pytest.mark.parametrize(("text", "request_"), REQUESTS, ids=_ids(REQUESTS))
def test_a_request_is_read_and_written_as_it_always_was(lake: Location, text: str, request_: TaskRequest) -> None:
    assert (own_directory(lake) / "tasks/1.json").create(text.encode())
    assert lake_tasks.waiting_tasks(lake) == [LakeTask("1", request_)]
    assert (own_directory(lake) / f"tasks/{lake_tasks.file_task(lake, request_).id}.json").read() == text.encode()


@pytest.mark.parametrize(("text", "plan"), PLANS, ids=_ids(PLANS))
def test_a_plan_is_read_and_written_as_it_always_was(lake: Location, text: str, plan: TaskPlan) -> None:
    whole = (
        '{"merge":5,"span":{"first":3,"last":2,"first_offset":10,"offset":9,"position":"p9","commit_time":77},'
        f'"behind":{{}},"task":{{"id":"20261125T1-aa",{text}}},"epoch":4}}'
    ).encode()
    assert (own_directory(lake) / "merges/000000000005.json").create(whole)
    intent = Records(own_directory(lake)).newest()
    assert intent is not None and intent.task == TaskIntent("20261125T1-aa", plan)
    assert orjson.dumps(intent.to_json()) == whole


@pytest.mark.parametrize(("text", "result"), RESULTS, ids=_ids(RESULTS))
def test_an_outcome_is_read_and_written_as_it_always_was(lake: Location, text: str, result: TaskResult) -> None:
    whole = f'{{"merge":5,"result":{text},"error":null,"where":"","fix":""}}'.encode()
    path = own_directory(lake) / "tasks/1.done.json"
    assert path.create(whole)
    assert lake_tasks.read_outcome(lake, "1", type(result)) == Outcome(5, result)
    path.remove()
    lake_tasks.record_outcome(lake, "1", Outcome(5, result))
    assert path.read() == whole


def test_an_outcome_that_is_an_error_is_read_and_written_as_it_always_was(lake: Location) -> None:
    whole = b'{"merge":0,"result":null,"error":"the lake has no such table","where":"shop.none","fix":"name one"}'
    path = own_directory(lake) / "tasks/1.done.json"
    assert path.create(whole)
    outcome = lake_tasks.read_outcome(lake, "1", ResetResult)
    assert outcome == Outcome(0, None, "the lake has no such table", "shop.none", "name one")
    path.remove()
    lake_tasks.record_outcome(lake, "1", outcome)
    assert path.read() == whole


def test_what_the_first_versions_recorded_is_read(lake: Location) -> None:
    """Before renames were followed, before mergers made claims, and before there were lake tasks."""
    span = b'"span":{"first":3,"last":2,"first_offset":10,"offset":9,"position":"p9","commit_time":77},"behind":{}'
    arguments = b'{"table":"shop.t","schema":"abc","segment":2,"offset":9}'
    records = Records(own_directory(lake))
    assert (records.directory / "merges/000000000005.json").create(b'{"merge":5,' + span + b"}")
    first = records.newest()
    assert first is not None and (first.task, first.epoch) == (None, 0)
    task = b'"task":{"id":"1","kind":"reset","arguments":' + arguments + b"}"
    assert (records.directory / "merges/000000000006.json").create(b'{"merge":6,' + span + b"," + task + b"}")
    second = records.newest()
    assert second == Intent(6, first.span, {}, TaskIntent("1", ResetPlan("shop.t", "abc", 2, 9, 0)))


def test_a_size_without_the_counts_of_later_versions_is_read() -> None:
    size = {"table": "shop.t", "files": 1, "bytes": 2, "rows": 3, "deleted": 0, "disk_files": 1, "disk_bytes": 2}
    table = MaintainedTable.from_json({**size, "done": [], "removed_files": 0, "of tomorrow": 1})
    assert table == MaintainedTable(TableSize("shop.t", 1, 2, 3, 0, 1, 2, None), (), 0)


@pytest.mark.parametrize(
    "arguments",
    [
        '"replay","arguments":{"from":{},"to":{"offset":1},"tables":[]}',
        '"replay","arguments":{"from":{"segment":1},"to":{"offset":1},"tables":[]}',
        '"replay","arguments":{"from":{"offset":1}}',
        '"reset","arguments":{}',
        '"reset","arguments":[]',
        '"maintain","arguments":{"tables":5}',
    ],
)
def test_damaged_arguments_are_an_error_with_the_files_name(lake: Location, arguments: str) -> None:
    assert (own_directory(lake) / "tasks/1.json").create(f'{{"kind":{arguments}}}'.encode())
    with pytest.raises(LakeError, match=r"tasks/1\.json: a lake task cannot be read"):
        lake_tasks.waiting_tasks(lake)


@pytest.mark.parametrize(
    "task",
    [
        '{"id":"1","kind":"reset","arguments":{"table":"shop.t"}}',
        '{"id":"1","kind":"accept","arguments":{"table":"shop.t","way":"replace","schema":"abc","offset":9,'
        '"changes":[],"does":""}}',
        '{"id":"1","kind":"accept","arguments":{"table":"shop.t","way":"by magic","schema":"abc","offset":9,'
        '"changes":[],"does":""}}',
    ],
    ids=["a reset without its place", "a shape that replaces another without a place", "an unknown way"],
)
def test_a_damaged_plan_is_an_error_and_no_merge_goes_on(lake: Location, task: str) -> None:
    span = '"span":{"first":3,"last":2,"first_offset":10,"offset":9,"position":"p9","commit_time":77}'
    records = Records(own_directory(lake))
    whole = f'{{"merge":5,{span},"behind":{{}},"task":{task},"epoch":4}}'
    assert (records.directory / "merges/000000000005.json").create(whole.encode())
    with pytest.raises(LakeError, match=r"000000000005\.json: the record of a merge cannot be read"):
        records.newest()


def test_a_damaged_outcome_is_an_error_with_the_files_name(lake: Location) -> None:
    path = own_directory(lake) / "tasks/1.done.json"
    assert path.create(b'{"merge":5,"result":{"table":"shop.t"},"error":null,"where":"","fix":""}')
    with pytest.raises(LakeError, match=r"tasks/1\.done\.json: a lake task cannot be read"):
        lake_tasks.read_outcome(lake, "1", ResetResult)
