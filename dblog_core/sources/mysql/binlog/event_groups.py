"""The group of events that is being read, and the position between the last two groups.

A group begins with its GTID and ends with XID, COMMIT, or the one statement that it consists of. Only the place
between two groups is a position: the log can be asked for from there.
"""

from __future__ import annotations

from dblog_core.errors import LogPositionLost, UnknownLogEvent
from dblog_core.model.events import Transaction
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.events import Event
from dblog_core.sources.mysql.binlog.progress import Progress
from dblog_core.sources.mysql.binlog.xa.row_memory import UndecidedRows
from dblog_core.sources.mysql.position import Position, Prepared


class ChangedTables:
    """The captured tables of which a group has row events, by the savepoint that came before them.

    A table may be listed under an earlier savepoint than the server has it under, never under a later one.
    """

    __slots__ = ("_last", "_levels")

    def __init__(self) -> None:
        self._levels: list[tuple[str, set[TableName]]] = [("", set())]
        self._last: TableName | None = None

    def add(self, table: TableName) -> None:
        """The group has row events of the table here."""
        if table is not self._last:
            self._last = table
            self._levels[-1][1].add(table)

    def set_savepoint(self, name: str) -> None:
        """A savepoint is set here. The one of this name that was set before is gone, its rows are not."""
        at = self._find(name)
        if at is not None:
            self._levels[at - 1][1].update(self._levels.pop(at)[1])
        self._levels.append((name.casefold(), set()))
        self._last = None

    def roll_back(self, name: str) -> set[TableName]:
        """The tables with row events since the savepoint, which stays set; all of them where it is not known."""
        at = self._find(name) or 0
        rolled_back = set[TableName]().union(*(tables for _, tables in self._levels[at:]))
        # They stay listed: the rows of engines without transactions are not rolled back.
        self._levels[at:] = [(self._levels[at][0], set(rolled_back))]
        self._last = None
        return rolled_back

    def _find(self, name: str) -> int | None:
        names = [level for level, _ in self._levels]
        return len(names) - 1 - names[::-1].index(name.casefold()) if name and name.casefold() in names else None


class Group:
    """A group of events that began at `start_offset`.

    `has_begin`: it is a transaction of any number of statements, not a single one. `rows`: its row changes that were
    flushed, or are not to be delivered again; `has_changes`: it has any; `changed`: their tables. `undecided`: in an XA
    transaction that is being prepared, what becomes of its rows is not known yet. `is_undone`: its statement has only
    begun, or has failed.
    """

    __slots__ = (
        *(
            "_place",
            "_transaction",
            "changed",
            "commit_time_us",
            "gtid",
            "has_begin",
            "has_changes",
            "is_undone",
            "rows",
        ),
        *("start_offset", "undecided"),
    )

    def __init__(
        self, gtid: str | None, place: str, start_offset: int, commit_time_us: int, *, has_begin: bool
    ) -> None:
        self.gtid = gtid
        self._place = place
        self.start_offset = start_offset
        self.commit_time_us = commit_time_us
        self.has_begin = has_begin
        self.has_changes = False
        self.changed = ChangedTables()
        self.is_undone = False
        self.rows = 0
        self.undecided: UndecidedRows | None = None
        self._transaction: Transaction | None = None

    @property
    def id(self) -> str:
        return self.gtid or self._place

    @property
    def transaction(self) -> Transaction:
        """Made when it is first asked for: most transactions of a server may be about tables that nobody wants."""
        if self._transaction is None:
            self._transaction = Transaction(self.id, self._place, self.commit_time_us)
        return self._transaction


class EventGroups:
    """Where in the log we are: `file`, the `offset` after the last event, the `event_offset` at which it begins, and
    the open `group`.

    `rows_to_skip`: row changes of the first group that are staged already. `is_file_cut`: whether the server crashed
    where the file of `position` ends, and the position is behind all of the file's transactions. `read_again`: the
    place of the prepared rows that are being read a second time, for errors.
    """

    def __init__(
        self, position: Position, *, mariadb: bool, server: str | None, rows_to_skip: int, is_file_cut: bool = False
    ) -> None:
        self.file = position.file
        self.offset = position.offset
        self.event_offset = position.offset
        self.group: Group | None = None
        self.rows_to_skip = rows_to_skip
        self.read_again: Prepared | None = None
        # The server may continue from a position in another file at once, without the end of this one.
        self._is_file_closed = not is_file_cut
        self._mariadb = mariadb
        self._server = server
        self._expected_id = position.next
        self._progress = Progress(position.with_changes(next=None))

    @property
    def position(self) -> Position:
        """The place after the last whole group."""
        return self._progress.position

    def unknown_error(self, message: str, *, fix: str) -> UnknownLogEvent:
        """The error for something at the present place that nobody can follow."""
        where = self.where
        if self.read_again is not None:
            where += f", in the rows prepared at {self.read_again}"
        return UnknownLogEvent(message, where=where, fix=fix)

    @property
    def where(self) -> str:
        """The present event, for errors."""
        return f"binlog {self.file}:{self.event_offset}"

    def advance(self, event: Event) -> None:
        """Moves on behind the event. Heartbeats, and what the server makes up, are in no file."""
        if event.end and not event.artificial and event.type not in (events.Type.HEARTBEAT, events.Type.HEARTBEAT_V2):
            # Offsets are logged with 32 bits; in a file that one large transaction made longer, the count continues
            # here.
            self.offset += (event.end - self.offset) & 0xFFFFFFFF
            self.event_offset = self.offset - event.size

    def close_file(self, _: Event) -> None:
        """The server shuts down in order: another file comes next."""
        self._is_file_closed = True

    def rotate(self, event: Event) -> bool:
        """Continues in another file; returns whether the server crashed at the end of this one. Raises UnknownLogEvent
        where this one ends inside a transaction.
        """
        # The server never splits a transaction over two files: where one is open here, its end is missing from the log.
        if self.group and self.group.has_begin:
            raise self.unknown_error("the file ends inside a transaction", fix=events.FRESH_START)
        self.group = None
        file = events.next_file(event)
        # A server that runs on ends its file with a rotation, and one that shuts down with STOP. Then it makes up a
        # rotation for the connection, which names the next file.
        has_crashed = event.artificial and file != self.file and not self._is_file_closed
        self._is_file_closed = not event.artificial
        self.file = file
        self.offset = int.from_bytes(event.body[:8], "little")
        self.event_offset = self.offset
        self._progress.move(file=self.file, offset=self.offset)
        return has_crashed

    def follow_heartbeat(self, event: Event) -> None:
        """While it skips transactions that lie before our position, the server tells how far it has come."""
        if self.group is None and event.end:
            self.offset += (event.end - self.offset) & 0xFFFFFFFF
            self._progress.move(offset=self.offset)

    def open(self, gtid: str | None, commit_time_us: int, *, has_begin: bool = False) -> Group:
        """Begins a group at the present event. Raises LogPositionLost where another one has to come here."""
        place = f"{self.file}:{self.event_offset}"
        group = self.group = Group(gtid, place, self.event_offset, commit_time_us, has_begin=has_begin)
        if self._expected_id is not None:
            if group.id != self._expected_id:
                raise LogPositionLost(
                    f"transaction {self._expected_id}, of which a part is staged, is not the next one: {group.id} is",
                    where=self.where,
                    fix=events.FRESH_START,
                )
            self._expected_id = None
        return group

    def current(self, event: Event) -> Group:
        """The group that the event belongs to."""
        if self.group is None:  # a server from before GTID events
            return self.open(None, event.timestamp * 1_000_000)
        return self.group

    def end(self, **changes: object) -> None:
        """Ends the group; `changes`: what its end changes in the position besides the place.

        Raises LogPositionLost where it has fewer rows than are staged of it.
        """
        group = self.group
        self.group = None
        if self.rows_to_skip:
            raise LogPositionLost(
                f"the transaction of which a part is staged has {self.rows_to_skip} row changes fewer than that part",
                where=self.where,
                fix=events.FRESH_START,
            )
        if group is not None and self._progress.end_transaction(
            self.file, self.offset, group.gtid, start=group.start_offset, time=group.commit_time_us
        ):
            if changes:
                self._progress.move(**changes)
            return
        # GTIDs did not tell: a server without them, or an anonymous transaction among others.
        moved: dict[str, object] = {"file": self.file, "offset": self.offset, **changes}
        if self.position.gtids is not None and group is not None:
            # An anonymous transaction is in no GTID set: from here on only file and offset tell where we are.
            moved |= {"gtids": None, "server": self._server, "newest": None}
        self._progress.move(**moved)
