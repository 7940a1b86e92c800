"""Dumps of whole tables that the system has asked for, that failed for a lasting fault, and that it still owes.

    a dump of the system's ends, and has failed for a table  -> an entry (any process files it: `failed_dumps`)
    a term begins (a start, other settings), the table is altered -> it is requested again, at once
    a table is captured that has rows and no key             -> an entry: a dump may bring them once it has one
    nothing of that                                          -> again after an hour, two, four, … a day
    it fails again                                           -> each wait is twice as long
    a full dump of the table ends in the log, also a requested one -> forgotten; so is one that somebody cancels

Entry `owed` of the table records: {table: {"dump": id of what failed last, "why": text, "times": how often it has
failed, "asked": id of the one that was requested since, or null}}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import orjson

from dblog_core.interfaces import Clock, Json, Nodes
from dblog_core.state import compare_and_set

KEYLESS = "it has no key, so no dump can bring the rows that it had before its log was read"
NODE = "owed"
_LONGEST = 500  # characters of a fault
_SOON_SECONDS = 1.0  # after a failure, where something has changed since
_SOON_AT_MOST_SECONDS = 600.0
_LATER_SECONDS = 3600.0  # after a failure, where nothing has
_LATER_AT_MOST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class OwedDump:
    """The dump of a table that has failed: its id (empty: its request), why, how often, and the id of the one
    that was requested since."""

    dump: str
    why: str
    times: int
    asked: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["dump"], data["why"], data["times"], data["asked"])

    def to_json(self) -> Json:
        return asdict(self)


Entries = dict[str, OwedDump]
"""By table."""


def read(records: Nodes) -> Entries:
    """All tables that are owed a dump."""
    entry = records.get(NODE)
    return {} if entry is None else _entries(orjson.loads(entry.data))


def record_failures(records: Nodes, dump: str, reasons: Mapping[str, str]) -> None:
    """Remembers that a dump (its id; empty: its request) has failed, and why, by table. Raises StateError."""

    def add_failures(entries: Entries) -> Entries:
        return {**entries, **{table: _failed_again(entries.get(table), dump, why) for table, why in reasons.items()}}

    if reasons:
        _change(records, add_failures)


def _failed_again(before: OwedDump | None, dump: str, why: str) -> OwedDump:
    if before is not None and dump and before.dump == dump:
        return before  # it was recorded before
    times = 1 if before is None else before.times + 1
    return OwedDump(dump, why[:_LONGEST], times)


def record_requests(records: Nodes, dumps: Mapping[str, str | None]) -> None:
    """Remembers which dump was requested for each table; None: that one is gone. Raises StateError."""

    def add_requests(entries: Entries) -> Entries:
        return {table: replace(entry, asked=dumps.get(table, entry.asked)) for table, entry in entries.items()}

    if dumps:
        _change(records, add_requests)


def forget(records: Nodes, tables: Iterable[str]) -> None:
    """They are owed nothing from now on. Raises StateError."""
    paid = set(tables)
    if paid and paid & read(records).keys():
        _change(records, lambda entries: {table: entry for table, entry in entries.items() if table not in paid})


def _change(records: Nodes, to: Callable[[Entries], Entries]) -> None:
    def change_json(data: Any) -> Any:
        after = {table: entry.to_json() for table, entry in to(_entries(data or {})).items()}
        return after if after or data is not None else None

    compare_and_set.change(records, NODE, change_json)


def _entries(data: Mapping[str, Any]) -> Entries:
    return {table: OwedDump.from_json(entry) for table, entry in data.items()}


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
        now = self._clock.monotonic()
        due = []
        for table, entry in entries.items():
            if self._seen.get(table, (0, now))[0] != entry.times:
                self._seen[table] = (entry.times, now)
            waited_seconds = now - self._seen[table][1]
            if entry.asked is None and waited_seconds >= self._wait_seconds(table, entry.times):
                due.append(table)
        return due

    def restart(self, tables: Iterable[str]) -> None:
        """Something was requested for these, or tried in vain: they wait again."""
        self._nudged -= set(tables)

    def _wait_seconds(self, table: str, times: int) -> float:
        doubled = 2.0 ** min(times - 1, 20)
        if table in self._nudged:
            return min(_SOON_SECONDS * doubled, _SOON_AT_MOST_SECONDS)
        return min(_LATER_SECONDS * doubled, _LATER_AT_MOST_SECONDS)
