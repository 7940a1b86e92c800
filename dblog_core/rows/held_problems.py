"""What `status`, `check` and errors say of a table that is held."""

from __future__ import annotations

from dblog_core.interfaces import Problem
from dblog_core.model.table_names import quote_for_shell
from dblog_core.rows import column_rule_faults
from dblog_core.rows.acceptance import Held

_WHY = {
    Held.ARRIVED: "it, or rows of it, had another name before (RENAME, a swap, an attached partition)",
    Held.BESIDE: "it is a partition that is logged under its own name. A table above it, or another partition, "
    "hides columns, or a table above it had another name before",
    Held.RESHAPED: "its columns are not those that were accepted",
    Held.ALTERED: "it was altered, and it is not certain that its columns are those that were accepted",
    Held.UNKNOWN: "the log has a statement of which nobody knows what it did to which table",
    Held.UNWATCHED: "nobody has read the log from where it was made, or accepted, up to here",
}


def explain(table: str, reason: Held | None) -> Problem:
    """Why a table is held, and what a person does about it."""
    why = _WHY.get(reason, "it is not accepted") if reason is not None else "it is not accepted"
    what = f"{table} is held, since columns of this source are hidden: {why}"
    fix = (
        f"look at its columns. If the entry {column_rule_faults.place(table)}, or none, hides all that is to be hidden:"
        f" `dblog rules accept {quote_for_shell(table)}`. Otherwise change the entry"
    )
    return Problem(what, fix, table=table)
