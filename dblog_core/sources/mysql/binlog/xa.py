"""XA transactions: their rows are logged when they are prepared, and count from where the second phase commits them.

Until then only the place of the rows is remembered, in the position itself, so a restart forgets nothing and memory
does not grow with them. At XA COMMIT the rows are read again from that place. Those of small transactions are kept in
memory too, within bounds, which spares most of these second readings.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from dblog_core.sources.mysql.binlog.events import Event
from dblog_core.sources.mysql.position import Prepared

KEPT = 8 << 20
"""Bytes of prepared rows that are kept in memory, over all transactions."""
KEPT_EACH = 1 << 20
"""Bytes of one transaction's rows beyond which they are not kept."""
_OVERHEAD = 200
"""Bytes that an event costs besides its body, about."""
_STATEMENT = re.compile(r"XA\s+\w+\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)", re.IGNORECASE)


def text(gtrid: bytes, bqual: bytes, form: int) -> str:
    """An xid as `X'gtrid',X'bqual',format`, as the log's statements have it."""
    # The event has 32 bits of the format's number where the statement has all.
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{form & 0xFFFFFFFF}"


def of_statement(sql: str) -> str:
    """The xid of a logged XA statement. Raises ValueError."""
    match = _STATEMENT.search(sql)
    if match is None:
        raise ValueError(f"no xid in {sql[:200]!r}")
    return text(bytes.fromhex(match[1]), bytes.fromhex(match[2]), int(match[3]))


def of_event(body: bytes) -> tuple[bool, str]:
    """Whether an XA_PREPARE event commits at once (ONE PHASE), and its xid. Raises ValueError."""
    one_phase, form, gtrid, bqual = struct.unpack_from("<?III", body)
    data = body[13 : 13 + gtrid + bqual]
    if len(data) != gtrid + bqual:
        raise ValueError("an XA_PREPARE event is cut short")
    return one_phase, text(data[:gtrid], data[gtrid:], form)


@dataclass(slots=True)
class Held:
    """The rows of the group being read, which may not count yet. `events`: None once they are too many to keep."""

    start: int
    before: str | None
    events: list[Event] | None = field(default_factory=list)
    size: int = 0

    def keep(self, event: Event) -> None:
        self.size += len(event.body) + _OVERHEAD
        if self.size > KEPT_EACH:
            self.events = None
        elif self.events is not None:
            self.events.append(event)

    def end(self, event: Event) -> None:
        """Adds the event that ends the group, which tells whoever reads it again where to stop."""
        if self.events is not None:
            self.events.append(event)


class Kept:
    """Rows of prepared transactions by xid; the oldest give way."""

    def __init__(self) -> None:
        self._groups: dict[str, Held] = {}
        self._size = 0

    def put(self, xid: str, held: Held) -> None:
        self.pop(xid)
        if held.events is None:
            return
        self._groups[xid] = held
        self._size += held.size + _OVERHEAD
        while self._size > KEPT:
            self.pop(next(iter(self._groups)))

    def pop(self, xid: str) -> list[Event] | None:
        held = self._groups.pop(xid, None)
        if held is None:
            return None
        self._size -= held.size + _OVERHEAD
        return held.events


@dataclass(slots=True)
class Again:
    """Prepared rows that are due now: `kept` has their events, or else they are read again from `place`.

    `found`: whether what comes next belongs to the group.
    """

    place: Prepared
    kept: Iterator[Event] | None
    found: bool
