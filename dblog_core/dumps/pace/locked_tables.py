"""Tables that somebody keeps locked: their tasks rest while a process works on all others.

A worker waits for a lock only briefly. Then the table rests, longer each time, and all workers of the process pass its
tasks over; so a locked table costs them a small part of their time, however many tables are locked.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dblog_core.errors import SourceError
from dblog_core.interfaces import Source
from dblog_core.model.schema import TableName

LOCK_SECONDS = 1.0
"""How long a worker waits for a table that somebody has locked, before it turns to another one."""
_FIRST_REST_SECONDS = 1.0
_LONGEST_REST_SECONDS = 10.0
_SECONDS_EACH = 4 * LOCK_SECONDS
"""A rest lasts so long for each other locked table: of many, each is tried more rarely."""
_FORGOTTEN_SECONDS = 60.0
"""After a rest: no worker tries the table now."""


def explain_lock(source: Source, table: TableName) -> str:
    """Why nobody can read the table now, and who keeps it locked, as far as the server tells."""
    try:
        holder = source.find_lock_holder(table)
    except SourceError:
        holder = None
    return f"{table} is locked by {holder}" if holder else f"somebody has locked {table}"


@dataclass(slots=True)
class _Rest:
    tries: int
    until: float


class LockedTables:
    """What the workers of one process know of locked tables; times are those of its monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rests: dict[str, _Rest] = {}

    def record_locked(self, table: str, now: float) -> bool:
        """A worker has waited for the table in vain; whether nobody in this process knew that it is locked."""
        with self._lock:
            self._rests = {t: rest for t, rest in self._rests.items() if now < rest.until + _FORGOTTEN_SECONDS}
            rest = self._rests.get(table)
            if rest is not None and now < rest.until:
                return False  # another worker has tried at the same time
            tries = 0 if rest is None else rest.tries + 1
            doubled = min(_FIRST_REST_SECONDS * 2.0 ** min(tries, 10), _LONGEST_REST_SECONDS)
            self._rests[table] = _Rest(tries, now)
            self._rests[table].until = now + max(doubled, _SECONDS_EACH * (len(self._rests) - 1))
            return rest is None

    def record_free(self, table: str) -> None:
        """The table was read."""
        with self._lock:
            self._rests.pop(table, None)

    def is_locked(self, table: str) -> bool:
        """Whether the table was locked when a worker tried it last."""
        with self._lock:
            return table in self._rests

    def rests(self, table: str, now: float) -> bool:
        """Whether no worker is to try the table yet."""
        with self._lock:
            rest = self._rests.get(table)
            return rest is not None and now < rest.until

    def seconds_to_next_try(self, now: float) -> float | None:
        """Until a worker tries the first of them again; None where no table rests."""
        with self._lock:
            waits = [rest.until - now for rest in self._rests.values() if rest.until > now]
        return min(waits, default=None)
