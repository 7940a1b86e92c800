"""What the relation oids of pgoutput's messages stand for: tables, their versions, and how their rows are read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.schema_changes import Layout
from dblog_core.sources.postgres.logical import row_messages

Int64s = npt.NDArray[np.int64]


_RELATION_COLUMN = struct.Struct(">Ii")


FormerKey: TypeAlias = Callable[[TableName, Sequence[str], tuple[str, ...]], tuple[str, ...]]
"""The key of rows with these columns, of which the table's present key (the last argument) is none."""


class Types:
    """What the decoder asks of the catalogue, which knows oids that the log only names."""

    def __init__(
        self,
        type_name: Callable[[int, int], str],
        key: Callable[[TableName], tuple[str, ...]],
        layout: Callable[[int, Sequence[Column]], Layout | None] = lambda oid, columns: None,
        generated: Callable[[int], frozenset[str]] = lambda oid: frozenset(),
        former_key: FormerKey = lambda table, names, key: key,
    ) -> None:
        self.key = key
        self.former_key = former_key
        self.layout = layout
        self.generated = generated
        self._type_name = type_name
        self._names: dict[tuple[int, int], str] = {}

    def name(self, oid: int, typmod: int) -> str:
        """The base type's text. Asked once per type: a type keeps its oid for life."""
        # The log names types by number, and by the time we read it the type may be renamed, or dropped.
        if (oid, typmod) not in self._names:
            self._names[oid, typmod] = self._type_name(oid, typmod)
        return self._names[oid, typmod]


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message: `flagged` are the columns of the replica identity, `identity` its kind (d, n, f, i)."""

    oid: int
    table: TableName
    identity: str
    columns: tuple[tuple[str, int, int], ...]
    flagged: frozenset[str]

    @classmethod
    def parse(cls, message: bytes) -> Relation:
        """Reads the message. Raises ValueError or IndexError where it is none."""
        # 'R', oid (4 bytes), schema and name, each ended by a zero byte, kind of the replica identity (1), number of
        # columns (2); for each column flags (1: part of the identity), name, type's oid and typmod.
        schema, rest = message[5:].split(b"\0", 1)
        name, rest = rest.split(b"\0", 1)
        columns = []
        flagged = set()
        identity = chr(rest[0])
        count = int.from_bytes(rest[1:3])
        place = 3
        for _ in range(count):
            end = rest.index(b"\0", place + 1)
            column = rest[place + 1 : end].decode()
            if rest[place] & 1:
                flagged.add(column)
            columns.append((column, *_RELATION_COLUMN.unpack_from(rest, end + 1)))
            place = end + 1 + _RELATION_COLUMN.size
        if place != len(rest):
            raise ValueError("its length is another one")
        # An empty schema stands for pg_catalog.
        table = TableName(schema.decode() or "pg_catalog", name.decode())
        return cls(int.from_bytes(message[1:5]), table, identity, tuple(columns), frozenset(flagged))


@dataclass(slots=True)
class Forms:
    """In which form the server is asked for values: binary until a table shows a type that needs the text form."""

    binary: bool = True


class Relations:
    """What the relation oids of the log stand for, as the scan of row messages asks for it."""

    def __init__(self) -> None:
        self.versions: list[TableSchema] = []
        self.names: dict[int, TableName] = {}
        self.watermarks: dict[int, int] = {}  # number of the payload column
        self.signals: set[int] = set()
        self._codes: dict[int, int] = {}
        self._current: dict[TableName, int] = {}
        self._holders: dict[TableName, int] = {}  # the oid that was described last under a name
        self._arrays: tuple[Int64s, Int64s] | None = None

    def set_stranger(self, oid: int, name: TableName) -> None:
        """A table that nobody asked for."""
        self._set(oid, name, row_messages.STRANGER)

    def set_watermark(self, oid: int, name: TableName, payload: int) -> None:
        """The watermark table, with the number of its payload column."""
        self._set(oid, name, row_messages.SINGLY)
        self.watermarks[oid] = payload

    def set_signal(self, oid: int, name: TableName) -> None:
        """The signal table, whose rows are read singly."""
        self._set(oid, name, row_messages.SINGLY)
        self.signals.add(oid)

    def set_unreadable(self, oid: int, name: TableName) -> bool:
        """Whether the table could be read until now."""
        was = self._codes.get(oid)
        self._current.pop(name, None)
        self._set(oid, name, row_messages.UNREADABLE)
        return was != row_messages.UNREADABLE

    def set_version(self, oid: int, version: TableSchema) -> bool:
        """Whether the version is another one than the table had, or the table another one of its name."""
        name = version.table
        number = self._current.get(name)
        new = number is None or self.versions[number] != version or self._holders.get(name) != oid
        self._holders[name] = oid
        if number is None or new:
            # Versions are kept for good: rows of an older one may still be in the batch.
            number = self._current[name] = len(self.versions)
            self.versions.append(version)
        self._set(oid, name, number)
        return new

    def code_of(self, oid: int) -> int | None:
        """The number of the table's version, or a code of `row_messages` below 0; None for an oid never described."""
        return self._codes.get(oid)

    def arrays(self) -> tuple[Int64s, Int64s]:
        """All oids, growing, and their codes."""
        if self._arrays is None:
            oids = sorted(self._codes)
            self._arrays = (np.array(oids, dtype=np.int64), np.array([self._codes[o] for o in oids], dtype=np.int64))
        return self._arrays

    def _set(self, oid: int, name: TableName, code: int) -> None:
        self.watermarks.pop(oid, None)
        self.signals.discard(oid)
        self.names[oid] = name
        self._codes[oid] = code
        self._arrays = None


def find_key_of_then(relation: Relation, key: tuple[str, ...], former_key: FormerKey) -> tuple[str, ...]:
    """The key that the rows of the relation are known by; `key`: the table's present one."""
    names = [name for name, *_ in relation.columns]
    if (relation.identity == "d" and relation.flagged != frozenset(key)) or (relation.identity == "i" and not key):
        # The table has another key since, or is gone: this is the one of that time, in column order.
        return tuple(name for name, *_ in relation.columns if name in relation.flagged)
    # Its columns have other names since, and the log shows no key.
    return former_key(relation.table, names, key) if relation.identity == "f" and not set(key) <= set(names) else key


def why_unreadable(relation: Relation, key: tuple[str, ...]) -> str:
    """Why the log does not identify old rows by our key, in words; empty if it does.

    Without a key they have to come whole.
    """
    if missing := sorted(set(key) - {name for name, *_ in relation.columns}):
        return f"the log holds rows without the key column {', '.join(missing)}"
    # With FULL the whole old row comes; otherwise the columns of the identity, which must be our key.
    if relation.identity == "f" or (relation.identity != "n" and key and relation.flagged == frozenset(key)):
        return ""
    identity = ", ".join(sorted(relation.flagged)) if relation.identity != "n" else ""
    return f"the log identifies old rows by ({identity or 'nothing'}), and the key is ({', '.join(key) or 'none'})"
