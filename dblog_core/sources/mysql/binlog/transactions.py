"""Events become transactions: what each event type means for the rows, the position and the signals. No I/O.

A group of events begins with its GTID and ends with XID, COMMIT, or the one statement that it consists of. Only the
place between two groups is a position. Every type is handled, known to be harmless, or an error. The rows of an XA
transaction are held back when they are prepared, and taken again when it commits (`xa.py`).

What a busy log consists of goes a short way (`take_all`), which takes only what the long one has judged before: rows
of a table number whose map and shape it has seen, in a group that is open and plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dblog_core.errors import LogPositionLost, UnknownLogEvent
from dblog_core.model.events import (
    CREATE,
    DELETE,
    UPDATE,
    Altered,
    Created,
    DatabaseDropped,
    LogBatch,
    Rewritten,
    SchemaSeen,
    SignalSeen,
    Truncated,
    WatermarkSeen,
)
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog import (
    compressed,
    events,
    headers,
    unread_tables,
    unsupported,
    xa,
)
from dblog_core.sources.mysql.binlog.events import GTIDS, Event, GtidEvent, Type
from dblog_core.sources.mysql.binlog.framing import Events
from dblog_core.sources.mysql.binlog.open_transaction import Group
from dblog_core.sources.mysql.binlog.progress import Progress
from dblog_core.sources.mysql.binlog.unread_tables import UnreadTables
from dblog_core.sources.mysql.ddl import alter_table, statement_text
from dblog_core.sources.mysql.ddl.statements import Means, Statement, classify
from dblog_core.sources.mysql.position import MariadbGtids, Position, Prepared
from dblog_core.sources.mysql.row_events import row_event_header, table_map
from dblog_core.sources.mysql.row_events.batch import BatchBuilder
from dblog_core.sources.mysql.row_events.row_event_header import DUMMY_TABLES, KINDS
from dblog_core.sources.mysql.row_events.table_ids import TableNumbers
from dblog_core.sources.mysql.row_events.table_map import TableVersion, Unread
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets
from dblog_core.sources.mysql.values.types import UnsupportedType

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
        skip: int,
    ) -> None:
        """`any_case`: whether the server does not tell upper and lower case apart in names of tables."""
        self._tables, self._zero_dates = tables, zero_dates
        self._charsets, self._any_case = charsets, any_case
        self._wants = tables.may_want if any_case else tables.wants
        self._mariadb, self._server = mariadb, server
        self._progress = Progress(position.moved(next=None))
        self._expected, self._skip = position.next, skip
        self._flushed = self.position
        self._file, self._start, self._offset = position.file, position.offset, position.offset
        self._group: Group | None = None
        self.again: xa.Again | None = None
        self._kept = xa.Kept()
        self._numbers = TableNumbers(tables, keys, charsets, mariadb=mariadb)
        self._owner = ""
        self._unpacking: Iterator[Events] | None = None
        self._unpacked: Events | None = None
        self._shapes: dict[TableName, str] = {}
        self._unread = UnreadTables()
        self._batch = BatchBuilder(zero_dates)
        self._handlers: dict[int, Callable[[Event], None]] = {
            Type.FORMAT_DESCRIPTION: lambda _: self._numbers.forget(),  # the server may have restarted
            Type.ROTATE: self._rotate,
            Type.HEARTBEAT: self._heartbeat,
            Type.HEARTBEAT_V2: lambda _: None,
            **dict.fromkeys(GTIDS, lambda e: self._begin(GTIDS[e.type](e))),
            Type.QUERY: lambda e: self._query(e.body, e),
            Type.QUERY_COMPRESSED: lambda e: self._query(events.uncompressed_query(e.body), e),
            Type.XID: self._xid,
            Type.XA_PREPARE: self._xa_prepare,
            Type.TABLE_MAP: self._table_map,
            Type.TRANSACTION_PAYLOAD: self._payload,
            Type.PARTIAL_UPDATE_ROWS: self._partial_rows,
            **dict.fromkeys(KINDS, self._rows),
        }
        self._handlers_again: dict[int, Callable[[Event], None]] = {
            Type.HEARTBEAT: lambda _: None,
            Type.QUERY: lambda e: self._query_again(e.body),
            Type.QUERY_COMPRESSED: lambda e: self._query_again(events.uncompressed_query(e.body)),
            Type.XA_PREPARE: self._end_again,
            Type.PARTIAL_UPDATE_ROWS: self._partial_rows,
            **{kind: self._handlers[kind] for kind in (Type.HEARTBEAT_V2, Type.TRANSACTION_PAYLOAD, Type.TABLE_MAP)},
            **dict.fromkeys(KINDS, self._rows),
        }

    @property
    def position(self) -> Position:
        """The place after the last whole group."""
        return self._progress.position

    @property
    def full(self) -> bool:
        return self._batch.full

    @property
    def unpacking(self) -> bool:
        """Whether a compressed transaction is open: its events come next, through `take_unpacked`."""
        return self._unpacking is not None

    @property
    def between(self) -> bool:
        """Whether no transaction is open."""
        return self._group is None

    @property
    def has_news(self) -> bool:
        return not self._batch.empty or self.position != self._flushed

    def flush(self) -> LogBatch:
        """The batch so far. Raises UnknownLogEvent."""
        partial, position = 0, self.position
        if self._group and self._group.changed:
            self._group.rows += self._batch.kept(self._group.transaction)
            partial = self._group.rows
        if partial and self._group:
            position = position.moved(next=self._group.id)
        batch = self._batch.build(position.encode(), partial)
        self._batch, self._flushed = BatchBuilder(self._zero_dates), self.position
        return batch

    def unknown(self, message: str, *, fix: str) -> UnknownLogEvent:
        where = f"binlog {self._file}:{self._start}"
        if self.again is not None:
            where += f", in the rows prepared at {self.again.place}"
        return UnknownLogEvent(message, where=where, fix=fix)

    def gone(self, place: Prepared, why: str) -> LogPositionLost:
        """The error for prepared rows that the server does not have any more."""
        return LogPositionLost(
            f"XA transaction {place.xid} commits, and its rows, prepared at {place}, cannot be read again: {why}",
            where=f"binlog {self._file}:{self._start}",
            fix=f"{events.FRESH_START}; and keep logs longer than transactions stay prepared"
            " (binlog_expire_logs_seconds)",
        )

    def take(self, event: Event) -> None:
        """Takes the next event. Raises UnknownLogEvent or LogPositionLost; ValueError where it cannot be read.

        While `again` says so, those of a prepared transaction come next, through `take_again`; while `unpacking` does,
        those of a compressed one, through `take_unpacked`.
        """
        assert self.again is None
        if event.end and not event.artificial and event.type not in (Type.HEARTBEAT, Type.HEARTBEAT_V2):
            # Offsets are logged with 32 bits; a file that one large transaction made longer goes on counting here.
            self._offset += (event.end - self._offset) & 0xFFFFFFFF
            self._start = self._offset - event.size
        self._dispatch(event)

    def take_all(self, found: Events) -> bool:
        """Takes events until none is left (True), or the batch is full, or others are due first. Raises as `take`."""
        plain = not found.inner
        for number, code, end, size, start, stop, a, b, c in found.rest:
            if code == headers.OTHER:
                (self.take if plain else self._dispatch)(found.event(number))
                if self.again is not None or (plain and self.unpacking) or self._batch.full:
                    return False
                continue
            if plain and end:
                self._offset += (end - self._offset) & 0xFFFFFFFF
                self._start = self._offset - size
            if code <= headers.DELETES:
                self._take_rows(found, number, _OPS[code], a, b, stop, c)
                if self._batch.full:
                    return False
            elif not self._take_frame(found.raw, code, start, a, b, c):
                self._dispatch(found.event(number))
        return True

    def _take_rows(self, found: Events, number: int, op: str, table_id: int, at: int, stop: int, columns: int) -> None:
        if table_id in self._numbers.unwanted:
            return
        version, group = self._numbers.usual.get(table_id), self._group
        if version is None or group is None or group.held is not None or columns != len(version.columns):
            self._rows(found.event(number))
        else:
            self._rows_at(version, group, op, found.raw, at, stop)

    def _take_frame(self, raw: headers.Bytes, code: int, start: int, a: int, b: int, c: int) -> bool:
        """Takes what stands around rows, in a plain group; False where it needs a look."""
        group = self._group
        if code == headers.GTID_BEGIN or code == headers.GTID:  # twice as fast as `in`
            if not c:
                self._owner = events.uuid(raw[start + 1 : start + 17].tobytes())
            self._open(f"{self._owner}:{a}", b, begun=code == headers.GTID_BEGIN)
            return True
        if code == headers.MARIADB_GTID or group is None or group.held is not None:
            return False
        if code == headers.SAME_MAP:
            return a in self._numbers
        if code == headers.BEGIN:
            group.begun = True
        else:
            self._end()
        return True

    def take_unpacked(self) -> None:
        """Takes events of the compressed transaction until it ends or the batch is full. Raises as `take`."""
        while self._unpacking is not None and not self._batch.full:
            found = self._unpacked or next(self._unpacking, None)
            if found is None:
                self._unpacking = None
            elif self._take_inner(found):
                found = None
            self._unpacked = found

    def _take_inner(self, found: Events) -> bool:
        """Takes events until none is left (True) or the batch is full."""
        if self.again is None:
            return self.take_all(found)
        for row in found.rest:
            self._dispatch(found.event(row[0]))
            if self._batch.full:
                return False
        return True

    def _dispatch(self, event: Event) -> None:
        handlers = self._handlers if self.again is None else self._handlers_again
        handler = handlers.get(event.type)
        if handler is not None:
            handler(event)
        elif event.type not in events.HARMLESS:
            why, fix = unsupported.of_event(event.type)
            raise self.unknown(why, fix=fix)

    # -- where we are

    def _rotate(self, event: Event) -> None:
        if self._group and self._group.begun:
            raise self.unknown("the file ends inside a transaction", fix=events.FRESH_START)
        self._group = None
        self._file, self._offset = event.body[8:].rstrip(b"\0").decode(), int.from_bytes(event.body[:8], "little")
        self._start = self._offset
        self._progress.move(file=self._file, offset=self._offset)

    def _heartbeat(self, event: Event) -> None:
        """While it skips transactions that lie before our position, the server tells how far it has come."""
        if self._group is None and event.end:
            self._offset += (event.end - self._offset) & 0xFFFFFFFF
            self._progress.move(offset=self._offset)

    # -- transactions

    def _begin(self, gtid: GtidEvent) -> None:
        # MariaDB has no BEGIN: the GTID event says whether a single statement or a transaction follows.
        group = self._open(gtid.gtid, gtid.commit_time, begun=self._mariadb and not gtid.standalone)
        group.undone = gtid.undone
        if gtid.prepared:
            self._hold(group)

    def _open(self, gtid: str | None, commit_time: int, *, begun: bool = False) -> Group:
        group = self._group = Group(gtid, f"{self._file}:{self._start}", self._start, commit_time, begun=begun)
        if self._expected is not None:
            if group.id != self._expected:
                raise LogPositionLost(
                    f"transaction {self._expected}, of which a part is staged, is not the next one: {group.id} is",
                    where=f"binlog {self._file}:{self._start}",
                    fix=events.FRESH_START,
                )
            self._expected = None
        return group

    def _current(self, event: Event) -> Group:
        if self._group is None:  # a server from before GTID events
            return self._open(None, event.timestamp * 1_000_000)
        return self._group

    def _xid(self, event: Event) -> None:
        if self._group and self._group.held:
            raise self.unknown("an XA transaction ends like a plain one", fix=events.FRESH_START)
        self._end()

    def _end(self, **moved: object) -> None:
        """Ends the group; `moved`: what its end changes in the position besides the place."""
        group, self._group = self._group, None
        if self._skip:
            raise LogPositionLost(
                f"the transaction of which a part is staged has {self._skip} row changes fewer than that part",
                where=f"binlog {self._file}:{self._start}",
                fix=events.FRESH_START,
            )
        gtid = group.gtid if group is not None else None
        start, time = (group.start, group.time) if group is not None else (0, 0)
        if self._progress.ended(self._file, self._offset, gtid, start=start, time=time):
            if moved:
                self._progress.move(**moved)
            return
        changes: dict[str, object] = {"file": self._file, "offset": self._offset, **moved}
        if self.position.gtids is not None and group is not None:
            # An anonymous transaction is in no GTID set: from here on only file and offset tell where we are.
            changes |= {"gtids": None, "server": self._server, "newest": None}
        self._progress.move(**changes)

    # -- XA

    def _hold(self, group: Group) -> None:
        gtids = self.position.gtids
        group.held = xa.Held(group.start, str(gtids) if isinstance(gtids, MariadbGtids) else None)

    def _xa_prepare(self, event: Event) -> None:
        one_phase, xid = xa.of_event(event.body)
        group = self._current(event)
        held = group.held
        if held is None:
            raise self.unknown(f"XA transaction {xid} ends and has not begun", fix=events.FRESH_START)
        place = Prepared(xid, self._file, held.start, group.gtid, held.before)
        held.end(event)
        if one_phase:
            self._deliver(place, held.events)
            return
        self._kept.put(xid, held)
        self._end(prepared=(*self.position.finished(xid), place))

    def _xa_commit(self, sql: str) -> None:
        xid = xa.of_statement(sql)
        place = self.position.outstanding(xid)
        if place is None:
            raise self.unknown(
                f"XA transaction {xid} commits, and was prepared before this capture first began to read the log:"
                " its rows cannot be found",
                fix=events.FRESH_START,
            )
        self._deliver(place, self._kept.pop(xid))

    def _xa_rollback(self, sql: str) -> None:
        xid = xa.of_statement(sql)
        self._kept.pop(xid)
        self._end(prepared=self.position.finished(xid))

    def _deliver(self, place: Prepared, kept: list[Event] | None) -> None:
        """The rows of `place` belong to the present transaction: they are to come next."""
        assert self._group is not None
        self._group.held = None
        self._numbers.forget()  # tables were numbered otherwise if the server has restarted since
        self.again = xa.Again(place, None if kept is None else iter(kept), kept is not None)

    def take_again(self, event: Event) -> None:
        """Takes the next event of the connection that brings prepared rows; those before their group do not matter."""
        assert self.again is not None
        if self.again.found:
            self._dispatch(event)
        elif event.type in GTIDS and not event.artificial:
            gtid = GTIDS[event.type](event)
            self.again.found = gtid.gtid == self.again.place.gtid
            if not self.again.found and self._by_offset:
                raise self.gone(self.again.place, f"transaction {gtid.gtid} is at that place")

    @property
    def _by_offset(self) -> bool:
        """Whether the log is asked for by file and offset, so that what was asked for comes first."""
        return self.position.gtids is None

    def _query_again(self, body: bytes) -> None:
        assert self.again is not None and self._group is not None
        statement, sql = self._classified(body)
        if fault := unsupported.of_statement(statement, self._group, self._tables, any_case=self._any_case):
            raise self.unknown(f"statement {sql[:200]!r}: {fault[0]}", fix=fault[1])
        if statement.means is Means.XA_START:
            self._same(xa.of_statement(sql))

    def _same(self, xid: str) -> None:
        assert self.again is not None
        if xid != self.again.place.xid:
            raise self.gone(self.again.place, f"XA transaction {xid} is at that place")

    def _end_again(self, event: Event) -> None:
        assert self.again is not None
        self._same(xa.of_event(event.body)[1])
        xid, self.again = self.again.place.xid, None
        self._numbers.forget()
        self._end(prepared=self.position.finished(xid))

    def _payload(self, event: Event) -> None:
        if self._unpacking is not None:
            raise ValueError("a compressed transaction lies in another one")
        self._unpacking = compressed.unpacked(event.body)

    # -- statements

    def _query(self, body: bytes, event: Event) -> None:
        statement, sql = self._classified(body)
        group = self._current(event)
        if group.undone:
            self._end()
            return
        if fault := unsupported.of_statement(statement, group, self._tables, any_case=self._any_case):
            what, fix = fault
            raise self.unknown(f"statement {sql[:200]!r}: {what}", fix=fix)
        match statement.means:
            case Means.BEGIN:
                group.begun = True
                return
            case Means.XA_START:
                group.begun = True
                self._hold(group)
                return
            case Means.XA_COMMIT:
                self._xa_commit(sql)
                return
            case Means.XA_ROLLBACK:
                self._xa_rollback(sql)
                return
            case Means.COMMIT | Means.ROLLBACK:
                self._end()
                return
        self._unread.follow(statement)
        self._lost_rows(statement, group)
        self._alters(statement, sql, events.sql_mode(body), group)
        if statement.makes and (not statement.if_missing or events.took_effect(body)):
            self._tell(Created, statement.tables, group)
        if not group.begun:
            self._end()

    def _classified(self, body: bytes) -> tuple[Statement, str]:
        """A QUERY event's statement as the server reads it, and its text."""
        schema, raw = events.query_bytes(body)
        sql = statement_text.decoded(raw, events.client_collation(body), self._charsets)
        return classify(sql, schema, any_case=self._any_case), sql

    def _alters(self, statement: Statement, sql: str, mode: int | None, group: Group) -> None:
        """DDL may have changed the columns of a table, also where its shape looks the same."""
        if statement.means is Means.EMPTIES and sql.lstrip()[:8].upper() == "TRUNCATE":
            return
        step = None if statement.versions is not None else alter_table.step(sql, mode)
        if step == alter_table.NOTHING and not alter_table.may_retype(sql):
            return
        for table in filter(self._tables.may_want, statement.tables):
            self._forget_shapes(table)
            index = self._batch.transaction(group.transaction)
            number, shows = self._batch.next_sequence, statement.shapes
            self._batch.signal(Altered(number, index, table, step, self._any_case, shows))
        if statement.alters and (step is None or step.revalued):
            self._tell(Rewritten, statement.tables, group)

    def _lost_rows(self, statement: Statement, group: Group) -> None:
        """Rows that come or go without row events."""
        if statement.means is Means.DROPS_PARTITIONS:
            self._tell(Rewritten, statement.tables, group)
        elif statement.means is Means.DROPS_SCHEMA and self._tables.wants_schema(
            statement.schema, any_case=self._any_case
        ):
            self._numbers.usual.clear()
            for table in [t for t in self._shapes if self._named(t).schema == statement.schema]:
                del self._shapes[table]
            index = self._batch.transaction(group.transaction)
            self._batch.signal(DatabaseDropped(self._batch.next_sequence, index, statement.schema, self._any_case))
        elif statement.means in (Means.EMPTIES, Means.SWAPS):
            for table in statement.tables:
                self._forget_shapes(table)
            emptied = statement.tables if statement.means is Means.EMPTIES else statement.gone
            self._tell(Truncated, emptied, group)
            self._tell(Rewritten, (table for table in statement.tables if table not in emptied), group)

    def _tell(self, kind: type[Created | Truncated | Rewritten], tables: Iterable[TableName], group: Group) -> None:
        for table in filter(self._wants, tables):
            index = self._batch.transaction(group.transaction)
            self._batch.signal(kind(self._batch.next_sequence, index, table, self._any_case))

    def _named(self, table: TableName) -> TableName:
        """The name as statements have it here (`classify`)."""
        return table.folded if self._any_case else table

    def _forget_shapes(self, table: TableName) -> None:
        """Has the next rows of a table that a statement names show its shape."""
        self._numbers.usual.clear()
        for known in [known for known in self._shapes if self._named(known) == table]:
            del self._shapes[known]

    # -- rows

    def _table_map(self, event: Event) -> None:
        try:
            wanted = self._numbers.take(event.body)
        except UnsupportedType as error:
            table = table_map.head(event.body).table
            fix = f"{error.fix}; then {events.FRESH_START}"
            raise self.unknown(f"TABLE_MAP of {table}: {error}", fix=fix) from error
        if wanted and self._group and self._group.held:
            self._group.held.keep(event)

    def _described(self, event: Event) -> tuple[int, TableVersion | Unread | None]:
        """The number of the table that a row event is about, and how the log describes it; None where nobody wants its
        rows, or not yet."""
        table_id = int.from_bytes(event.body[:6], "little")
        if table_id in DUMMY_TABLES:
            return table_id, None
        version = self._numbers.get(table_id)
        if version is None:
            raise self.unknown(
                f"rows of table number {table_id}, which the log has not described", fix=events.FRESH_START
            )
        if isinstance(version, TableName):
            self._numbers.unwanted.add(table_id)
            return table_id, None
        if held := self._current(event).held:
            held.keep(event)
            return table_id, None
        if isinstance(version, Unread) or self._tables.ours(table := version.schema.table):
            return table_id, version
        return table_id, self._unread.versioned(table, self._named(table)) or version

    def _rows(self, event: Event) -> None:
        op = KINDS[Type(event.type)][0]
        table_id, version = self._described(event)
        if version is None:
            return
        group = self._current(event)
        if isinstance(version, Unread):
            self._shapes.pop(version.table, None)  # its next one is news
            self._unread.stop(version, group.transaction, self._batch)
            return
        try:
            body, at = row_event_header.images(event, version)
        except row_event_header.ColumnsMissing:
            self._in_part(version, op, group, unread_tables.WITHOUT_COLUMNS, unread_tables.FULL_IMAGES)
            return
        if version.schema.table == self._tables.watermarks:
            self._watermarks(version, group, op, body, at)
            return
        if version.schema.table == self._tables.signals:
            self._signals(version, group, op, body, at)
            return
        self._see_shape(version, group)
        self._numbers.usual[table_id] = version
        self._rows_at(version, group, op, body, at, len(body))

    def _partial_rows(self, event: Event) -> None:
        """Updates with parts of JSON documents (binlog_row_value_options = PARTIAL_JSON)."""
        _, version = self._described(event)
        if isinstance(version, TableVersion):
            self._in_part(version, UPDATE, self._current(event), unread_tables.IN_PARTS, unread_tables.WHOLE_DOCUMENTS)
        elif version is not None:
            self._unread.stop(version, self._current(event).transaction, self._batch)

    def _in_part(self, version: TableVersion, op: str, group: Group, what: str, fix: str) -> None:
        """The log has a row in part. Of our own tables it is one of its kind that is passed over, with a warning."""
        table = version.schema.table
        number, index = self._batch.next_sequence, self._batch.transaction(group.transaction)
        if table == self._tables.watermarks and op != DELETE:
            self._batch.signal(WatermarkSeen(number, index, f"{what}: {fix}"))
        elif table == self._tables.signals and op == CREATE:
            self._batch.signal(SignalSeen(number, index, "", "", None))
        elif not self._tables.ours(table):
            self._see_shape(version, group)
            self._unread.stop_in_part(table, what, fix, group.transaction, self._batch)

    def _rows_at(
        self, version: TableVersion, group: Group, op: str, body: bytes | headers.Bytes, at: int, end: int
    ) -> None:
        """Row changes of a captured table whose shape was told."""
        if at < end:
            group.changed = True
            dropped = self._batch.rows_event(version, op, group.transaction, body, at, self._skip, end)
            self._skip -= dropped
            group.rows += dropped

    def _see_shape(self, version: TableVersion, group: Group) -> None:
        schema = version.schema
        if self._shapes.get(schema.table) != schema.fingerprint:
            self._shapes[schema.table] = schema.fingerprint
            self._unread.shown(schema.table)
            self._numbers.usual.clear()
            index = self._batch.transaction(group.transaction)
            self._batch.signal(SchemaSeen(self._batch.next_sequence, index, schema))

    def _watermarks(self, version: TableVersion, group: Group, op: str, body: bytes, at: int) -> None:
        for payload in row_event_header.watermarks(version, op, body, at, self._zero_dates):
            index = self._batch.transaction(group.transaction)
            self._batch.signal(WatermarkSeen(self._batch.next_sequence, index, payload))

    def _signals(self, version: TableVersion, group: Group, op: str, body: bytes, at: int) -> None:
        for row in row_event_header.inserted(version, op, body, at):
            index = self._batch.transaction(group.transaction)
            self._batch.signal(SignalSeen.of(self._batch.next_sequence, index, row))
