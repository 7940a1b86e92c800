"""Whoever still needs old segments is asked, and what each needs is what its own code reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps import control, task_store
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import StateError
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus
from dblog_core.maintenance import retention_needs
from dblog_core.model.task_id import TaskId
from dblog_core.outputs import positions
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from dblog_core.state.memory import MemoryState
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit import requests_world
from tests.unit.requests_world import ORDERS
from tests.unit.staged import MICROSECONDS, manifest

LAKE = LakeStatus(merge=3, segment=8, offset=89, tables={"shop.a": TableStatus(State.OK, None, 8, 89)})


@pytest.fixture
def staging() -> Staging:
    """Ten segments of ten offsets each, from 10 on."""
    staging = Staging("/simulated", source="shop", storage=MemoryStorage(Disk()))
    for number in range(1, 11):
        staging.publish(manifest(number, 10 * number, 10 * number + 9))
    return staging


def _of(
    staging: Staging, *, lake: LakeStatus | None = LAKE, state: MemoryState | None = None, **outputs: str | int
) -> dict[int, str]:
    needs = retention_needs.needs(staging, state or MemoryState(), lake, outputs=outputs)
    return {need.segment: need.why for need in needs}


def _newest(staging: Staging, **fields: Any) -> None:
    staging.publish(replace(manifest(11, 110, 119), **fields))


def test_without_a_merge_all_is_needed(staging: Staging) -> None:
    assert _of(staging, lake=None) == _of(staging, lake=LakeStatus()) == {1: "nothing is merged into the lake yet"}


def test_nothing_staged_needs_nothing() -> None:
    empty = Staging("/simulated", source="shop", storage=MemoryStorage(Disk()))
    assert retention_needs.needs(empty, MemoryState(), LAKE, outputs={"kafka": "earliest"}) == []


def test_a_late_table_needs_what_it_has_not_merged(staging: Staging) -> None:
    late = replace(LAKE, tables={**LAKE.tables, "shop.b": TableStatus(State.OK, None, 5, 59, begun=89)})
    assert _of(staging, lake=late)[6] == "shop.b is merged up to segment 5"


def test_the_lake_needs_what_it_has_not_merged_each_table_by_itself(staging: Staging) -> None:
    assert _of(staging) == {8: "the lake has merged up to segment 8"}
    stopped = replace(LAKE, tables={**LAKE.tables, "shop.b": TableStatus(State.STOPPED, "no", 4, 49)})
    assert _of(staging, lake=stopped)[5] == "shop.b is stopped at segment 4"


def test_a_table_that_waits_for_a_dump_needs_nothing_older(staging: Staging) -> None:
    """What the dump brings is staged after what the table has merged. A dump that never comes must not fill a disk."""
    waits = replace(LAKE, tables={**LAKE.tables, "shop.b": TableStatus(State.INCOMPLETE, None, 8, 89)})
    assert _of(staging, lake=waits).keys() == {8}
    reset = replace(LAKE, tables={**LAKE.tables, "shop.b": TableStatus(State.INCOMPLETE, None, 6, 69)})
    assert _of(staging, lake=reset)[7] == "shop.b is merged up to segment 6"


def test_a_dump_that_the_newest_manifest_knows_needs_its_chunks(staging: Staging) -> None:
    begun = TaskProgress("shop.a", attempt=1, ordinal=2, since=30, since_segment=3)
    _newest(staging, tasks={"d1/0": begun.to_json(), "d2/0": TaskProgress("shop.b").to_json()})
    assert _of(staging) == {3: "dump d1 of shop.a is not finished", 8: "the lake has merged up to segment 8"}


def test_a_dump_that_the_state_store_knows_needs_its_chunks(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = requests_world.make(tmp_path, monkeypatch)
    world.fill(ORDERS, [(n,) for n in range(5)])
    dump = submit(world.config, DumpRequest(tables=("shop.orders",)))
    assert _of(staging, state=world.state).keys() == {8}
    placed = TaskProgress("shop.orders", attempt=1, ordinal=1, since=20, since_segment=2)
    task_store.put_progress(world.state, TaskId(dump, 0), placed)
    assert _of(staging, state=world.state)[2] == f"dump {dump} of shop.orders is not finished"
    control.cancel(world.state, dump)
    assert _of(staging, state=world.state).keys() == {8}


def test_a_finished_dump_is_needed_until_all_tables_have_merged_its_end(staging: Staging) -> None:
    end = LogMark(115, "f", "shop.a", "p", MICROSECONDS, dump="d1", since=25, since_segment=2)
    _newest(staging, marks=(end,))
    assert _of(staging)[2] == "the end of dump d1 of shop.a is not merged"
    merged = replace(LAKE, segment=11, tables={"shop.a": TableStatus(State.OK, None, 11, 119)})
    assert _of(staging, lake=merged).keys() == {11}
    behind = replace(merged, tables={"shop.a": TableStatus(State.STOPPED, "no", 10, 109)})
    assert _of(staging, lake=behind).keys() == {2, 11}


def test_the_capture_reads_events_again_that_may_be_unseen(staging: Staging) -> None:
    _newest(staging, unseen_after=59)
    assert _of(staging)[6] == "the capture remembers events after offset 59"
    other = Staging("/simulated", source="shop", storage=staging.storage)
    other.publish(replace(manifest(12, 120, 129), unseen_after=129))
    assert _of(other).keys() == {8}


def _record_passed(state: MemoryState, name: str, offset: int) -> None:
    record = positions.Record.open(state, name, lambda: 0)
    record.advance(offset)
    record.save()


def test_outputs_need_what_they_have_not_passed_on(staging: Staging) -> None:
    state = MemoryState()
    _record_passed(state, "kafka", 42)
    assert _of(staging, state=state, kafka="latest")[4] == "output kafka has passed on up to offset 42"
    _record_passed(state, "kafka", 49)
    assert _of(staging, state=state, kafka="latest")[4] == "output kafka has passed on up to offset 49"
    _record_passed(state, "files", 109)
    assert _of(staging, state=state, kafka="latest", files=1).keys() == {4, 8}


def test_an_output_that_never_ran_needs_all_from_its_start_on(staging: Staging) -> None:
    assert _of(staging, kafka="earliest")[1] == "output kafka has not begun"
    assert _of(staging, kafka=35)[3] == "output kafka has not begun"
    assert _of(staging, kafka="latest").keys() == {8}


def test_an_output_that_is_no_longer_configured_needs_nothing(staging: Staging) -> None:
    state = MemoryState()
    _record_passed(state, "kafka", 42)
    assert _of(staging, state=state).keys() == {8}


def test_a_damaged_place_stops_retention_with_its_name(staging: Staging) -> None:
    state = MemoryState()
    state.create("outputs/kafka", b"null")
    with pytest.raises(StateError, match="output kafka"):
        _of(staging, state=state, kafka="latest")
