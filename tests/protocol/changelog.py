"""The checker's super-changelog: its lines, a keyed consumer that replays them, and the lake that merges them."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = -1
Values = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Line:
    """`values` are (v, big), UNKNOWN where `unchanged`; `shape` is the table's version; `xid` None: from a dump."""

    offset: int
    op: str
    key: int
    values: Values = (UNKNOWN, UNKNOWN)
    shape: int = 0
    xid: int | None = None
    moved_from: int | None = None
    since: int = 0


@dataclass(frozen=True, slots=True)
class ChunkLine:
    """A chunk placed at `offset` by reference: its keys, evicted ones included."""

    offset: int
    keys: frozenset[int]


def _over(old: Values, new: Values) -> Values:
    return (old[0] if new[0] == UNKNOWN else new[0], old[1] if new[1] == UNKNOWN else new[1])


class Replay:
    """A keyed consumer of the lines: key -> values, and the offset of each key's last line."""

    __slots__ = ("gone", "last", "rows", "shape")

    def __init__(self) -> None:
        self.rows: dict[int, Values] = {}
        self.last: dict[int, int] = {}
        self.gone: dict[int, Values] = {}
        self.shape = 0

    def copy(self) -> Replay:
        new = Replay()
        new.rows = dict(self.rows)
        new.last = dict(self.last)
        new.gone = dict(self.gone)
        new.shape = self.shape
        return new

    def read(self, line: Line) -> None:
        if line.op == "f":
            self.rows = {k: v for k, v in self.rows.items() if self.last[k] > line.since}
            return
        if line.op == "t":
            self.rows.clear()
            return
        if line.op == "s":
            self.shape = line.shape
            return
        self.last[line.key] = line.offset
        if line.op == "d":
            self.gone[line.key] = self.rows.pop(line.key, (UNKNOWN, UNKNOWN))
            return
        old = self.rows.get(line.key, (UNKNOWN, UNKNOWN))
        if line.moved_from is not None:
            old = self.gone.get(line.moved_from, (UNKNOWN, UNKNOWN))
        elif line.op == "c":
            old = (UNKNOWN, UNKNOWN)
        self.rows[line.key] = _over(old, line.values)

    def freeze(self) -> tuple[object, ...]:
        return (*sorted(self.rows.items()), *sorted(self.last.items()), self.shape)


class LakeTable:
    """The merged table: key -> (values, offset). A row that equals the lake's is not written again (but one that the
    batch tells the birth of), and a finished dump removes ghosts by the keys of its chunk files and by offset."""

    __slots__ = ("rows",)

    def __init__(self, rows: dict[int, tuple[Values, int]]) -> None:
        self.rows = rows

    def copy(self) -> LakeTable:
        return type(self)(dict(self.rows))

    def merge(self, lines: tuple[Line, ...], chunks: tuple[ChunkLine, ...]) -> None:
        """One batch of lines; `chunks`: all that the table's dump has placed so far."""
        consumer = Replay()
        consumer.rows = {key: values for key, (values, _) in self.rows.items()}
        offsets: dict[int, int] = {}
        born: set[int] = set()
        for line in lines:
            if line.op in "cudr":
                offsets[line.key] = line.offset
                if line.op == "c":
                    born.add(line.key)
            if line.op != "f":
                consumer.read(line)
        merged: dict[int, tuple[Values, int]] = {}
        for key, values in consumer.rows.items():
            was = self.rows.get(key)
            if was is not None and (key not in offsets or (was[0] == values and key not in born)):
                merged[key] = was
            elif UNKNOWN not in values:  # withheld otherwise, until a dump of its key
                merged[key] = (values, offsets[key])
        for line in lines:
            if line.op == "f":
                merged = self.without_ghosts(merged, line.since, chunks)
        self.rows = merged

    def without_ghosts(
        self, rows: dict[int, tuple[Values, int]], since: int, chunks: tuple[ChunkLine, ...]
    ) -> dict[int, tuple[Values, int]]:
        seen = frozenset().union(*(chunk.keys for chunk in chunks))
        return {key: row for key, row in rows.items() if row[1] > since or key in seen}

    def freeze(self) -> tuple[object, ...]:
        return tuple(sorted(self.rows.items()))
