"""Random histories of a source, and a consumer that reads the super-changelog line by line: the merge's oracle.

A world is a few keys of one table; many worlds share it, so that one merge tries many histories. `Source.seen` counts
what has happened, so that a test can say that all of it did.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import TableSchema
from tests.spark.segments import Row, SegmentBuilder, json_in, table

SHAPE = json_in(
    table("worlds", key=("world", "k"), world=pa.int32(), k=pa.string(), a=pa.int64(), f=pa.float64(), big=pa.string()),
    big="jsonb",
)
Key = tuple[int, str]
UNKNOWN = object()
_VALUES = ("a", "f", "big")
KINDS = (
    "insert", "update", "delete", "insert, delete, insert", "key change", "chain of key changes", "swap of keys",
    "refresh", "refresh before a log row", "refresh after a log row", "row as it was", "truncate", "chunk",
    "evicted row", "ghost", "unchanged value", "unchanged value in a key change",
    "unchanged value over updates, a key change and a batch boundary", "transaction over segments",
)  # fmt: skip
"""All that `Source.seen` may count; `withheld row` and `ghost removed` are the oracle's."""


@dataclass(frozen=True)
class Line:
    """A line of the super-changelog, as far as the oracle needs it."""

    offset: int
    op: str
    key: Key | None
    after: Row
    unchanged: frozenset[str] = frozenset()
    moved_from: Key | None = None
    since: int = 0
    dumped: frozenset[Key] = frozenset()
    """On f: the keys in the dump's chunks."""


def columns(key: Key) -> Row:
    return {"world": key[0], "k": key[1]}


@dataclass
class Source:
    """The source's own rows, changed at random; each change goes to the builder and to `lines`."""

    build: SegmentBuilder
    dice: random.Random
    worlds: int
    shape: TableSchema = SHAPE
    rows: dict[Key, Row] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    _batch: int = 0  # where in `lines` the present batch begins
    _dumps: int = 0

    def add_unseen_rows(self, share: float) -> None:
        """Rows that were there before the log began."""
        for world in range(self.worlds):
            for k in "abcd":
                if self.dice.random() < share:
                    self.rows[world, k] = self._values()

    def change(self, world: int) -> None:
        key = (world, self.dice.choice("abcd"))
        other = (world, self.dice.choice("abcd"))
        if key not in self.rows:
            self._create(key)
            return
        kind = self.dice.choice(
            ("update", "update", "delete", "move", "move", "refresh", "swap", "reborn", "chain", "same", "carry")
        )
        if kind == "delete":
            self._delete(key)
        elif kind == "reborn":
            self._delete(key)
            self._create(key)
        elif kind == "chain" and other not in self.rows:
            self._chain(key, other)
        elif kind == "carry" and other not in self.rows:
            self._update(key, frozenset({"big"}))
            self._move(key, other, frozenset({"big"}))
        elif kind == "same":
            self.seen["row as it was"] += 1
            self._set(key, "u", frozenset())
        elif kind == "move" and other not in self.rows:
            self._move(key, other)
        elif kind == "swap" and other in self.rows and other != key:
            self._swap(key, other)
        elif kind == "refresh":
            self._set(key, "r", self._some_unchanged())
        else:
            self._update(key)

    def change_in_bursts(self, bursts: int) -> Iterator[int]:
        """Changes of all worlds and chunks in two sealed segments a burst; the table is truncated in the last burst but
        one, and dumped whole at the end of the last. Yields each burst's number when it is sealed."""
        for burst in range(bursts):
            for _ in range(2):
                for world in range(self.worlds):
                    self.change(world)
                self.dump_chunk()
                if burst == bursts - 2:
                    self.truncate()
                    self.change(0)
                    self.dump_chunk()
                self.build.seal()
            if burst == bursts - 1:
                self.full_dump()
                self.build.seal()
            yield burst

    def end_segment(self, partial: int) -> None:
        """A segment has ended, in the midst of a transaction if `partial`."""
        self.seen["transaction over segments"] += partial

    def end_merge(self) -> None:
        """What comes next is of another merge."""
        self._batch = len(self.lines)

    def _create(self, key: Key) -> None:
        before = [line.op for line in self.lines[self._batch :] if line.key == key]
        self.seen["insert, delete, insert"] += before[-2:] == ["c", "d"]
        self.rows[key] = self._values()
        self._note(self.build.create(self.shape, self._row(key)), "c", key)

    def _chain(self, first: Key, last: Key) -> None:
        self.seen["chain of key changes"] += 1
        middle = (first[0], "tmp")
        self._move(first, middle)
        self._move(middle, last)

    def _update(self, key: Key, unchanged: frozenset[str] | None = None) -> None:
        unchanged = self._some_unchanged() if unchanged is None else unchanged
        new = self._values()
        self.rows[key] = {c: self.rows[key][c] if c in unchanged else new[c] for c in _VALUES}
        self._set(key, "u", unchanged)

    def _set(self, key: Key, op: str, unchanged: frozenset[str]) -> None:
        origin = "dump" if op == "r" else "log"
        after = self._row(key, without=unchanged)
        self._note(
            self.build.line(self.shape, op, after=after, unchanged=sorted(unchanged), origin=origin), op, key, unchanged
        )

    def _delete(self, key: Key) -> None:
        self.seen["delete"] += 1
        del self.rows[key]
        self.lines.append(Line(self.build.delete(self.shape, columns(key)), "d", key, {}))

    def _move(self, old: Key, new: Key, unchanged: frozenset[str] | None = None) -> None:
        unchanged = self._some_unchanged() if unchanged is None else unchanged
        self._count_move(old, unchanged)
        fresh = self._values()
        before = self.rows.pop(old)
        self.rows[new] = {c: before[c] if c in unchanged else fresh[c] for c in _VALUES}
        offset = self.build.move(
            self.shape, columns(old), self._row(new, without=unchanged), unchanged=sorted(unchanged)
        )
        self.lines.append(Line(offset - 1, "d", old, {}))
        self._note(offset, "c", new, unchanged, old)

    def _count_move(self, old: Key, unchanged: frozenset[str]) -> None:
        self.seen["key change"] += 1
        self.seen["unchanged value in a key change"] += bool(unchanged)
        life = [line for line in self.lines[self._batch :] if line.key == old]
        updated = bool(life) and all(line.op == "u" and "big" in line.unchanged for line in life)
        is_value_kept = updated and "big" in unchanged and any(line.key == old for line in self.lines[: self._batch])
        self.seen["unchanged value over updates, a key change and a batch boundary"] += is_value_kept

    def _swap(self, first: Key, second: Key) -> None:
        """By way of a third key: no database lets two rows have one key for a moment."""
        self.seen["swap of keys"] += 1
        third = (first[0], "tmp")
        self._move(first, third)
        self._move(second, first)
        self._move(third, second)

    def truncate(self) -> None:
        self.seen["truncate"] += 1
        self.rows.clear()
        self.build.truncate(self.shape)
        self.lines.append(Line(self.build.offset, "t", None, {}))

    def dump_chunk(self) -> None:
        """All rows of some worlds, placed by reference; a few were evicted."""
        worlds = set(self.dice.sample(range(self.worlds), max(1, self.worlds // 4)))
        keys = [key for key in self.rows if key[0] in worlds]
        self._place(keys, set(self.dice.sample(keys, len(keys) // 5)), "some")

    def full_dump(self) -> None:
        """A dump of the whole table, that finishes; some rows are gone by then of which no delete was ever logged."""
        self._lose()
        self._dumps += 1
        since = self.build.offset
        segment = self.build.segment + 1
        begun = len(self.lines)
        for world in self.dice.sample(range(self.worlds), max(1, self.worlds // 4)):
            self.change(world)
        last_lines = {line.key: line for line in self.lines[begun:]}
        whole = [key for key, line in last_lines.items() if key in self.rows and line.op in "cu" and not line.unchanged]
        # A SELECT may not see a row that was born meanwhile; one that was only updated it sees, before or after.
        born = {line.key for line in self.lines[begun:] if line.op == "c"}
        keys = [key for key in self.rows if key not in whole or key not in born or self.dice.random() < 0.7]
        self._place(keys, {key for key in keys if key in whole and self.dice.random() < 0.7}, f"full{self._dumps}")
        self.build.finished(self.shape, f"full{self._dumps}", since=since, since_segment=segment)
        self.lines.append(Line(self.build.offset, "f", None, {}, since=since, dumped=frozenset(keys)))

    def _lose(self) -> None:
        """Deletes that no log will ever tell."""
        for key in self.dice.sample(sorted(self.rows), -(-len(self.rows) // 10)):
            self.seen["ghost"] += any(line.key == key for line in self.lines)
            del self.rows[key]

    def _place(self, keys: list[Key], evicted: set[Key], dump: str) -> None:
        if not keys:
            return
        self.seen["chunk"] += 1
        self.seen["evicted row"] += len(evicted)
        evicted_places = [i for i, key in enumerate(keys) if key in evicted]
        first = self.build.chunk(self.shape, [self._row(key) for key in keys], evicted=evicted_places, dump=dump)
        for i, key in enumerate(keys):
            if key not in evicted:
                self._note(first + i, "r", key)

    def _note(
        self, offset: int, op: str, key: Key, unchanged: frozenset[str] = frozenset(), old: Key | None = None
    ) -> None:
        self._count(op, key, unchanged)
        self.lines.append(Line(offset, op, key, dict(self.rows[key]), unchanged, old))

    def _count(self, op: str, key: Key, unchanged: frozenset[str]) -> None:
        self.seen[{"c": "insert", "u": "update", "r": "refresh"}[op]] += 1
        self.seen["unchanged value"] += bool(unchanged)
        before = next((line.op for line in reversed(self.lines[self._batch :]) if line.key == key), "")
        self.seen["refresh before a log row"] += before == "r" and op != "r"
        self.seen["refresh after a log row"] += before in ("c", "u") and op == "r"

    def _row(self, key: Key, *, without: frozenset[str] = frozenset()) -> Row:
        return {**columns(key), **{c: None if c in without else v for c, v in self.rows[key].items()}}

    def _values(self) -> Row:
        """From few values, so that some changes change nothing."""
        return {
            "a": self.dice.choice((None, 1, 2)),
            "f": self.dice.choice((None, 0.5, 1.5)),
            "big": self.dice.choice((None, '{"x": 1}', '{"y": 1, "y": 2}')),
        }

    def _some_unchanged(self) -> frozenset[str]:
        return self.dice.choice((frozenset(), frozenset({"big"}), frozenset({"big", "f"}), frozenset({"a"})))


class WholeRows(Source):
    """A source whose log leaves no column out."""

    def _some_unchanged(self) -> frozenset[str]:
        return frozenset()

    def _update(self, key: Key, unchanged: frozenset[str] | None = None) -> None:
        super()._update(key, frozenset())

    def _move(self, old: Key, new: Key, unchanged: frozenset[str] | None = None) -> None:
        super()._move(old, new, frozenset())


@dataclass
class Oracle:
    """A consumer that reads line after line; at the end of a merge it keeps whole rows alone."""

    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    withheld: set[Key] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    _offsets: dict[Key, int] = field(default_factory=dict)
    _at: int = 0
    may_wait: set[Key] = field(default_factory=set)
    """Rows with an unknown value that a dump in the same merge shows to be gone: a merge may have asked for them."""

    def waits(self, withheld: set[Key]) -> bool:
        """Whether these are the keys that wait for a dump."""
        return self.withheld <= withheld <= self.withheld | self.may_wait

    def read(self, lines: list[Line], upto: int) -> None:
        """One merge: the lines up to an offset."""
        last: dict[Key, dict[str, Any]] = {}
        while self._at < len(lines) and lines[self._at].offset <= upto:
            line = lines[self._at]
            self._at += 1
            self._line(line, last)
        lost = {key for key, row in self.rows.items() if UNKNOWN in row.values()}
        self.seen["withheld row"] += len(lost)
        self.withheld = (self.withheld | lost) - (self.rows.keys() - lost)
        self.rows = {key: row for key, row in self.rows.items() if key not in lost}

    def _line(self, line: Line, last: dict[Key, dict[str, Any]]) -> None:
        if line.op == "t":
            self.rows.clear()
            self.withheld.clear()
            return
        if line.op == "f":
            ghosts = [k for k in self.rows if self._offsets[k] <= line.since and k not in line.dumped]
            self.seen["ghost removed"] += len(ghosts)
            for key in ghosts:
                if UNKNOWN in self.rows.pop(key).values():
                    self.may_wait.add(key)
                self.withheld.discard(key)
            return
        assert line.key is not None
        self._offsets[line.key] = line.offset
        nothing = dict.fromkeys(_VALUES, UNKNOWN)
        if line.op == "d":
            last[line.key] = self.rows.pop(line.key, nothing)
            self.withheld.discard(line.key)
            return
        if line.op == "c":
            base = last[line.moved_from] if line.moved_from is not None else nothing
        else:
            base = self.rows.get(line.key, nothing)
        self.rows[line.key] = {c: base[c] if c in line.unchanged else line.after[c] for c in _VALUES}
