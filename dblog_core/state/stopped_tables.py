"""Tables that stop alone: captured ones that the source refuses by now, or of which rows were passed over.

    a table loses its key, or holds a value or takes a shape without an exact form
                           -> the log says so before its next row (`Unreadable`), or `Newcomers` finds it out
    a rule's column goes   -> the log's next shape of the table says so, or `Newcomers` finds it out
    while it is stopped    -> its rows, shapes and TRUNCATE are passed over; the others never notice
    it is mended           -> the next `SchemaSeen` of the log, or a new term, has it dumped; only then it is forgotten

Node `stopped` of the state store: {table: {"why": text, "fix": text, "by": "log" | "source" | "either"}}. An entry
is made before the manifest that goes past the first row which was passed over, and goes after the dump was requested: a
crash anywhere at worst dumps twice. `by` says who tells that the table is mended: the log's own next shape of it, the
catalogue, or either of them, whichever is first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import orjson

from dblog_core.interfaces import Problem, StateStore
from dblog_core.state import compare_and_set

_NODE = "stopped"

LOG, SOURCE, EITHER = "log", "source", "either"

Entries = dict[str, dict[str, str]]


def read(state: StateStore) -> Entries:
    """All stopped tables."""
    entry = state.get(_NODE)
    return {} if entry is None else orjson.loads(entry.data)


def told(entry: Mapping[str, str]) -> str:
    """What `status` says of a table."""
    return f"the capture has stopped this table: {entry['why']}\n  fix: {entry['fix']}"


def by_source(problems: Iterable[Problem]) -> Entries:
    """The entries of tables that the source refuses."""
    found: dict[str, list[Problem]] = {}
    for problem in problems:
        if problem.table is not None:
            found.setdefault(problem.table, []).append(problem)
    return {
        table: _entry("; ".join(p.what for p in own), "; ".join(p.fix for p in own), SOURCE)
        for table, own in found.items()
    }


def add_by_log(state: StateStore, table: str, why: str, fix: str, *, refused: bool = False) -> None:
    """Remembers a table of which rows are passed over from here on. `refused`: the source refuses the table too, so
    that its catalogue tells when it is mended."""
    change(state, lambda known: {table: _entry(why, fix, EITHER if refused else LOG), **known})


def owe(state: StateStore, tables: Iterable[str]) -> None:
    """The tables are readable again, and could not be dumped yet: the catalogue tells when they can."""
    readable = set(tables)

    def owed(known: Entries) -> Entries:
        return {**known, **{table: {**known[table], "by": SOURCE} for table in known.keys() & readable}}

    change(state, owed)


def forget(state: StateStore, tables: Iterable[str]) -> None:
    """The dumps of these tables are requested."""
    gone = set(tables)
    change(state, lambda known: {table: entry for table, entry in known.items() if table not in gone})


def change(state: StateStore, to: Callable[[Entries], Entries]) -> None:
    """Changes the node. Raises StateError."""
    compare_and_set.change(state, _NODE, lambda known: to(known) if known is not None else to({}) or None)


def _entry(why: str, fix: str, by: str) -> dict[str, str]:
    return {"why": why, "fix": fix, "by": by}
