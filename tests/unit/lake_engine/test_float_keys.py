"""Keys of floating point are keys like others, without Spark: 0.0 is -0.0, and NaN equals NaN."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import history_location
from dblog_core.lake_engine.events import fold, staged_events
from dblog_core.model.values import Key, key_from_json, key_of, key_text
from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.unit.lake_engine.test_history_without_spark import read_rows

PAIRS = table("pairs", key=("x", "y"), x=pa.float64(), y=pa.float32(), v=pa.string(), big=pa.string())
RATIOS = table("ratios", id=pa.float64(), v=pa.string(), big=pa.string())
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]
NAN = float("nan")
VALUES = (0.0, -0.0, NAN, OTHER_NAN, 1.5, math.inf, -math.inf)


@pytest.fixture(params=["at once", "in parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How works are folded: all rows at once; or in parts, or buckets where the log leaves values out."""
    if request.param == "in parts":
        monkeypatch.setattr(staged_events, "is_small", lambda work: False)
        monkeypatch.setattr(fold, "PART_BYTES", 1)
    return str(request.param)


def make_lake(path: Path, *, history: bool = False) -> TestLake:
    lake = TestLake(None, Staging(str(path / "staging"), source="shop"), path / "lake")
    lake.history = history
    return lake


def alike(value: float) -> str:
    """The same for equal values."""
    return repr(value + 0.0)


@dataclass
class Source:
    """Rows by their key, as a database has them, and the lines that tell of them. Every value is another one."""

    lake: TestLake
    dice: random.Random
    leaves_out: bool
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    lines: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    """Operation, both parts of the key as they are printed, and the large value."""

    def key(self) -> Row:
        return {"x": self.dice.choice(VALUES), "y": self.dice.choice(VALUES[:4])}

    def change(self) -> None:
        key = self.key()
        have = self.rows.get(self._place(key))
        kind = self.dice.choice(("put", "put", "keep", "delete", "move"))
        if have is None or kind == "put":
            self._put(key, "c" if have is None else "u", self._new("big"))
        elif kind == "keep":
            self._put(key, "u", have["big"], unchanged=self.leaves_out)
        elif kind == "delete":
            del self.rows[self._place(key)]
            self.lake.build.delete(PAIRS, key)
            self._tell("d", key, None)
        else:
            self._move(key, have)

    def _move(self, key: Row, have: Row) -> None:
        """To another key; or to the same one with another zero, or another NaN."""
        new = self.key()
        if self.dice.random() < 0.5:
            new = {**key, "x": -key["x"] if key["x"] == 0.0 else OTHER_NAN if math.isnan(key["x"]) else key["x"]}
        if self._place(new) in self.rows and self._place(new) != self._place(key):
            return
        del self.rows[self._place(key)]
        self._tell("d", key, None)
        row = self.rows[self._place(new)] = {**new, "v": self._new("v"), "big": have["big"]}
        after = {**row, "big": None} if self.leaves_out else row
        self.lake.build.move(PAIRS, key, after, unchanged=["big"] if self.leaves_out else None)
        self._tell("c", new, row["big"])

    def _put(self, key: Row, op: str, big: str, *, unchanged: bool = False) -> None:
        row = self.rows[self._place(key)] = {**key, "v": self._new("v"), "big": big}
        after = {**row, "big": None} if unchanged else row
        self.lake.build.line(PAIRS, op, after=after, unchanged=["big"] if unchanged else None)
        self._tell(op, key, big)

    def truncate(self) -> None:
        self.rows.clear()
        self.lake.build.truncate(PAIRS)

    def dump_chunk(self) -> None:
        if rows := self.dice.sample(list(self.rows.values()), len(self.rows) // 2):
            self.lake.build.chunk(PAIRS, rows)

    def _new(self, name: str) -> str:
        return f"{name} {self.lake.build.offset + 1}"

    def _tell(self, op: str, key: Row, big: str | None) -> None:
        self.lines.append((op, repr(key["x"]), repr(key["y"]), big))

    @staticmethod
    def _place(key: Row) -> tuple[str, str]:
        return alike(key["x"]), alike(key["y"])


@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_table_and_its_history_are_what_the_lines_say(
    tmp_path: Path, soak_seed: int, way: str, leaves_out: bool
) -> None:
    lake = make_lake(tmp_path, history=True)
    dice = random.Random(f"{soak_seed} {way} {leaves_out}")
    source = Source(lake, dice, leaves_out)
    place = history_location(lake.location, PAIRS.table).local
    assert place is not None
    for number in range(6):
        for step in range(60):
            source.change()
            if step % 20 == 9:
                source.dump_chunk()
            if step % 25 == 24:
                lake.build.seal()
            if number % 3 == 2 and step == 30:
                source.truncate()
        lake.build.seal()
        lake.merge_well()
        rows = [{name: row[name] for name in ("x", "y", "v", "big")} for row in lake.rust_rows(PAIRS)]
        assert sorted(map(repr, rows)) == sorted(map(repr, source.rows.values()))
        told = [row for row in read_rows(place) if row["_dblog_op"] != "t"]
        assert [(r["_dblog_op"], repr(r["x"]), repr(r["y"])) for r in told] == [line[:3] for line in source.lines]
        assert [r["big"] for r in told if r["_dblog_op"] != "d"] == [line[3] for line in source.lines if line[0] != "d"]
    assert lake.withheld is not None and not lake.withheld.waits(str(PAIRS.table))


def ratio(number: float, v: str, big: str | None = None) -> Row:
    return {"id": number, "v": v, "big": big}


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (-0.0, 0.0), (NAN, OTHER_NAN), (1.5, 1.5)])
@pytest.mark.usefixtures("way")
def test_a_key_that_is_printed_otherwise_has_one_row_which_is_the_newest(
    tmp_path: Path, first: float, second: float
) -> None:
    """In one segment, in two segments of a merge, and in two merges; and the same as a change of key."""
    lake = make_lake(tmp_path)
    lake.build.create(RATIOS, ratio(first, "a", "large"))
    lake.build.update(RATIOS, ratio(second, "b"), unchanged=["big"])
    lake.build.seal()
    lake.build.update(RATIOS, ratio(first, "c"), unchanged=["big"])
    lake.build.seal()
    for number, merge in enumerate((False, True, True)):
        if merge:
            lake.merge_well()
            (row,) = lake.rust_rows(RATIOS)
            newest = first if number == 1 else second
            assert (repr(row["id"]), row["v"], row["big"]) == (repr(newest), "c" if number == 1 else "e", "large")
        if number == 1:
            lake.build.move(RATIOS, {"id": first}, ratio(second, "e"), unchanged=["big"])
            lake.build.seal()
    lake.build.delete(RATIOS, {"id": first})
    lake.build.seal()
    lake.merge_well()
    assert lake.rust_rows(RATIOS) == []


@pytest.mark.usefixtures("way")
def test_a_row_of_a_dump_is_compared_with_that_of_its_key(tmp_path: Path) -> None:
    lake = make_lake(tmp_path)
    for number in (0.0, NAN, 2.5):
        lake.build.create(RATIOS, ratio(number, "a", "large"))
    lake.build.seal()
    lake.merge_well()
    lake.build.chunk(RATIOS, [ratio(-0.0, "a", "large"), ratio(OTHER_NAN, "b", "large"), ratio(3.5, "new", "large")])
    lake.build.seal()
    (merged,) = lake.merge_well()
    (applied,) = merged.tables
    assert (applied.inserted, applied.updated, applied.unchanged) == (1, 1, 1)
    assert sorted((repr(r["id"]), r["v"]) for r in lake.rust_rows(RATIOS)) == [
        ("0.0", "a"),
        ("2.5", "a"),
        ("3.5", "new"),
        ("nan", "b"),
    ]


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (-0.0, 0.0), (NAN, OTHER_NAN)])
@pytest.mark.parametrize("op", ["delete", "dump", "truncate"])
def test_a_withheld_key_is_forgotten_as_whichever_equal_one_it_comes(
    tmp_path: Path, first: float, second: float, op: str
) -> None:
    lake = make_lake(tmp_path)
    lake.build.create(RATIOS, ratio(7.5, "other", "large"))
    lake.build.update(RATIOS, ratio(first, "a"), unchanged=["big"])
    lake.build.seal()
    lake.merge_well()
    assert lake.withheld is not None
    assert lake.withheld.count(str(RATIOS.table)) == 1 and len(lake.rust_rows(RATIOS)) == 1
    lake.build.update(RATIOS, ratio(second, "b"), unchanged=["big"])
    lake.build.seal()
    lake.merge_well()
    assert lake.withheld.count(str(RATIOS.table)) == 1
    if op == "delete":
        lake.build.delete(RATIOS, {"id": second})
    elif op == "dump":
        lake.build.chunk(RATIOS, [ratio(second, "c", "dumped")])
    else:
        lake.build.truncate(RATIOS)
        lake.build.create(RATIOS, ratio(8.5, "new", "large"))
    lake.build.seal()
    lake.merge_well()
    assert lake.withheld.count(str(RATIOS.table)) == 0
    assert len(lake.rust_rows(RATIOS)) == (2 if op == "dump" else 1)


@pytest.mark.parametrize(
    ("key", "text"), [((0.0,), "0.0"), ((-0.0,), "0.0"), ((NAN,), '"NaN"'), ((1, -0.0), "[1,0.0]"), ((-1.5,), "-1.5")]
)
def test_equal_keys_have_one_text(key: Key, text: str) -> None:
    assert key_text(key) == text


def test_a_nan_of_a_key_is_the_one_that_equals_itself() -> None:
    assert key_from_json("NaN", RATIOS) == key_from_json("NaN", RATIOS) == key_of([OTHER_NAN])
