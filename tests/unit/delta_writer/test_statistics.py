"""Statistics are never narrower than the values: readers leave files out by them."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.delta_writer.shape import Shape, shape_of
from dblog_core.delta_writer.statistics import FileStatistics, count_rows, dump_json, load_json, loosen_bounds
from tests.unit.delta_writer.tables import FIELDS, Table, metadata, row, schema_string

UTC = dt.UTC
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 0, 127]),
    "long": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "float": (pa.float32(), [float(np.float32(v)) for v in (-3.4e38, -0.0, 0.1, 1e-45)]),
    "double": (pa.float64(), [-1.7976931348623157e308, 5e-324, 0.1 + 0.2]),
    "decimal(38,10)": (
        pa.decimal128(38, 10),
        [Decimal("-9999999999999999999999999999.9999999999"), Decimal("1E-10"), Decimal("9007199254740993.0000000001")],
    ),
    "decimal(20,0)": (pa.decimal128(20, 0), [Decimal(-(10**19)), Decimal(9007199254740993)]),
    "string": (pa.string(), ["", "a" * 40, "ä€😀", "\x00", '"\\', "\U0010ffff" * 40, "z" * 32 + "\U0010ffff" * 2]),
    "binary": (pa.binary(), [b"", b"\xff" * 50]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [
            dt.datetime(1, 1, 1, tzinfo=UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            dt.datetime(2024, 2, 29, 1, 2, 3, 1, tzinfo=UTC),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ],
    ),
    "timestamp_ntz": (
        pa.timestamp("us"),
        [dt.datetime.fromisoformat(text) for text in ("1969-12-31T23:59:59.000001", "2262-04-12", "0001-01-01")],
    ),
}


def statistics_of(rows: pa.Table, shape: Shape, configuration: dict[str, str]) -> str:
    statistics = FileStatistics(shape, configuration)
    statistics.add(rows)
    return statistics.json()


def statistics_for(kind: str, values: list[Any], **configuration: str) -> dict[str, Any]:
    shape = shape_of(metadata(schema_string({"v": kind}))["metaData"], "here")
    text = statistics_of(pa.table({"v": pa.array(values, TYPES[kind][0])}), shape, configuration)
    json.loads(text)  # plain JSON
    return load_json(text)


def as_value(kind: str, bound: Any) -> Any:
    """A bound as a reader takes it."""
    if kind.startswith("timestamp"):
        value = dt.datetime.fromisoformat(bound)
        assert (value.tzinfo is not None) == (kind == "timestamp")
        return value
    if kind in ("float", "double"):
        return float(bound)
    return dt.date.fromisoformat(bound) if kind == "date" else bound


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", TYPES)
def test_bounds_hold_for_all_values(kind: str, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(20):
        chosen = [dice.choice([*TYPES[kind][1], None]) for _ in range(dice.randint(1, 4))]
        statistics = statistics_for(kind, chosen)
        values = [v for v in chosen if v is not None]
        assert statistics["numRecords"] == len(chosen) and statistics["nullCount"] == {"v": len(chosen) - len(values)}
        low = statistics["minValues"].get("v")
        high = statistics["maxValues"].get("v")
        if low is not None:
            assert all(_order(as_value(kind, low)) <= _order(v) for v in values)
        if high is not None:
            assert all(_order(as_value(kind, high)) >= _order(v) for v in values)
        if not values or kind in ("boolean", "binary"):
            assert low is None and high is None


def _order(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ["byte", "long", "double", "decimal(38,10)", "decimal(20,0)", "date"])
def test_bounds_of_simple_types_are_the_values(kind: str) -> None:
    values = TYPES[kind][1]
    statistics = statistics_for(kind, values)
    assert as_value(kind, statistics["minValues"]["v"]) == min(values)
    assert as_value(kind, statistics["maxValues"]["v"]) == max(values)


def test_long_text_is_cut_and_the_upper_bound_is_above_it() -> None:
    statistics = statistics_for("string", ["a" * 40, "a" * 50])
    assert statistics["minValues"]["v"] == "a" * 32 and statistics["maxValues"]["v"] == "a" * 32 + "\U0010ffff"
    assert "v" not in statistics_for("string", ["z" * 32 + "\U0010ffff" * 2])["maxValues"], "nothing short is above it"


def test_times_are_told_in_milliseconds_below_and_above() -> None:
    statistics = statistics_for("timestamp", [dt.datetime(2024, 1, 1, 0, 0, 0, 1001, tzinfo=UTC)])
    assert (
        statistics["minValues"]["v"] == "2024-01-01T00:00:00.001Z"
        and statistics["maxValues"]["v"] == "2024-01-01T00:00:00.002Z"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_of_json_has_no_bounds(value: float) -> None:
    statistics = statistics_for("double", [1.0, value])
    assert statistics["minValues"] == {} == statistics["maxValues"] and statistics["nullCount"] == {"v": 0}


def test_years_that_readers_print_each_in_its_own_way_have_no_bounds() -> None:
    far = pa.array([4_000_000, 5_000_000], pa.int32()).cast(pa.date32())
    shape = shape_of(metadata(schema_string({"v": "date"}))["metaData"], "here")
    statistics = load_json(statistics_of(pa.table({"v": far}), shape, {}))
    assert statistics["minValues"] == {} == statistics["maxValues"]
    times = pa.array([-(2**62), 2**62], pa.int64()).cast(pa.timestamp("us"))
    shape = shape_of(metadata(schema_string({"v": "timestamp_ntz"}))["metaData"], "here")
    statistics = load_json(statistics_of(pa.table({"v": times}), shape, {}))
    assert statistics["minValues"] == {} == statistics["maxValues"]


def test_the_table_says_which_columns_have_statistics() -> None:
    fields = {f"c{i}": "long" for i in range(40)}
    rows = pa.table({name: [1] for name in fields})
    shape = shape_of(metadata(schema_string(fields))["metaData"], "here")

    def columns(**configuration: str) -> list[str]:
        return list(load_json(statistics_of(rows, shape, configuration))["nullCount"])

    assert columns() == [f"c{i}" for i in range(32)]
    assert columns(**{"delta.dataSkippingNumIndexedCols": "2"}) == ["c0", "c1"]
    assert len(columns(**{"delta.dataSkippingNumIndexedCols": "-1"})) == 40
    assert columns(**{"delta.dataSkippingStatsColumns": "`c39`, c7"}) == ["c7", "c39"]


def test_other_writers_numbers_keep_their_digits() -> None:
    text = '{"numRecords":3,"minValues":{"a":0.10000000000000000000001,"b":12345678901234567890123.5,"c":1e-7}}'
    wide = loosen_bounds(text, 3)
    assert '"a":0.10000000000000000000001' in wide and '"b":12345678901234567890123.5' in wide
    assert load_json(wide)["minValues"]["c"] == Decimal("1e-7") and load_json(wide)["tightBounds"] is False
    assert loosen_bounds(wide, 3) == wide
    assert load_json(loosen_bounds(None, 7)) == {"numRecords": 7, "tightBounds": False}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('{"numRecords":12,"minValues":{}}', 12),
        ('{"numRecords": 12}', 12),
        ('{"minValues":{"numRecords":3},"numRecords":4}', 4),
        ('{"minValues":{}}', None),
        ("", None),
        (None, None),
    ],
)
def test_rows_are_those_of_the_statistics(text: str | None, rows: int | None) -> None:
    assert count_rows(text) == rows


def test_json_is_that_of_its_values() -> None:
    value = {'a"b': [1, None, True, "ä\n"], "n": -0.5}
    assert json.loads(dump_json(value)) == value


def test_readers_find_every_row_by_its_value(tmp_path: Path) -> None:
    """Mutant: statistics too tight. delta-rs leaves files out by what we write."""
    fields = {**FIELDS, "at": "timestamp", "half": "double"}
    table = Table.create_at(tmp_path, fields=fields)
    writer = table.writer()
    at = dt.datetime(2024, 1, 1, tzinfo=UTC)

    def amount(i: int) -> Decimal:
        return Decimal(9007199254740993 if i % 2 else 90071992547) + Decimal(i % 99) / 10000

    rows = [
        row(i, "x" * 32 + str(i), amount=amount(i), offset=1)
        | {"at": at + dt.timedelta(microseconds=i % 1000), "half": i / 3}
        for i in (*range(9), 2**53 + 1, 2**63 - 1, -(2**63), 12345678901)
    ]
    for new_row in rows:
        table.merge(writer, [new_row])
    for new_row in rows:
        assert table.read(f"note = '{new_row['note']}'") == [new_row]
        assert new_row in table.read(f"amount = cast('{new_row['amount']}' as decimal(20,4))")
        assert table.read(f"id = {new_row['id']}") == [new_row]
        assert new_row in table.read(f"half >= {new_row['half']!r}")
        assert new_row in table.read(f"at = timestamp '{new_row['at'].isoformat()}'")


@pytest.mark.parametrize(
    "exact",
    [
        '{"numRecords":5,"minValues":{"id":1},"tightBounds":true}',
        '{"numRecords":5,"nullCount":{"a":0,"tightBounds":false}}',
        '{"numRecords":4,"minValues":{"id":1},"tightBounds":false}',
        '{"minValues":{"id":1},"numRecords":4,"tightBounds":false}',
        '{"minValues":{"id":1}}',
        None,
    ],
)
def test_bounds_of_a_file_with_a_vector_are_loose_once(exact: str | None) -> None:
    loose = loosen_bounds(exact, 5)
    fields = load_json(loose)
    assert (fields["tightBounds"], fields["numRecords"]) == (False, 5)
    assert {**load_json(exact), "tightBounds": False, "numRecords": 5} == fields
    assert loosen_bounds(loose, 5) is loose
