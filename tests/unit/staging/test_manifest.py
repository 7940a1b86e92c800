"""What a manifest holds beside rows: read from the texts of earlier versions, and written as they wrote it."""

from __future__ import annotations

import orjson

from dblog_core.algorithm.task_progress import TaskProgress, tasks_to_json
from dblog_core.model.column_defaults import Constant
from dblog_core.model.schema import TableName
from dblog_core.model.schema_changes import Pending, Step
from dblog_core.model.task_id import TaskId
from dblog_core.staging.manifest import Manifest

HEAD = (
    '{"format":2,"source":"shop","segment":3,"epoch":2,"first_offset":10,"last_offset":12,"position":"p9","partial":0,'
    '"log_position":"p9","commit_time":77,"sealed_at":88,"files":[],"chunks":[],"marks":[]'
)
TASK = (
    '"table":"shop.t","attempt":1,"ordinal":2,"key":[5],"rows":20,"evicted":1,"broken":0,"reason":"","since":9,'
    '"since_segment":2,"began":70,"at":77,"done":false'
)
ALTERED = (
    '{"shop.t":[{"renamed":{"a":"b"},"constants":{"c":["text","x"]},"nulls":["n"],"unknown":[],"dropped":["d"],'
    '"revalued":[]}],"shop.u":null}'
)


def _manifest(more: str) -> Manifest:
    return Manifest.from_json(orjson.loads(f"{HEAD}{more}}}"))


def test_the_progress_of_tasks_is_read_and_written_as_it_always_was() -> None:
    text = f'{{"d1/0":{{{TASK}}},"d1/1":{{{TASK},"parts":2,"arrived":[["[1]","[7]"]],"ended":true,"looks":4}}}}'
    first = TaskProgress("shop.t", 1, 2, [5], 20, 1, since=9, since_segment=2, began=70, at=77)
    progress = _manifest(f',"tasks":{text}').progress()
    assert progress[TaskId("d1", 0)] == first
    second = progress[TaskId("d1", 1)]
    assert (second.parts, second.arrived, second.ended, second.looks) == (2, (("[1]", "[7]"),), True, 4)
    assert orjson.dumps(tasks_to_json(progress)).decode() == text


def test_the_progress_of_the_first_versions_is_read() -> None:
    """They had the keys alone of rows that had moved, and no dumps that heal before that."""
    assert _manifest("").progress() == {}
    text = f',"tasks":{{"d1/0":{{{TASK}}},"d1/1":{{{TASK},"parts":1,"arrived":["[1]"]}}}}'
    assert [p.arrived for p in _manifest(text).progress().values()] == [(), (("[1]",),)]


def test_statements_that_no_row_has_followed_are_read_and_written_as_they_always_were() -> None:
    manifest = _manifest(f',"altered":{ALTERED}')
    assert orjson.dumps(manifest.pending_statements().to_json()).decode() == ALTERED
    pending = Pending({"shop.u": None})
    step = Step({"a": "b"}, ("n",), {"c": Constant("text", "x")}, dropped=("d",))
    pending.add(TableName.parse("shop.t"), step, ["shop.t"])
    assert pending.to_json() == manifest.pending_statements().to_json()
    assert _manifest("").pending_statements().to_json() == {}
