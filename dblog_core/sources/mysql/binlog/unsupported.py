"""What of the log cannot be followed: why, and the way on. A statement about rows, or about tables that it names, stops
no other table (`LoggedStatements.follow_in_transaction`)."""

from __future__ import annotations

from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.event_groups import Group
from dblog_core.sources.mysql.binlog.events import Type
from dblog_core.sources.mysql.binlog.reach import reached_tables
from dblog_core.sources.mysql.ddl import statement_text
from dblog_core.sources.mysql.ddl.statements import Means, Statement
from dblog_core.sources.mysql.sql.catalogue import TableFilter

Refusal = tuple[str, str]
"""What is wrong, and what to do."""

ROW_FORM = (
    "set binlog_format = ROW for every session; an account that has "
    f"{reached_tables.NEEDED} lets the capture see which tables such a statement reaches, so that no other is dumped"
)
ONE_ENGINE = "use tables of one storage engine in a transaction that rolls back to savepoints"


def of_event(number: int) -> Refusal:
    """Of an event that is neither handled nor harmless."""
    what = f"event {events.name(number)}"
    unknown = "its type is not known here"
    # A server newer than this list: what its event does to rows, nobody here can say.
    if number not in Type._value2member_map_:
        return f"{what}: {unknown}", events.FRESH_START
    kind = Type(number)
    return f"{what}: {events.REFUSED.get(kind, unknown)}", events.FRESH_START


def of_statement(statement: Statement, group: Group) -> Refusal | None:
    """Why the statement cannot be followed, and the way on."""
    match statement.means:
        case Means.COMMIT | Means.ROLLBACK | Means.XA_COMMIT | Means.XA_ROLLBACK if group.undecided:
            return "it ends an XA transaction that is not prepared", events.FRESH_START
    return None


def is_unknown(statement: Statement, tables: TableFilter) -> bool:
    """Whether nobody can say what the statement did to captured tables."""
    if statement.means is Means.CHANGES_ROWS:
        return False  # which changes rows alone
    return statement.means is Means.UNKNOWN or _has_unread_name(statement, tables)


def _has_unread_name(statement: Statement, tables: TableFilter) -> bool:
    """Whether a name in a statement about tables may be a captured one's and cannot be read."""
    if statement.means is Means.HARMLESS and not statement.alters:
        return False
    # The name may be that of a captured table in another character set: it is not guessed.
    unread = [name for name in statement.tables if not statement_text.is_read(str(name))]
    if any(not statement_text.is_read(name.schema) or _may_be_captured(name.schema, tables) for name in unread):
        return True
    return not statement_text.is_read(statement.schema)


def _may_be_captured(schema: str, tables: TableFilter) -> bool:
    return tables.wants_schema(schema, any_case=True)
