"""The history's oracle: a reader of the super-changelog who notes every line, but for refreshes that change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.spark.segments import Row
from tests.spark.worlds import UNKNOWN, Key, Line

_VALUES = ("a", "f", "big")
Told = tuple[int, str, Key | None, tuple[Any, ...], frozenset[str]]


@dataclass
class Expected:
    """At the end of a merge it knows of rows that are not whole only that they live, as the lake does."""

    lines: list[Told] = field(default_factory=list)
    left_out: int = 0
    """Refreshes of rows that stood like that."""
    _rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    _offsets: dict[Key, int] = field(default_factory=dict)
    _at: int = 0

    def read(self, lines: list[Line], upto: int) -> None:
        """One merge: the lines up to an offset."""
        last: dict[Key, dict[str, Any]] = {}
        finished = []
        changed: set[Key] = set()
        while self._at < len(lines) and lines[self._at].offset <= upto:
            line = lines[self._at]
            self._at += 1
            if line.op == "f":
                finished.append(line)
            else:
                self._line(line, last)
                changed |= {line.key} if line.key is not None else set()
        for line in finished:
            self._ghosts(line, changed)
        for row in self._rows.values():
            if UNKNOWN in row.values():
                row.update(dict.fromkeys(_VALUES, UNKNOWN))

    def _line(self, line: Line, last: dict[Key, dict[str, Any]]) -> None:
        nothing = dict.fromkeys(_VALUES, UNKNOWN)
        if line.op == "t":
            self._rows.clear()
            self._tell(line, dict.fromkeys(_VALUES))
            return
        assert line.key is not None
        self._offsets[line.key] = line.offset
        if line.op == "d":
            last[line.key] = self._rows.pop(line.key, nothing)
            self._tell(line, nothing)
            return
        base = self._rows.get(line.key, nothing)
        if line.op == "c":
            base = last[line.moved_from] if line.moved_from is not None else nothing
        row = {c: base[c] if c in line.unchanged else line.after[c] for c in _VALUES}
        if line.op == "r" and line.key in self._rows and row == base:
            self.left_out += 1
            return
        self._rows[line.key] = row
        self._tell(line, row)

    def _ghosts(self, line: Line, changed: set[Key]) -> None:
        """What the end of a dump shows to be gone, when the merge has done all else: of its own rows, and of those in
        the lake, which are whole. They go by one offset, in the order of their keys."""
        there = [key for key, row in self._rows.items() if key in changed or UNKNOWN not in row.values()]
        for key in sorted(k for k in there if self._offsets[k] <= line.since and k not in line.dumped):
            del self._rows[key]
            self._tell(Line(line.offset, "d", key, {}), dict.fromkeys(_VALUES, UNKNOWN))

    def _tell(self, line: Line, row: dict[str, Any]) -> None:
        unknown = frozenset(c for c in _VALUES if row[c] is UNKNOWN)
        values = tuple(None if row[c] is UNKNOWN else row[c] for c in _VALUES)
        self.lines.append((line.offset, line.op, line.key, values, unknown))

    def in_order(self) -> list[Told]:
        """All lines, by offset and key."""
        return sorted(self.lines, key=_place)

    @staticmethod
    def as_told(row: Row) -> Told:
        """A row of the history table, as `lines` has it."""
        key = None if row["_dblog_op"] == "t" else (row["world"], row["k"])
        values = tuple(row[c] for c in _VALUES)
        return row["_dblog_offset"], row["_dblog_op"], key, values, frozenset(row["_dblog_unchanged"] or ())

    @classmethod
    def as_all_told(cls, rows: Iterable[Row]) -> list[Told]:
        """The rows of the history table, by offset and key."""
        return sorted(map(cls.as_told, rows), key=_place)


def _place(line: Told) -> tuple[int, Key]:
    offset, _, key, *_ = line
    return offset, key or (-1, "")
