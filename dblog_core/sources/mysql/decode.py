"""Row images of the log split into columns: one reader per column, made once per table version, no object per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dblog_core.sources.mysql import binary_values, decimals
from dblog_core.sources.mysql.types import ColumnType, Kind

Reader = Callable[[bytes, int], int]
"""Takes the value at an offset of an event and returns the offset after it."""


class Images:
    """Row images of one table version, collected column by column."""

    def __init__(self, columns: Sequence[ColumnType]) -> None:
        self._columns = columns
        self._values: list[list[bytes | None]] = [[] for _ in columns]
        self._readers = [_reader(c, v.append) for c, v in zip(columns, self._values, strict=True)]
        self._null_bytes = (len(columns) + 7) // 8
        self._nullable = [
            (1 << i, r, v.append) for i, (r, v) in enumerate(zip(self._readers, self._values, strict=True))
        ]
        self.rows = 0

    def read(self, event: bytes, at: int) -> int:
        """Takes one image that begins at `at`; returns the offset after it."""
        end = at + self._null_bytes
        nulls = int.from_bytes(event[at:end], "little")
        at = end
        if not nulls:
            for read in self._readers:
                at = read(event, at)
        else:
            for bit, read, append in self._nullable:
                if nulls & bit:
                    append(None)
                else:
                    at = read(event, at)
        self.rows += 1
        return at

    def finish(self, zero_dates: str) -> list[pa.Array]:
        """The columns as Arrow arrays. Raises ColumnFault."""
        arrays = []
        for i, (column, values) in enumerate(zip(self._columns, self._values, strict=True)):
            try:
                arrays.append(binary_values.to_arrow(column, values, zero_dates=zero_dates))
            except binary_values.ValueFault as fault:
                raise ColumnFault(i, fault) from fault
        return arrays


class ColumnFault(ValueError):
    """A ValueFault and the number of its column."""

    def __init__(self, column: int, fault: binary_values.ValueFault) -> None:
        super().__init__(fault.why)
        self.column, self.fault = column, fault


def _reader(column: ColumnType, append: Callable[[bytes], None]) -> Reader:
    if column.kind in (Kind.DECIMAL, Kind.LONG_DECIMAL):
        return _fixed(decimals.width(column.precision, column.scale), append)
    if column.prefix:
        return _short(append) if column.prefix == 1 else _prefixed(column.prefix, append)
    return _fixed(column.width, append)


def _fixed(width: int, append: Callable[[bytes], None]) -> Reader:
    def read(event: bytes, at: int) -> int:
        end = at + width
        append(event[at:end])
        return end

    return read


def _short(append: Callable[[bytes], None]) -> Reader:
    def read(event: bytes, at: int) -> int:
        start = at + 1
        end = start + event[at]
        append(event[start:end])
        return end

    return read


def _prefixed(size: int, append: Callable[[bytes], None]) -> Reader:
    def read(event: bytes, at: int) -> int:
        start = at + size
        end = start + int.from_bytes(event[at:start], "little")
        append(event[start:end])
        return end

    return read
