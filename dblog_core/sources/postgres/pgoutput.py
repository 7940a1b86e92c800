"""Decodes pgoutput (protocol version 1): messages one by one, row changes as columns of a whole batch at once.

A row message stays the bytes it is until its batch ends. Then all messages of a table version are laid end to end, the
places of each column's values are found for all rows together (numpy), and Arrow gathers them from that one buffer.
See "Logical Replication Message Formats" in the PostgreSQL manual.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from dblog_core.config import SourceConfig
from dblog_core.errors import UnknownLogEvent
from dblog_core.events import TableChanges, Transaction
from dblog_core.schema import TableName, TableSchema
from dblog_core.sources.postgres import types
from dblog_core.sources.postgres.batch import Assembly
from dblog_core.sources.postgres.catalogue import FRESH_START, wanted, watermark_table
from dblog_core.sources.postgres.position import Lsn
from dblog_core.sources.postgres.tuples import decode, one_row

EPOCH = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: where the server's clock values begin."""

_BEGIN = struct.Struct(">xQqI")
_COMMIT = struct.Struct(">xBQQq")
_RELATION_COLUMN = struct.Struct(">Ii")
_NAMES = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}


class Types:
    """What the decoder asks of the catalogue, which knows oids that the log only names."""

    def __init__(self, type_name: Callable[[int, int], str], key: Callable[[TableName], tuple[str, ...]]) -> None:
        self.key = key
        self._type_name = type_name
        self._known: dict[tuple[int, int], str] = {}

    def name(self, oid: int, typmod: int) -> str:
        """The base type's text. Asked once per type: a type keeps its oid for life."""
        if (oid, typmod) not in self._known:
            self._known[oid, typmod] = self._type_name(oid, typmod)
        return self._known[oid, typmod]


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message: `flagged` are the columns of the replica identity, `identity` its kind (d, n, f, i)."""

    oid: bytes
    table: TableName
    identity: str
    columns: tuple[tuple[str, int, int], ...]
    flagged: frozenset[str]

    @classmethod
    def parse(cls, message: bytes) -> Relation:
        schema, rest = message[5:].split(b"\0", 1)
        name, rest = rest.split(b"\0", 1)
        columns, flagged = [], set()
        identity, count, place = chr(rest[0]), int.from_bytes(rest[1:3]), 3
        for _ in range(count):
            end = rest.index(b"\0", place + 1)
            column = rest[place + 1 : end].decode()
            if rest[place] & 1:
                flagged.add(column)
            columns.append((column, *_RELATION_COLUMN.unpack_from(rest, end + 1)))
            place = end + 1 + _RELATION_COLUMN.size
        table = TableName(schema.decode() or "pg_catalog", name.decode())
        return cls(message[1:5], table, identity, tuple(columns), frozenset(flagged))


class Version:
    """The rows of one table version: raw messages until the batch ends."""

    def __init__(self, schema: TableSchema, *, refusal: str) -> None:
        self.schema = schema
        self.refusal = refusal  # why updates and deletes cannot be told apart by our key; empty if they can
        self._messages: list[bytes] = []
        self._sequences: list[int] = []
        self._transactions: list[int] = []

    def add(self, message: bytes, sequence: int, transaction: int) -> None:
        self._messages.append(message)
        self._sequences.append(sequence)
        self._transactions.append(transaction)

    def take(self) -> TableChanges | None:
        if not self._messages:
            return None
        batch = decode(self.schema, self._messages, self._sequences, self._transactions)
        self._messages, self._sequences, self._transactions = [], [], []
        return TableChanges(self.schema, batch)


class PgoutputDecoder:
    """Feeds an Assembly from pgoutput's messages."""

    plugin = "pgoutput"

    def __init__(self, config: SourceConfig, assembly: Assembly, catalogue: Types) -> None:
        self._config = config
        self._assembly = assembly
        self._catalogue = catalogue
        self._versions: dict[bytes, Version | None] = {}  # by relation oid; None: a table that nobody asked for
        self._tables: dict[TableName, Version] = {}
        self._names: dict[bytes, TableName] = {}
        self._watermarks: dict[bytes, int] = {}  # relation oid: number of the payload column
        self._handlers: dict[int, Callable[[bytes], None]] = {
            ord("B"): self._begin,
            ord("C"): self._commit,
            ord("R"): self._relation,
            ord("T"): self._truncate,
            ord("I"): self._change,
            ord("U"): self._change,
            ord("D"): self._change,
            # Harmless: a type's name (we ask for it by oid), where a replicated transaction came from, and
            # pg_logical_emit_message, which is no row of any table.
            ord("Y"): _nothing,
            ord("O"): _nothing,
            ord("M"): _nothing,
        }

    def options(self) -> dict[str, str]:
        """What START_REPLICATION asks of the plugin. Version 1: a transaction comes whole, after its commit."""
        return {"proto_version": "1", "publication_names": '"' + self._config.publication.replace('"', '""') + '"'}

    def feed(self, message: bytes) -> None:
        """Takes one message. Raises UnknownLogEvent for a kind that is not handled."""
        handler = self._handlers.get(message[0])
        if handler is None:
            raise UnknownLogEvent(
                f"pgoutput sent a message of the unknown kind {message[:1]!r}", where=self._where(), fix="upgrade dblog"
            )
        handler(message)

    def _begin(self, message: bytes) -> None:
        final, committed, xid = _BEGIN.unpack(message)
        self._assembly.begin(Transaction(str(xid), str(Lsn(final)), committed + EPOCH, xid))

    def _commit(self, message: bytes) -> None:
        self._assembly.commit(Lsn(_COMMIT.unpack(message)[2]))

    def _relation(self, message: bytes) -> None:
        relation = Relation.parse(message)
        self._names[relation.oid] = relation.table
        if relation.table == watermark_table(self._config):
            self._watermarks[relation.oid] = [name for name, *_ in relation.columns].index("payload")
            return
        self._watermarks.pop(relation.oid, None)
        if not wanted(relation.table, self._config):
            self._versions[relation.oid] = None
            return
        schema, refusal = self._shape(relation)
        current = self._tables.get(relation.table)
        if current is None or current.schema != schema or current.refusal != refusal:
            version = Version(schema, refusal=refusal)
            self._assembly.schema(schema, version, current)
            self._tables[relation.table] = current = version
        self._versions[relation.oid] = current

    def _shape(self, relation: Relation) -> tuple[TableSchema, str]:
        columns = tuple(types.column(name, self._catalogue.name(oid, typmod)) for name, oid, typmod in relation.columns)
        names = [c.name for c in columns]
        key = self._catalogue.key(relation.table)
        configured = str(relation.table) in self._config.keys
        if relation.identity == "d" and not configured and relation.flagged != frozenset(key):
            # The primary key has changed since: this is the one of that time, in column order.
            key = tuple(name for name in names if name in relation.flagged)
        if not set(key) <= set(names):
            missing = ", ".join(sorted(set(key) - set(names)))
            raise UnknownLogEvent(
                f"the log holds rows without the key column {missing}",
                where=f"{relation.table}, {self._where()}",
                fix=FRESH_START,
            )
        refusal = ""
        if relation.identity == "n" or (relation.identity != "f" and relation.flagged != frozenset(key)):
            identity = ", ".join(sorted(relation.flagged)) or "nothing"
            refusal = f"the log identifies old rows by ({identity}), and the key is ({', '.join(key)})"
        return TableSchema(relation.table, columns, key), refusal

    def _change(self, message: bytes) -> None:
        oid = message[1:5]
        if oid in self._watermarks:
            self._watermark(message)
            return
        try:
            version = self._versions[oid]
        except KeyError:
            raise UnknownLogEvent(
                f"a row of relation {int.from_bytes(oid)} came before its description",
                where=self._where(),
                fix="report this",
            ) from None
        if version is None:
            return
        if version.refusal and message[0] != 73:  # I
            raise UnknownLogEvent(
                f"{_NAMES[chr(message[0])]}: {version.refusal}",
                where=f"{version.schema.table}, {self._where()}",
                fix=f"ALTER TABLE {version.schema.table} REPLICA IDENTITY FULL; then {FRESH_START}",
            )
        if sequence := self._assembly.row():
            version.add(message, sequence, self._assembly.transaction)

    def _watermark(self, message: bytes) -> None:
        if message[:1] == b"D":
            return  # a worker's row was cleared away
        payload = one_row(message)[self._watermarks[message[1:5]]]
        if payload is None:
            raise UnknownLogEvent(
                "the watermark table holds a row without a payload", where=self._where(), fix="only dblog may write it"
            )
        self._assembly.watermark(payload.decode())

    def _truncate(self, message: bytes) -> None:
        for place in range(6, 6 + 4 * int.from_bytes(message[1:5]), 4):
            oid = message[place : place + 4]
            if oid not in self._watermarks and self._versions[oid] is not None:
                self._assembly.truncated(self._names[oid])

    def _where(self) -> str:
        current = self._assembly.open
        return f"LSN {current.position}" if current else f"after LSN {self._assembly.position}"


def _nothing(message: bytes) -> None:
    """A message that changes no row."""
