"""What the engine asks of a database: its log, chunks of its tables, watermarks, and how it fares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from dblog_core.model.events import LogBatch, Transaction
from dblog_core.model.filters import Filter
from dblog_core.model.position_spec import Place
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_identity import Origin
from dblog_core.model.table_stamp import TableStamp
from dblog_core.model.values import Key


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding of the preflight. `fatal`: a correct capture is impossible with it; otherwise a warning. `table`: the
    only one of which that is so, where the others can be captured without it (`tables`: several); `pattern`: the one of
    `tables` in [source] that fits no table; `of_dumps`: the log can be captured with it, and no table be dumped."""

    what: str
    fix: str
    fatal: bool = True
    table: str | None = None
    pattern: str | None = None
    tables: tuple[str, ...] = ()
    of_dumps: bool = False


@dataclass(frozen=True, slots=True)
class WatermarkTable:
    """The watermark table as a look has left it. `problems`: why no watermark can be written, or none reaches the log.
    `identity`: another one whenever watermarks may have been written that the log does not show; None: it is missing.
    """

    identity: str | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenWitness:
    """A commit of the capture (`dblog_core.capture.healing.witness`): what shows it later, and a position behind it."""

    text: str
    position: str


KeyOf: TypeAlias = Callable[[TableName], tuple[str, ...]]
"""By table the names of its key's columns; none where it has no key."""


class LogStream(Protocol):
    """An open reader of the source's log, from one position on, in commit order."""

    def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        """The next stretch; None after `timeout` seconds in which nothing happened. Small transactions are gathered
        into one batch for at most `linger` seconds after the first of them; 0: whatever has arrived.

        A batch is bounded (some 10,000 rows or some MiB); a large transaction comes in several, `partial` counting.
        Raises UnknownLogEvent, ValueOutOfRange, LogPositionLost or SourceUnavailable; never skips.
        """

    def acknowledge(self, position: str) -> None:
        """The log before `position` is durable with us: the server may drop it. `position` comes from a batch."""

    def close(self) -> None: ...


VALUE_BYTES = 4
"""Bytes that each value of a chunk counts for, beside those that the server sends: it may send one byte for a NULL,
which takes its place in memory as any other value does."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows read by one SELECT, in the database's key order; columns as in `schema.arrow`.

    `snapshot`: PostgreSQL's `pg_current_snapshot()` of that SELECT; None elsewhere, and on a standby: the SELECT sees
    all that is in the log before one place, and nothing after it. `counted_bytes`: bytes that the server sent for it,
    and `VALUE_BYTES` for each value.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    snapshot: str | None
    counted_bytes: int = 0


class ChunkTooLarge(Exception):
    """A chunk counts for more bytes than it may: it was given up, and its reader can no longer be used.

    `rows`: how many of its rows had arrived whole, and fit.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(f"a chunk has more bytes than chunk_bytes allows; {rows} of its rows fit")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Hashes:
    """Row hashes computed by the server, in its key order: the key's columns, then `dblog_core.rows.row_hashes.HASH`
    (int64).

    `snapshot` as in `Chunk`.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class RangeHash:
    """So many rows and the exact sum of their hashes; `last`: the last one's key, None where there is no row.

    `snapshot` as in `Chunk`.
    """

    rows: int
    hash: int
    last: Key | None
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How a server reads a table in key order: the index (None: it sorts, or scans), and its estimate of rows."""

    index: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a source whose catalogue is looked at: all that a look before it has seen was committed before it.

    `snapshot`: as `horizon` gives it, on a standby too. `end`: the end of the log, for `Source.has_passed`; what the
    snapshot sees lies before it.
    """

    snapshot: str
    end: str


@dataclass(frozen=True, slots=True)
class Strain:
    """What a source suffers from now; None where it cannot tell.

    `replication_lag`: seconds that its slowest replica is behind; `running`: statements at work on the server;
    `retained_bytes`: log that the server keeps (PostgreSQL: for our slot).
    """

    replication_lag: float | None
    running: int | None
    retained_bytes: int | None


class ChunkReader(Protocol):
    """A connection that reads chunks; keys are compared by the database alone and values are bound."""

    def schema(self, table: TableName) -> TableSchema:
        """The catalogue's shape of the table now. Raises TableGone if it does not exist."""

    def column_names(self, table: TableName) -> tuple[str, ...]:
        """All columns that the catalogue has of the table now, those too that neither log nor chunks have."""

    def key_order(self, schema: TableSchema) -> str:
        """How the database orders and compares the key now, as a short text: equal as long as that cannot have changed.

        One look at the catalogue, as it is after every change that a SELECT before this call has met: never within the
        snapshot of a SELECT. Raises RequestError if the table does not exist.
        """

    def origin(self, table: TableName) -> Origin | None:
        """As `Source.origins`, of one table as it is after every change that a SELECT before this call has met; None
        also where it is gone."""

    def last_key(self, schema: TableSchema) -> Key | None:
        """The table's largest key; None if the table is empty."""

    def estimated_rows(self, table: TableName) -> int:
        """The server's own estimate, without a scan."""

    def explain(self, schema: TableSchema, *, filters: Sequence[Filter] = ()) -> ReadPlan:
        """How the server would read the table in key order, without reading it. Raises RequestError for a filter
        whose value the column's type does not take."""

    def boundaries(self, schema: TableSchema, *, after: Key | None, upto: Key | None, every: int) -> Iterator[Key]:
        """The key of every `every`-th row with after < key <= upto (None: open), in the database's key order."""

    def read(
        self,
        schema: TableSchema,
        *,
        after: Key | None,
        upto: Key | None,
        limit: int,
        filters: Sequence[Filter] = (),
        most: int | None = None,
    ) -> Chunk:
        """At most `limit` rows with after < key <= upto (None: open) that pass all `filters`, in key order, read in a
        new snapshot of the database. Raises ChunkTooLarge as soon as they count for more than about `most` bytes."""

    def read_keys(
        self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = (), most: int | None = None
    ) -> Chunk:
        """The rows that have one of `keys` and pass all `filters`, read in a new snapshot of the database. Raises
        ChunkTooLarge as `read` does."""

    def hashes(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Hashes:
        """The hashes (`dblog_core.rows.row_hashes`) of the rows that `read` would give, as they are staged: the
        configuration's
        column rules are applied by the server. `schema` is the catalogue's, in a new snapshot as there."""

    def hashes_of(self, schema: TableSchema, keys: Sequence[Key]) -> Hashes:
        """The hashes of the rows that have one of `keys`, read in a new snapshot of the database."""

    def range_hash(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> RangeHash:
        """Number and sum of what `hashes` would give, by one scan and wholly in the server."""

    def sees(self, place: str) -> bool:
        """Whether every SELECT from now on, over this connection, sees all that is in the log before `place`
        (`Source.place`), except for what its snapshot names. Raises SourceUnavailable where this is not the server
        whose log that is."""

    def log_end(self) -> str:
        """The end of the log, for `Source.has_passed`: all that a SELECT over this connection has seen lies before."""

    def close(self) -> None: ...


class WatermarkWriter(Protocol):
    """One worker's row in the watermark table; of a read-only source, what stands for it in the state store."""

    def write(self, payload: str) -> None:
        """Commits the payload; when it returns, the server's log holds it."""

    def close(self) -> None: ...


class Source(Protocol):
    """A database. Constructing one opens no connection; methods open their own and close them."""

    kind: str

    def check(self) -> list[Problem]:
        """Every problem of connection, grants, settings and configured tables; it never raises for those."""

    def prepare(self) -> frozenset[str]:
        """Makes what the capture needs (watermark table; slot and publication), where missing. Idempotent. Returns the
        wanted tables that the log does not show yet, since somebody keeps them locked."""

    def keep_watermark_table(self) -> WatermarkTable:
        """Makes the watermark table where it is missing, and has the log show it, if the account may do so. Not for a
        source that is `read_only`. Raises what a connection raises."""

    def write_witness(self, after: str) -> WrittenWitness | None:
        """Commits a witness that is newer than `after` (empty: none) into the watermark table. None where the log's own
        transactions are compared when it is opened, and where another process was faster. Not for a source that is
        `read_only`. Raises what a connection raises."""

    def require_witness(self, text: str) -> None:
        """Raises LogPositionLost where the server lacks a witness that it had. Nothing is known where the watermark
        table is not the one that it was written into."""

    def tables(self) -> tuple[TableSchema, ...]:
        """The catalogue's shape of every table that the configuration wants and that can be captured as it is."""

    def list_refusals(self) -> tuple[Problem, ...]:
        """Why the other wanted tables cannot be captured as they are, each with its `table`."""

    def identities(self) -> frozenset[str] | None:
        """What the wanted tables are, whatever their names are (`dblog_core.model.table_identity`); None where the
        log tells when
        one takes the place of another, and shows all of them from their beginning."""

    def origins(self, tables: Collection[TableName]) -> Mapping[TableName, Origin] | None:
        """Of those of the tables that exist now, what proves that they are what they were; None where the log tells
        what becomes of tables and columns."""

    def shows_whole_logs(self) -> bool:
        """Whether the log has all events of a new table, whenever we meet it."""

    def current_position(self) -> str:
        """A resume position at the present end of the log."""

    def start_position(self) -> str:
        """Where a first capture begins: the present end (PostgreSQL: where the slot begins)."""

    def begin(self, place: Place) -> str:
        """Where a first capture begins that starts at `place`: between two transactions, before every one that is
        committed at or after it; where it lies inside a transaction, before that one. Nothing is made for it.

        Raises SourceRefused where the log does not have it, or no longer, with what there is.
        """

    def find_target(self, place: Place) -> str:
        """A target that is reached with all that is committed up to `place`, which is no time. Raises SourceRefused."""

    def time(self) -> int:
        """The server's clock, in microseconds since 1970 UTC."""

    def has_reached(self, position: str, target: str) -> bool:
        """Whether all that is before `target` is before `position` too."""

    def lies_before(self, transaction: Transaction, position: str) -> bool:
        """Whether a transaction of the log is committed before a resume position."""

    def place(self, position: str) -> str:
        """A resume position of the open log for `ChunkReader.sees`, with the server that it is of."""

    def has_passed(self, position: str, end: str) -> bool:
        """Whether the open log was read up to `end`, which a `ChunkReader.log_end` has given."""

    def show(self, position: str) -> str:
        """A resume position as people read it."""

    def succeed(self, name: str, before: frozenset[str]) -> None:
        """We lead from here on, under this name: `open_log` may end the connections to the log of leaders `before`."""

    def open_log(self, position: str, *, skip: int = 0, keys: KeyOf | None = None) -> LogStream:
        """Reads from `position`, without the first `skip` row changes of the transaction that begins there. `keys`: by
        table the key of its newest staged shape, for a table that the source no longer has."""

    def open_reader(self, *, lock_seconds: float | None = None) -> ChunkReader:
        """`lock_seconds`: how long a SELECT waits for a table that somebody has locked, before it raises TableLocked;
        None: for as long as the server lets it."""

    def open_watermarks(self, worker: str) -> WatermarkWriter: ...

    def strain(self) -> Strain:
        """How the source fares now; one short connection."""

    def find_lock_holder(self, table: TableName) -> str | None:
        """Who keeps others from reading the table, in words; None where nobody does, or the server does not tell."""

    def horizon(self) -> str | None:
        """PostgreSQL: `pg_current_snapshot()` now, with its end after every transaction that has begun (the server's
        own ends after the newest that has *completed*); None where visibility follows the log's order, as on a standby:
        a log that is opened after such an answer raises SourceUnavailable once that is no longer so."""

    def stamps(self) -> dict[str, TableStamp] | None:
        """PostgreSQL: of each wanted table, what tells that its rows were changed and no log says so (`stamps`); None
        where the log itself tells."""

    def moment(self) -> Moment | None:
        """The present moment; None where the log itself tells what `stamps` does."""
