"""Where the next SELECT of a key range begins, and where the range ends: `after < key <= upto`, in the key's order.

The end of a range that is open is fixed when its first chunk is full, at the largest key that is there *after* that
SELECT: what its snapshot sees, and the capture has judged, the look at the largest key then sees too. Rows that come
above it later are the log's, so that a dump of a table that grows comes to an end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RangeCursor:
    """`after`: the key of the last row that was read, None: nothing yet; `upto`: the range's last key, None: open.

    Keys are JSON values, which this compares for equality alone: their order is the database's.
    """

    after: Any = None
    upto: Any = None

    def needs_end(self, *, is_short: bool) -> bool:
        """Whether the end has to be fixed now; `is_short`: a SELECT has found fewer rows than it asked for."""
        return self.upto is None and not is_short

    def fix_end(self, largest: Any) -> Self:
        """`largest`: the table's largest key, looked up after the SELECT; None: it has no rows."""
        return self if largest is None else replace(self, upto=largest)

    def advance(self, last: Any) -> Self:
        """`last`: the key of a chunk's last row; None: it has no rows."""
        return self if last is None else replace(self, after=last)

    def is_last(self, last: Any, *, is_short: bool) -> bool:
        """Whether a chunk that ends with the key `last` is the range's last one."""
        return is_short or last == self.upto
