"""Events become transactions: what each event type means for the rows, the position and the signals. No I/O.

A group of events begins with its GTID and ends with XID, COMMIT, or the one statement that it consists of. Only the
place between two groups is a position. Every type is handled, known to be harmless, or an error. The rows of an XA
transaction are held back when they are prepared, and taken again when it commits (`xa.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dblog_core.errors import LogPositionLost, UnknownLogEvent
from dblog_core.events import LogBatch, Rewritten, SchemaSeen, Transaction, Truncated, WatermarkSeen
from dblog_core.schema import TableName
from dblog_core.sources.mysql import events, rowevents, tablemap, xa
from dblog_core.sources.mysql.batch import BatchBuilder
from dblog_core.sources.mysql.catalogue import TableFilter
from dblog_core.sources.mysql.charsets import Charsets
from dblog_core.sources.mysql.events import GTIDS, Event, GtidEvent, Type
from dblog_core.sources.mysql.position import MariadbGtids, Position, Prepared
from dblog_core.sources.mysql.rowevents import DUMMY_TABLES, KINDS, Versions
from dblog_core.sources.mysql.statements import Means, Statement, classify
from dblog_core.sources.mysql.tablemap import TableVersion
from dblog_core.sources.mysql.types import UnsupportedType


@dataclass(slots=True)
class _Group:
    """The transaction being read. `rows`: row changes of wanted tables so far, also those not to be delivered again.

    `held`: in an XA transaction that is being prepared, what becomes of its rows is not known yet.
    """

    gtid: GtidEvent
    transaction: Transaction
    begun: bool
    start: int
    rows: int = 0
    held: xa.Held | None = None


class LogState:
    """Takes events in order, collects a batch, and knows the position between the last two groups."""

    def __init__(
        self,
        *,
        tables: TableFilter,
        keys: Mapping[str, Sequence[str]],
        charsets: Charsets,
        zero_dates: str,
        mariadb: bool,
        server: str | None,
        position: Position,
        skip: int,
    ) -> None:
        self._tables, self._zero_dates = tables, zero_dates
        self._mariadb, self._server = mariadb, server
        self.position = position.moved(next=None)
        self._expected, self._skip = position.next, skip
        self._flushed = self.position
        self._file, self._start, self._offset = position.file, position.offset, position.offset
        self._group: _Group | None = None
        self.again: xa.Again | None = None
        self._kept = xa.Kept()
        self._maps: dict[int, TableVersion | TableName | None] = {}
        self._versions = Versions(keys, charsets, mariadb=mariadb)
        self._shapes: dict[TableName, str] = {}
        self._batch = BatchBuilder(zero_dates)
        self._handlers: dict[int, Callable[[Event], None]] = {
            Type.FORMAT_DESCRIPTION: lambda _: self._maps.clear(),  # a server that restarted numbers its tables anew
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
            **dict.fromkeys(KINDS, self._rows),
        }
        self._handlers_again: dict[int, Callable[[Event], None]] = {
            Type.HEARTBEAT: lambda _: None,
            Type.QUERY: lambda e: self._query_again(e.body),
            Type.QUERY_COMPRESSED: lambda e: self._query_again(events.uncompressed_query(e.body)),
            Type.XA_PREPARE: self._end_again,
            **{kind: self._handlers[kind] for kind in (Type.HEARTBEAT_V2, Type.TRANSACTION_PAYLOAD, Type.TABLE_MAP)},
            **dict.fromkeys(KINDS, self._rows),
        }

    @property
    def full(self) -> bool:
        return self._batch.full

    @property
    def between(self) -> bool:
        """Whether no transaction is open."""
        return self._group is None

    @property
    def has_news(self) -> bool:
        return not self._batch.empty or self.position != self._flushed

    def flush(self) -> LogBatch:
        """The batch so far. Raises ValueOutOfRange."""
        partial = self._group.rows if self._group else 0
        position = self.position
        if partial and self._group:
            position = position.moved(next=self._group.transaction.id)
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

        While `again` says so, those of a prepared transaction come next, through `take_again`.
        """
        assert self.again is None
        if event.end and not event.artificial and event.type not in (Type.HEARTBEAT, Type.HEARTBEAT_V2):
            # Offsets are logged with 32 bits; a file that one large transaction made longer goes on counting here.
            self._offset += (event.end - self._offset) & 0xFFFFFFFF
            self._start = self._offset - event.size
        self._dispatch(event)

    def _dispatch(self, event: Event) -> None:
        handlers = self._handlers if self.again is None else self._handlers_again
        handler = handlers.get(event.type)
        if handler is not None:
            handler(event)
        elif event.type not in events.HARMLESS:
            kind = Type(event.type) if event.type in Type._value2member_map_ else None
            why = events.REFUSED.get(kind, "its type is not known here") if kind else "its type is not known here"
            fix = events.FIXES.get(kind, events.FRESH_START) if kind else events.FRESH_START
            raise self.unknown(f"event {events.name(event.type)}: {why}", fix=fix)

    # -- where we are

    def _rotate(self, event: Event) -> None:
        if self._group and self._group.begun:
            raise self.unknown("the file ends inside a transaction", fix=events.FRESH_START)
        self._group = None
        self._file, self._offset = event.body[8:].rstrip(b"\0").decode(), int.from_bytes(event.body[:8], "little")
        self._start = self._offset
        self.position = self.position.moved(file=self._file, offset=self._offset)

    def _heartbeat(self, event: Event) -> None:
        """While it skips transactions that lie before our position, the server tells how far it has come."""
        if self._group is None and event.end:
            self._offset += (event.end - self._offset) & 0xFFFFFFFF
            self.position = self.position.moved(offset=self._offset)

    # -- transactions

    def _begin(self, gtid: GtidEvent) -> None:
        place = f"{self._file}:{self._start}"
        transaction = Transaction(gtid.gtid or place, place, gtid.commit_time)
        if self._expected is not None and transaction.id != self._expected:
            raise LogPositionLost(
                f"transaction {self._expected}, of which a part is staged, is not the next one: {transaction.id} is",
                where=f"binlog {place}",
                fix=events.FRESH_START,
            )
        self._expected = None
        # MariaDB has no BEGIN: the GTID event says whether a single statement or a transaction follows.
        self._group = _Group(gtid, transaction, self._mariadb and not gtid.standalone, self._start)
        if gtid.prepared:
            self._hold(self._group)

    def _current(self, event: Event) -> _Group:
        if self._group is None:  # a server from before GTID events
            self._begin(GtidEvent(None, event.timestamp * 1_000_000))
        assert self._group is not None
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
        changes: dict[str, object] = {"file": self._file, "offset": self._offset, **moved}
        if self.position.gtids is not None and group is not None:
            gtid = group.gtid.gtid
            # An anonymous transaction is in no GTID set: from here on only file and offset tell where we are.
            changes["gtids"] = self.position.gtids.with_transaction(gtid) if gtid else None
            changes["server"] = None if gtid else self._server
        self.position = self.position.moved(**changes)

    # -- XA

    def _hold(self, group: _Group) -> None:
        gtids = self.position.gtids
        group.held = xa.Held(group.start, str(gtids) if isinstance(gtids, MariadbGtids) else None)

    def _xa_prepare(self, event: Event) -> None:
        one_phase, xid = xa.of_event(event.body)
        group = self._current(event)
        held = group.held
        if held is None:
            raise self.unknown(f"XA transaction {xid} ends and has not begun", fix=events.FRESH_START)
        place = Prepared(xid, self._file, held.start, group.gtid.gtid, held.before)
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
        self._maps.clear()  # tables were numbered otherwise if the server has restarted since
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
        return self.position.gtids is None or bool(getattr(self.position.gtids, "tagged", False))

    def _query_again(self, body: bytes) -> None:
        assert self.again is not None and self._group is not None
        schema, sql = events.query(body)
        statement = classify(sql, schema)
        if fault := self._fault(statement, self._group):
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
        self._maps.clear()
        self._end(prepared=self.position.finished(xid))

    def _payload(self, event: Event) -> None:
        for inner in events.payload(event.body):
            self._dispatch(inner)

    # -- statements

    def _query(self, body: bytes, event: Event) -> None:
        schema, sql = events.query(body)
        statement = classify(sql, schema)
        group = self._current(event)
        if fault := self._fault(statement, group):
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
            case Means.EMPTIES:
                for table in statement.tables:
                    self._shapes.pop(table, None)
                self._lost_rows(Truncated, statement, group)
            case Means.DROPS_PARTITIONS:
                self._lost_rows(Rewritten, statement, group)
        if not group.begun:
            self._end()

    def _lost_rows(self, kind: type[Truncated | Rewritten], statement: Statement, group: _Group) -> None:
        for table in filter(self._tables.wants, statement.tables):
            index = self._batch.transaction(group.transaction)
            self._batch.signal(kind(self._batch.next_sequence, index, table))

    def _fault(self, statement: Statement, group: _Group) -> tuple[str, str] | None:
        """Why the statement cannot be followed, and the way on."""
        match statement.means:
            case Means.COMMIT | Means.ROLLBACK | Means.XA_COMMIT | Means.XA_ROLLBACK if group.held:
                return "it ends an XA transaction that is not prepared", events.FRESH_START
            case Means.ROLLBACK | Means.ROLLBACK_TO if group.rows:
                return (
                    "rows that the log holds were rolled back (a transaction over several storage engines)",
                    events.FRESH_START,
                )
            case Means.REWRITES if any(self._tables.wants(table) for table in statement.tables):
                return "it changes rows of a captured table without row events", events.FRESH_START
            case Means.DROPS_SCHEMA if self._tables.wants_schema(statement.schema):
                return "it drops a schema with captured tables", events.FRESH_START
            case Means.CHANGES_ROWS:
                return (
                    "rows were changed in statement form",
                    f"set binlog_format = ROW for every session; {events.FRESH_START}",
                )
            case Means.UNKNOWN:
                return "it is not a statement that is known here", events.FRESH_START
        return None

    # -- rows

    def _table_map(self, event: Event) -> None:
        head = tablemap.head(event.body)
        if head.table == self._tables.watermarks or self._tables.wants(head.table):
            self._maps[head.table_id] = self._version(event.body, head.table)
            if self._group and self._group.held:
                self._group.held.keep(event)
        else:
            self._maps[head.table_id] = head.table

    def _version(self, body: bytes, table: TableName) -> TableVersion:
        try:
            return self._versions.of(body, table)
        except UnsupportedType as error:
            raise self.unknown(f"TABLE_MAP of {table}: {error}", fix=rowevents.fix_of(error)) from error

    def _rows(self, event: Event) -> None:
        op = KINDS[Type(event.type)][0]
        table_id = int.from_bytes(event.body[:6], "little")
        if table_id in DUMMY_TABLES:
            return
        version = self._maps.get(table_id)
        if version is None:
            raise self.unknown(
                f"rows of table number {table_id}, which the log has not described", fix=events.FRESH_START
            )
        if isinstance(version, TableName):
            return
        group = self._current(event)
        if group.held:
            group.held.keep(event)
            return
        try:
            body, at = rowevents.images(event, version)
        except rowevents.ColumnsMissing as error:
            raise self.unknown(
                f"a row of {version.schema.table} without all its columns",
                fix=f"set binlog_row_image = FULL for every session; {events.FRESH_START}",
            ) from error
        if version.schema.table == self._tables.watermarks:
            self._watermarks(version, group, op, body, at)
            return
        self._see_shape(version, group)
        count = self._batch.rows_event(version, op, group.transaction, body, at, self._skip)
        self._skip = max(0, self._skip - count)
        group.rows += count

    def _see_shape(self, version: TableVersion, group: _Group) -> None:
        schema = version.schema
        if self._shapes.get(schema.table) != schema.fingerprint:
            self._shapes[schema.table] = schema.fingerprint
            index = self._batch.transaction(group.transaction)
            self._batch.signal(SchemaSeen(self._batch.next_sequence, index, schema))

    def _watermarks(self, version: TableVersion, group: _Group, op: str, body: bytes, at: int) -> None:
        for payload in rowevents.watermarks(version, op, body, at, self._zero_dates):
            index = self._batch.transaction(group.transaction)
            self._batch.signal(WatermarkSeen(self._batch.next_sequence, index, payload))
