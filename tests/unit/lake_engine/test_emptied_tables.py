"""A table that waits for a dump and is emptied or dropped waits for nothing: no old segment is kept for it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake.cuts import find_cut
from dblog_core.lake.lake_status import State, read_status
from dblog_core.maintenance.retention_needs import of_lake
from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import table

ITEMS = table("items", id=pa.int64(), v=pa.string())
OTHER = table("other", id=pa.int64())


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    return TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")


def _merge(lake: TestLake) -> None:
    lake.build.create(OTHER, {"id": lake.build.offset})
    lake.build.seal()
    lake.merge_well()


@pytest.mark.parametrize("is_filled_again", [False, True], ids=["dropped", "truncated"])
def test_a_table_that_is_emptied_awaits_no_dump(lake: TestLake, is_filled_again: bool) -> None:
    lake.build.schema(ITEMS, whole=True)
    lake.build.create(ITEMS, {"id": 1, "v": "old"})
    _merge(lake)
    lake.build.schema(ITEMS, dump="d9")  # an ALTER that no log shows in its rows
    _merge(lake)
    status = read_status(lake.location)
    assert status is not None and status.tables["shop.items"].awaits == "d9"
    assert "d9" in find_cut(lake.location).cut.incomplete["shop.items"]
    lake.build.truncate(ITEMS)
    if is_filled_again:
        lake.build.create(ITEMS, {"id": 2, "v": "new"})
    _merge(lake)
    status = read_status(lake.location)
    assert status is not None
    items = status.tables["shop.items"]
    assert (items.state, items.awaits, items.lacks) == (State.OK, None, None)
    assert "shop.items" not in find_cut(lake.location).cut.incomplete
    assert [row["id"] for row in lake.rust_rows(ITEMS)] == ([2] if is_filled_again else [])
    assert [need.segment for need in of_lake(status)] == [status.segment]
