"""Tables that stop alone: captured ones that the source now refuses, or of which rows were passed over.

    a table loses its key, or holds a value or takes a shape without an exact form
                           -> the log says so before its next row (`Unreadable`), or `Newcomers` finds it out
    a rule's column goes   -> the log's next shape of the table says so, or `Newcomers` finds it out
    columns are hidden, and it is not proven to be what was accepted
                           -> `table_guard` holds it; the manifest knows, and this entry tells people
    while it is stopped    -> its rows, shapes and TRUNCATE are passed over; the others never notice
    it is repaired         -> the next `SchemaSeen` of the log, or a new term, has it dumped; only then it is forgotten

Entry `stopped` of the table records: {table: {"why": text, "fix": text, "by": "log" | "source" | "either" | "rules"}}.
The manifest that goes past the first row which was passed over has it, and the one that follows the request of a dump
has it no longer: a crash anywhere at worst dumps twice. `by` says who tells that the table is repaired: the log's own
next shape of it, the catalogue, either of them, whichever is first, or a person who changes the table's rules or
accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import orjson

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Json, Nodes, Problem
from dblog_core.model.events import Unreadable
from dblog_core.model.table_stamp import PublicationStamp
from dblog_core.state import compare_and_set, settings_in_force

NODE = "stopped"
HELD_NODES = (NODE, settings_in_force.NODE)
"""What `read_held` reads."""


class RepairSeenBy(StrEnum):
    """Who shows that a stopped table is readable again."""

    LOG = "log"
    SOURCE = "source"
    EITHER = "either"
    RULES = "rules"


@dataclass(frozen=True, slots=True)
class StoppedTable:
    """Why a table is stopped, what repairs it, and who shows that it is repaired."""

    why: str
    fix: str
    by: RepairSeenBy

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["why"], data["fix"], RepairSeenBy(data["by"]))

    def to_json(self) -> Json:
        return {**asdict(self), "by": self.by.value}

    def describe(self) -> str:
        """What `status` says of the table."""
        return f"the capture has stopped this table: {self.why}\n  fix: {self.fix}"


Entries = dict[str, StoppedTable]
"""By table."""


def read(records: Nodes) -> Entries:
    """All stopped tables."""
    entry = records.get(NODE)
    return {} if entry is None else _entries(orjson.loads(entry.data))


def entries_by_source(problems: Iterable[Problem]) -> Entries:
    """The entries of tables that the source refuses."""
    problems_of: dict[str, list[Problem]] = {}
    for problem in problems:
        if problem.table is not None:
            problems_of.setdefault(problem.table, []).append(problem)
    entries = {}
    for table, refusals in problems_of.items():
        why = "; ".join(problem.what for problem in refusals)
        fix = "; ".join(problem.fix for problem in refusals)
        entries[table] = StoppedTable(why, fix, RepairSeenBy.SOURCE)
    return entries


def look_again(records: Nodes, refused: Callable[[], Iterable[Problem]]) -> bool:
    """Notes what the source now refuses; whether something that it has refused before is repaired.

    `refused` is asked after the node was read, and again where an entry came or went meanwhile: its answer may be of
    before, and a table that the log has since shown to be repaired would be stopped once more. Raises StateError, and
    what `refused` raises.
    """
    mended = False

    def add_refused(stopped: Entries) -> Entries:
        nonlocal mended
        of_source = entries_by_source(refused())
        by_source = (RepairSeenBy.SOURCE, RepairSeenBy.EITHER)
        seen_by_source = [name for name, entry in stopped.items() if entry.by in by_source]
        mended = any(name not in of_source for name in seen_by_source)
        return {**stopped, **of_source, **find_held(stopped)}

    change(records, add_refused)
    return mended


def add_by_log(records: Nodes, table: str, fault: Unreadable) -> None:
    """Remembers a table of which rows are passed over from here on. Where the source refuses the table too, its
    catalogue shows when it is repaired."""
    by = RepairSeenBy.RULES if fault.is_held else RepairSeenBy.EITHER if fault.refused else RepairSeenBy.LOG
    stopped = StoppedTable(fault.why, fault.fix, by)
    # A table that is held counts before all else: whatever else is repaired must not show it in the open.
    change(records, lambda entries: {**entries, table: stopped} if fault.is_held else {table: stopped, **entries})


def held_entries(held: Mapping[str, Problem]) -> Entries:
    """The entries of tables that are held until a person accepts them."""
    return {table: StoppedTable(p.what, p.fix, RepairSeenBy.RULES) for table, p in held.items()}


def find_held(entries: Entries) -> Entries:
    """Those that are held until a person accepts them."""
    return {table: entry for table, entry in entries.items() if entry.by == RepairSeenBy.RULES}


def add_left_out(records: Nodes, tables: Mapping[str, PublicationStamp]) -> None:
    """Remembers tables whose changes the source no longer shows: `prepare` repairs that, or names the statement."""
    if tables:
        left_out = {name: StoppedTable(at.lacks, at.fix, RepairSeenBy.SOURCE) for name, at in tables.items()}
        change(records, lambda entries: {**left_out, **entries})


def owe(records: Nodes, tables: Iterable[str]) -> None:
    """The tables are readable again, and could not be dumped yet: the catalogue shows when they can."""
    readable = set(tables)

    def await_source(entries: Entries) -> Entries:
        waiting = {table: entries[table] for table in entries.keys() & readable}
        return {**entries, **{table: replace(entry, by=RepairSeenBy.SOURCE) for table, entry in waiting.items()}}

    change(records, await_source)


def forget(records: Nodes, tables: Iterable[str]) -> None:
    """The dumps of these tables are requested."""
    requested = set(tables)
    change(records, lambda entries: {table: entry for table, entry in entries.items() if table not in requested})


def change(records: Nodes, to: Callable[[Entries], Entries]) -> None:
    """Changes the node. Raises StateError."""

    def change_json(data: Any) -> Any:
        after = {table: entry.to_json() for table, entry in to(_entries(data or {})).items()}
        return after if after or data is not None else None

    compare_and_set.change(records, NODE, change_json)


def read_held(records: Nodes, source: SourceConfig) -> Entries:
    """The tables that are held, and for which this configuration has no other rules than those in force."""
    if not source.columns:  # the store is not asked for the sake of rules that nobody has
        return {}
    held = find_held(read(records))
    return {t: entry for t, entry in held.items() if settings_in_force.has_same_rules(records, source, t)}


def _entries(data: Mapping[str, Any]) -> Entries:
    return {table: StoppedTable.from_json(entry) for table, entry in data.items()}
