"""Histories that are not compared, and why: before any line is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from dblog_core.verify.judge import history_comparison
from dblog_core.verify.judge.history_comparison import compare_history, find_extent
from dblog_core.verify.report import HistoryReport
from tests.spark.segments import table
from tests.unit.delta_writer.tables import metadata, protocol, write_commit

T = table("t", id=pa.int64(), v=pa.int32())


def shape(**changes: Any) -> str:
    kinds = {"id": "long", "v": "integer", "_dblog_op": "string", "_dblog_offset": "long", **changes}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    key = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    return json.dumps({"type": "struct", "fields": [*fields, {**fields[0], "name": "_dblog_moved_from", "type": key}]})


def answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *actions: dict[str, Any], told: int | None = None
) -> HistoryReport:
    lake = Location(LocalStorage(tmp_path, temporary="_dblog/tmp"))
    status = TableStatus(State.OK, None, 1, 9, version=0, told=True, told_version=told)
    monkeypatch.setattr(history_comparison, "read_status", lambda _: type("Status", (), {"tables": {"shop.t": status}}))
    write_commit(tmp_path / "shop" / "t__history", 0, *actions)
    return compare_history(lake, T, lambda: None)


def test_a_history_that_does_not_say_where_it_begins_is_named_with_the_first_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = answer(tmp_path / "a", monkeypatch, protocol(), metadata(shape()))
    assert said == HistoryReport(not_compared="it does not say from where on it is without a gap")
    said = answer(tmp_path / "b", monkeypatch, protocol(), metadata(shape(v="string")))
    assert said == HistoryReport(not_compared="another type has v")
    said = answer(tmp_path / "c", monkeypatch, protocol(), metadata(shape()), told=3)
    assert said.gap is not None and said.not_compared == f"it may lack lines: {said.gap}"


def test_what_no_reader_knows_or_can_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = answer(tmp_path / "a", monkeypatch, protocol(reader=["catalogManaged"]), metadata(shape()))
    assert said.not_compared == "it has the reader feature catalogManaged"
    said = answer(tmp_path / "b", monkeypatch, {"commitInfo": {}})
    assert said.not_compared is not None and said.gap is None


@pytest.mark.parametrize(
    ("properties", "reset_at", "emptied", "gap", "lower", "is_whole"),
    [
        ({"dblog.after": "5", "dblog.whole": "true"}, None, 0, None, 5, True),
        ({"dblog.after": "5", "dblog.whole": "false"}, None, 0, None, 5, False),
        ({"dblog.after": "5"}, 5, 0, None, 5, True),
        ({"dblog.after": "5"}, 4, 0, None, 5, False),
        ({"dblog.after": "5"}, None, 8, None, 8, True),
        ({"dblog.after": "5"}, 9, 8, None, 9, True),
        ({"dblog.after": "5"}, None, 4, None, 5, False),
        ({"dblog.after": "5", "dblog.whole": "true"}, None, 8, "another program has added lines", 8, False),
    ],
)
def test_from_where_on_a_history_has_every_line(
    properties: dict[str, str], reset_at: int | None, emptied: int, gap: str | None, lower: int, is_whole: bool
) -> None:
    """Where the table had no row: when it was new, after a reset, or after a TRUNCATE."""
    about = metadata(shape(), **properties)["metaData"]
    status = TableStatus(State.OK, None, 1, 9, version=0, told=True, reset_at=reset_at)
    extent = find_extent(about, T, status, gap, emptied)
    assert (extent.lower, extent.is_whole) == (lower, is_whole)
    other = metadata(shape(v="string"), **properties)["metaData"]
    assert find_extent(other, T, status, gap, emptied).is_whole is False
