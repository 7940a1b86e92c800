"""The fold gives the rows of a plain reader of the lines, whatever the sizes of buckets, portions and memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from dblog_core.lake import merge_plan
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import fold, key_buckets, last_rows, staged_events
from dblog_core.lake_engine.events.dump_ends import dumps_within
from dblog_core.lake_engine.events.fold import FoldedRows, Room, fold_work
from dblog_core.lake_engine.events.key_buckets import Bucket
from dblog_core.model.schema import TableSchema
from dblog_core.rows import disk_spool, key_spreading
from dblog_core.rows.disk_spool import TableSpool
from dblog_core.staging import Staging
from tests.spark.segments import Row, SegmentBuilder, table
from tests.spark.worlds import Key, Line, Source, WholeRows

_KEY = {"world": pa.int32(), "k": pa.string()}
FIRST = table("worlds", key=("world", "k"), **_KEY, a=pa.int32(), f=pa.float64(), big=pa.string())
SECOND = table("worlds", key=("world", "k"), **_KEY, a=pa.int32(), f=pa.float64(), large=pa.string(), n=pa.int64())
THIRD = table("worlds", key=("world", "k"), **_KEY, a=pa.int64(), f=pa.float64(), large=pa.string(), n=pa.int64())
NAMES_NOW = {"a": "a", "f": "f", "big": "large"}
FILLED = 7
"""What n is in rows of before it was added."""
WORLDS = 30


@dataclass
class VersionedBuilder(SegmentBuilder):
    """Writes lines in the shape that the table has: `big` is renamed, n is added, and then `a` is widened."""

    shape: TableSchema = FIRST
    n_at: dict[int, int] = field(default_factory=dict)
    """By offset of the lines of the newer shapes."""

    def alter(self) -> None:
        if self.shape is FIRST:
            self.shape = SECOND
            self.schema(SECOND, renamed={"large": "big"}, filled={"n": FILLED})
        elif self.shape is SECOND:
            self.shape = THIRD
            self.schema(THIRD)

    def line(
        self,
        schema: TableSchema,
        op: str,
        *,
        before: Row | None = None,
        after: Row | None = None,
        unchanged: Sequence[str] | None = None,
        moved_from: Row | None = None,
        origin: str = "log",
    ) -> int:
        names = [self._now(name) for name in unchanged or ()]
        after = None if after is None else self._row(after, self.offset + 1)
        return super().line(
            self.shape, op, before=before, after=after, unchanged=names, moved_from=moved_from, origin=origin
        )

    def chunk(
        self,
        schema: TableSchema,
        rows: Sequence[Row] | pa.RecordBatch,
        *,
        evicted: Sequence[int] = (),
        dump: str = "d1",
    ) -> int:
        assert not isinstance(rows, pa.RecordBatch)
        written = [self._row(row, self.offset + 1 + at) for at, row in enumerate(rows)]
        return super().chunk(self.shape, written, evicted=evicted, dump=dump)

    def _now(self, name: str) -> str:
        return name if self.shape is FIRST else NAMES_NOW.get(name, name)

    def _row(self, row: Row, offset: int) -> Row:
        written = {self._now(name): value for name, value in row.items()}
        if self.shape is not FIRST:
            written["n"] = self.n_at[offset] = offset % 5
        return written


@dataclass(frozen=True)
class InLake:
    """A value is that of the lake's row of a key."""

    key: Key


LOST = "nobody knows it"
Values = dict[str, Any]


@dataclass
class Model:
    """A reader of the lines, one after the other; the lake may have a row of any key, whose values it does not know."""

    builder: VersionedBuilder
    rows: dict[Key, Values | None] = field(default_factory=dict)
    """None: it is deleted."""
    ended: dict[Key, Values] = field(default_factory=dict)
    last: dict[Key, Line] = field(default_factory=dict)
    born: set[Key] = field(default_factory=set)

    def read(self, lines: Iterable[Line]) -> dict[Key, tuple[Any, ...]]:
        """What the fold has of each key: op, offset, birth, values, and the names and the key of those in the lake."""
        dumps: list[Line] = []
        for line in lines:
            if line.op == "t":
                for state in (self.rows, self.ended, self.last, self.born):
                    state.clear()
            elif line.op == "f":
                dumps.append(line)
            elif line.key is not None:
                self._read_line(line, line.key)
        outcomes = {key: self._outcome(key, line) for key, line in self.last.items()}
        for dump in dumps:
            for key, line in self.last.items():
                if line.offset <= dump.since and key not in dump.dumped:
                    outcomes[key] = "d", line.offset, False, None, None, None
        return outcomes

    def _read_line(self, line: Line, key: Key) -> None:
        self.last[key] = line
        if line.op == "d":
            before = self.rows.get(key, self._of_lake(key))
            self.ended[key] = dict.fromkeys(NAMES_NOW.values(), LOST) if before is None else before
            self.rows[key] = None
            return
        n = self.builder.n_at.get(line.offset, FILLED)
        values = {NAMES_NOW[name]: value for name, value in line.after.items()} | {"n": n}
        if line.op == "c":
            self.born.add(key)
        base = self._base(line, key)
        for name in line.unchanged:
            values[NAMES_NOW[name]] = base[NAMES_NOW[name]]
        self.rows[key] = values

    def _base(self, line: Line, key: Key) -> Values:
        lost = dict.fromkeys(NAMES_NOW.values(), LOST)
        if line.op != "c":
            before = self.rows.get(key, self._of_lake(key))
            return lost if before is None else before
        if line.moved_from is None:
            return lost
        return self.ended.get(line.moved_from) or self._of_lake(line.moved_from)

    def _of_lake(self, key: Key) -> Values:
        return dict.fromkeys(NAMES_NOW.values(), InLake(key))

    def _outcome(self, key: Key, line: Line) -> tuple[Any, ...]:
        values = self.rows[key]
        if values is None:
            return ("d", line.offset, False, None, None, None)
        if LOST in values.values():
            return ("w", line.offset, key in self.born, None, None, None)
        in_lake = sorted(name for name, value in values.items() if isinstance(value, InLake))
        origins = {value.key for value in values.values() if isinstance(value, InLake)}
        assert len(origins) <= 1, "a row continues one row of the lake"
        in_log = {name: value for name, value in values.items() if name not in in_lake}
        return ("p", line.offset, key in self.born, in_log, in_lake or None, next(iter(origins), None))


def outcomes(rows: Iterable[pa.Table]) -> dict[Key, tuple[Any, ...]]:
    """The folded rows, as the model has them; each key once."""
    folded = {}
    for row in (row for part in rows for row in part.to_pylist()):
        key = (row["key"]["world"], row["key"]["k"])
        assert key not in folded, "two parts share a key"
        names = sorted(row["unchanged_toast"] or ()) or None
        if row["op"] != "p":
            folded[key] = (row["op"], row["offset"], row["inserted"], None, None, None)
            continue
        assert (row["row"]["world"], row["row"]["k"]) == key
        values = {name: row["row"][name] for name in (*NAMES_NOW.values(), "n") if name not in (names or ())}
        origin = row["origin_key"] if names else None
        origin_key = None if origin is None else (origin["world"], origin["k"])
        folded[key] = (row["op"], row["offset"], row["inserted"], values, names, origin_key)
    return folded


def randomize_sizes(dice: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has room for some events, or for none; buckets, portions and parts have a few."""
    sizes: dict[Any, dict[str, Sequence[Any]]] = {
        staged_events: {"MAX_ROWS": (20, 200_000), "MAX_DECODED": (4_000, 96 << 20), "TOGETHER": (1, 1 << 20)},
        key_buckets: {
            "MOST_BUCKETS": (2, 3, 256),
            "BUCKET_ROWS": (5, 1_000),
            "BUCKET_BYTES": (500, 2 << 20),
            "DISTRIBUTED_BYTES": (500, 10_000),
            "GROUP_EVENTS": (1, 60, 100_000),
            "PORTION_BYTES": (1, 5_000, 32 << 20),
        },
        key_spreading: {"_SLICE": (3, 1 << 20)},
        last_rows: {"SORTED_ROWS": (20, 4_000_000), "SPOOLED_ROWS": (10, 1_000_000)},
        fold: {"PART_BYTES": (1, 48 << 20), "_ROOM": (Room(0), Room(128 << 20))},
        disk_spool: {"_IN_MEMORY": (0, 16 << 20)},
    }
    for module, names in sizes.items():
        for name, choices in names.items():
            monkeypatch.setattr(module, name, dice.choice(choices))


def fold_as_executors(staging: Staging, work: Work, dice: random.Random) -> FoldedRows:
    """All events in one bucket, which come in any order."""
    leaves_out = staged_events.has_left_out_values(work)
    events = [
        part
        for parts in staged_events.read_events(staging, work, THIRD)
        for part in (parts.slice(0, len(parts) // 2), parts.slice(len(parts) // 2))
    ]
    bucket = Bucket()
    spool = TableSpool(memory=dice.choice((0, 2_000, 1 << 30)))
    for part in dice.sample(events, len(events)):
        bucket.append(part, spool)
    return FoldedRows.in_memory(fold.fold_bucket(bucket, THIRD, leaves_out=leaves_out, ends=dumps_within(work)))


@pytest.mark.parametrize("kind", [Source, WholeRows])
def test_the_folded_rows_are_those_of_a_plain_reader(
    tmp_path: Path, soak_seed: int, monkeypatch: pytest.MonkeyPatch, kind: type[Source]
) -> None:
    dice = random.Random(f"fold {soak_seed}/{kind.__name__}")
    seen: set[str] = set()
    left_out = {"w", "large", "f", "a", "kept over a change of key"} if kind is Source else set()
    wanted = {"p", "d", "chunk", "truncate", "ghost", *left_out}
    for number in range(40):  # four are enough for most seeds
        if number >= 4 and seen == wanted:
            break
        builder = VersionedBuilder(Staging(str(tmp_path / f"{number}"), source="shop"))
        source = kind(builder, dice, WORLDS)
        source.add_unseen_rows(0.7)
        stage(
            source,
            builder,
            dice,
            is_truncated=number % 4 == 1,
            is_dumped=number % 4 == 1,
            ends_with_truncate=number % 4 == 3,
        )
        work = merge_plan.plan_works(builder.staging.manifests(), lambda table: 0)[str(THIRD.table)]
        if number % 4 == 2:
            work = replace(work, floor=dice.randrange(1, builder.offset))
        lines = [line for line in source.lines if line.op == "t" or line.offset > (work.floor or 0)]
        expected = Model(builder).read(lines)
        for _ in range(4):
            with monkeypatch.context() as patches:
                randomize_sizes(dice, patches)
                rows = fold_work(builder.staging, work, THIRD)
                for _ in range(2):  # each time the same
                    assert outcomes(rows) == expected
                assert len(rows) == len(expected)
                assert rows.withheld == sum(row[0] == "w" for row in expected.values())
                if expected:
                    assert outcomes(fold_as_executors(builder.staging, work, dice)) == expected
        seen |= {row[0] for row in expected.values()} | {name for row in expected.values() for name in row[4] or ()}
        seen |= {"kept over a change of key" for key, row in expected.items() if row[5] not in (None, key)}
        assert builder.shape is THIRD
        seen |= {name for name in ("chunk", "truncate", "ghost") if source.seen[name]}
    assert seen == wanted


def stage(
    source: Source,
    builder: VersionedBuilder,
    dice: random.Random,
    *,
    is_truncated: bool,
    is_dumped: bool,
    ends_with_truncate: bool,
) -> None:
    """Lines in three shapes, with chunks between them. `is_truncated`: in between; `is_dumped`: whole, in the end."""
    for number in range(6):
        for world in dice.sample(range(WORLDS), WORLDS // 3):
            source.change(world)
        if number % 3 == 0:
            source.dump_chunk()
        if number == 1 and is_truncated:
            source.truncate()
            source.add_unseen_rows(0.2)
        if number in (2, 4):
            builder.alter()
        if dice.random() < 0.7:
            builder.seal()
    if not isinstance(source, WholeRows):
        lose_value(source, builder)
    if is_dumped:
        source.full_dump()
    if ends_with_truncate:
        source.truncate()
    builder.seal()


def lose_value(source: Source, builder: VersionedBuilder) -> None:
    """A row that is deleted is updated, with a value left out: its birth is not in the log."""
    key = (900, "lost")
    named = {"world": 900, "k": "lost"}
    source.lines.append(Line(builder.delete(THIRD, named), "d", key, {}))
    after = {"a": 1, "f": 0.5, "big": None}
    offset = builder.update(THIRD, {**named, **after}, unchanged=["big"])
    source.lines.append(Line(offset, "u", key, after, frozenset({"big"})))


def test_the_fold_of_a_small_work_does_not_touch_the_disk(tmp_path: Path, soak_seed: int) -> None:
    for number, kind in enumerate((Source, WholeRows)):
        builder = VersionedBuilder(Staging(str(tmp_path / f"{number}"), source="shop"))
        source = kind(builder, random.Random(soak_seed), WORLDS)
        source.add_unseen_rows(0.3)
        for world in range(WORLDS):
            source.change(world)
        builder.seal()
        work = merge_plan.plan_works(builder.staging.manifests(), lambda table: 0)[str(THIRD.table)]
        with mock.patch.object(disk_spool, "_open_file", side_effect=AssertionError("the disk is touched")):
            rows = fold_work(builder.staging, work, THIRD)
            assert rows.is_small and len(rows) == len(next(iter(rows)))


def test_memory_holds_only_events_that_a_later_one_may_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has far more events than have room together: each leaves its large value out."""
    builder = SegmentBuilder(Staging(str(tmp_path), source="shop"))
    key = {"world": 1, "k": "hot"}
    builder.create(FIRST, {**key, "a": 0, "f": 0.5, "big": "large"})
    for number in range(600):
        builder.update(FIRST, {**key, "a": number, "f": 0.5, "big": None}, unchanged=["big"])
        if number % 20 == 19:
            builder.seal()
    work = merge_plan.plan_works(builder.staging.manifests(), lambda table: 0)[str(FIRST.table)]
    monkeypatch.setattr(staged_events, "is_small", lambda work: False)
    monkeypatch.setattr(staged_events, "TOGETHER", 1)
    monkeypatch.setattr(key_buckets, "DISTRIBUTED_BYTES", 1)
    monkeypatch.setattr(key_buckets, "PORTION_BYTES", 1)
    monkeypatch.setattr(fold, "MOST_HELD_BYTES", 16_000)
    (rows,) = fold_work(builder.staging, work, FIRST)
    assert [(row["row"]["a"], row["row"]["big"]) for row in rows.to_pylist()] == [(599, "large")]
