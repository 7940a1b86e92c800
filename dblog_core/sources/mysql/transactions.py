"""Events become transactions: what each event type means for the rows, the position and the signals. No I/O.

A group of events begins with its GTID and ends with XID, COMMIT, or the one statement that it consists of. Only the
place between two groups is a position. Every type is handled, known to be harmless, or an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dblog_core.errors import LogPositionLost, UnknownLogEvent
from dblog_core.events import CREATE, DELETE, UPDATE, LogBatch, SchemaSeen, Transaction, Truncated, WatermarkSeen
from dblog_core.schema import TableName
from dblog_core.sources.mysql import events, tablemap
from dblog_core.sources.mysql.batch import BatchBuilder
from dblog_core.sources.mysql.catalogue import TableFilter
from dblog_core.sources.mysql.charsets import Charsets
from dblog_core.sources.mysql.decode import Images
from dblog_core.sources.mysql.events import Event, GtidEvent, Type
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.statements import Means, Statement, classify
from dblog_core.sources.mysql.tablemap import TableVersion
from dblog_core.sources.mysql.types import UnsupportedType

_ROWS = {
    Type.WRITE_ROWS_V1: (CREATE, False, False),
    Type.UPDATE_ROWS_V1: (UPDATE, False, False),
    Type.DELETE_ROWS_V1: (DELETE, False, False),
    Type.WRITE_ROWS: (CREATE, True, False),
    Type.UPDATE_ROWS: (UPDATE, True, False),
    Type.DELETE_ROWS: (DELETE, True, False),
    Type.WRITE_ROWS_COMPRESSED_V1: (CREATE, False, True),
    Type.UPDATE_ROWS_COMPRESSED_V1: (UPDATE, False, True),
    Type.DELETE_ROWS_COMPRESSED_V1: (DELETE, False, True),
    Type.WRITE_ROWS_COMPRESSED: (CREATE, True, True),
    Type.UPDATE_ROWS_COMPRESSED: (UPDATE, True, True),
    Type.DELETE_ROWS_COMPRESSED: (DELETE, True, True),
}
"""Op, whether the header has the extra part of version 2, whether MariaDB has compressed the rows."""
_DUMMY_TABLES = {0xFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFF}
"""Table id of a row event without rows, which only ends a statement."""
_VERSIONS = 4096
"""Table versions that are remembered; beyond that they are read again."""


@dataclass(slots=True)
class _Group:
    """The transaction being read. `rows`: row changes of wanted tables so far, also those not to be delivered again."""

    gtid: GtidEvent
    transaction: Transaction
    begun: bool
    rows: int = 0


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
        self._tables, self._keys, self._charsets, self._zero_dates = tables, keys, charsets, zero_dates
        self._mariadb, self._server = mariadb, server
        self.position = position.moved(next=None)
        self._expected, self._skip = position.next, skip
        self._flushed = self.position
        self._file, self._start, self._offset = position.file, position.offset, position.offset
        self._group: _Group | None = None
        self._maps: dict[int, TableVersion | TableName | None] = {}
        self._versions: dict[bytes, TableVersion] = {}
        self._shapes: dict[TableName, str] = {}
        self._batch = BatchBuilder(zero_dates)
        self._handlers: dict[int, Callable[[Event], None]] = {
            Type.FORMAT_DESCRIPTION: lambda _: self._maps.clear(),  # a server that restarted numbers its tables anew
            Type.ROTATE: self._rotate,
            Type.HEARTBEAT: self._heartbeat,
            Type.HEARTBEAT_V2: lambda _: None,
            Type.GTID: lambda e: self._begin(events.gtid(e.body, anonymous=False)),
            Type.ANONYMOUS_GTID: lambda e: self._begin(events.gtid(e.body, anonymous=True)),
            Type.GTID_TAGGED: lambda e: self._begin(events.tagged_gtid(e.body)),
            Type.MARIADB_GTID: lambda e: self._begin(events.mariadb_gtid(e.body, e.server_id, e.timestamp)),
            Type.QUERY: lambda e: self._query(e.body, e),
            Type.QUERY_COMPRESSED: lambda e: self._query(events.uncompressed_query(e.body), e),
            Type.XID: lambda _: self._end(),
            Type.XA_PREPARE: self._xa_prepare,
            Type.TABLE_MAP: self._table_map,
            Type.TRANSACTION_PAYLOAD: self._payload,
            **dict.fromkeys(_ROWS, self._rows),
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
        return UnknownLogEvent(message, where=f"binlog {self._file}:{self._start}", fix=fix)

    def take(self, event: Event) -> None:
        """Takes the next event. Raises UnknownLogEvent or LogPositionLost; ValueError where it cannot be read."""
        if event.end and not event.artificial and event.type not in (Type.HEARTBEAT, Type.HEARTBEAT_V2):
            # Offsets are logged with 32 bits; a file that one large transaction made longer goes on counting here.
            self._offset += (event.end - self._offset) & 0xFFFFFFFF
            self._start = self._offset - event.size
        self._dispatch(event)

    def _dispatch(self, event: Event) -> None:
        handler = self._handlers.get(event.type)
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
        self._group = _Group(gtid, transaction, begun=self._mariadb and not gtid.standalone)

    def _current(self, event: Event) -> _Group:
        if self._group is None:  # a server from before GTID events
            self._begin(GtidEvent(None, event.timestamp * 1_000_000))
        assert self._group is not None
        return self._group

    def _end(self) -> None:
        group, self._group = self._group, None
        if self._skip:
            raise LogPositionLost(
                f"the transaction of which a part is staged has {self._skip} row changes fewer than that part",
                where=f"binlog {self._file}:{self._start}",
                fix=events.FRESH_START,
            )
        changes: dict[str, object] = {"file": self._file, "offset": self._offset}
        if self.position.gtids is not None and group is not None:
            gtid = group.gtid.gtid
            # An anonymous transaction is in no GTID set: from here on only file and offset tell where we are.
            changes["gtids"] = self.position.gtids.with_transaction(gtid) if gtid else None
            changes["server"] = None if gtid else self._server
        self.position = self.position.moved(**changes)

    def _xa_prepare(self, event: Event) -> None:
        one_phase = bool(event.body[0])
        group = self._current(event)
        if not one_phase and group.rows:
            raise self.unknown(
                "an XA transaction was prepared with changes of captured tables: whether it commits is not known yet",
                fix="use XA COMMIT … ONE PHASE or plain transactions on captured tables; " + events.FRESH_START,
            )
        self._end()

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
            case Means.BEGIN | Means.XA_START:
                group.begun = True
                return
            case Means.COMMIT | Means.ROLLBACK | Means.XA_END:
                self._end()
                return
            case Means.EMPTIES:
                for table in statement.tables:
                    self._shapes.pop(table, None)
                    if self._tables.wants(table):
                        index = self._batch.transaction(group.transaction)
                        self._batch.signal(Truncated(self._batch.next_sequence, index, table))
        if not group.begun:
            self._end()

    def _fault(self, statement: Statement, group: _Group) -> tuple[str, str] | None:
        """Why the statement cannot be followed, and the way on."""
        match statement.means:
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
        else:
            self._maps[head.table_id] = head.table

    def _version(self, body: bytes, table: TableName) -> TableVersion:
        known = self._versions.get(body[6:])
        if known is not None:
            return known
        try:
            keys = tuple(self._keys.get(str(table), ()))
            version = tablemap.parse(body, server=self._charsets, keys=keys, mariadb=self._mariadb)
        except UnsupportedType as error:
            raise self.unknown(f"TABLE_MAP of {table}: {error}", fix=_table_fix(error)) from error
        if len(self._versions) >= _VERSIONS:
            self._versions.clear()
        self._versions[body[6:]] = version
        return version

    def _rows(self, event: Event) -> None:
        op, extended, compressed = _ROWS[Type(event.type)]
        table_id = int.from_bytes(event.body[:6], "little")
        if table_id in _DUMMY_TABLES:
            return
        version = self._maps.get(table_id)
        if version is None:
            raise self.unknown(
                f"rows of table number {table_id}, which the log has not described", fix=events.FRESH_START
            )
        if isinstance(version, TableName):
            return
        body, at = self._images(event, version, op, extended, compressed)
        group = self._current(event)
        if version.schema.table == self._tables.watermarks:
            self._watermarks(version, group, op, body, at)
            return
        self._see_shape(version, group)
        count = self._batch.rows_event(version, op, group.transaction, body, at, self._skip)
        self._skip = max(0, self._skip - count)
        group.rows += count

    def _images(
        self, event: Event, version: TableVersion, op: str, extended: bool, compressed: bool
    ) -> tuple[bytes, int]:
        """The event's bytes and where its first image begins, once it is sure that every column is there."""
        body, at = event.body, 8
        if extended:
            at += struct.unpack_from("<H", body, 8)[0]  # partition numbers and such; the length counts itself
        count, at = tablemap.lenenc(body, at)
        size, every = (count + 7) // 8, (1 << count) - 1
        for _ in range(2 if op == UPDATE else 1):
            present = int.from_bytes(body[at : at + size], "little") & every
            at += size
            if count != len(version.columns) or present != every:
                raise self.unknown(
                    f"a row of {version.schema.table} without all its columns",
                    fix=f"set binlog_row_image = FULL for every session; {events.FRESH_START}",
                )
        return (events.uncompress_mariadb(body[at:]), 0) if compressed else (body, at)

    def _see_shape(self, version: TableVersion, group: _Group) -> None:
        schema = version.schema
        if self._shapes.get(schema.table) != schema.fingerprint:
            self._shapes[schema.table] = schema.fingerprint
            index = self._batch.transaction(group.transaction)
            self._batch.signal(SchemaSeen(self._batch.next_sequence, index, schema))

    def _watermarks(self, version: TableVersion, group: _Group, op: str, body: bytes, at: int) -> None:
        if op == DELETE:
            return
        images = Images(version.columns)
        while at < len(body):
            at = images.read(body, at)
            if op == UPDATE:  # what counts is the image after; the one before was seen when it was written
                images = Images(version.columns)
                at = images.read(body, at)
            payload = images.finish(self._zero_dates)[[c.name for c in version.schema.columns].index("payload")]
            index = self._batch.transaction(group.transaction)
            self._batch.signal(WatermarkSeen(self._batch.next_sequence, index, str(payload[-1].as_py())))


def _table_fix(error: UnsupportedType) -> str:
    if "binlog_row_metadata" in str(error):
        return f"SET PERSIST binlog_row_metadata = 'FULL'; then {events.FRESH_START}"
    return f"leave the table out of source.tables, or change its columns; then {events.FRESH_START}"
