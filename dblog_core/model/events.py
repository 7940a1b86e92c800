"""What a source's log stream hands on: column batches of changes, and the signals between them.

A `LogBatch` covers a stretch of the log. Every row change and every signal in it has a `sequence`, a number that
grows along the log within the batch, over all its tables; it is how rows of different tables keep their order while
they travel in column batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.schema_changes import Layout, Step

CREATE = "c"
UPDATE = "u"
DELETE = "d"
REFRESH = "r"
TRUNCATE = "t"
SCHEMA = "s"
FINISHED = "f"
"""The ops of the super-changelog; log streams produce the first three as rows."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One committed transaction, all of it known before its first row is read.

    `id`: GTID or transaction id as text; `position`: a printable place in the source's log; `commit_time`:
    microseconds since 1970 UTC; `xid`: PostgreSQL's 32-bit transaction id, None elsewhere.
    """

    id: str
    position: str
    commit_time: int
    xid: int | None = None


@lru_cache(maxsize=1024)
def image_type(schema: TableSchema) -> pa.StructType:
    """The type of a row image: a struct of the table's columns."""
    return pa.struct(list(schema.arrow))


@lru_cache(maxsize=1024)
def changes_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a change batch, one row per row change of one table version:

    sequence int64, transaction int32 (index into `LogBatch.transactions`), op string (c, u, d),
    key_only bool (`before` holds the key alone), unchanged list<string> (columns that the log left out of `after` and
    that keep their value; null if none), before and after struct (null where the log has no such image).
    """
    return pa.schema(
        [
            pa.field("sequence", pa.int64()),
            pa.field("transaction", pa.int32()),
            pa.field("op", pa.string()),
            pa.field("key_only", pa.bool_()),
            pa.field("unchanged", pa.list_(pa.string())),
            pa.field("before", image_type(schema)),
            pa.field("after", image_type(schema)),
        ]
    )


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Row changes of one table version, in log order; `batch` has the columns of `changes_schema(schema)`."""

    schema: TableSchema
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """A row of our watermark table was written: `payload` is its text, read by `watermark.parse`."""

    sequence: int
    transaction: int
    payload: str


# characters: more than any signal may have (`signals.message`)
_DATA_KEPT = (64 << 10) + 1
_NAME_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """A row was put into the signal table: its first three columns as text. An empty id or type is for who reads it.

    Of longer ones only so much is kept as shows that they are too long for a signal.
    """

    sequence: int
    transaction: int
    id: str
    type: str
    data: str | None

    @classmethod
    def of(cls, sequence: int, transaction: int, row: Sequence[Any]) -> SignalSeen:
        """The signal of a row: the values of its columns, in their order."""
        id_, type_, data = [_text(value) for value in [*row, None, None, None][:3]]
        data_start = None if data is None else data[:_DATA_KEPT]
        return cls(sequence, transaction, (id_ or "")[:_NAME_KEPT], (type_ or "")[:_NAME_KEPT], data_start)


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Truncated:
    """All rows of a table went away at once."""

    sequence: int
    transaction: int
    table: TableName
    any_case: bool = False
    """Whether the server does not tell upper and lower case apart, and the statement may have others than the table."""


@dataclass(frozen=True, slots=True)
class DatabaseDropped:
    """All tables of a schema (MySQL's database) went away at once: the captured ones as by a `Truncated` of each."""

    sequence: int
    transaction: int
    schema: str
    any_case: bool = False


@dataclass(frozen=True, slots=True)
class Crashed:
    """The server crashed here, and by its settings tables and log may differ: either may lack changes of the other."""

    sequence: int
    transaction: int


@dataclass(frozen=True, slots=True)
class Created:
    """A table was made here, and has no row yet: of what it will hold the log misses nothing."""

    sequence: int
    transaction: int
    table: TableName
    any_case: bool = False


@dataclass(frozen=True, slots=True)
class SchemaSeen:
    """From here on the table's rows have this shape (its first sight in this stream, or a change). `layout`: what the
    source says of the columns' places (None: nothing that is certain). `oid`: the table's, where the log itself has
    such a number, which stays when the name changes. `listed`: all columns of the table in their order, each with its
    type's id and modifier, where the log itself says so."""

    sequence: int
    transaction: int
    schema: TableSchema
    layout: Layout | None = None
    oid: int | None = None
    listed: tuple[tuple[str, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Some rows of a table went away without row events (a partition was dropped): only the table itself can tell."""

    sequence: int
    transaction: int
    table: TableName
    any_case: bool = False


@dataclass(frozen=True, slots=True)
class ChangedByStatement:
    """Rows changed without row events, by a statement or by its rollback: each of `tables` may have other rows (None:
    every table of `schemas`, and where these are None too, of the source). `what`: the statement, `fix`: what prevents
    another one; in words, without its text. `reshapes`: whether its tables may have other columns too."""

    sequence: int
    transaction: int
    tables: frozenset[TableName] | None
    what: str
    fix: str
    schemas: frozenset[str] | None = None
    reshapes: bool = False
    any_case: bool = False


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """Rows have changed places without row events, or whole tables their names: each of those that are `left` may hold
    rows of another one (None: each table may)."""

    sequence: int
    transaction: int
    left: tuple[TableName, ...] | None
    any_case: bool = False


THEN_DUMPED = "then start the capture again, which dumps the table"
"""How a table continues that is unreadable by a value of its own: no `SchemaSeen` tells that such values are gone."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """From here on the changes of a table cannot be staged as they are: the log does not tell which rows they hit, or
    holds a value or a shape that has no exact form. They are passed over, all of them, up to the table's next
    `SchemaSeen`. `why` and `fix`: in words; `refused`: whether the source refuses the table for that too
    (`Source.list_refusals`); `is_held`: whether it passes once a person accepts it (`table_guard`)."""

    sequence: int
    transaction: int
    table: TableName
    why: str
    fix: str
    refused: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Altered:
    """A statement may have changed the columns of a table: `step` says how; None: nobody knows.

    The name is as the statement has it, which on some servers may differ from the table's in upper and lower case.
    """

    sequence: int
    transaction: int
    table: TableName
    step: Step | None
    any_case: bool = False
    shows: bool = False
    """Whether the table has its new shape from here on, if it has one, though no row may come to show it."""
    anew: bool = False
    """Whether the table has no row of before: it was made, or is gone."""


Signal = (
    Altered
    | ChangedByStatement
    | Crashed
    | Created
    | DatabaseDropped
    | Rewritten
    | RowsMoved
    | SchemaSeen
    | SignalSeen
    | Truncated
    | Unreadable
    | WatermarkSeen
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A stretch of the log, in commit order.

    `position`: resume here and nothing is lost or repeated but the last `partial` row changes, which belong to the
    transaction that begins at `position` and has not ended within this batch (0: the batch ends between transactions).
    A batch may have no rows: the position moved on past changes of other tables, or time passed.
    """

    changes: tuple[TableChanges, ...]
    signals: tuple[Signal, ...]
    transactions: tuple[Transaction, ...]
    position: str
    partial: int = 0
