"""What is built from `log` lines: a keyed consumer's copy, and the source's own rows at every place of the log.

The consumer starts empty and believes every line. The mirror starts with the source's rows, follows the log's own
lines alone, and holds every dump line against what the source was at that place.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from tests.nemesis.workload import default_of

Line = dict[str, Any]
Row = dict[str, Any]
Key = tuple[Any, ...]


def key_of(line: Line) -> Key:
    return tuple(line["key"].values())


def values(columns: Iterable[str], row: Iterable[Any]) -> Row:
    """A row as the driver reads it, in the form that lines have."""
    return {name: str(value) if isinstance(value, Decimal) else value for name, value in zip(columns, row, strict=True)}


class State:
    """The rows of some tables, and a fingerprint of them that costs as little as the change."""

    def __init__(self) -> None:
        self._columns: dict[str, set[str]] = {}
        self.tables: dict[str, dict[Key, Row]] = {}
        self.fingerprint = 0

    def get(self, table: str, key: Key) -> Row | None:
        return self.tables.get(table, {}).get(key)

    def put(self, table: str, key: Key, row: Row) -> None:
        self.know(table, row)
        self.drop(table, key)
        self.tables.setdefault(table, {})[key] = row
        self.fingerprint ^= _hash(table, key, row)

    def drop(self, table: str, key: Key) -> Row | None:
        row = self.tables.get(table, {}).pop(key, None)
        if row is not None:
            self.fingerprint ^= _hash(table, key, row)
        return row

    def clear(self, table: str) -> None:
        for key in list(self.tables.get(table, {})):
            self.drop(table, key)

    def know(self, table: str, row: Row) -> None:
        """Adds columns that have appeared to the rows that are there."""
        known_columns = self._columns.setdefault(table, set(row))
        if not (added := _defaults(table, row.keys() - known_columns)):
            return
        known_columns.update(added)
        for key, old in list(self.tables.get(table, {}).items()):
            self.drop(table, key)
            self.tables[table][key] = new = {**added, **old}
            self.fingerprint ^= _hash(table, key, new)

    def change(self, table: str, key: Key, after: Row, unchanged: Iterable[str], old: Row | None) -> None:
        """The row that an insert, update or refresh leaves: columns that it left out keep their value."""
        self.know(table, after)
        self.put(table, key, {**{name: old[name] for name in unchanged if old and name in old}, **after})

    def rows_in_shape(self, table: str, columns: Iterable[str]) -> dict[Key, Row]:
        """The rows with these columns: without those that are gone, and with those that came after the last line."""
        names = list(columns)
        added_columns = _defaults(table, names)
        rows = self.tables.get(table, {})
        return {key: {n: row[n] if n in row else added_columns.get(n) for n in names} for key, row in rows.items()}


def _defaults(table: str, columns: Iterable[str]) -> Row:
    """What rows have in those of the columns that came after them."""
    row_values: Row = {}
    for name in columns:
        with contextlib.suppress(KeyError):
            row_values[name] = default_of(table.rpartition(".")[2], name)
    return row_values


def _hash(table: str, key: Key, row: Row) -> int:
    return hash((table, key, tuple(sorted(row.items(), key=operator.itemgetter(0)))))


class Consumer:
    """A keyed consumer: every line counts."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.state = State()
        self._seen: dict[tuple[str, Key], int] = {}
        self._left: dict[tuple[str, Key], Row | None] = {}  # a row that has just left its key
        for line in lines:
            self.apply(line)

    def rows(self, table: str) -> dict[Key, Row]:
        return self.state.tables.get(table, {})

    def apply(self, line: Line) -> None:
        table = line["table"]
        op = line["op"]
        if op == "t":
            self.state.clear(table)
        elif op == "f":
            self._finish(line)
        elif op in "curd":
            key = key_of(line)
            self._seen[table, key] = line["offset"]
            if op == "d":
                self._left = {(table, key): self.state.drop(table, key)}
            else:
                moved = line.get("moved_from")
                old = self._left.get((table, tuple(moved.values()))) if moved else self.state.get(table, key)
                self.state.change(table, key, line["after"], line["unchanged"], old)

    def _finish(self, line: Line) -> None:
        for key in within(line, self.rows(line["table"])):
            if self._seen[line["table"], key] <= line["since"]:
                self.state.drop(line["table"], key)


class Mirror:
    """The source at every place of the log, from its rows before the first line on. Raises AssertionError."""

    def __init__(self, rows: dict[str, dict[Key, Row]]) -> None:
        self.state = State()
        self._seen: dict[tuple[str, Key], int] = {}
        self._left: dict[tuple[str, Key], Row | None] = {}
        for table, table_rows in rows.items():
            for key, row in table_rows.items():
                self.state.put(table, key, row)

    def follow(self, lines: Iterable[Line]) -> Mirror:
        for line in lines:
            self.apply(line)
        return self

    def apply(self, line: Line) -> None:
        table = line["table"]
        op = line["op"]
        if op == "t":
            self.state.clear(table)
        elif op == "f":
            self._finish(line)
        elif op in "curd":
            self._seen[table, key_of(line)] = line["offset"]
            (self._apply_dumped if line["origin"] == "dump" else self._apply_logged)(line)

    def _apply_logged(self, line: Line) -> None:
        """Images chain: what an event says of the row before is what the events before have made of it."""
        table = line["table"]
        op = line["op"]
        key = key_of(line)
        moved = line.get("moved_from")
        now = self.state.get(table, key)
        assert (now is None) == (op == "c"), f"an event that does not follow from those before: {line}, row {now}"
        if line["before"] is not None and now is not None:
            self.state.know(table, line["before"])
            now = self.state.get(table, key) or {}
            assert _agree(line["before"], now), f"before-image {line['before']} of a row that was {now}: {line}"
        if op == "d":
            self._left = {(table, key): self.state.drop(table, key)}
        else:
            old = self._left[table, tuple(moved.values())] if moved else now
            self.state.change(table, key, line["after"], line["unchanged"], old)

    def _apply_dumped(self, line: Line) -> None:
        table = line["table"]
        after = line["after"]
        if after is not None:
            self.state.know(table, after)
        now = self.state.get(table, key_of(line))
        if line["op"] == "d":
            assert now is None, f"a dump deletes a row that is there: {line}, row {now}"
        else:
            assert now is not None, f"a dump brings a deleted row back: {line}"
            assert _agree(after, now), f"a dump brings old values: {line}, row {now}"

    def _finish(self, line: Line) -> None:
        table = line["table"]
        for key in within(line, self.state.tables.get(table, {})):
            seen = self._seen.get((table, key), 0)
            assert seen > line["since"], f"{line} makes a ghost of {table} {key}, last seen at {seen}"


def within(line: Line, rows: Iterable[Key]) -> Iterator[Key]:
    """The keys that an `f` line speaks of."""
    start = _end(line.get("key_from"))
    end = _end(line.get("key_to"))
    for key in list(rows):
        if (start is None or key >= start) and (end is None or key <= end):
            yield key


def _end(key: Any) -> Key | None:
    """The end of a range: a JSON key, or columns with their values."""
    if key is None:
        return None
    return tuple(key.values()) if isinstance(key, dict) else tuple(key) if isinstance(key, list) else (key,)


def _agree(some: Row, whole: Row) -> bool:
    return all(whole.get(name) == value for name, value in some.items())
