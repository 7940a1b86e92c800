"""Decodes wal2json, format version 2: one JSON object a message, gathered into columns.

Two things it does not say decide how its rows are read: an update leaves unchanged TOAST values out, and no message
describes a table. So a table's shape is the catalogue's, held against the names and types of every row
(`wal2json_shapes`). NaN and the infinities arrive as null: pgoutput, which is exact, is the default.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import orjson

from dblog_core.config.source import SourceConfig
from dblog_core.errors import UnknownLogEvent
from dblog_core.interfaces import Json
from dblog_core.model import table_patterns, watermark
from dblog_core.model.events import THEN_DUMPED, LogBatch, Transaction, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.rows import row_faults, source_key_faults
from dblog_core.sources.postgres.logical.batch import Assembly, no_key_fix
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.wal2json_shapes import RowFault, Shapes, Version
from dblog_core.sources.postgres.position import Lsn
from dblog_core.sources.postgres.sql.catalogue import is_wanted, signal_table, watermark_table

_UPGRADE = "upgrade dblog"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_SPECIAL = str.maketrans({character: "\\" + character for character in " '\",.*\\"})
# Numbers become strings before they are parsed, so that no digit goes through a float. Inside a JSON string the quote
# before the colon would stand behind a backslash: only members match.
_NUMBER = re.compile(rb'"value":(-?[0-9][0-9.eE+-]*)')


class Wal2jsonDecoder:
    """Feeds an Assembly from wal2json's messages."""

    plugin = "wal2json"

    def __init__(self, config: SourceConfig, assembly: Assembly, shapes: Shapes) -> None:
        self._config = config
        self._assembly = assembly
        self._shapes = shapes
        self._watermarks = watermark_table(config)
        self._signals = signal_table(config)
        self._names: dict[tuple[str, str], TableName | None] = {}  # None: a table that nobody asked for
        self._versions: dict[TableName, Version] = {}
        self._filled: list[Version] = []  # versions with rows of this batch
        self._unreadable = set[TableName]()
        self._handlers: dict[str, Callable[[Json], None]] = {
            "B": self._begin,
            "C": self._commit,
            "I": self._change,
            "U": self._change,
            "D": self._change,
            "T": self._truncate,
            "M": _nothing,  # pg_logical_emit_message: no row of any table
        }

    def options(self) -> dict[str, str]:
        """What START_REPLICATION asks of the plugin: whole schemas where a pattern may match new tables."""
        options = {
            # Version 1 gathers a transaction into one message, which fails beyond 1 GB.
            "format-version": "2",
            "include-transaction": "true",
            "include-xids": "true",
            "include-timestamp": "true",
            "include-lsn": "true",
            "include-types": "true",
            "include-typmod": "true",
            # Of a domain the type below it: that is what a value looks like.
            "include-domain-data-type": "true",
            "include-pk": "true",
        }
        own_tables = [str(name) for name in (self._watermarks, self._signals) if name is not None]
        filters = [_filter(pattern) for pattern in (*self._config.tables, *own_tables)]
        if None not in filters:
            options["add-tables"] = ",".join(dict.fromkeys(str(text) for text in filters))
        return options

    def feed(self, arrived: Messages, *, aged: bool = False) -> bool:
        """Takes messages; whether all are taken. If not, the batch has to be handed on first, which ends with the next
        transaction that does if it is `aged`. Raises UnknownLogEvent for an action that is not handled."""
        while not arrived.is_taken:
            if self._assembly.full or (aged and self._assembly.rows and self._assembly.open is None):
                return False
            self._one(arrived.message(arrived.next))
            arrived.next += 1
        return True

    def take(self) -> LogBatch:
        """The batch so far; the next one begins."""
        changes = []
        for version in self._filled:
            table_changes, fault = version.take()
            changes.append(table_changes)
            if fault is not None:
                self._assembly.unreadable_since(self._unreadable_since(version, fault))
        self._filled = []
        return self._assembly.take(changes)

    def _unreadable_since(self, version: Version, fault: RowFault) -> Unreadable:
        transaction = self._assembly.transactions[fault.transaction]
        why = f"{fault.error.where} at LSN {transaction.position} (transaction {transaction.id}): {fault.error.message}"
        fix = f"{fault.error.fix}; {THEN_DUMPED}"
        return Unreadable(fault.sequence, fault.transaction, version.schema.table, why, fix)

    def close(self) -> None:
        """Nothing is held but memory."""

    def _one(self, message: bytes) -> None:
        parts = _NUMBER.split(message)
        parts[1::2] = [b'"value":"%b"' % number for number in parts[1::2]]
        try:
            record: Json = orjson.loads(b"".join(parts))
            handler = self._handlers.get(record.get("action", ""))
        except (ValueError, AttributeError) as error:
            raise UnknownLogEvent(
                "wal2json sent a line that is no JSON object", where=self._where(), fix=_UPGRADE
            ) from error
        if handler is None:
            raise UnknownLogEvent(
                f"wal2json sent the unknown action {record.get('action')!r}", where=self._where(), fix=_UPGRADE
            )
        try:
            handler(record)
        except (KeyError, TypeError, ValueError) as error:
            raise UnknownLogEvent(
                f"wal2json sent a line of action {record.get('action')} that cannot be read", where=self._where(),
                fix=_UPGRADE,
            ) from error  # fmt: skip

    def _begin(self, record: Json) -> None:
        committed = (dt.datetime.fromisoformat(record["timestamp"]) - _EPOCH) // _MICROSECOND
        self._assembly.begin(Transaction(str(record["xid"]), str(Lsn.parse(record["lsn"])), committed, record["xid"]))

    def _commit(self, record: Json) -> None:
        self._assembly.commit(Lsn.parse(record["nextlsn"]))

    def _truncate(self, record: Json) -> None:
        name = self._name(record)
        if name is not None and name not in (self._watermarks, self._signals):
            self._assembly.truncate(name)

    def _change(self, record: Json) -> None:
        name = self._name(record)
        if name is None:
            return
        if name is self._watermarks:
            self._watermark(record)
        elif name is self._signals:
            if record["action"] == "I":
                self._assembly.signal(_values(record))
        else:
            try:
                self._row(name, record)
            except Exception as error:  # noqa: BLE001 - `row_faults` says which errors are of the rows
                fault = row_faults.explain(error, name)
                why = f"{fault.message} at {self._where()}"
                self._pass_over(name, why, f"{fault.fix}; {THEN_DUMPED}")

    def _row(self, name: TableName, record: Json) -> None:
        """A row of a captured table."""
        version = self._version(name, record)
        if version.contradiction:
            self._versions[name] = version  # the catalogue is asked once, not for each row: it tells of a repair too
            self._leave_out(name, version.contradiction, source_key_faults.contradiction_fix(name), refused=True)
            return
        if why := version.fault(record):
            self._pass_over(name, why, no_key_fix(name))
            return
        self._go_on(name, version)
        if sequence := self._assembly.row():
            if version.empty:
                self._filled.append(version)
            try:
                version.add(record, sequence, self._assembly.transaction)
            except Exception as error:  # noqa: BLE001 - as above; the row is counted already
                fault = row_faults.explain(error, name)
                self._versions.pop(name, None)
                self._unreadable.add(name)
                self._assembly.unreadable(name, f"{fault.message} at {self._where()}", f"{fault.fix}; {THEN_DUMPED}")

    def _pass_over(self, name: TableName, why: str, fix: str) -> None:
        """A row that its key does not identify: before the next good one the shape comes once more."""
        self._versions.pop(name, None)
        self._leave_out(name, why, fix)

    def _leave_out(self, name: TableName, why: str, fix: str, *, refused: bool = False) -> None:
        if name not in self._unreadable:
            self._unreadable.add(name)
            self._assembly.unreadable(name, why, fix, refused=refused)
        self._assembly.pass_over()

    def _version(self, name: TableName, record: Json) -> Version:
        """The table version that the row is of; a new one where it does not fit the current one."""
        current = self._versions.get(name)
        if current is not None and current.fits(record):
            return current
        version = self._shapes.version(name, record)
        return current if current is not None and current.schema == version.schema else version

    def _go_on(self, name: TableName, version: Version) -> None:
        """From here on rows are of this version."""
        if self._versions.get(name) is not version:
            self._assembly.schema(version.schema)
            self._versions[name] = version
            self._unreadable.discard(name)

    def _watermark(self, record: Json) -> None:
        if record["action"] == "D":
            return  # a worker's row was cleared away
        payload = dict(zip(_names(record), _values(record), strict=True)).get("payload")
        self._assembly.watermark(watermark.describe_unread("it has no payload") if payload is None else str(payload))

    def _name(self, record: Json) -> TableName | None:
        """The table, None if nobody asked for it; a table of our own is always the same object."""
        pair = record["schema"], record["table"]
        if pair not in self._names:
            name = TableName(*pair)
            own_tables = {table: table for table in (self._watermarks, self._signals) if table is not None}
            self._names[pair] = own_tables.get(name, name if is_wanted(name, self._config) else None)
        return self._names[pair]

    def _where(self) -> str:
        return self._assembly.where()


def _names(record: Json) -> list[str]:
    return [str(column.get("name")) for column in _columns(record)]


def _values(record: Json) -> list[Any]:
    return [column.get("value") for column in _columns(record)]


def _columns(record: Json) -> list[Json]:
    """Those of a row of a table that is ours alone; whatever is no column is left out."""
    columns = record.get("columns")
    return [column for column in columns if isinstance(column, dict)] if isinstance(columns, list) else []


def _nothing(record: Json) -> None:
    """A message that changes no row."""


def _filter(pattern: str) -> str | None:
    """The pattern for `add-tables`; None where only no filter at all would let every match through."""
    schema, table = table_patterns.parts(pattern)
    if set("*?") & set(schema):
        return None
    return f"{schema.translate(_SPECIAL)}.{'*' if set('*?') & set(table) else table.translate(_SPECIAL)}"
