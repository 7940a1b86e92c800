"""What a merge says that it did to a table is what it did, by the names that Delta gives its counts."""

from __future__ import annotations

import pyarrow as pa

from dblog_core.lake.lake_status import read_status
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

ITEMS = table("items", id=pa.int64(), v=pa.string())


def item(key: int, v: str = "v") -> Row:
    return {"id": key, "v": v}


def test_a_merge_counts_what_it_does_to_a_table(lake: TestLake) -> None:
    build = lake.build
    build.chunk(ITEMS, [item(i) for i in range(6)], dump="first")
    build.seal()
    (first,) = lake.merge_well()
    (table_metrics,) = first.tables
    assert (
        table_metrics.rows,
        table_metrics.inserted,
        table_metrics.applied,
        table_metrics.files_added,
        table_metrics.files_removed,
    ) == (6, 6, 6, len(lake.rust_files(ITEMS)), 0)
    assert table_metrics.bytes > 0
    since = build.offset
    build.update(ITEMS, item(1, "new"))
    build.update(ITEMS, item(2))
    build.delete(ITEMS, {"id": 3})
    build.create(ITEMS, item(-9))
    build.chunk(ITEMS, [item(0), item(1, "new"), item(4)], dump="full")
    build.finished(ITEMS, "full", since=since, since_segment=2)  # 5 is a ghost
    build.seal()
    (second,) = lake.merge_well()
    (changed,) = second.tables
    assert (changed.rows, changed.inserted, changed.updated) == (7, 1, 2)
    assert (changed.unchanged, changed.deleted, changed.withheld, changed.history) == (2, 2, 0, 0)
    assert changed.files_added > 0
    status = read_status(lake.location)
    assert status is not None
    assert status.tables["shop.items"].merged == changed.counts(merge=2)
