"""Random histories of a source, and a consumer that reads the super-changelog line by line: the merge's oracle.

A world is a few keys of one table; many worlds share it, so that one merge tries many histories.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.spark.segments import Row, SegmentBuilder, table

SHAPE = table(
    "worlds", key=("world", "k"), world=pa.int32(), k=pa.string(), a=pa.int64(), f=pa.float64(), big=pa.string()
)
Key = tuple[int, str]
UNKNOWN = object()
_VALUES = ("a", "f", "big")


@dataclass(frozen=True)
class Line:
    """A line of the super-changelog, as far as the oracle needs it."""

    offset: int
    op: str
    key: Key | None
    after: Row
    unchanged: frozenset[str] = frozenset()
    moved_from: Key | None = None


def columns(key: Key) -> Row:
    return {"world": key[0], "k": key[1]}


@dataclass
class Source:
    """The source's own rows, changed at random; each change goes to the builder and to `lines`."""

    build: SegmentBuilder
    dice: random.Random
    worlds: int
    rows: dict[Key, Row] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def unseen(self, share: float) -> None:
        """Rows that were there before the log began."""
        for world in range(self.worlds):
            for k in "abcd":
                if self.dice.random() < share:
                    self.rows[world, k] = self._values()

    def change(self, world: int) -> None:
        key = (world, self.dice.choice("abcd"))
        other = (world, self.dice.choice("abcd"))
        if key not in self.rows:
            self.rows[key] = self._values()
            self._note(self.build.create(SHAPE, self._row(key)), "c", key)
            return
        kind = self.dice.choice(("update", "update", "delete", "move", "move", "refresh", "swap"))
        if kind == "delete":
            self._delete(key)
        elif kind == "move" and other not in self.rows:
            self._move(key, other)
        elif kind == "swap" and other in self.rows and other != key:
            self._swap(key, other)
        elif kind == "refresh":
            self._set(key, "r", self._some_unchanged())
        else:
            self._update(key)

    def _update(self, key: Key) -> None:
        unchanged = self._some_unchanged()
        new = self._values()
        self.rows[key] = {c: self.rows[key][c] if c in unchanged else new[c] for c in _VALUES}
        self._set(key, "u", unchanged)

    def _set(self, key: Key, op: str, unchanged: frozenset[str]) -> None:
        origin = "dump" if op == "r" else "log"
        after = self._row(key, without=unchanged)
        self._note(
            self.build.line(SHAPE, op, after=after, unchanged=sorted(unchanged), origin=origin), op, key, unchanged
        )

    def _delete(self, key: Key) -> None:
        del self.rows[key]
        self.lines.append(Line(self.build.delete(SHAPE, columns(key)), "d", key, {}))

    def _move(self, old: Key, new: Key) -> None:
        unchanged = self._some_unchanged()
        fresh, before = self._values(), self.rows.pop(old)
        self.rows[new] = {c: before[c] if c in unchanged else fresh[c] for c in _VALUES}
        offset = self.build.move(SHAPE, columns(old), self._row(new, without=unchanged), unchanged=sorted(unchanged))
        self.lines.append(Line(offset - 1, "d", old, {}))
        self._note(offset, "c", new, unchanged, old)

    def _swap(self, one: Key, two: Key) -> None:
        """By way of a third key: no database lets two rows have one key for a moment."""
        third = (one[0], "tmp")
        self._move(one, third)
        self._move(two, one)
        self._move(third, two)

    def truncate(self) -> None:
        self.rows.clear()
        self.build.truncate(SHAPE)
        self.lines.append(Line(self.build.offset, "t", None, {}))

    def dump_chunk(self) -> None:
        """All rows of some worlds, placed by reference; a few were evicted."""
        worlds = set(self.dice.sample(range(self.worlds), max(1, self.worlds // 4)))
        keys = [key for key in self.rows if key[0] in worlds]
        evicted = sorted(self.dice.sample(range(len(keys)), len(keys) // 5))
        if keys:
            first = self.build.chunk(SHAPE, [self._row(key) for key in keys], evicted=evicted)
            for i, key in enumerate(keys):
                if i not in evicted:
                    self._note(first + i, "r", key)

    def _note(
        self, offset: int, op: str, key: Key, unchanged: frozenset[str] = frozenset(), old: Key | None = None
    ) -> None:
        self.lines.append(Line(offset, op, key, dict(self.rows[key]), unchanged, old))

    def _row(self, key: Key, *, without: frozenset[str] = frozenset()) -> Row:
        return {**columns(key), **{c: None if c in without else v for c, v in self.rows[key].items()}}

    def _values(self) -> Row:
        """From few values, so that some changes change nothing."""
        return {
            "a": self.dice.choice((None, 1, 2)),
            "f": self.dice.choice((None, 0.5, 1.5)),
            "big": self.dice.choice((None, "x", "y")),
        }

    def _some_unchanged(self) -> frozenset[str]:
        return self.dice.choice((frozenset(), frozenset({"big"}), frozenset({"big", "f"}), frozenset({"a"})))


@dataclass
class Oracle:
    """A consumer that reads line after line; at the end of a merge it keeps whole rows alone."""

    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    withheld: set[Key] = field(default_factory=set)
    _at: int = 0

    def read(self, lines: list[Line], upto: int) -> None:
        """One merge: the lines up to an offset."""
        last: dict[Key, dict[str, Any]] = {}
        while self._at < len(lines) and lines[self._at].offset <= upto:
            line = lines[self._at]
            self._at += 1
            self._line(line, last)
        lost = {key for key, row in self.rows.items() if UNKNOWN in row.values()}
        self.withheld = (self.withheld | lost) - (self.rows.keys() - lost)
        self.rows = {key: row for key, row in self.rows.items() if key not in lost}

    def _line(self, line: Line, last: dict[Key, dict[str, Any]]) -> None:
        if line.op == "t":
            self.rows.clear()
            self.withheld.clear()
            return
        assert line.key is not None
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
