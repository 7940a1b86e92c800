"""How many rows of a table its next chunk may ask for, so that it stays within `chunk_bytes`. Pure: no clock, no I/O.

A chunk is bounded by rows alone until one has told how wide they are. From then on as many are asked for as would fill
three quarters of the bytes, at most twice as many as the chunk before had: rows that grow wider fit most of the time,
and one stretch of narrow ones does not lead to a chunk that has to be given up. A chunk that was given up asks for what
of it had come, and at most half of what it asked for; one row alone is never given up.
"""

from __future__ import annotations

FILL = 0.75
GROWTH = 2


class Width:
    """What chunks of one table have told; `whole`: whether nothing has shown that the table does not fit into one."""

    def __init__(self) -> None:
        self._rows: int | None = None
        self.whole = True

    def limit(self, wanted: int) -> int:
        """Rows to ask for where `wanted` are wanted: at least one, at most those."""
        return wanted if self._rows is None else min(wanted, self._rows)

    def came(self, *, asked: int, rows: int, received: int, most: int) -> None:
        """A chunk of `rows` rows came with `received` bytes, where `asked` rows and `most` bytes were allowed."""
        if not rows or not received:
            return
        fit = max(1, int(FILL * most * rows / received))
        if self._rows is not None:
            self._rows = min(fit, GROWTH * min(asked, self._rows))
        elif fit < GROWTH * asked:
            self._rows = fit

    def given_up(self, *, asked: int, rows: int) -> None:
        """A chunk of `asked` rows was too large; `rows` of it had arrived by then."""
        self._rows = max(1, min(rows, asked // 2))
