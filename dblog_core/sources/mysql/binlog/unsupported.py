"""What of the log cannot be followed: why, and the way on."""

from __future__ import annotations

from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.event_groups import Group
from dblog_core.sources.mysql.binlog.events import Type
from dblog_core.sources.mysql.ddl import statement_text
from dblog_core.sources.mysql.ddl.statements import Means, Statement
from dblog_core.sources.mysql.sql.catalogue import TableFilter

Refusal = tuple[str, str]
"""What is wrong, and what to do."""


def of_event(number: int) -> Refusal:
    """Of an event that is neither handled nor harmless."""
    what = f"event {events.name(number)}"
    unknown = "its type is not known here"
    # A server newer than this list: what its event does to rows, nobody here can say.
    if number not in Type._value2member_map_:
        return f"{what}: {unknown}", events.FRESH_START
    kind = Type(number)
    return f"{what}: {events.REFUSED.get(kind, unknown)}", events.FIXES.get(kind, events.FRESH_START)


def of_statement(statement: Statement, group: Group, tables: TableFilter, *, any_case: bool) -> Refusal | None:
    """Why the statement cannot be followed, and the way on."""
    if unread := _unread(statement, tables):
        return f"it names {unread}, which is no text in its session's character set", events.FRESH_START
    match statement.means:
        case Means.COMMIT | Means.ROLLBACK | Means.XA_COMMIT | Means.XA_ROLLBACK if group.undecided:
            return "it ends an XA transaction that is not prepared", events.FRESH_START
        case Means.ROLLBACK | Means.ROLLBACK_TO if group.has_changes:
            return (
                "rows that the log holds were rolled back (a transaction over several storage engines)",
                events.FRESH_START,
            )
        case Means.REWRITES if any((tables.may_want if any_case else tables.wants)(t) for t in statement.tables):
            return "it changes rows of a captured table without row events", events.FRESH_START
        # `binlog_format` is a session's setting too: that of the server may say ROW all the time.
        case Means.CHANGES_ROWS:
            return (
                "rows were changed in statement form",
                f"set binlog_format = ROW for every session; {events.FRESH_START}",
            )
        case Means.UNKNOWN:
            return "it is not a statement that is known here", events.FRESH_START
    return None


def _unread(statement: Statement, tables: TableFilter) -> str | None:
    """A name in a statement about rows that may be a captured one and cannot be read, as Python spells it."""
    if statement.means is Means.HARMLESS and not statement.alters:
        return None
    for name in statement.tables:
        # The name may be that of a captured table in another character set: it is not guessed.
        if not statement_text.is_read(str(name)) and _may_be_captured(name.schema, tables):
            return ascii(str(name))
    unread = not statement_text.is_read(statement.schema)
    return ascii(statement.schema) if unread else None


def _may_be_captured(schema: str, tables: TableFilter) -> bool:
    return not statement_text.is_read(schema) or tables.wants_schema(schema, any_case=True)
