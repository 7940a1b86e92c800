"""Statements of the log: what they do to rows and columns of captured tables, as signals of a batch."""

from __future__ import annotations

from collections.abc import Iterable

from dblog_core.model.events import (
    Altered,
    ChangedByStatement,
    Created,
    DatabaseDropped,
    Rewritten,
    RowsMoved,
    Truncated,
)
from dblog_core.model.schema import TableName, to_lower_case
from dblog_core.sources.mysql.binlog import events, unsupported
from dblog_core.sources.mysql.binlog.event_groups import EventGroups, Group
from dblog_core.sources.mysql.binlog.reach.statement_reach import StatementReach
from dblog_core.sources.mysql.binlog.row_intake import RowIntake
from dblog_core.sources.mysql.ddl import alter_table, statement_text
from dblog_core.sources.mysql.ddl.altered_columns import Reading
from dblog_core.sources.mysql.ddl.known_forms import KnownForms
from dblog_core.sources.mysql.ddl.statements import Means, Statement, classify, describe
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets


class LoggedStatements:
    """Reads the statements of QUERY events, and passes on what they do."""

    def __init__(
        self,
        tables: TableFilter,
        charsets: Charsets,
        groups: EventGroups,
        rows: RowIntake,
        forms: KnownForms,
        reach: StatementReach,
        *,
        any_case: bool,
    ) -> None:
        self._tables = tables
        self._charsets = charsets
        self._groups = groups
        self._rows = rows
        self._forms = forms
        self._ruled = {TableName.parse(name).in_lower_case for name in tables.columns}
        self._reach = reach
        self._any_case = any_case
        self._wants = tables.may_want if any_case else tables.wants

    def read(self, body: bytes) -> tuple[Statement, str]:
        """A QUERY event's statement as the server reads it, and its text."""
        schema, raw = events.query_bytes(body)
        sql = statement_text.decode_statement(raw, events.client_collation(body), self._charsets)
        return classify(sql, schema, any_case=self._any_case), sql

    def refuse_unsupported(self, statement: Statement, sql: str, group: Group) -> None:
        """Raises UnknownLogEvent where the log after the statement cannot be followed."""
        refusal = unsupported.of_statement(statement, group)
        if refusal is not None:
            why, fix = refusal
            raise self._groups.unknown_error(f"{describe(statement, sql)}: {why}", fix=fix)

    def follow_in_transaction(self, statement: Statement, sql: str, body: bytes, group: Group) -> None:
        """Passes on what the statement of this QUERY event's `body` does to rows, where no row event says it."""
        if unsupported.is_unknown(statement, self._tables):
            what = f"{describe(statement, sql)}: the capture does not know what it did"
            self._signal_changed(None, what, "", group, reshapes=True)
            return
        match statement.means:
            case Means.SAVEPOINT:
                group.changed.set_savepoint(statement.savepoint)
            case Means.ROLLBACK | Means.ROLLBACK_TO:
                if tables := group.changed.roll_back(statement.savepoint):
                    what = f"{describe(statement, sql)}: row events that the log holds were rolled back"
                    self._signal_changed(frozenset(tables), what, unsupported.ONE_ENGINE, group, any_case=False)
            case Means.CHANGES_ROWS | Means.REWRITES:
                self._follow_row_change(statement, sql, body, group)

    def _follow_row_change(self, statement: Statement, sql: str, body: bytes, group: Group) -> None:
        """Passes on a change of rows in statement form."""
        databases = None if self._rows.numbers.mariadb else events.opened_databases(body)
        if databases is not None:
            databases = frozenset(filter(self._may_have_captured_tables, databases))
            if not databases:
                return
        if statement.means is Means.REWRITES:
            made = frozenset(statement.tables)
            reached = self._reach.extend(made, sql)
            tables = None if reached is None else reached | made
        else:
            tables = self._reach.find(sql, statement.schema)
        wanted = None if tables is None else frozenset(filter(self._wants, tables))
        if wanted is None or wanted:
            what = f"{describe(statement, sql)}: rows were changed in statement form"
            schemas = None if databases is None else frozenset(map(self._fold, databases))
            self._signal_changed(wanted, what, unsupported.ROW_FORM, group, schemas=schemas)

    def _may_have_captured_tables(self, database: str) -> bool:
        return not statement_text.is_read(database) or self._tables.wants_schema(database, any_case=True)

    def _fold(self, name: str) -> str:
        """The name as statements have it here (`classify`)."""
        return to_lower_case(name) if self._any_case else name

    def follow(self, statement: Statement, sql: str, body: bytes, group: Group, *, of_session: bool) -> None:
        """Passes on what the statement of this QUERY event's `body` did, in the order in which a reader needs it.
        `of_session`: as `Event` has it."""
        if not statement_text.is_read(statement.schema):
            return  # it may have been about any table
        statement = statement.with_tables_of(statement_text.is_read)
        self._rows.unread.follow(statement)
        self._follow_lost_rows(statement, group, of_session=of_session)
        self._follow_columns(statement, sql, events.sql_mode(body), group)
        # MySQL logs IF NOT EXISTS also where the table was there, with all its rows.
        if statement.makes and (not statement.if_missing or events.took_effect(body)):
            self._signal(Created, statement.tables, group)

    def _follow_columns(self, statement: Statement, sql: str, sql_mode: int | None, group: Group) -> None:
        """DDL may have changed the columns of a table, also where its shape looks the same."""
        # TRUNCATE leaves the columns as they are; DROP and CREATE OR REPLACE, which empty too, do not.
        if statement.means is Means.EMPTIES and sql.lstrip()[:8].upper() == "TRUNCATE":
            return
        tables = tuple(filter(self._tables.may_want, statement.tables))
        if not tables:
            return
        reading = None if statement.versions is not None else self._read_alter(statement, sql, sql_mode)
        for table in statement.tables:
            # Where the table was there, such a statement has done nothing; where it was not, nothing is known of it.
            stays = self._forms.at(table, self._groups.position) if statement.if_missing else None
            self._forms.put(table, stays if reading is None else reading.after)
            self._rows.expect_other_types(table)
        step = None if reading is None else reading.step
        keeps_values = not statement.alters or (reading is not None and reading.keeps_values)
        if step == alter_table.NOTHING and keeps_values and not alter_table.may_retype(sql):
            return
        batch = self._rows.batch
        for table in tables:
            self._rows.forget_shape(table)
            index = batch.transaction(group.transaction)
            anew = statement.creates or statement.means is Means.EMPTIES or table in statement.renamed_away
            batch.signal(Altered(batch.next_sequence, index, table, step, self._any_case, statement.shapes, anew))
        # The server writes no row events for what an ALTER makes of values.
        if not keeps_values:
            self._signal(Rewritten, statement.tables, group)

    def _read_alter(self, statement: Statement, sql: str, sql_mode: int | None) -> Reading | None:
        """What an ALTER TABLE does to its table; None: nobody knows, or it is another statement."""
        if len(statement.tables) != 1:
            return None
        table = statement.tables[0]
        before = self._forms.at(table, self._groups.position)
        return alter_table.read(sql, sql_mode, before, plain=table.in_lower_case not in self._ruled)

    def _follow_lost_rows(self, statement: Statement, group: Group, *, of_session: bool) -> None:
        """Rows that come or go without row events. Of a session that has temporary tables (`of_session`) TRUNCATE and
        RENAME may be about one of these, which may have the name of a captured table: only the table itself tells. DROP
        is logged with the word TEMPORARY."""
        match statement.means:
            # Rows of a dropped partition have no row events; which ones there were, only the table can show.
            case Means.DROPS_PARTITIONS:
                self._signal(Rewritten, statement.tables, group)
            case Means.DROPS_SCHEMA if self._tables.wants_schema(statement.schema, any_case=self._any_case):
                self._rows.forget_shapes_of_schema(statement.schema)
                self._forms.forget_schema(statement.schema)
                batch = self._rows.batch
                index = batch.transaction(group.transaction)
                batch.signal(DatabaseDropped(batch.next_sequence, index, statement.schema, self._any_case))
            case Means.EMPTIES | Means.SWAPS:
                for table in statement.tables:
                    self._rows.forget_shape(table)
                if statement.means is Means.SWAPS:
                    self._move_rows(statement, group)
                emptied = statement.tables if statement.means is Means.EMPTIES else statement.renamed_away
                is_unsure = of_session and (statement.truncates or statement.means is Means.SWAPS)
                # Under a name that is gone no dump would come, and rows would stay.
                self._signal(Truncated, () if is_unsure and statement.truncates else emptied, group)
                unproven = (table for table in statement.tables if is_unsure or table not in emptied)
                self._signal(Rewritten, unproven, group)

    def _signal_changed(
        self,
        tables: frozenset[TableName] | None,
        what: str,
        fix: str,
        group: Group,
        *,
        schemas: frozenset[str] | None = None,
        reshapes: bool = False,
        any_case: bool | None = None,
    ) -> None:
        batch = self._rows.batch
        index = batch.transaction(group.transaction)
        folds = self._any_case if any_case is None else any_case
        batch.signal(ChangedByStatement(batch.next_sequence, index, tables, what, fix, schemas, reshapes, folds))

    def _move_rows(self, statement: Statement, group: Group) -> None:
        """Wherever the rows come from: also from tables, databases and files that nobody captures."""
        batch = self._rows.batch
        left = tuple(t for t in statement.tables if self._wants(t) and t not in statement.renamed_away)
        if left:
            index = batch.transaction(group.transaction)
            batch.signal(RowsMoved(batch.next_sequence, index, left, self._any_case))

    def _signal(self, kind: type[Created | Truncated | Rewritten], tables: Iterable[TableName], group: Group) -> None:
        batch = self._rows.batch
        for table in filter(self._wants, tables):
            index = batch.transaction(group.transaction)
            batch.signal(kind(batch.next_sequence, index, table, self._any_case))
