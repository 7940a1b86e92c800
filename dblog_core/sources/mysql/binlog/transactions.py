"""The mode in which the log is followed: which events begin and end transactions, and what statements stand in them."""

from __future__ import annotations

from collections.abc import Callable

from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.event_groups import EventGroups
from dblog_core.sources.mysql.binlog.events import GTIDS, Event, GtidEvent, Type
from dblog_core.sources.mysql.binlog.logged_statements import LoggedStatements
from dblog_core.sources.mysql.binlog.row_intake import RowIntake
from dblog_core.sources.mysql.binlog.xa.transactions import XaTransactions
from dblog_core.sources.mysql.ddl.statements import Means
from dblog_core.sources.mysql.row_events.table_ids import TableNumbers


class Transactions:
    """Takes the events between rows, in log order. `handlers`: what each of them means."""

    def __init__(
        self,
        groups: EventGroups,
        statements: LoggedStatements,
        rows: RowIntake,
        xa: XaTransactions,
        numbers: TableNumbers,
        *,
        mariadb: bool,
        loses_commits: bool,
    ) -> None:
        """`loses_commits`: whether a crash of the server may leave tables and log without changes of each other."""
        self._groups = groups
        self._statements = statements
        self._rows = rows
        self._xa = xa
        self._mariadb = mariadb
        self._loses_commits = loses_commits
        self.handlers: dict[int, Callable[[Event], None]] = {
            Type.FORMAT_DESCRIPTION: lambda _: numbers.forget(),  # the server may have restarted
            Type.ROTATE: self._rotate,
            Type.STOP: groups.close_file,
            Type.HEARTBEAT: groups.follow_heartbeat,
            **dict.fromkeys(GTIDS, lambda event: self._begin(GTIDS[event.type](event))),
            Type.QUERY: lambda event: self._take_statement(event.body, event),
            Type.QUERY_COMPRESSED: lambda event: self._take_statement(events.uncompressed_query(event.body), event),
            Type.EXECUTE_LOAD_QUERY: lambda event: self._take_statement(events.load_statement(event.body), event),
            # COMMIT, where an engine with transactions took part; otherwise it is a QUERY.
            Type.XID: self._commit,
            Type.XA_PREPARE: xa.prepare,
        }

    def _rotate(self, event: Event) -> None:
        if self._groups.rotate(event) and self._loses_commits:
            self._rows.report_crash()

    def _begin(self, gtid: GtidEvent) -> None:
        # MariaDB has no BEGIN: the GTID event says whether a single statement or a transaction follows.
        has_begin = self._mariadb and not gtid.standalone
        group = self._groups.open(gtid.gtid, gtid.commit_time, has_begin=has_begin)
        group.is_undone = gtid.undone
        if gtid.prepared:
            self._xa.start(group)

    def _commit(self, event: Event) -> None:
        group = self._groups.group
        if group and group.undecided:
            raise self._groups.unknown_error("an XA transaction ends like a plain one", fix=events.FRESH_START)
        self._groups.end()

    def _take_statement(self, body: bytes, event: Event) -> None:
        statement, sql = self._statements.read(body)
        group = self._groups.current(event)
        # An ALTER in two phases: this is its beginning, or its failure. One that succeeds is logged once more, and
        # counts then.
        if group.is_undone:
            self._groups.end()
            return
        self._statements.refuse_unsupported(statement, sql, group)
        # What it does to rows counts from the XA COMMIT, like the row events: it is remembered with them.
        if group.undecided:
            group.undecided.add(event)
        else:
            self._statements.follow_in_transaction(statement, sql, body, group)
        match statement.means:
            case Means.BEGIN:
                group.has_begin = True
            case Means.XA_START:
                group.has_begin = True
                self._xa.start(group)
            case Means.XA_COMMIT:
                self._xa.commit(sql)
            case Means.XA_ROLLBACK:
                self._xa.roll_back(sql)
            case Means.COMMIT | Means.ROLLBACK:
                self._groups.end()
            case _:
                self._statements.follow(statement, sql, body, group, of_session=event.of_session)
                # DDL and other statements outside of BEGIN … COMMIT are groups of their own: no XID ends them.
                if not group.has_begin:
                    self._groups.end()
