"""The comparison without Spark, over random logs, lakes and readings: what plain Python says of every key."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import struct
import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dblog_core.delta_writer.order_guard import Flags
from dblog_core.errors import LakeError, SegmentReplaced
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import Columns, Hashes
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.staging.manifest import DataFile
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from dblog_core.verify.judge import exact_values, lake_hashes, staged_hashes
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from dblog_core.verify.window_positions import Interrupted
from tests.plain_hashes import row_hash
from tests.spark.segments import Row, SegmentBuilder
from tests.spark.segments import table as table_shape
from tests.spooled_rows import spool_rows
from tests.unit.delta_writer.tables import OFFSET, metadata, newest, protocol, schema_string, write_commit
from tests.unit.verify.judge.world import FIELDS, Change, LakeTable, T, World, keep_few_in_memory, kinds_of

KEYS = 8


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize(("events", "rows"), [(1_000_000, 250_000), (4, 250_000), (1_000_000, 2), (3, 3)])
def test_every_key_is_called_what_it_is(
    events: int, rows: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a verification of some readings, with merges, damage and changes between them, over one judge's caches; also
    one that has room for few `events`, or compares few `rows` at once, as one with much room does many."""
    keep_few_in_memory(events, rows, monkeypatch)
    world = World(tmp_path, random.Random(seed))
    chance = world.chance
    since = 0
    for _ in range(4):
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(0, 8)):
                world.write(KEYS)
            world.seal()
            if chance.random() < 0.6:
                world.merge(is_recorded=chance.random() < 0.6)
        if chance.random() < 0.4:
            world.damage(KEYS)
        # As a rule a later reading has seen more, but who starts again may have seen less.
        since = chance.randint(since if chance.random() < 0.7 else 0, world.build.offset)
        chosen = chance.sample(range(KEYS + 3), 5) if chance.random() < 0.5 else None
        comparison, seen = world.reading(since, chosen=chosen)
        answer = world.judge.compare(comparison)
        assert kinds_of(answer) == world.right_kinds(comparison, seen)
        now = world.expected(world.lake_rows(), world.merged, comparison.upto)
        assert answer.rows == sum(row is not None for row in seen.values())
        assert answer.lake_rows == (sum(key in seen for key in now) if chosen is not None else len(now))


@pytest.mark.parametrize("seed", range(6))
def test_a_correct_lake_raises_no_alarm(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(seed))
    for _ in range(6):
        for _ in range(10):
            world.write(KEYS)
        world.seal()
        if world.chance.random() < 0.6:
            world.merge(is_recorded=world.chance.random() < 0.6)
        answer = world.judge.compare(world.reading(world.chance.randint(world.merged, world.build.offset))[0])
        assert not (answer.missing or answer.extra or answer.different or answer.twice)


def test_each_file_and_each_staged_row_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the source is read again."""
    world = World(tmp_path, random.Random(1))
    hashed: dict[str, list[int]] = {}
    hash_values = exact_values.hash_values

    def count_in(module: ModuleType) -> None:
        counts = hashed.setdefault(module.__name__.rpartition(".")[2], [])

        def count(rows: Columns, misfits: Flags, schema: TableSchema) -> Hashes:
            counts.append(len(rows["id"]))
            return hash_values(rows, misfits, schema)

        monkeypatch.setattr(module, "hash_values", count)

    count_in(lake_hashes)
    count_in(staged_hashes)
    for _ in range(30):
        world.write(KEYS)
    world.seal()
    world.merge()
    for _ in range(5):
        world.write(KEYS)
        world.seal()
        world.judge.compare(world.reading(world.merged)[0])
    assert len(hashed["lake_hashes"]) == 1
    assert sum(hashed["staged_hashes"]) == sum(c.offset > world.merged and c.key is not None for c in world.changes)


def test_rows_of_chosen_keys_are_compared_column_by_column(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(0))
    build = world.build
    for key in range(1, 7):
        build.create(T, {"id": key, "v": "old", "big": "big"})
    build.seal()
    world.changes = [
        Change(key, key, {"id": key, "v": "old", "big": "big"}, born=True, source_row={}) for key in range(1, 7)
    ]
    world.merge()
    build.update(T, {"id": 2, "v": "new", "big": None}, unchanged=["big"])
    build.update(T, {"id": 3, "v": "new", "big": None})
    build.move(T, {"id": 4}, {"id": 40, "v": "moved", "big": None}, unchanged=["big"])
    build.seal()
    since = build.offset
    build.update(T, {"id": 5, "v": "later", "big": "big"})
    build.seal()
    source = [
        {"id": 1, "v": "old", "big": "other"},
        {"id": 2, "v": "new", "big": "other"},
        {"id": 3, "v": "new", "big": None},
        {"id": 4, "v": "gone", "big": None},
        {"id": 40, "v": "other", "big": "big"},
        {"id": 5, "v": "changes", "big": None},
        {"id": 6, "v": "old", "big": "big"},
    ]
    rows = spool_rows(pa.RecordBatch.from_pylist(source, schema=T.arrow))
    comparison = Comparison(T, world.pin(), (rows,), since, build.offset, for_chosen_keys=True)
    answer = world.judge.find_differing_columns(comparison)
    assert dict(answer) == {1: ("big",), 2: ("big",), 3: (), 40: ("v",), 6: ()}


def test_a_row_that_a_merge_under_way_has_moved_keeps_its_values(tmp_path: Path) -> None:
    """The log left a column out of both changes; the key that the row had before is no longer in the lake."""
    world = World(tmp_path, random.Random(0))
    old, moved, new = ({"id": key, "v": v, "big": "big"} for key, v in ((1, "old"), (2, "moved"), (2, "new")))
    world.build.create(T, old)
    world.changes.append(Change(1, 1, old, born=True, source_row=old))
    world.seal()
    world.merge()
    world.build.move(T, {"id": 1}, {**moved, "big": None}, unchanged=["big"])
    world.changes.append(Change(2, 1))
    world.changes.append(Change(3, 2, {**moved, "big": None}, ("big",), 1, born=True, source_row=moved))
    world.seal()
    world.merge(is_recorded=False)
    world.build.update(T, {**new, "big": None}, unchanged=["big"])
    world.changes.append(Change(4, 2, {**new, "big": None}, ("big",), source_row=new))
    world.seal()
    comparison, _ = world.reading(world.build.offset)
    assert comparison.pin is not None and (comparison.pin.offset, comparison.upto) == (1, 4)
    answer = world.judge.compare(comparison)
    assert (kinds_of(answer), answer.lake_rows) == ({}, 1)


def test_a_later_row_of_the_old_key_that_a_merge_under_way_has_brought_has_no_value_for_a_moved_row(
    tmp_path: Path,
) -> None:
    """The log began after the first row of key 1: nobody knows the column that its change of key left out."""
    world = World(tmp_path, random.Random(0))
    other, moved, later = ({"id": key, "v": "v", "big": big} for key, big in ((9, "big"), (2, "true"), (1, "later")))
    world.build.create(T, other)
    world.changes.append(Change(1, 9, other, born=True, source_row=other))
    world.seal()
    world.merge()
    world.build.move(T, {"id": 1}, {**moved, "big": None}, unchanged=["big"])
    world.changes.append(Change(2, 1))
    world.changes.append(Change(3, 2, {**moved, "big": None}, ("big",), 1, born=True, source_row=moved))
    world.build.create(T, later)
    world.changes.append(Change(4, 1, later, born=True, source_row=later))
    world.seal()
    world.merge(is_recorded=False)
    comparison, _ = world.reading(world.build.offset)
    assert comparison.pin is not None and (comparison.pin.offset, comparison.upto) == (1, 4)
    answer = world.judge.compare(comparison)
    assert (kinds_of(answer), answer.lake_rows) == ({2: "missing"}, 2)


def test_sums_are_those_of_an_older_version_between_the_bounds(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    writer = table.writer()
    table.merge(writer, [lake_row(key) for key in range(1, 10)])
    table.merge(writer, [lake_row(3, "later")], [lake_row(7)])
    sums = judge.sum_hashes(T, Pin(1, 0, 0, 0), (3, 8))
    parts = [range(1, 4), range(4, 9), range(9, 10)]
    assert [(s.rows, s.hash) for s in sums] == [(len(p), sum(row_hash(T, lake_row(key)) for key in p)) for p in parts]
    assert [s.rows for s in judge.sum_hashes(T, Pin(2, 0, 0, 0), (3, 8))] == [3, 4, 1]


def test_samples_are_drawn_from_all_rows_each_once(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(key) for key in range(1, 30)])
    drawn = [judge.draw_keys(T, Pin(1, 0, 0, 0), 5, seed) for seed in range(20)]
    assert all(len(set(keys)) == 5 and rows == 29 for keys, rows in drawn)
    assert {key for keys, _ in drawn for key in keys} > set(range(10, 20))


def test_several_rows_of_a_key_are_named_though_each_is_that_of_the_source(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(0))
    rows = [lake_row(key) for key in (1, 2, 3)]
    world.table.merge(world.writer, rows)
    append_row(world.table, rows[1])
    hashes = [row_hash(T, row) for row in rows[:2]]
    read = spool_rows(pa.record_batch({"id": pa.array([1, 2]), HASH: pa.array(hashes)}))
    answer = world.judge.compare(Comparison(T, Pin(newest(world.table.path), 0, 0, 0), (read,)))
    assert (answer.extra, answer.twice, answer.different, answer.lake_rows) == ((3,), (2,), (), 4)


# Shapes ---------------------------------------------------------------------------------------------------------------


def lake_alone(root: Path, **fields: str) -> tuple[LakeTable, Judge]:
    staging = Staging(str(root / "staging"), source="shop")
    table = LakeTable.create_at(root / "lake", fields={**FIELDS, **fields})
    lake = Location(LocalStorage(root / "lake", temporary="_dblog/tmp"))
    return table, Judge(staging, lake)


def lake_row(key: int, v: str = "old") -> dict[str, Any]:
    return {"id": key, "v": v, "big": "big", OFFSET: 0}


def append_row(table: LakeTable, row: dict[str, Any]) -> None:
    """Somebody else's blind append."""
    write_deltalake(str(table.path), table.arrow([row]), mode="append")


def compare(
    world_or_judge: World | Judge,
    schema: TableSchema,
    rows: Sequence[Row],
    pin: Pin | None,
    *,
    upto: int = 0,
) -> dict[Any, str]:
    """What the keys are called where the source has these rows."""
    judge = world_or_judge.judge if isinstance(world_or_judge, World) else world_or_judge
    keys = {name: pa.array([row[name] for row in rows], schema.arrow.field(name).type) for name in schema.key}
    batch = pa.record_batch({**keys, HASH: pa.array([row_hash(schema, row) for row in rows], pa.int64())})
    return kinds_of(judge.compare(Comparison(schema, pin, (spool_rows(batch),), upto, upto)))


def columns_of(world: World, schema: TableSchema, rows: Sequence[Row], pin: Pin) -> dict[Any, tuple[str, ...]]:
    """The columns in which rows of the source differ."""
    read = spool_rows(pa.RecordBatch.from_pylist(list(rows), schema=schema.arrow))
    upto = world.build.offset
    comparison = Comparison(schema, pin, (read,), upto, upto, for_chosen_keys=True)
    return dict(world.judge.find_differing_columns(comparison))


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


def test_a_segment_that_is_joined_with_others_while_it_is_read_is_read_in_its_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, random.Random(3))
    for _ in range(20):
        world.write(KEYS)
    world.seal()
    comparison, seen = world.reading(0)
    read: list[str] = []
    log_batches = world.staging.log_batches

    def fail_once(file: DataFile, **options: Any) -> Iterator[pa.RecordBatch]:
        yield from log_batches(file, **options)
        read.append(file.path)
        if len(read) == 1:
            raise SegmentReplaced("segment 1 was joined with others", where="staging")

    monkeypatch.setattr(world.staging, "log_batches", fail_once)
    assert kinds_of(world.judge.compare(comparison)) == world.right_kinds(comparison, seen)
    assert len(read) > 1


# Faults ---------------------------------------------------------------------------------------------------------------


def test_a_version_that_is_gone_is_an_error(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(1)])
    with pytest.raises(LakeError, match="no longer shows version 9"):
        judge.compare(Comparison(T, Pin(9, 0, 0, 0)))


def test_who_is_asked_to_stop_reads_no_further(tmp_path: Path) -> None:
    stop = threading.Event()
    world = World(tmp_path, random.Random(3))
    world.write(KEYS)
    world.seal()
    comparison, _ = world.reading(0)
    judge = Judge(world.staging, Location(LocalStorage(tmp_path / "lake", temporary="x")), stop=stop)
    stop.set()
    with pytest.raises(Interrupted):
        judge.compare(comparison)
