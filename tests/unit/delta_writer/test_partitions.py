"""Tables with partitions: each file has the rows of one, and its value stands in the log alone."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.errors import LakeError
from tests.unit.delta_writer.tables import APP, OFFSET, Table, commit_of, live_adds, newest, write_commit

UTC = dt.UTC
VALUES: dict[str, list[Any]] = {
    "string": ["a", " ", "ä/=%20'\"\\", "\U0001f600", "__HIVE_DEFAULT_PARTITION__", None],
    "long": [0, -1, 2**63 - 1, -(2**63), None],
    "integer": [7, -(2**31), None],
    "boolean": [True, False, None],
    "date": [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31), None],
    "timestamp": [
        dt.datetime(2020, 3, 29, 1, 30, 0, 1, UTC),
        dt.datetime(1960, 1, 1, 0, 0, 0, 0, UTC),
        dt.datetime(1, 1, 1, 0, 0, 0, 0, UTC),
        None,
    ],
    "timestamp_ntz": [
        dt.datetime(2020, 3, 29, 2, 30, 0, 999_999, UTC).replace(tzinfo=None),
        dt.datetime(9999, 12, 31, tzinfo=UTC).replace(tzinfo=None),
        None,
    ],
    "decimal(20,4)": [Decimal("0.0000"), Decimal("-0.0001"), Decimal("1234567890123456.7890"), None],
}


def _row(number: int, value: Any, note: str = "first") -> dict[str, Any]:
    return {"id": number, "p": value, "note": note, OFFSET: 1}


def _table(path: Path, kind: str, **options: Any) -> Table:
    fields = {"p": kind, "id": "long", "note": "string", OFFSET: "long"}
    return Table.create_at(path, fields=fields, partitions=("p",), **options)


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("kind", VALUES)
def test_rows_move_between_partitions(tmp_path: Path, kind: str, vectors: bool) -> None:
    values = VALUES[kind]
    table = _table(tmp_path, kind, vectors=vectors)
    writer = table.writer()
    table.merge(writer, [_row(number, value) for number, value in enumerate(values * 3)])
    table.check()
    assert len(live_adds(table.path)) == len(values)
    moved = [_row(number, values[(number + 1) % len(values)], "moved") for number in range(len(values) * 2)]
    table.merge(table.writer(), moved, [_row(len(values) * 3 - 1, None)])
    table.check()
    while join_files(writer):
        table.check()
    for add in live_adds(table.path):
        columns = pq.read_schema(table.path / add["path"]).names
        assert "p" not in columns and "p" not in add["stats"] and list(add["partitionValues"]) == ["p"]
    table.merge(writer, [_row(0, values[-1], "again")])
    table.check()


def test_a_partition_may_be_part_of_the_key(tmp_path: Path) -> None:
    table = _table(tmp_path, "string", keys=("p", "id"))
    writer = table.writer()
    table.merge(writer, [_row(number, place) for number in range(5) for place in ("a", "b")])
    table.merge(table.writer(), [_row(3, "a", "new")], [_row(3, "b"), _row(9, "b")])
    table.check()
    assert len(table.rows) == 9


def test_several_columns_partition_a_table(tmp_path: Path) -> None:
    fields = {"p": "string", "q": "date", "id": "long", OFFSET: "long"}
    table = Table.create_at(tmp_path, fields=fields, partitions=("q", "p"))
    rows = [
        {"id": 4 * number + place, "p": text, "q": day, OFFSET: 1}
        for number in range(3)
        for place, (text, day) in enumerate((t, d) for t in ("a", None) for d in (dt.date(2020, 1, 1), None))
    ]
    table.merge(table.writer(), rows)
    table.check()
    assert len(live_adds(table.path)) == 4


AFTER_9999 = pa.array([None, 253_402_300_800_000_000], pa.timestamp("us"))
"""A time that Python has no value for."""


@pytest.mark.parametrize(
    ("kind", "values", "what"),
    [
        ("string", pa.array(["a", ""]), "an empty text in p would be read as NULL"),
        ("timestamp_ntz", AFTER_9999, "a year in p has more than four digits"),
    ],
)
def test_a_value_that_readers_would_take_for_another_stops_before_a_row_is_written(
    tmp_path: Path, kind: str, values: pa.Array, what: str
) -> None:
    table = _table(tmp_path, kind)
    table.merge(table.writer(), [_row(1, None)])
    changes = table.changes([_row(2, None), _row(3, None)])
    rows = changes.rows.set_column(changes.rows.column_names.index("p"), "p", values)
    with pytest.raises(LakeError, match=what):
        upsert(table.writer(), replace(changes, rows=rows), APP, 9)
    assert newest(table.path) == 1
    table.check()


def test_a_time_without_a_zone_is_one_that_nobody_knows(tmp_path: Path) -> None:
    """Older programs write the time of their own zone (PROTOCOL.md, "Partition Value Serialization")."""
    table = _table(tmp_path, "timestamp")
    table.merge(table.writer(), [_row(1, dt.datetime(2020, 1, 1, tzinfo=UTC))])
    actions = commit_of(table.path, 1)
    for action in actions:
        if "add" in action:
            action["add"]["partitionValues"]["p"] = "2020-01-01 00:00:00"
    write_commit(table.path, 1, *actions)
    with pytest.raises(TableRefused, match="the partition p = '2020-01-01 00:00:00' cannot be read: it names no zone"):
        join_files(table.writer(), at_least=1)
