"""The mode in which the rows of a prepared XA transaction are taken: from memory, or from a second connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dblog_core.errors import LogPositionLost
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.event_groups import EventGroups
from dblog_core.sources.mysql.binlog.events import GTIDS, Event, Type
from dblog_core.sources.mysql.binlog.logged_statements import LoggedStatements
from dblog_core.sources.mysql.binlog.xa import ids
from dblog_core.sources.mysql.ddl.statements import Means
from dblog_core.sources.mysql.position import Prepared


class PreparedRows:
    """Prepared rows that are due now, as rows of the transaction that commits them.

    `place`: where the log has them; `remembered`: their events, or None where they are read again from `place`.
    `handlers`: what the events mean besides rows; `finish` is called when the last one was taken.
    """

    def __init__(
        self,
        place: Prepared,
        remembered: Iterator[Event] | None,
        groups: EventGroups,
        statements: LoggedStatements,
        finish: Callable[[], None],
    ) -> None:
        self.place = place
        self.remembered = remembered
        self._is_reached = remembered is not None
        self._groups = groups
        self._statements = statements
        self._finish = finish
        self.handlers: dict[int, Callable[[Event], None]] = {
            Type.HEARTBEAT: lambda _: None,
            Type.QUERY: lambda event: self._take_statement(event.body),
            Type.QUERY_COMPRESSED: lambda event: self._take_statement(events.uncompressed_query(event.body)),
            Type.EXECUTE_LOAD_QUERY: lambda event: self._take_statement(events.load_statement(event.body)),
            Type.XA_PREPARE: self._end,
        }

    def admits(self, event: Event) -> bool:
        """Whether the event belongs to the group, whose own GTID comes before all others of it.

        Raises LogPositionLost where another group is at its place.
        """
        if self._is_reached:
            return True
        if event.type in GTIDS and not event.artificial:
            gtid = GTIDS[event.type](event).gtid
            self._is_reached = gtid == self.place.gtid
            # Asked for by file and offset, the log begins with what was asked for; by GTIDs, others may come first.
            if not self._is_reached and self._groups.position.gtids is None:
                # A server that was restored may have another log under the same file name and offset.
                raise self.lost_error(f"transaction {gtid} is at that place")
        return False

    def lost_error(self, why: str) -> LogPositionLost:
        """The error for prepared rows that the server no longer has."""
        return LogPositionLost(
            f"XA transaction {self.place.xid} commits, and its rows, prepared at {self.place}, cannot be read again:"
            f" {why}",
            where=self._groups.where,
            fix=f"{events.FRESH_START}; and keep logs longer than transactions stay prepared"
            " (binlog_expire_logs_seconds)",
        )

    def _take_statement(self, body: bytes) -> None:
        assert self._groups.group is not None
        statement, sql = self._statements.read(body)
        self._statements.refuse_unsupported(statement, sql, self._groups.group)
        self._statements.follow_in_transaction(statement, sql, body, self._groups.group)
        if statement.means is Means.XA_START:
            self._expect_own(ids.parse_statement(sql))

    def _expect_own(self, xid: str) -> None:
        if xid != self.place.xid:
            raise self.lost_error(f"XA transaction {xid} is at that place")

    def _end(self, event: Event) -> None:
        _, xid = ids.parse_prepare_event(event.body)
        self._expect_own(xid)
        self._finish()
