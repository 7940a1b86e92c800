"""Decodes pgoutput (protocol version 2): what describes changes message by message, row changes by the batch.

Transactions and rows are found by a compiled scan, and a row message stays the bytes it is, in the buffer of its
arrival, until its batch ends. Then all rows of a table version become columns (`tuples.py`). What the scan leaves
(relations, watermarks, TRUNCATE, streams, the unknown) is read here. See "Logical Replication Message Formats" in the
manual.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceUnavailable, UnknownLogEvent
from dblog_core.model import watermark
from dblog_core.model.events import THEN_DUMPED, LogBatch, TableChanges, Transaction
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.rows import row_faults, source_key_faults
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.postgres.logical import row_messages, short_tables
from dblog_core.sources.postgres.logical.batch import MAX_ROWS, Assembly, no_key_fix
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.relations import (
    Forms,
    Relation,
    Relations,
    Types,
    find_key_of_then,
    why_unreadable,
)
from dblog_core.sources.postgres.logical.streamed_transactions import EPOCH, Delivery, Streams
from dblog_core.sources.postgres.logical.tuples import decode_placed, one_row_or_none
from dblog_core.sources.postgres.position import Lsn
from dblog_core.sources.postgres.sql import replica_identity
from dblog_core.sources.postgres.sql.catalogue import is_wanted, signal_table, watermark_table
from dblog_core.sources.postgres.values import binary_values, types

Int64s = npt.NDArray[np.int64]

_BEGIN = struct.Struct(">xQqI")
_COMMIT = struct.Struct(">xBQQq")
_IN_STREAMS = b"IUDRTYM"  # kinds of messages that name their transaction in a stream
_WELL_FILLED = MAX_ROWS * 3 // 4  # rows of a batch that does not begin another transaction
_NAMED = 5  # bytes of a row message that tell its table
_HEAD = 6  # bytes of the smallest row message, up to its first marker


class PgoutputDecoder:
    """Feeds an Assembly from pgoutput's messages."""

    plugin = "pgoutput"

    def __init__(self, config: SourceConfig, assembly: Assembly, catalogue: Types, *, forms: Forms) -> None:
        self._config = config
        self._assembly = assembly
        self._catalogue = catalogue
        self._forms = forms
        self._binary = forms.binary
        self._relations = Relations()
        self._streams = Streams()
        self._rows = np.empty((6, MAX_ROWS), dtype=np.int64)
        self._transactions = np.empty((3, MAX_ROWS), dtype=np.int64)
        self._enough = _WELL_FILLED
        self._raw: npt.NDArray[np.uint8] | None = None  # what the rows point into
        self._handlers: dict[bytes, Callable[[bytes], None]] = {
            b"B": self._begin,
            b"C": self._commit,
            b"R": self._relation,
            b"T": self._truncate,
            b"I": self._change,
            b"U": self._change,
            b"D": self._change,
            # Harmless: a type's name (we ask for it by oid), where a replicated transaction came from, and
            # pg_logical_emit_message, which is no row of any table.
            b"Y": _ignore,
            b"O": _ignore,
            b"M": _ignore,
            b"S": self._streams.start,
            b"A": self._streams.abort,
        }

    def options(self) -> dict[str, str]:
        """What START_REPLICATION asks of the plugin. Version 2: a transaction that is too large for the server's memory
        comes in pieces before its commit, instead of waiting on the server's disk."""
        return {
            "proto_version": "2",
            "streaming": "on",
            "binary": "true" if self._binary else "false",
            "publication_names": '"' + self._config.publication.replace('"', '""') + '"',
        }

    def feed(self, arrived: Messages, *, aged: bool = False) -> bool:
        """Takes messages; whether all are taken. If not, the batch has to be handed on first, which ends with the next
        transaction that does once it is well filled, or `aged`.

        Raises UnknownLogEvent for what is not handled, SourceUnavailable where the stream must be requested again.
        """
        self._enough = 1 if aged else _WELL_FILLED
        while True:
            if (stream := self._streams.delivered) is not None and not self._deliver(stream):
                return False
            if self._take_messages(arrived, None):
                return True
            if self._streams.delivered is None:
                return False

    def take(self) -> LogBatch:
        """The batch so far; the next one begins."""
        changes = self._changes()
        self._raw = None
        return self._assembly.take(changes)

    def close(self) -> None:
        self._streams.close()

    def _deliver(self, stream: Delivery) -> bool:
        """Continues with a committed stream; whether it is all taken, and nothing points into its buffer."""
        while self._take_messages(stream.messages, stream):
            if stream.spool.is_exhausted:
                self._assembly.commit(stream.end)
                self._streams.finish()
                return not self._assembly.rows
            if self._assembly.rows:
                return False
            stream.spool.read(stream.messages)
        return False

    def _take_messages(self, arrived: Messages, stream: Delivery | None) -> bool:
        """Takes messages, as they arrive or of a committed stream; False where the batch is full, or a stream's turn
        comes."""
        while not arrived.is_taken:
            if stream is None and self._streams.inside:
                self._streams.add(arrived)
                continue
            if not self._assembly.skip:
                self._scan(arrived, stream)
                if self._assembly.rows >= (self._enough if self._assembly.open is None else MAX_ROWS):
                    return arrived.is_taken
            if not arrived.is_taken and not self._take_message(arrived, stream):
                return False
        return True

    def _scan(self, arrived: Messages, stream: Delivery | None) -> None:
        """Takes transactions and rows up to the first message that Python has to read."""
        # Of a committed stream alone: a plain transaction comes without what it has rolled back.
        aborted = np.array(sorted(stream.spool.aborted) if stream else (), dtype=np.int64)
        oids, codes = self._relations.arrays()
        before = self._assembly.rows
        state = self._scan_state()
        arrived.next = row_messages.scan(
            arrived.raw, arrived.starts, arrived.ends, arrived.next, arrived.count, stream is not None, aborted,
            oids, codes, state, self._rows, self._transactions,
        )  # fmt: skip
        self._follow_scan(state.tolist())
        # The rows point into this buffer: it must stay as it is until they are columns.
        if self._assembly.rows > before:
            self._raw = arrived.raw

    def _scan_state(self) -> Int64s:
        """The assembly's, as the scan counts on from it."""
        at = self._assembly
        state = np.zeros(row_messages.STATE, dtype=np.int64)
        is_open = at.open is not None
        placed = len(at.transactions)
        state[: row_messages.CURRENT] = (
            is_open, at.in_open, at.sequence, at.rows, at.transaction, placed, at.position, 0, self._enough,
        )  # fmt: skip
        state[row_messages.CURRENT] = row_messages.OPENED
        return state

    def _follow_scan(self, state: list[int]) -> None:
        """Brings the assembly to where the scan is."""
        at = self._assembly
        for xid, final, committed in self._transactions[:, : state[row_messages.BEGUN]].T.tolist():
            if xid == row_messages.OPENED:
                assert at.open is not None
                at.transactions.append(at.open)
            else:
                at.transactions.append(_transaction(xid, final, committed))
        at.in_open, at.sequence, at.rows, at.transaction = state[row_messages.IN_OPEN : row_messages.IN_BATCH + 1]
        at.position = Lsn(state[row_messages.POSITION])
        xid, final, committed = state[row_messages.CURRENT :]
        if not state[row_messages.OPEN]:
            at.open = None
        elif xid != row_messages.OPENED:
            at.open = at.transactions[-1] if at.transaction >= 0 else _transaction(xid, final, committed)

    def _take_message(self, arrived: Messages, stream: Delivery | None) -> bool:
        """Reads one message; False where the batch must be handed on before it, or a stream's turn has come."""
        message = arrived.message(arrived.next)
        kind = message[:1]
        try:
            # The end of a streamed transaction: its rows are read from the spool next, as if they came now.
            if stream is None and kind == b"c":
                if self._assembly.ready:
                    return False
                arrived.next += 1
                self._assembly.begin(self._streams.commit(message))
                return False
            if stream is not None and kind in _IN_STREAMS:
                # A subtransaction that was rolled back: its messages stay in the spool, and are passed over.
                if int.from_bytes(message[1:5]) in stream.spool.aborted:
                    arrived.next += 1
                    return True
                message = kind + message[5:]
            if stream is None and kind in b"SA" and self._assembly.open is not None:
                raise UnknownLogEvent("a stream inside a transaction", where=self._where(), fix="report this")
            handler = self._handlers.get(kind)
            if handler is None or (stream is not None and kind not in _IN_STREAMS + b"O"):
                raise UnknownLogEvent(
                    f"pgoutput sent a message of the unknown kind {kind!r}", where=self._where(), fix="upgrade dblog"
                )
            handler(message)
        except (struct.error, IndexError, ValueError) as error:
            raise UnknownLogEvent(
                f"pgoutput sent a message of kind {kind!r} that cannot be read: {error}",
                where=self._where(), fix="upgrade dblog",
            ) from error  # fmt: skip
        arrived.next += 1
        return True

    def _begin(self, message: bytes) -> None:
        final, committed, xid = _BEGIN.unpack(message)
        self._assembly.begin(_transaction(xid, final, committed))

    def _commit(self, message: bytes) -> None:
        if self._assembly.open is None:
            raise UnknownLogEvent("a transaction ends that never began", where=self._where(), fix="report this")
        # The second LSN: the end of the commit's record, from which the log continues. The first is where the record
        # begins.
        self._assembly.commit(Lsn(_COMMIT.unpack(message)[2]))

    def _relation(self, message: bytes) -> None:
        # The server describes a relation before its first row in a session, and again when something about it has
        # changed.
        relation = Relation.parse(message)
        if relation.table == watermark_table(self._config):
            self._take_watermark_table(relation)
        elif relation.table == signal_table(self._config):
            self._relations.set_signal(relation.oid, relation.table)
        elif not is_wanted(relation.table, self._config):
            self._relations.set_stranger(relation.oid, relation.table)
        else:
            try:
                self._take_relation(relation)
            except Exception as error:  # noqa: BLE001 - `row_faults` says which errors are of the rows
                fault = row_faults.explain(error, relation.table)
                self._pass_over(relation.oid, relation.table, fault.message, fault.fix)

    def _take_watermark_table(self, relation: Relation) -> None:
        """An altered one ends dumps, not the log: without its payload it is a table that nobody asked for."""
        names = [name for name, *_ in relation.columns]
        if "payload" in names:
            self._relations.set_watermark(relation.oid, relation.table, names.index("payload"))
        else:
            self._relations.set_stranger(relation.oid, relation.table)

    def _take_relation(self, relation: Relation) -> None:
        """A captured table: its shape from here on, or why its rows cannot be read."""
        table = relation.table
        key = self._key(relation)
        contradiction = source_key_faults.explain_contradiction(table, self._config.keys.get(str(table), ()), key)
        if why := contradiction or why_unreadable(relation, key):
            fix = source_key_faults.contradiction_fix(table) if contradiction else no_key_fix(table)
            self._pass_over(relation.oid, table, why, fix, refused=bool(contradiction))
            return
        if generated := sorted(self._catalogue.generated(relation.oid) & {name for name, *_ in relation.columns}):
            why = replica_identity.explain_generated(table, generated)
            self._pass_over(relation.oid, table, why, replica_identity.generated_fix(self._config), refused=True)
            return
        version = self._version(relation, key)
        self._check_forms(version)
        if self._relations.set_version(relation.oid, version):
            layout = self._catalogue.layout(relation.oid, version.columns)
            self._assembly.schema(version, layout, oid=relation.oid, listed=relation.columns)

    def _pass_over(self, oid: int, table: TableName, why: str, fix: str, *, refused: bool = False) -> None:
        """Reads no row of a table from here on."""
        if self._relations.set_unreadable(oid, table):
            self._assembly.unreadable(table, why, fix, refused=refused)

    def _check_forms(self, schema: TableSchema) -> None:
        """Raises SourceUnavailable where the binary form of a column is not certain: what reads again asks for text."""
        unsure = [c for c in schema.columns if self._binary and not binary_values.is_supported(c.source_type)]
        if unsure:
            self._forms.binary = False
            raise SourceUnavailable(
                f"values of type {unsure[0].source_type} are read as text, and the log came in binary form",
                where=f"{schema.table}.{unsure[0].name}, {self._where()}",
            )

    def _key(self, relation: Relation) -> tuple[str, ...]:
        """The key that the table's rows are known by, at this place of the log."""
        key = self._catalogue.key(relation.table)
        is_configured = str(relation.table) in self._config.keys
        return key if is_configured else find_key_of_then(relation, key, self._catalogue.former_key)

    def _version(self, relation: Relation, key: tuple[str, ...]) -> TableSchema:
        columns = tuple(types.column(name, self._catalogue.name(oid, typmod)) for name, oid, typmod in relation.columns)
        return shape_to_read(TableSchema(relation.table, columns, key), self._config.columns)

    def _change(self, message: bytes) -> None:
        """A row that is read singly, was delivered before a restart, or is cut short."""
        oid = int.from_bytes(message[1:5])
        code = self._relations.code_of(oid) if len(message) >= _NAMED else None
        if code is None:
            raise UnknownLogEvent(
                f"a row of relation {oid} came before its description", where=self._where(), fix="report this"
            )
        if code == row_messages.STRANGER:
            return
        if code == row_messages.SINGLY:
            (self._signal if oid in self._relations.signals else self._watermark)(oid, message)
            return
        if self._assembly.open is not None and len(message) < _HEAD and code >= 0:
            table = self._relations.names[oid]
            fault = row_faults.explain(IndexError(), table)
            self._pass_over(oid, table, f"{fault.message} at {self._where()}", f"{fault.fix}; {THEN_DUMPED}")
            code = row_messages.UNREADABLE
        if code == row_messages.UNREADABLE and self._assembly.open is not None:
            self._assembly.pass_over()
            return
        if self._assembly.open is None or self._assembly.row():
            raise UnknownLogEvent("a change outside of a transaction", where=self._where(), fix="report this")

    def _watermark(self, oid: int, message: bytes) -> None:
        if message[:1] == b"D":
            return  # a worker's row was cleared away
        row = one_row_or_none(message)
        number = self._relations.watermarks[oid]
        payload = row[number] if number < len(row) else None
        without = watermark.describe_unread("it has no payload")
        self._assembly.watermark(without if payload is None else payload.decode(errors="replace"))

    def _signal(self, oid: int, message: bytes) -> None:
        # Requests are inserted. A row that is changed or cleared away later asks for nothing.
        if message[:1] == b"I":
            self._assembly.signal(one_row_or_none(message))

    def _truncate(self, message: bytes) -> None:
        # 'T', the number of relations (4 bytes), options (CASCADE and RESTART IDENTITY, which change no row here),
        # their oids.
        count = int.from_bytes(message[1:5])
        if len(message) != 6 + 4 * count:
            raise IndexError("cut short")
        for place in range(6, len(message), 4):
            oid = int.from_bytes(message[place : place + 4])
            code = self._relations.code_of(oid)
            if code is None:
                raise UnknownLogEvent(
                    f"relation {oid} is truncated before its description", where=self._where(), fix="report this"
                )
            if code >= 0 or code == row_messages.UNREADABLE:
                self._assembly.truncate(self._relations.names[oid])

    def _changes(self) -> list[TableChanges]:
        """The rows of the batch, by table version."""
        count = self._assembly.rows
        if not count or self._raw is None:
            return []
        versions = self._rows[row_messages.VERSION, :count]
        # Stable: rows of one version stay in the order of the log.
        order = np.argsort(versions, kind="stable")
        rows = np.take(self._rows[:, :count], order, axis=1)
        bounds = [0, *(np.flatnonzero(np.diff(rows[row_messages.VERSION])) + 1).tolist(), count]
        sizes = np.add.reduceat(rows[row_messages.END] - rows[row_messages.BODY], bounds[:-1]).tolist()
        tables = [
            (self._relations.versions[int(rows[row_messages.VERSION, start])], rows[:, start:stop], size)
            for (start, stop), size in zip(pairwise(bounds), sizes, strict=True)
        ]
        together = short_tables.decode_together(tables, self._raw)
        changes = []
        for number, (schema, placed, _) in enumerate(tables):
            if (batch := together.get(number)) is None:
                batch, unreadable = decode_placed(schema, self._raw, placed, self._place)
                if unreadable is not None:
                    self._assembly.unreadable_since(unreadable)
            changes.append(TableChanges(schema, batch))
        return changes

    def _place(self, number: int) -> str:
        """Where a transaction of this batch is, for messages."""
        transaction = self._assembly.transactions[number]
        return f"LSN {transaction.position} (transaction {transaction.id})"

    def _where(self) -> str:
        return self._assembly.where()


def _transaction(xid: int, final: int, committed: int) -> Transaction:
    return Transaction(str(xid), str(Lsn(final)), committed + EPOCH, xid)


def _ignore(message: bytes) -> None:
    """A message that changes no row."""
