"""How many rows of a table its next chunk may ask for, so that it stays within `chunk_bytes`. Pure: no clock, no I/O.

A chunk is bounded by rows alone until one has shown how wide they are. From then on as many are asked for as would fill
three quarters of the bytes, at most twice as many as the chunk before had: rows that grow wider fit most of the time,
and one stretch of narrow ones does not lead to a chunk that has to be given up. A chunk that was given up asks for what
of it had come, and at most half of what it asked for; one row alone is never given up.
"""

from __future__ import annotations

FILL = 0.75
GROWTH = 2


class Width:
    """What chunks of one table have shown."""

    def __init__(self) -> None:
        self._rows: int | None = None
        self._too_small = 0  # bytes that the whole table does not fit into

    def may_fit(self, byte_limit: int) -> bool:
        """Whether nothing has shown that the whole table does not fit into a chunk of so many bytes."""
        return byte_limit > self._too_small

    def limit(self, most_rows: int) -> int:
        """Rows to ask for where no more than `most_rows` are wanted: at least one."""
        return most_rows if self._rows is None else min(most_rows, self._rows)

    def record_chunk(self, *, row_limit: int, rows: int, counted_bytes: int, byte_limit: int) -> None:
        """A chunk of `rows` rows and `counted_bytes` (`Chunk`) came, where so many rows and bytes were allowed."""
        if not rows or not counted_bytes:
            return
        fit = max(1, int(FILL * byte_limit * rows / counted_bytes))
        if self._rows is not None:
            self._rows = min(fit, GROWTH * min(row_limit, self._rows))
        elif fit < GROWTH * row_limit:
            self._rows = fit

    def record_large_table(self, byte_limit: int) -> None:
        """The whole table does not fit into a chunk of so many bytes, or of as many rows as a chunk of it may have.

        What of it had arrived by then tells nothing of the chunks between: its wide rows may all come first."""
        self._too_small = byte_limit

    def record_overflow(self, *, row_limit: int, rows: int) -> None:
        """A chunk of at most `row_limit` rows was too large; `rows` of it had arrived by then."""
        self._rows = max(1, min(rows, row_limit // 2))
