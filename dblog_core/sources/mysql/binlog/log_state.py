"""Events become batches: what each event type means for the rows, the position and the signals. No I/O.

Every type is handled, known to be harmless, or an error. There are two modes: the log is followed (`Transactions`), or
the rows of an XA transaction that has just been committed are taken from where it was prepared (`PreparedRows`).

What a busy log consists of goes a short way (`take_all`), which takes only what the long one has judged before: rows
of a table number whose map and shape it has seen, in a group that is open and plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from dblog_core.errors import UnknownLogEvent
from dblog_core.model.events import CREATE, DELETE, UPDATE, LogBatch
from dblog_core.sources.mysql.binlog import compressed, events, headers, unsupported
from dblog_core.sources.mysql.binlog.event_groups import EventGroups
from dblog_core.sources.mysql.binlog.events import Event, Type
from dblog_core.sources.mysql.binlog.framing import Events
from dblog_core.sources.mysql.binlog.logged_statements import LoggedStatements
from dblog_core.sources.mysql.binlog.reach.statement_reach import LookAhead, StatementReach
from dblog_core.sources.mysql.binlog.row_intake import RowIntake
from dblog_core.sources.mysql.binlog.transactions import Transactions
from dblog_core.sources.mysql.binlog.xa.prepared_rows import PreparedRows
from dblog_core.sources.mysql.binlog.xa.transactions import XaTransactions
from dblog_core.sources.mysql.ddl.known_forms import KnownForms
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.row_events.native_types import NativeTypes
from dblog_core.sources.mysql.row_events.table_ids import Lookups, TableNumbers
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets

_OPS = (CREATE, UPDATE, DELETE)
"""By the codes of row events in `headers`."""


class LogState:
    """Takes events in order, collects a batch, and knows the position between the last two groups."""

    def __init__(
        self,
        *,
        tables: TableFilter,
        keys: Mapping[str, Sequence[str]],
        charsets: Charsets,
        zero_dates: str,
        any_case: bool = False,
        mariadb: bool,
        server: str | None,
        position: Position,
        rows_to_skip: int,
        lookups: Lookups,
        look_ahead: LookAhead = lambda _: None,
        loses_commits: bool = False,
        is_file_cut: bool = False,
    ) -> None:
        """`any_case`: whether the server does not tell upper and lower case apart in names of tables; `rows_to_skip`:
        row changes of the transaction at `position` that are staged already; `loses_commits`: as in `Transactions`;
        `is_file_cut`: as in `EventGroups`; `look_ahead`: as in `StatementReach`."""
        forms = KnownForms(lookups.forms, (lambda table: table.in_lower_case) if any_case else (lambda table: table))
        native = NativeTypes(forms, lookups.is_table, tables.wants)
        numbers = TableNumbers(tables, keys, charsets, mariadb=mariadb, lookups=lookups, native=native.find)
        self._numbers = numbers
        self._groups = EventGroups(
            position, mariadb=mariadb, server=server, rows_to_skip=rows_to_skip, is_file_cut=is_file_cut
        )
        self._rows = RowIntake(tables, numbers, self._groups, forms, zero_dates=zero_dates, any_case=any_case)
        reach = StatementReach(look_ahead, self._groups, any_case=any_case)
        statements = LoggedStatements(tables, charsets, self._groups, self._rows, forms, reach, any_case=any_case)
        self._xa = XaTransactions(self._groups, statements, numbers)
        self._transactions = Transactions(
            self._groups, statements, self._rows, self._xa, numbers, mariadb=mariadb, loses_commits=loses_commits
        )
        self._flushed_position = self.position
        self._gtid_owner = ""
        self._unpacking: Iterator[Events] | None = None
        self._unpacked: Events | None = None
        self._handlers: dict[int, Callable[[Event], None]] = {
            **self._rows.handlers,
            Type.TRANSACTION_PAYLOAD: self._unpack,
            Type.HEARTBEAT_V2: lambda _: None,
        }
        """What means the same in both modes."""

    @property
    def position(self) -> Position:
        """The place after the last whole group."""
        return self._groups.position

    @property
    def is_full(self) -> bool:
        """Whether the batch must be flushed before it takes more."""
        return self._rows.batch.full

    @property
    def is_unpacking(self) -> bool:
        """Whether a compressed transaction is open: its events come next, through `take_unpacked`."""
        return self._unpacking is not None

    @property
    def prepared_rows(self) -> PreparedRows | None:
        """The rows of a prepared transaction that come next, through `take_prepared`."""
        return self._xa.due

    @property
    def is_between_transactions(self) -> bool:
        """Whether no group is open: only such a place is a position."""
        return self._groups.group is None

    @property
    def has_news(self) -> bool:
        """Whether a batch, or at least a new position, could be flushed."""
        return not self._rows.batch.empty or self.position != self._flushed_position

    def flush(self) -> LogBatch:
        """The batch so far. Raises UnknownLogEvent."""
        batch = self._rows.batch
        group = self._groups.group
        partial_rows = 0
        position = self.position
        # The batch ends inside a transaction: a restart reads it from its beginning, and skips so many row changes.
        # `next` names it, so that another transaction at that place is noticed instead of losing its first rows.
        if group and group.has_changes:
            group.rows += batch.count_rows_of(group.transaction)
            partial_rows = group.rows
            if partial_rows:
                position = position.with_changes(next=group.id)
        built = batch.build(position.encode(), partial_rows)
        # Before the next event: its rows must not join a batch that is handed on.
        self._rows.start_batch()
        self._flushed_position = self.position
        return built

    def unknown_error(self, message: str, *, fix: str) -> UnknownLogEvent:
        """The error for something at the present place that nobody can follow."""
        return self._groups.unknown_error(message, fix=fix)

    def take(self, event: Event) -> None:
        """Takes the next event. Raises UnknownLogEvent or LogPositionLost; ValueError where it cannot be read.

        While `prepared_rows` says so, those of a prepared transaction come next, through `take_prepared`; while
        `is_unpacking`, those of a compressed one, through `take_unpacked`.
        """
        assert self._xa.due is None
        self._groups.advance(event)
        self._dispatch(event)

    def take_all(self, stretch: Events) -> bool:
        """Takes events until none is left (True), or the batch is full, or others are due first. Raises as `take`."""
        # One turn for each event of the log: what it needs is bound once, and the place is moved without a call.
        groups = self._groups
        rows = self._rows
        is_plain = not stretch.inner
        for number, code, end, size, start, stop, a, b, c in stretch.rest:
            if code == headers.OTHER:
                (self.take if is_plain else self._dispatch)(stretch.event(number))
                if self._xa.due is not None or (is_plain and self.is_unpacking) or rows.batch.full:
                    return False
                continue
            # As in `EventGroups.advance`: offsets are logged with 32 bits. Events of a compressed transaction have no
            # place.
            if is_plain and end:
                groups.offset += (end - groups.offset) & 0xFFFFFFFF
                groups.event_offset = groups.offset - size
            if code <= headers.DELETES:
                rows.take_brief(stretch, number, _OPS[code], a, b, stop, c)
                if rows.batch.full:
                    return False
            elif not self._take_frame(stretch.raw, code, start, a, b, c):
                self._dispatch(stretch.event(number))
        return True

    def _take_frame(self, raw: headers.Bytes, code: int, start: int, a: int, b: int, c: int) -> bool:
        """Takes what stands around rows, in a plain group; False where it needs a look."""
        groups = self._groups
        if code == headers.GTID_BEGIN or code == headers.GTID:  # twice as fast as `in`
            # Usually the uuid is that of the GTID before, whose text is there.
            if not c:
                self._gtid_owner = events.uuid(raw[start + 1 : start + 17].tobytes())
            groups.open(f"{self._gtid_owner}:{a}", b, has_begin=code == headers.GTID_BEGIN)
            return True
        group = groups.group
        # MariaDB's GTID carries flags (XA, an ALTER in two phases), and rows of an XA transaction are set aside: both
        # need the long way.
        if code == headers.MARIADB_GTID or group is None or group.undecided is not None:
            return False
        if code == headers.SAME_MAP:
            # The bytes are those of the last map. That says what the table is only while its number is still
            # remembered.
            return a in self._numbers
        if code == headers.BEGIN:
            # Without this the first statement, or row event, would count as the whole group.
            group.has_begin = True
        else:
            groups.end()
        return True

    def take_unpacked(self) -> None:
        """Takes events of the compressed transaction until it ends or the batch is full. Raises as `take`."""
        while self._unpacking is not None and not self.is_full:
            stretch = self._unpacked or next(self._unpacking, None)
            if stretch is None:
                self._unpacking = None
            elif self._take_inner(stretch):
                stretch = None
            self._unpacked = stretch

    def take_prepared(self, event: Event) -> None:
        """Takes the next event of what brings prepared rows; those before their group do not matter. Raises as `take`,
        and LogPositionLost where the rows are not there."""
        assert self._xa.due is not None
        if self._xa.due.admits(event):
            self._dispatch(event)

    def _unpack(self, event: Event) -> None:
        if self._unpacking is not None:
            raise ValueError("a compressed transaction lies in another one")
        self._unpacking = compressed.unpack_events(event.body)

    def _take_inner(self, stretch: Events) -> bool:
        """Takes events until none is left (True) or the batch is full."""
        if self._xa.due is None:
            return self.take_all(stretch)
        for row in stretch.rest:
            self._dispatch(stretch.event(row[0]))
            if self.is_full:
                return False
        return True

    def _dispatch(self, event: Event) -> None:
        mode = self._xa.due or self._transactions
        handler = self._handlers.get(event.type) or mode.handlers.get(event.type)
        if handler is not None:
            handler(event)
        # An event that nobody has judged may change rows. Passing it over would lose them silently, so the capture
        # stops; unless the server says of a type of its own, as Aurora has some, that replicas pass it over.
        elif not events.is_harmless(event):
            why, fix = unsupported.of_event(event.type)
            raise self.unknown_error(why, fix=fix)
