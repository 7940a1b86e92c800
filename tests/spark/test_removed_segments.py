"""A stopped table that is no longer captured keeps no segment; when it comes back, a dump brings the lost rows."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import State, TableStatus, read_status
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.table_merge import Share, TableMerge
from dblog_core.maintenance import retention_needs
from dblog_core.staging.retention import Retention
from dblog_core.state.settings_in_force import LiveSettings
from tests.spark.lakes import TestLake
from tests.spark.segments import table

ITEMS = table("items", id=pa.int64(), v=pa.string())
OTHER = table("other", id=pa.int64())
LATER = 2e9  # seconds UTC, by which every segment is older than `keep`


def _items(lake: TestLake) -> TableStatus:
    status = read_status(lake.location)
    assert status is not None
    return status.tables["shop.items"]


def _merge_others(lake: TestLake) -> None:
    lake.build.create(OTHER, {"id": lake.build.offset})
    lake.build.seal()
    lake.merge()


def _retain(lake: TestLake, *tables: str) -> int:
    """Removes the segments that are not needed while these tables are captured; the oldest segment that is left."""
    status = read_status(lake.location)
    needs = retention_needs.of_lake(status, LiveSettings(tables, {}, {}))
    return Retention(lake.staging, keep=0, now=LATER, over=lambda dump: True).run(list(needs)).beginning.segment


def _stop_items(lake: TestLake) -> None:
    lake.build.schema(ITEMS, whole=True)
    for number in (1, 2, 3):
        lake.build.create(ITEMS, {"id": number, "v": "old"})
    _merge_others(lake)
    lake.build.delete(ITEMS, {"id": 1})
    lake.build.update(ITEMS, {"id": 3, "v": "changed"})
    lake.build.create(ITEMS, {"id": 4, "v": "four"})
    apply = TableMerge.apply

    def fail(merge: TableMerge, share: Share) -> Applied | None:
        if share.work.table == "shop.items":
            raise LakeError("a fault of the table's own", where=share.work.table)
        return apply(merge, share)

    with mock.patch.object(TableMerge, "apply", fail):
        for _ in range(4):
            _merge_others(lake)
    assert _items(lake).state is State.STOPPED


def test_a_stopped_table_keeps_what_it_has_missed_while_it_is_captured(lake: TestLake) -> None:
    _stop_items(lake)
    assert _retain(lake, "shop.*") == _items(lake).segment + 1
    status = read_status(lake.location)
    assert status is not None
    assert _retain(lake, "shop.other") == status.segment, "the lake's own segment"


@pytest.mark.parametrize("dies", [None, "recorded", "applied shop.items"])
def test_a_table_that_comes_back_has_the_rows_of_its_dump_and_no_others(lake: TestLake, dies: str | None) -> None:
    _stop_items(lake)
    kept = _retain(lake, "shop.other")
    since = lake.build.offset
    lake.build.schema(ITEMS)
    lake.build.create(ITEMS, {"id": 5, "v": "new"})
    lake.build.seal()
    if dies is None:
        lake.merge_well()
        items = _items(lake)
        assert (items.state, items.lacks, items.told) == (State.INCOMPLETE, lake.staging.beginning().offset - 1, False)
    else:
        lake.merge_until(dies)
    truth = {2: "old", 3: "changed", 4: "four", 5: "new"}
    lake.build.chunk(ITEMS, [{"id": number, "v": value} for number, value in truth.items()], dump="back")
    lake.build.finished(ITEMS, "back", since=since, since_segment=kept)
    lake.build.seal()
    lake.merge_well()
    assert _items(lake).state is State.OK and _items(lake).lacks is None
    assert {row["id"]: row["v"] for row in lake.rows(ITEMS)} == truth


def test_a_dump_that_began_before_what_is_gone_does_not_make_the_table_whole(lake: TestLake) -> None:
    _stop_items(lake)
    early = 1
    kept = _retain(lake, "shop.other")
    lake.build.schema(ITEMS)
    lake.build.chunk(ITEMS, [{"id": 2, "v": "old"}], dump="early")
    lake.build.finished(ITEMS, "early", since=early, since_segment=kept)
    lake.build.seal()
    lake.merge_well()
    assert _items(lake).state is State.INCOMPLETE
