"""Statements of the log: what they do to rows and columns of captured tables, as signals of a batch."""

from __future__ import annotations

from collections.abc import Iterable

from dblog_core.model.events import Altered, Created, DatabaseDropped, Rewritten, RowsMoved, Truncated
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog import events, unsupported
from dblog_core.sources.mysql.binlog.event_groups import EventGroups, Group
from dblog_core.sources.mysql.binlog.row_intake import RowIntake
from dblog_core.sources.mysql.ddl import alter_table, statement_text
from dblog_core.sources.mysql.ddl.statements import Means, Statement, classify
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets


class LoggedStatements:
    """Reads the statements of QUERY events, and passes on what they do."""

    def __init__(
        self, tables: TableFilter, charsets: Charsets, groups: EventGroups, rows: RowIntake, *, any_case: bool
    ) -> None:
        self._tables = tables
        self._charsets = charsets
        self._groups = groups
        self._rows = rows
        self._any_case = any_case
        self._wants = tables.may_want if any_case else tables.wants

    def read(self, body: bytes) -> tuple[Statement, str]:
        """A QUERY event's statement as the server reads it, and its text."""
        schema, raw = events.query_bytes(body)
        sql = statement_text.decode_statement(raw, events.client_collation(body), self._charsets)
        return classify(sql, schema, any_case=self._any_case), sql

    def refuse_unsupported(self, statement: Statement, sql: str, group: Group) -> None:
        """Raises UnknownLogEvent where nobody can say what the statement did."""
        refusal = unsupported.of_statement(statement, group, self._tables, any_case=self._any_case)
        if refusal is not None:
            why, fix = refusal
            raise self._groups.unknown_error(f"statement {sql[:200]!r}: {why}", fix=fix)

    def follow(self, statement: Statement, sql: str, body: bytes, group: Group) -> None:
        """Passes on what the statement of this QUERY event's `body` did, in the order in which a reader needs it."""
        self._rows.unread.follow(statement)
        self._follow_lost_rows(statement, group)
        self._follow_columns(statement, sql, events.sql_mode(body), group)
        # MySQL logs IF NOT EXISTS also where the table was there, with all its rows.
        if statement.makes and (not statement.if_missing or events.took_effect(body)):
            self._signal(Created, statement.tables, group)

    def _follow_columns(self, statement: Statement, sql: str, sql_mode: int | None, group: Group) -> None:
        """DDL may have changed the columns of a table, also where its shape looks the same."""
        # TRUNCATE leaves the columns as they are; DROP and CREATE OR REPLACE, which empty too, do not.
        if statement.means is Means.EMPTIES and sql.lstrip()[:8].upper() == "TRUNCATE":
            return
        step = None if statement.versions is not None else alter_table.step(sql, sql_mode)
        if step == alter_table.NOTHING and not alter_table.may_retype(sql):
            return
        batch = self._rows.batch
        for table in filter(self._tables.may_want, statement.tables):
            self._rows.forget_shape(table)
            index = batch.transaction(group.transaction)
            batch.signal(Altered(batch.next_sequence, index, table, step, self._any_case, statement.shapes))
        # The server writes no row events for what an ALTER makes of values.
        if statement.alters and (step is None or step.revalued):
            self._signal(Rewritten, statement.tables, group)

    def _follow_lost_rows(self, statement: Statement, group: Group) -> None:
        """Rows that come or go without row events."""
        match statement.means:
            # Rows of a dropped partition have no row events; which ones there were, only the table can show.
            case Means.DROPS_PARTITIONS:
                self._signal(Rewritten, statement.tables, group)
            case Means.DROPS_SCHEMA if self._tables.wants_schema(statement.schema, any_case=self._any_case):
                self._rows.forget_shapes_of_schema(statement.schema)
                batch = self._rows.batch
                index = batch.transaction(group.transaction)
                batch.signal(DatabaseDropped(batch.next_sequence, index, statement.schema, self._any_case))
            case Means.EMPTIES | Means.SWAPS:
                for table in statement.tables:
                    self._rows.forget_shape(table)
                if statement.means is Means.SWAPS:
                    self._move_rows(statement, group)
                emptied = statement.tables if statement.means is Means.EMPTIES else statement.renamed_away
                self._signal(Truncated, emptied, group)
                self._signal(Rewritten, (table for table in statement.tables if table not in emptied), group)

    def _move_rows(self, statement: Statement, group: Group) -> None:
        batch = self._rows.batch
        tables = tuple(filter(self._wants, statement.tables))
        left = tuple(table for table in tables if table not in statement.renamed_away)
        if not left or len(tables) == 1:
            return
        index = batch.transaction(group.transaction)
        batch.signal(RowsMoved(batch.next_sequence, index, tables, left, self._any_case))

    def _signal(self, kind: type[Created | Truncated | Rewritten], tables: Iterable[TableName], group: Group) -> None:
        batch = self._rows.batch
        for table in filter(self._wants, tables):
            index = batch.transaction(group.transaction)
            batch.signal(kind(batch.next_sequence, index, table, self._any_case))
