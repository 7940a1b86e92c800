"""Tables whose lake, log and source have other columns, types or keys, compared in the source's shape."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dblog_core.errors import LakeError
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from tests.spark.segments import Row, SegmentBuilder
from tests.spark.segments import table as table_shape
from tests.spooled_rows import spool_rows
from tests.unit.delta_writer.tables import OFFSET, metadata, newest, protocol, schema_string, write_commit
from tests.unit.verify.judge.world import (
    FIELDS,
    LakeTable,
    T,
    World,
    columns_of,
    compare,
    kinds_of,
    lake_alone,
    lake_row,
)


def test_values_of_other_types_are_compared_as_they_are_printed_and_what_does_not_fit_is_different(
    tmp_path: Path,
) -> None:
    """The lake has integers where the source has texts, and wider or narrower numbers."""
    fields = {"v": "integer", "big": "long", "n": "decimal(20,4)"}
    table, judge = lake_alone(tmp_path, **fields)
    lake: list[Row] = [
        {"id": 1, "v": 5, "big": 7, "n": Decimal("1.5")},
        {"id": 2, "v": 6, "big": 1 << 40, "n": None},
        {"id": 3, "v": None, "big": None, "n": Decimal("1.2345")},
        {"id": 4, "v": 50, "big": 8, "n": Decimal("2.5")},
    ]
    table.merge(table.writer(), [{**row, OFFSET: 0} for row in lake])
    schema = table_shape("t", id=pa.int64(), v=pa.string(), big=pa.int16(), n=pa.decimal128(12, 2))
    source: list[Row] = [
        {"id": 1, "v": "5", "big": 7, "n": Decimal("1.50")},
        {"id": 2, "v": "6", "big": None, "n": None},
        {"id": 3, "v": None, "big": None, "n": None},
        {"id": 4, "v": "05", "big": 8, "n": Decimal("2.50")},
    ]
    assert compare(judge, schema, source, Pin(1, 0, 0, 0)) == {2: "different", 3: "different", 4: "different"}


def test_a_value_that_is_none_of_the_sources_type_is_different_though_it_becomes_one(tmp_path: Path) -> None:
    """The text 05 becomes the number 5, and 0.1 the nearest float of four bytes: neither is that value."""
    table, judge = lake_alone(tmp_path, big="double")
    lake = [{"id": 1, "v": "05", "big": 0.5}, {"id": 2, "v": "5", "big": 0.1}, {"id": 3, "v": "-5", "big": 0.25}]
    table.merge(table.writer(), [{**row, OFFSET: 0} for row in lake])
    schema = table_shape("t", id=pa.int64(), v=pa.int32(), big=pa.float32())
    near = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    source = [{"id": 1, "v": 5, "big": 0.5}, {"id": 2, "v": 5, "big": near}, {"id": 3, "v": -5, "big": 0.25}]
    assert compare(judge, schema, source, Pin(1, 0, 0, 0)) == {1: "different", 2: "different"}


def test_days_that_no_source_has_are_different_also_from_null(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path, v="date")
    days = {1: dt.date(2026, 1, 31), 2: None}
    table.merge(table.writer(), [{"id": key, "v": day, "big": None, OFFSET: 0} for key, day in days.items()])
    far = pa.table({"id": [3], "v": pa.array([4_000_000], pa.int32()).cast(pa.date32()), "big": ["b"], OFFSET: [0]})
    write_deltalake(str(table.path), far, mode="append", schema_mode="merge")
    schema = table_shape("t", id=pa.int64(), v=pa.date32(), big=pa.string())
    source = [{"id": key, "v": days.get(key), "big": "b" if key == 3 else None} for key in (1, 2, 3)]
    assert compare(judge, schema, source, Pin(newest(table.path), 0, 0, 0)) == {3: "different"}


def test_columns_that_the_lake_lacks_are_null_or_what_rows_are_known_to_hold(tmp_path: Path) -> None:
    """Rows from before the column was added; another program's row without an offset has no known value."""
    world = World(tmp_path, random.Random(3))
    rows = [lake_row(1), lake_row(2), {**lake_row(3), OFFSET: None}]
    world.table.merge(world.writer, rows)
    wider = table_shape("t", id=pa.int64(), v=pa.string(), big=pa.string(), empty=pa.string(), n=pa.int32())
    world.build.create(T, {"id": 4, "v": "staged", "big": "before"})
    world.build.schema(wider, filled={"empty": None, "n": 7})
    world.build.update(wider, {"id": 2, "v": "old", "big": "big", "empty": "e", "n": 8})
    world.seal()
    held = {"v": "old", "big": "big", "empty": None, "n": 7}
    source: list[Row] = [
        {"id": 1, **held},
        {"id": 2, **held, "empty": "e", "n": 8},
        {"id": 3, **held, "n": None},
        {"id": 4, **held, "v": "staged", "big": "before"},
    ]
    pin = Pin(newest(world.table.path), 0, 0, world.build.offset)
    assert compare(world, wider, source, pin, upto=world.build.offset) == {}
    wrong = [{**row, "n": 6} for row in source]
    assert compare(world, wider, wrong, pin, upto=world.build.offset) == dict.fromkeys((1, 2, 3, 4), "different")
    assert columns_of(world, wider, wrong, pin) == dict.fromkeys((1, 2, 3, 4), ("n",))


def test_columns_that_were_renamed_since_the_version_have_their_values(tmp_path: Path) -> None:
    """Two columns swap their names, and rows that were staged before and after it, in parts, are read."""
    world = World(tmp_path, random.Random(3))
    world.table.merge(world.writer, [lake_row(1), {**lake_row(2, "two"), "big": "large"}])
    world.build.create(T, {"id": 3, "v": "three", "big": "3"})
    world.build.update(T, {"id": 2, "v": "second", "big": None}, unchanged=["big"])
    swapped = table_shape("t", id=pa.int64(), big=pa.string(), v=pa.string())
    world.seal()
    pin = Pin(newest(world.table.path), 0, 0, world.build.offset)
    now: list[Row] = [
        {"id": 1, "v": "old", "big": "big"},
        {"id": 2, "v": "second", "big": "large"},
        {"id": 3, "v": "three", "big": "3"},
    ]
    assert compare(world, T, now, pin, upto=world.build.offset) == {}
    world.build.schema(swapped, renamed={"v": "big", "big": "v"})
    world.build.create(swapped, {"id": 4, "big": "four", "v": "4"})
    world.seal()
    upto = world.build.offset
    source: list[Row] = [*({"id": row["id"], "big": row["v"], "v": row["big"]} for row in now)]
    source.append({"id": 4, "big": "four", "v": "4"})
    assert compare(world, swapped, source, pin, upto=upto) == {}
    assert compare(world, swapped, [{**row, "v": "x"} for row in source], pin, upto=upto) == dict.fromkeys(
        (1, 2, 3, 4), "different"
    )
    assert columns_of(world, swapped, [{**row, "v": "x"} for row in source], pin) == dict.fromkeys((1, 2, 3, 4), ("v",))
    # An earlier reading of the same table, from before the rename, is told by the shape that it was made in.
    assert compare(world, T, now, pin, upto=upto - 2) == {}


def test_a_rename_behind_the_end_of_a_reading_is_none_of_its(tmp_path: Path) -> None:
    """It is sealed in the segment in which the reading ends."""
    world = World(tmp_path, random.Random(3))
    world.table.merge(world.writer, [lake_row(1)])
    world.build.create(T, {"id": 2, "v": "two", "big": "2"})
    upto = world.build.offset
    renamed = table_shape("t", no=pa.int64(), w=pa.string(), big=pa.string(), key=("no",))
    world.build.schema(renamed, renamed={"w": "v", "no": "id"})
    world.build.create(renamed, {"no": 3, "w": "three", "big": "3"})
    world.seal()
    pin = Pin(newest(world.table.path), 0, 0, world.build.offset)
    rows: list[Row] = [{"id": 1, "v": "old", "big": "big"}, {"id": 2, "v": "two", "big": "2"}]
    with pytest.raises(LakeError, match="lacks the key column id"):
        world.judge.read_ahead(T, pin)  # which reads all there is
    assert compare(world, T, rows, pin, upto=upto) == {}
    source = [{"no": row["id"], "w": row["v"], "big": row["big"]} for row in rows]
    source.append({"no": 3, "w": "three", "big": "3"})
    assert compare(world, renamed, source, pin, upto=world.build.offset) == {}


def test_staged_rows_of_another_shape_are_compared_in_that_of_now(tmp_path: Path) -> None:
    """They were staged with narrower and wider types, and without a column; a value that is none of the type of now is
    equal to nothing."""
    world = World(tmp_path, random.Random(3))
    before = table_shape("t", id=pa.int32(), v=pa.int64(), gone=pa.string())
    now = table_shape("t", id=pa.int64(), v=pa.int16(), big=pa.string())
    for key, v in ((1, 10), (2, 1 << 20), (3, None), (4, 4)):
        world.build.create(before, {"id": key, "v": v, "gone": "x"})
    world.build.update(before, {"id": 4, "v": 5, "gone": None}, unchanged=["gone"])
    world.build.schema(now)
    world.build.create(now, {"id": 5, "v": 1, "big": "b"})
    world.seal()
    pin = Pin(0, 0, 0, world.build.offset)
    source: list[Row] = [{"id": 1, "v": 10}, {"id": 2, "v": None}, {"id": 3, "v": None}, {"id": 4, "v": 5}]
    source = [{**row, "big": None} for row in source] + [{"id": 5, "v": 1, "big": "b"}]
    assert compare(world, now, source, pin, upto=world.build.offset) == {2: "different"}


def test_keys_that_are_floats_are_equal_as_the_source_says(tmp_path: Path) -> None:
    """-0.0 is 0.0, and NaN is NaN, on whichever side; of other values each bit counts."""
    staging = Staging(str(tmp_path / "staging"), source="shop")
    table = LakeTable.create_at(tmp_path / "lake", fields={"d": "double", "v": "string", OFFSET: "long"}, keys=("d",))
    lake = Location(LocalStorage(tmp_path / "lake", temporary="_dblog/tmp"))
    judge = Judge(staging, lake)
    schema = table_shape("t", key=("d",), d=pa.float64(), v=pa.string())
    values = [-0.0, 1.5, math.nan, math.inf]
    write_deltalake(str(table.path), pa.table({"d": values, "v": ["old"] * 4, OFFSET: [0] * 4}), mode="append")
    build = SegmentBuilder(staging)
    build.update(schema, {"d": 0.0, "v": "new"})
    build.update(schema, {"d": struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0], "v": "new"})  # another NaN
    build.delete(schema, {"d": math.inf})
    build.seal()
    source = [{"d": d, "v": "new" if d != 1.5 else "old"} for d in (0.0, 1.5, math.nan)]
    pin = Pin(newest(table.path), 0, 0, build.offset)
    assert compare(judge, schema, source, pin, upto=build.offset) == {}
    source[1]["d"] = math.nextafter(1.5, 2)
    assert compare(judge, schema, source, pin, upto=build.offset) == {1.5: "extra", math.nextafter(1.5, 2): "missing"}
    comparison = pa.record_batch({"d": pa.array([-0.0, math.nan, 7.0]), HASH: pa.array([None] * 3, pa.int64())})
    chosen = Comparison(schema, pin, (spool_rows(comparison),), build.offset, build.offset, for_chosen_keys=True)
    assert kinds_of(judge.compare(chosen)) == {0.0: "extra", "NaN": "extra"}


def test_values_that_a_table_is_partitioned_by_are_read_of_the_log(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "staging"), source="shop")
    rows = [
        {"id": 1, "day": dt.date(2026, 1, 31), "place": "a b/c", "n": Decimal("1.50")},
        {"id": 2, "day": None, "place": None, "n": None},
        {"id": 3, "day": dt.date(2026, 1, 31), "place": "ä", "n": Decimal("-2.00")},
    ]
    kinds = {"id": pa.int64(), "day": pa.date32(), "place": pa.string(), "n": pa.decimal128(9, 2)}
    schema = table_shape("t", **kinds)
    data = pa.Table.from_pylist([{**row, OFFSET: 0} for row in rows], pa.schema([*kinds.items(), (OFFSET, pa.int64())]))
    write_deltalake(str(tmp_path / "lake" / "shop" / "t"), data, partition_by=["day", "place", "n"])
    lake = Location(LocalStorage(tmp_path / "lake", temporary="_dblog/tmp"))
    judge = Judge(staging, lake)
    assert compare(judge, schema, rows, Pin(0, 0, 0, 0)) == {}
    other = [{**row, "place": "other"} for row in rows]
    assert compare(judge, schema, other, Pin(0, 0, 0, 0)) == dict.fromkeys((1, 2, 3), "different")


def test_what_no_reader_here_knows_is_named_with_its_fix(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    write_commit(table.path, 1, protocol(reader=["catalogManaged"]))
    with pytest.raises(LakeError, match="cannot be compared: it has the reader feature catalogManaged") as told:
        judge.compare(Comparison(T, Pin(1, 0, 0, 0)))
    assert told.value.fix is not None and "DROP FEATURE" in told.value.fix


def test_a_table_without_a_column_of_the_key_is_an_error(tmp_path: Path) -> None:
    _, judge = lake_alone(tmp_path)
    with pytest.raises(LakeError, match="lacks the key column code"):
        judge.compare(Comparison(table_shape("t", key=("code",), code=pa.string()), Pin(0, 0, 0, 0)))


@pytest.mark.parametrize("reader", [[], ["columnMapping"]])
def test_columns_that_a_writer_must_make_are_read_as_they_are(reader: list[str], tmp_path: Path) -> None:
    """And columns of types that nobody compares are not read at all."""
    staging = Staging(str(tmp_path / "staging"), source="shop")
    mapped = bool(reader)
    table = LakeTable.create_at(tmp_path / "lake", fields=dict(FIELDS), mapped=mapped)
    table.merge(table.writer(), [lake_row(1)])
    about = {"delta.generationExpression": "1"}
    shape = json.loads(schema_string(table.fields, mapped=mapped, about=about))
    for field in shape["fields"]:
        field["metadata"] |= about
    shape["fields"].append({**shape["fields"][0], "name": "strange", "type": "interval"})
    action = metadata(json.dumps(shape), **({"delta.columnMapping.mode": "name"} if mapped else {}))
    write_commit(table.path, 2, action)
    judge = Judge(staging, Location(LocalStorage(tmp_path / "lake", temporary="_dblog/tmp")))
    assert compare(judge, T, [{"id": 1, "v": "old", "big": "big"}], Pin(2, 0, 0, 0)) == {}
    assert compare(judge, T, [{"id": 1, "v": "new", "big": "big"}], Pin(2, 0, 0, 0)) == {1: "different"}
