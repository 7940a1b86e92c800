"""Records of dumps in the state store: what this version writes, and what all before it have written, can be read."""

from __future__ import annotations

import json
from dataclasses import replace

import orjson
import pytest

from dblog_core.dumps import control, dump_store
from dblog_core.dumps.dump_records import DumpOptions, DumpRecord, DumpState, Refusal, TaskRecord, TaskStatus
from dblog_core.model.watermark import Heals
from dblog_core.state.memory import MemoryState

FIRST_REQUEST = """{
    "tables": ["shop.orders"], "options": {"chunk_size": 10, "workers": 3, "delay": 0, "rate": 7, "in_flight": 4},
    "state": "paused", "error": null, "requested_at": "2026-11-01T00:00:00+00:00", "requested_by": "user"
}"""
"""Of a version that knew neither bytes of a chunk, nor an adaptive pace, nor tables that are left out."""

FIRST_TASK = '{"table": "shop.orders", "keys": null, "key_from": [1, "x"], "key_to": null, "attempt": 2}'
"""Of a version that knew neither ranges, nor filters, nor the order of a key."""

REQUEST = """{
    "tables": ["shop.orders", "shop.lines"],
    "options": {"chunk_size": 10, "chunk_bytes": 65536, "workers": 2, "delay": 0.5, "rate": 0, "adaptive": true,
                "max_retained": 1024, "in_flight": 16},
    "state": "failed", "error": "shop.orders: gone", "requested_at": "2026-11-21T09:00:00.000000+00:00",
    "requested_by": "signal",
    "refused": [{"table": "shop.events", "reason": "shop.events has no primary key", "fix": "name one"}],
    "signal": "s-1", "stopped": ["shop.lines"],
    "ended": [{
        "number": 4, "table": "shop.orders", "keys": [], "key_from": null, "after": null, "key_to": 9,
        "filters": [{"column": "id", "op": ">", "values": [5]}], "parts": 2,
        "heals": {"key_from": null, "key_to": null}, "estimated": 100, "order": null, "attempt": 3,
        "progress": {
            "table": "shop.orders", "attempt": 3, "ordinal": 2, "key": 8, "rows": 20, "evicted": 1, "broken": 2,
            "reason": "restarted", "since": 5, "since_segment": 2, "began": 10, "at": 20, "done": false, "parts": 2,
            "arrived": [["1", "2"]], "ended": false, "looks": 0, "forgotten": false
        },
        "error": "gone", "held": null, "listed": 3, "gone": true
    }],
    "over_at": 1763715600.5
}"""


def test_a_request_of_the_first_version_has_the_defaults_of_all_that_came_later() -> None:
    record = DumpRecord.from_json(json.loads(FIRST_REQUEST))
    assert (record.state, record.over, record.refused, record.stopped) == (DumpState.PAUSED, False, (), ())
    assert record.options == DumpOptions(
        chunk_size=10, chunk_bytes=None, workers=3, delay=0, rate=7, adaptive=False, max_retained=0, in_flight=4
    )
    assert "chunk_bytes" not in record.options.to_json(), "the configuration's bound is in force"


def test_a_task_of_the_first_version_is_one_range_without_a_filter() -> None:
    record = TaskRecord.from_json(json.loads(FIRST_TASK))
    assert record == TaskRecord("shop.orders", key_from=[1, "x"], attempt=2)
    assert (record.parts, record.filters, record.is_whole) == (1, (), False)


def test_a_request_goes_there_and_back_as_it_always_stood() -> None:
    data = json.loads(REQUEST)
    record = DumpRecord.from_json(data)
    assert record.refused == (Refusal("shop.events", "shop.events has no primary key", "name one"),)
    assert record.ended is not None and (record.ended[0].gone, record.ended[0].is_whole) == (True, True)
    assert record.ended[0].record.heals == Heals()
    assert json.loads(orjson.dumps(record.to_json())) == data


def test_a_dump_that_ended_under_an_earlier_version_is_shown() -> None:
    """Its tasks were remembered without what came later."""
    task = json.loads(REQUEST)["ended"][0]
    for name in ("order", "held", "listed", "gone"):
        del task[name]
    for name in ("parts", "arrived", "ended", "looks", "forgotten"):
        del task["progress"][name]
    status = TaskStatus.recall(task)
    assert (status.number, status.error, status.gone, status.progress.ordinal) == (4, "gone", False, 2)


def test_what_a_later_version_has_written_beside_survives_a_change_of_this_one() -> None:
    state = MemoryState()
    request = json.loads(FIRST_REQUEST)
    request["later"] = 1
    request["options"]["later"] = 2
    state.create("dumps/d/tasks/0/task", FIRST_TASK.encode())
    state.create("dumps/d/request", json.dumps(request).encode())
    control.retune(state, "d", workers=5)
    control.resume(state, "d")
    entry = state.get("dumps/d/request")
    assert entry is not None
    written = json.loads(entry.data)
    assert (written["later"], written["options"]["later"], written["options"]["workers"]) == (1, 2, 5)
    assert dump_store.read_settings(state, "d") == (
        DumpState.REQUESTED,
        replace(DumpRecord.from_json(request).options, workers=5),
    )


@pytest.mark.parametrize("state", DumpState)
def test_states_are_told_as_their_words(state: DumpState) -> None:
    assert orjson.dumps({"state": state}) == b'{"state":"%s"}' % state.value.encode()
    assert f"{state}" == state.value
