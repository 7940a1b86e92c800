"""Column rules that fit no table or no column, and tables that lack rules. A rule that nothing meets would leave in the
open what it is to hide.

`check`, a capture that begins and one whose file has changed ask the catalogue, and so does who requests a dump; the
sequencer asks each shape that the log shows, a worker the shape of each SELECT.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dblog_core.config.source import ColumnRules
from dblog_core.errors import RequestError
from dblog_core.interfaces import Problem
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import quote_for_toml

HIDING = ("exclude", "mask", "hash")
RULES = (*HIDING, "staged_as")


def of_table(
    table: str, columns: Collection[str], key: Collection[str], rules: Mapping[str, ColumnRules]
) -> Iterator[Problem]:
    """Why the rules of a table do not fit its `columns`; each problem stops that table alone."""
    if (without := explain_no_column(table, columns, rules)) is not None:
        yield without
    if (table_rules := rules.get(table)) is None:
        yield from _of_copy(table, columns, rules)
        return
    entry = place(table)
    for rule in RULES:
        for column in getattr(table_rules, rule):
            if column not in columns:
                what = f"{entry} {rule}: {table} has no column {column}"
                yield Problem(what, _column_fix(column, columns), table=table)
            elif column in key:
                what = f"{entry} {rule}: {column} belongs to the key of {table}"
                fix = "the key as it is identifies rows: remove the rule. [source.keys] may name another key"
                yield Problem(what, fix, table=table)


def explain_no_column(table: str, columns: Collection[str], rules: Mapping[str, ColumnRules]) -> Problem | None:
    """That nothing of the table would be staged. It is no reason to refuse all others: such a table has no value."""
    excluded = rules[table].exclude if table in rules else ()
    if set(columns).difference(excluded):
        return None
    fix = "give it a column, leave it out of [source] tables, or exclude fewer columns"
    return Problem(f"{table} has no column to stage", fix, fatal=False, table=table)


def _of_copy(table: str, columns: Collection[str], rules: Mapping[str, ColumnRules]) -> Iterator[Problem]:
    """Why a table without an entry needs one: it is named after a table with rules, and has all columns that these
    hide. Tools that alter tables online, and people who keep an old state, make such copies, and a pattern takes them
    in."""
    for ruled in originals(table, rules):
        hidden = hidden_columns(rules[ruled])
        if hidden and set(hidden) <= set(columns):
            what = f"{table} has no rules, and all columns that the rules of {ruled} hide ({', '.join(hidden)})"
            yield Problem(what, entry_fix(table), table=table)


def hidden_columns(rules: object) -> list[str]:
    """The columns that the rules of a table, if it has any, exclude, mask or hash."""
    return list(dict.fromkeys(column for rule in HIDING for column in getattr(rules, rule, ())))


def refuse_hidden_filters(table: str, filtered: Iterable[str], rules: Mapping[str, ColumnRules]) -> None:
    """Raises RequestError where a filter names a column that a rule hides: which rows pass would tell its values, one
    comparison after the other. The key is never hidden, so keys and ranges of keys tell nothing."""
    table_rules = rules.get(table)
    for column in filtered if table_rules is not None else ():
        if (rule := next((rule for rule in HIDING if column in getattr(table_rules, rule)), None)) is not None:
            raise RequestError(
                f"filter: {place(table)} hides {column} ({rule}), and which rows pass would show its values",
                fix="filter by the key, or by a column that no rule hides",
            )


def entry_fix(table: str) -> str:
    """What to do about a table that lacks rules."""
    return f"give it the entry {place(table)}, empty if nothing is to be hidden; or leave it out of tables"


def originals(table: str, rules: Mapping[str, ColumnRules]) -> list[str]:
    """The tables with rules that a table is named after; none for one that has an entry itself."""
    name = TableName.parse(table).name
    return [] if table in rules else [r for r in rules if _is_named_after(name, TableName.parse(r).name)]


def _is_named_after(name: str, other: str) -> bool:
    """Whether a name is another one with more around it that is not a part of the word: `_orders_gho`, `orders2`."""
    name, other = name.lower(), other.lower()
    at = name.find(other)
    while at >= 0:
        end = at + len(other)
        if not name[max(at - 1, 0) : at].isalpha() and not name[end : end + 1].isalpha():
            return True
        at = name.find(other, at + 1)
    return False


def of_missing(tables: Collection[str], rules: Mapping[str, ColumnRules]) -> Iterator[Problem]:
    """Rules whose table is none of the captured `tables` that exist."""
    for table in rules:
        if table not in tables:
            what = f"{place(table)}: the source has no table {table} among those that it captures"
            yield Problem(what, f"correct the name{_close(table, tables)}, or remove the rules", table=table)


def place(table: str) -> str:
    """Where the rules of a table stand."""
    return f"[source.columns.{quote_for_toml(table)}]"


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
