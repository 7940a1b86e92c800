"""Dumps of whole tables that the system has asked for, that failed for a lasting fault, and that it still owes.

    a dump of the system's ends, and has failed for a table  -> an entry, before the dump's end is recorded
    a term begins (a start, other settings), the table is altered -> it is requested again, at once
    nothing of that                                          -> again after an hour, two, four, … a day
    it fails again                                           -> each wait is twice as long
    a full dump of the table ends in the log, whoever asked  -> forgotten; so is one that somebody cancels

Node `owed` of the state store: {table: {"dump": id of what failed last, "why": text, "times": how often it has failed,
"asked": id of the one that was requested since, or null}}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import orjson

from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.state import compare_and_set

_NODE = "owed"
_LONGEST = 500  # characters of a fault
SOON, SOON_AT_MOST = 1.0, 600.0  # seconds after a failure, where something has changed since
LATER, LATER_AT_MOST = 3600.0, 86_400.0  # seconds after a failure, where nothing has

Entries = dict[str, Json]


def read(state: StateStore) -> Entries:
    """All tables that are owed a dump."""
    entry = state.get(_NODE)
    return {} if entry is None else orjson.loads(entry.data)


def failed(state: StateStore, dump: str, tables: Mapping[str, str]) -> None:
    """Remembers that a dump (its id; empty: its request) has failed for these tables, and why. Raises StateError."""

    def more(known: Entries) -> Entries:
        return {**known, **{table: _entry(known.get(table), dump, why) for table, why in tables.items()}}

    if tables:
        _change(state, more)


def _entry(known: Json | None, dump: str, why: str) -> Json:
    if known is not None and dump and known["dump"] == dump:
        return known  # told twice
    times = 1 if known is None else known["times"] + 1
    return {"dump": dump, "why": why[:_LONGEST], "times": times, "asked": None}


def asked(state: StateStore, dumps: Mapping[str, str | None]) -> None:
    """Remembers which dump was requested for each table; None: that one is gone. Raises StateError."""

    def with_ids(known: Entries) -> Entries:
        return {table: {**e, "asked": dumps.get(table, e["asked"])} for table, e in known.items()}

    if dumps:
        _change(state, with_ids)


def forget(state: StateStore, tables: Iterable[str]) -> None:
    """They are owed nothing any more. Raises StateError."""
    gone = set(tables)
    if gone and gone & read(state).keys():
        _change(state, lambda known: {table: entry for table, entry in known.items() if table not in gone})


def _change(state: StateStore, to: Callable[[Entries], Entries]) -> None:
    compare_and_set.change(state, _NODE, lambda known: to(known) if known is not None else to({}) or None)


class Waits:
    """When each table's dump is requested again, by one leader's own clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._nudged: set[str] = set()
        self._begun = False

    def begin(self, entries: Entries) -> None:
        """The first call alone counts, when a term begins: what is owed by then may do now."""
        if not self._begun:
            self.nudge(entries)
        self._begun = True

    def nudge(self, tables: Iterable[str]) -> None:
        """Something about these tables has changed: their dumps may do now."""
        self._nudged |= set(tables)

    def due(self, entries: Entries) -> list[str]:
        """The tables whose time has come."""
        now, found = self._clock.monotonic(), []
        for table, entry in entries.items():
            times = entry["times"]
            if self._seen.get(table, (0, now))[0] != times:
                self._seen[table] = (times, now)
            if entry["asked"] is None and now - self._seen[table][1] >= self._wait(table, times):
                found.append(table)
        return found

    def done(self, tables: Iterable[str]) -> None:
        """Something was requested for these, or tried in vain: they wait again."""
        self._nudged -= set(tables)

    def _wait(self, table: str, times: int) -> float:
        doubled = 2.0 ** min(times - 1, 20)
        if table in self._nudged:
            return min(SOON * doubled, SOON_AT_MOST)
        return min(LATER * doubled, LATER_AT_MOST)
