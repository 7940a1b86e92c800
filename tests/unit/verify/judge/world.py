"""A small lake table, a staged log and a source, and what a comparison of them is to say, by plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dblog_core.model.schema import TableSchema
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from dblog_core.verify.judge import bucketed_rows, hashed_rows, staged_hashes
from dblog_core.verify.judge.comparison import Comparison, Verdict
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from tests.plain_hashes import row_hash
from tests.spark.segments import Row, SegmentBuilder
from tests.spark.segments import table as table_shape
from tests.spooled_rows import spool_rows
from tests.unit.delta_writer.tables import OFFSET, Table, newest

T = table_shape("t", id=pa.int64(), v=pa.string(), big=pa.string())
FIELDS = {"id": "long", "v": "string", "big": "string", OFFSET: "long"}


class LakeTable(Table):
    """At its place in the lake."""

    @property
    def path(self) -> Path:
        return self.lake / "shop" / "t"

    def location(self) -> Location:
        return Location(LocalStorage(self.lake, temporary="_dblog/tmp"), "shop/t")


@dataclass(frozen=True, slots=True)
class Change:
    """A staged line; `key` None: a TRUNCATE. `row` None: a delete. `source_row`: what the source has after it."""

    offset: int
    key: int | None
    row: Row | None = None
    unchanged: tuple[str, ...] = ()
    moved_from: int | None = None
    born: bool = False
    logged: bool = True
    source_row: Row | None = None


Lake = dict[int, tuple[Row, int]]
"""By key its row and that row's offset."""


@dataclass
class World:
    """`changes`: all that is staged, in order."""

    root: Path
    chance: random.Random
    schema: TableSchema = T
    changes: list[Change] = field(default_factory=list)
    merged: int = 0
    waiting: list[tuple[int, list[Row]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.staging = Staging(str(self.root / "staging"), source="shop")
        self.build = SegmentBuilder(self.staging)
        self.table = LakeTable.create_at(self.root / "lake", fields=dict(FIELDS))
        self.writer = self.table.writer()
        lake = Location(LocalStorage(self.root / "lake", temporary="_dblog/tmp"))
        self.judge = Judge(self.staging, lake)

    # What happens -----------------------------------------------------------------------------------------------------

    def source_rows(self, upto: int) -> dict[int, Row]:
        """The source at a place of the log."""
        rows: dict[int, Row] = {}
        for change in self.changes:
            if change.offset > upto:
                break
            if change.key is None:
                rows = {}
            elif change.logged and change.source_row is None:
                rows.pop(change.key, None)
            elif change.logged and change.source_row is not None:
                rows[change.key] = change.source_row
        return rows

    def write(self, keys: int) -> None:
        """One transaction of the source, or a chunk of a dump."""
        rows = self.source_rows(self.build.offset)
        draw = self.chance.random()
        key = self.chance.randint(1, keys)
        if draw < 0.02:
            self.build.truncate(self.schema)
            self.changes.append(Change(self.build.offset, None))
        elif draw < 0.12 and rows:
            chosen = self.chance.sample(sorted(rows), min(3, len(rows)))
            first = self.build.chunk(self.schema, [rows[k] for k in chosen])
            self.changes += [Change(first + i, k, rows[k], logged=False) for i, k in enumerate(chosen)]
        elif key not in rows:
            self._put(key, {"id": key, "v": f"v{self.chance.randint(1, 3)}", "big": "big"}, born=True)
        elif draw < 0.35:
            self.build.delete(self.schema, {"id": key})
            self.changes.append(Change(self.build.offset, key))
        elif draw < 0.55 and (free := sorted(set(range(1, keys + 1)) - rows.keys())):
            self.build.delete(self.schema, {"id": key})
            self.changes.append(Change(self.build.offset, key))
            self._put(self.chance.choice(free), rows[key], born=True, moved_from=key)
        else:
            self._put(key, rows[key])

    def _put(self, key: int, old: Row, *, born: bool = False, moved_from: int | None = None) -> None:
        row = {**old, "id": key, "v": f"v{self.chance.randint(1, 3)}"}
        keeps = old["big"] is not None and not (born and moved_from is None) and self.chance.random() < 0.5
        if not keeps:
            row["big"] = self.chance.choice(("big", "bigger", None))
        unchanged = ("big",) if keeps else ()
        staged = {**row, "big": None} if keeps else row
        source = None if moved_from is None else {"id": moved_from}
        op = "c" if born else "u"
        offset = self.build.line(self.schema, op, after=staged, unchanged=unchanged, moved_from=source)
        self.changes.append(Change(offset, key, staged, unchanged, moved_from, born, source_row=row))

    def seal(self) -> None:
        self.build.seal()

    def merge(self, *, is_recorded: bool = True) -> None:
        """All that is staged comes into the lake; rows that are as they were keep their offset. Until it `is_recorded`,
        nobody knows of it: a merge is under way."""
        now = self.expected(self.lake_rows(), self.merged, self.build.offset)
        before = self.lake_rows()
        puts = [{**row, OFFSET: offset} for key, (row, offset) in now.items() if before.get(key) != (row, offset)]
        self._commit(puts, [key for key in before if key not in now])
        if is_recorded:
            self.merged = self.build.offset

    def damage(self, keys: int) -> None:
        """Somebody else changes rows of the lake."""
        for _ in range(self.chance.randint(1, 3)):
            key = self.chance.randint(1, keys + 2)
            forged = self.chance.randint(self.merged, self.build.offset)
            offset = self.chance.choice((None, 0, self.merged, self.merged, forged, 10**9))
            if self.chance.random() < 0.4:
                self._commit([], [key])
            else:
                self._commit([{"id": key, "v": "damaged", "big": "big", OFFSET: offset}], [])

    def _commit(self, puts: Sequence[Row], deletes: Sequence[int]) -> None:
        gone = [{"id": key, OFFSET: None} for key in deletes]
        if puts or gone:
            self.table.merge(self.writer, puts, gone)

    def lake_rows(self) -> Lake:
        """The lake table; an offset that cannot be is NEVER."""
        rows: Lake = {}
        for (key,), row in self.table.rows.items():
            offset = row[OFFSET]
            possible = offset is not None and 0 <= offset <= self.build.offset
            rows[key] = ({name: row[name] for name in ("id", "v", "big")}, offset if possible else -1)
        return rows

    # What is to be said -----------------------------------------------------------------------------------------------

    def expected(self, lake: Lake, after: int, upto: int) -> Lake:
        """The lake with the changes in that stretch on top, one after the other."""
        rows = dict(lake)
        gone: Lake = {}
        for change in self.changes:
            if not after < change.offset <= upto:
                continue
            if change.key is None:
                rows = {key: row for key, row in rows.items() if row[1] >= change.offset}
                gone = {}
                continue
            if change.key in lake and lake[change.key][1] >= change.offset:
                continue
            if change.row is None:
                if change.key in rows:
                    gone[change.key] = rows.pop(change.key)
                else:
                    gone.pop(change.key, None)
                continue
            before = gone.get(change.moved_from) if change.moved_from is not None else rows.get(change.key)
            if change.born and change.moved_from is None:
                before = None
            if change.unchanged and before is None:
                rows.pop(change.key, None)  # withheld
                continue
            kept = {name: before[0][name] for name in change.unchanged} if before is not None else {}
            rows[change.key] = ({**change.row, **kept}, change.offset)
        return rows

    def pin(self) -> Pin:
        return Pin(newest(self.table.path), self.merged, 0, self.build.offset)

    def reading(self, since: int, *, chosen: Sequence[int] | None = None) -> tuple[Comparison, dict[int, Row | None]]:
        """A reading of the source: each key as it was at some place from `since` to the log's end. And what it says."""
        upto = self.build.offset
        history = {place: self.source_rows(place) for place in range(since, upto + 1)}
        keys = sorted({key for rows in history.values() for key in rows} | set(self.lake_rows()) | {0})
        comparison = keys if chosen is None else list(chosen)
        seen = {key: history[self.chance.randint(since, upto)].get(key) for key in comparison}
        listed = [key for key in comparison if seen[key] is not None or chosen is not None]
        hashes = [None if seen[key] is None else row_hash(self.schema, seen[key] or {}) for key in listed]
        batch = pa.record_batch({"id": pa.array(listed, pa.int64()), HASH: pa.array(hashes, pa.int64())})
        rows = (spool_rows(batch),)
        return Comparison(self.schema, self.pin(), rows, since, upto, for_chosen_keys=chosen is not None), seen

    def right_kinds(self, comparison: Comparison, seen: dict[int, Row | None]) -> dict[int, str]:
        """By key what it is to be called; equal keys are left out."""
        assert comparison.pin is not None
        lake = self.lake_rows()
        now = self.expected(lake, comparison.pin.offset, comparison.upto)
        then = self.expected(lake, comparison.pin.offset, comparison.since)
        kinds = {}
        for key in seen.keys() if comparison.for_chosen_keys else seen.keys() | now.keys():
            source = seen.get(key)
            here = now[key][0] if key in now else None
            if source == here:
                continue
            late = [
                change
                for change in self.changes
                if comparison.since < change.offset <= comparison.upto and change.logged
            ]
            passed = [change for change in late if change.key in (key, None)]
            if not passed:
                kinds[key] = "missing" if here is None else "extra" if source is None else "different"
                continue
            states = [c.row for c in passed if not c.unchanged]
            if comparison.pin.offset <= comparison.since:
                states.append(then[key][0] if key in then else None)
            if source not in states:
                kinds[key] = "undecided"
        return kinds


def kinds_of(verdict: Verdict) -> dict[Any, str]:
    """By key what a verdict calls it."""
    kinds: dict[Any, str] = {}
    for kind in ("missing", "extra", "different", "undecided", "twice"):
        kinds |= dict.fromkeys(getattr(verdict, kind), kind)
    return kinds


def keep_few_in_memory(events: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows there are: events that are kept until those that do not count are dropped, and rows of a bucket,
    and of what is compared at once."""
    monkeypatch.setattr(staged_hashes, "MAX_EVENTS", events)
    monkeypatch.setattr(bucketed_rows, "BUCKET_ROWS", rows)
    monkeypatch.setattr(bucketed_rows, "PART_ROWS", rows)
    monkeypatch.setattr(hashed_rows, "IMAGE_BYTES", 40)


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
