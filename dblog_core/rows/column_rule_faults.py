"""Column rules that fit no table or no column. A rule that nothing meets would leave in the open what it is to hide.

`check`, a capture that begins and one whose file has changed ask the catalogue, and so does who requests a dump; the
sequencer asks each shape that the log shows, a worker the shape of each SELECT.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from dblog_core.config.source import ColumnRules
from dblog_core.interfaces import Problem

RULES = ("exclude", "mask", "hash", "staged_as")


def of_table(
    table: str, columns: Collection[str], key: Collection[str], rules: Mapping[str, ColumnRules]
) -> Iterator[Problem]:
    """Why the rules of a table do not fit its `columns`; each problem stops that table alone."""
    table_rules = rules.get(table, ColumnRules())
    place = f'[source.columns."{table}"]'
    for rule in RULES:
        for column in getattr(table_rules, rule):
            if column not in columns:
                what = f"{place} {rule}: {table} has no column {column}"
                yield Problem(what, _column_fix(column, columns), table=table)
            elif column in key:
                what = f"{place} {rule}: {column} belongs to the key of {table}"
                fix = "the key as it is identifies rows: remove the rule. [source.keys] may name another key"
                yield Problem(what, fix, table=table)


def of_missing(tables: Collection[str], rules: Mapping[str, ColumnRules]) -> Iterator[Problem]:
    """Rules whose table is none of the captured `tables` that exist."""
    for table in rules:
        if table not in tables:
            what = f'[source.columns."{table}"]: the source has no table {table} among those that it captures'
            yield Problem(what, f"correct the name{_close(table, tables)}, or remove the rules", table=table)


def join_problems(problems: Sequence[Problem]) -> Problem | None:
    """All problems of one table as one; None where there is none."""
    if not problems:
        return None
    return replace(problems[0], what="; ".join(p.what for p in problems), fix="; ".join(p.fix for p in problems))


def _column_fix(column: str, columns: Collection[str]) -> str:
    hint = _close(column, columns)
    return f"correct the rule's column{hint}, or remove it from the rule; its columns are {', '.join(sorted(columns))}"


def _close(name: str, names: Collection[str]) -> str:
    """The name that was probably meant, where there is one: another case first."""
    similar = [other for other in names if other.lower() == name.lower()] or difflib.get_close_matches(name, names, 1)
    return f" (to {similar[0]}?)" if similar else ""
