"""The life of an XA transaction's rows.

    undecided   from XA START to XA PREPARE nobody knows what becomes of them (`Group.undecided`)
    prepared    their place stands in the position; small ones are kept in memory too
    due         XA COMMIT, or PREPARE in one phase: they come next, as rows of the transaction that commits them
    finished    the last of them was taken, or XA ROLLBACK: the position no longer names them

Since only the place of prepared rows is remembered, and in the position itself, a restart forgets nothing, and memory
does not grow with them.
"""

from __future__ import annotations

from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.event_groups import EventGroups, Group
from dblog_core.sources.mysql.binlog.events import Event
from dblog_core.sources.mysql.binlog.logged_statements import LoggedStatements
from dblog_core.sources.mysql.binlog.xa import ids
from dblog_core.sources.mysql.binlog.xa.prepared_rows import PreparedRows
from dblog_core.sources.mysql.binlog.xa.row_memory import RowMemory, UndecidedRows
from dblog_core.sources.mysql.position import MariadbGtids, Prepared
from dblog_core.sources.mysql.row_events.table_ids import TableNumbers


class XaTransactions:
    """Follows the XA transactions of a log. `due`: prepared rows that are to come next, until all of them came."""

    def __init__(self, groups: EventGroups, statements: LoggedStatements, numbers: TableNumbers) -> None:
        self.due: PreparedRows | None = None
        self._groups = groups
        self._statements = statements
        self._numbers = numbers
        self._memory = RowMemory()

    def start(self, group: Group) -> None:
        """The rows of the group are undecided from here on."""
        gtids = self._groups.position.gtids
        gtids_before = str(gtids) if isinstance(gtids, MariadbGtids) else None
        group.undecided = UndecidedRows(group.start_offset, gtids_before)

    def prepare(self, event: Event) -> None:
        """Takes an XA_PREPARE event. Raises UnknownLogEvent."""
        one_phase, xid = ids.parse_prepare_event(event.body)
        group = self._groups.current(event)
        undecided = group.undecided
        if undecided is None:
            raise self._groups.unknown_error(f"XA transaction {xid} ends and has not begun", fix=events.FRESH_START)
        place = Prepared(xid, self._groups.file, undecided.start_offset, group.gtid, undecided.gtids_before)
        undecided.add_last(event)
        # XA COMMIT … ONE PHASE is logged as an XA_PREPARE event that commits at once.
        if one_phase:
            self._make_due(place, undecided.events)
            return
        self._memory.put(xid, undecided)
        # The place of the rows goes into the position: after a restart they are read again from there.
        self._groups.end(prepared=(*self._groups.position.finished(xid), place))

    def commit(self, sql: str) -> None:
        """Takes an XA COMMIT. Raises UnknownLogEvent where nothing is known of its transaction."""
        xid = ids.parse_statement(sql)
        place = self._groups.position.outstanding(xid)
        if place is None:
            raise self._groups.unknown_error(
                f"XA transaction {xid} commits, and was prepared before this capture first began to read the log:"
                " its rows cannot be found",
                fix=events.FRESH_START,
            )
        self._make_due(place, self._memory.pop(xid))

    def roll_back(self, sql: str) -> None:
        xid = ids.parse_statement(sql)
        self._memory.pop(xid)
        self._groups.end(prepared=self._groups.position.finished(xid))

    def _make_due(self, place: Prepared, remembered: list[Event] | None) -> None:
        """The rows of `place` belong to the present transaction."""
        group = self._groups.group
        assert group is not None
        group.undecided = None
        self._numbers.forget()  # tables were numbered otherwise if the server has restarted since
        # Where the memory no longer has the rows, the log is read again from there, which may be files ago.
        self._groups.read_again = place
        self.due = PreparedRows(
            place, None if remembered is None else iter(remembered), self._groups, self._statements, self._finish
        )

    def _finish(self) -> None:
        assert self.due is not None
        xid = self.due.place.xid
        self.due = None
        self._groups.read_again = None
        self._numbers.forget()
        self._groups.end(prepared=self._groups.position.finished(xid))
