"""The PostgreSQL source: the facade over log, chunks, watermarks and preflight."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from itertools import chain

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import KeyOf, LogStream, Moment, Problem, Strain, WatermarkTable, WrittenWitness
from dblog_core.model.events import Transaction
from dblog_core.model.position_spec import Place
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_identity import Origin, write_entry
from dblog_core.model.table_stamp import TableStamp
from dblog_core.rows import column_rule_faults
from dblog_core.sources.postgres import check, timelines, watermark_table, witness
from dblog_core.sources.postgres import start_position as starts
from dblog_core.sources.postgres.logical.batch import Assembly
from dblog_core.sources.postgres.logical.catalogue_lookups import Lookups
from dblog_core.sources.postgres.logical.log import Decoder, PostgresLog
from dblog_core.sources.postgres.logical.pgoutput import PgoutputDecoder
from dblog_core.sources.postgres.logical.relations import Forms, Types
from dblog_core.sources.postgres.logical.seen_log import SeenLog
from dblog_core.sources.postgres.logical.wal2json import Wal2jsonDecoder
from dblog_core.sources.postgres.logical.wal2json_shapes import Shapes
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.sql import (
    catalogue,
    publication,
    slots,
    standby,
)
from dblog_core.sources.postgres.sql import source_load as load
from dblog_core.sources.postgres.sql.chunks import PostgresChunkReader
from dblog_core.sources.postgres.sql.connection import (
    connect,
    execute,
    one_snapshot,
    rows,
    session,
    translate_errors,
    value,
)
from dblog_core.sources.postgres.sql.replica_identity import missing, refusals, usable
from dblog_core.sources.postgres.sql.slots import Line
from dblog_core.sources.postgres.sql.stamps import table_stamps
from dblog_core.sources.postgres.sql.watermarks import PostgresWatermarks
from dblog_core.sources.postgres.table_origins import find_origins
from dblog_core.sources.postgres.values import binary_values

_XIDS = 1 << 32
# A transaction that has an id holds a lock on it until it has ended.
_BEGUN = (
    "SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted"
)


class PostgresSource:
    """A Source for PostgreSQL 15 and later."""

    kind = "postgres"

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._forms = Forms()  # outlives a log: what one has met, the next one knows
        self._line = Line()
        self._lookups: Lookups | None = None  # of the log that was opened last
        self._replays = False  # as `horizon` has told: whether visibility follows the log's order

    def check(self) -> list[Problem]:
        return check.problems(self._config)

    def prepare(self) -> frozenset[str]:
        """Watermark table, publication (pgoutput) and slot, in this order: a slot does not see an older publication."""
        locked = frozenset[TableName]()
        with session(self._config) as connection:
            slots.await_promotion(connection, self._config)
            standby.require(connection, self._config)
            # A synchronous standby that is away must not keep a first capture waiting for its own small commits.
            execute(connection, "SET synchronous_commit = local")
            if not self._config.read_only:
                watermark_table.make(connection, self._config)
            tables = usable(connection, self._config)
            if self._config.plugin == "pgoutput":
                locked = publication.ensure_publication(connection, self._config, tables)
            slots.ensure_slot(connection, self._config)
        return frozenset(map(str, locked))

    def keep_watermark_table(self) -> WatermarkTable:
        with session(self._config) as connection:
            execute(connection, "SET synchronous_commit = local")
            return watermark_table.keep(connection, self._config)

    def write_witness(self, after: str) -> WrittenWitness | None:
        with session(self._config) as connection:
            execute(connection, "SET synchronous_commit = local")
            return witness.write(connection, self._config, after)

    def require_witness(self, text: str) -> None:
        with session(self._config) as connection:
            witness.require(connection, self._config, text)

    def tables(self) -> tuple[TableSchema, ...]:
        with session(self._config) as connection:
            return tuple(table.schema(self._config) for table in usable(connection, self._config))

    def list_refusals(self) -> tuple[Problem, ...]:
        with session(self._config) as connection, one_snapshot(connection):
            tables = catalogue.wanted_tables(connection, self._config)
            problems = refusals(connection, tables, self._config)
        return (*chain.from_iterable(problems), *missing(tables, self._config))

    def shows_whole_logs(self) -> bool:
        """Not where the publication names its tables: what was logged before one was added comes to nobody."""
        if self._config.plugin == "wal2json":
            return True
        with session(self._config) as connection:
            return publication.of_all_tables(connection, self._config)

    def identities(self) -> frozenset[str]:
        with session(self._config) as connection:
            tables = catalogue.wanted_tables(connection, self._config)
            parts = catalogue.partitions(connection, [table.oid for table in tables if table.partitioned])
        names = {table.oid: str(table.name) for table in tables}
        roots = [write_entry(name, oid) for oid, name in names.items()]
        return frozenset(
            [*roots, *(write_entry(names[p.root], p.root, p.oid, brought_rows=p.has_joined) for p in parts)]
        )

    def origins(self, tables: Collection[TableName]) -> dict[TableName, Origin]:
        if self._lookups is not None:  # it may be asked for every batch
            return self._lookups.origins(tables)
        with session(self._config) as connection:
            return find_origins(connection, tables, self._config.columns)

    def current_position(self) -> str:
        """The end of the flushed log, on a standby of what is replayed. A commit with synchronous_commit off counts
        once the server has flushed it."""
        with session(self._config) as connection:
            return str(standby.end(connection))

    def start_position(self) -> str:
        with session(self._config) as connection:
            confirmed = slots.ensure_slot(connection, self._config).confirmed
        assert confirmed is not None  # it is a logical one
        with closing(connect(self._config, replication=True)) as replication, translate_errors(self._config):
            # With its timeline: after a promotion the same LSN may stand for other log.
            return str(Point(confirmed, timelines.current(replication)))

    def begin(self, place: Place) -> str:
        return str(starts.begin(self._config, place, self.open_log))

    def find_target(self, place: Place) -> str:
        return str(Lsn.parse(place.text))

    def time(self) -> int:
        with session(self._config) as connection:
            return starts.time(connection)

    def has_reached(self, position: str, target: str) -> bool:
        return Point.parse(position).lsn >= Point.parse(target).lsn

    def lies_before(self, transaction: Transaction, position: str) -> bool:
        return Lsn.parse(transaction.position) < Point.parse(position).lsn

    def place(self, position: str) -> str:
        return position

    def has_passed(self, position: str, end: str) -> bool:
        return Point.parse(position).lsn >= Lsn.parse(end)

    def show(self, position: str) -> str:
        return str(Point.parse(position).lsn)

    def succeed(self, name: str, before: frozenset[str]) -> None:
        self._line = Line(name, before)

    def open_log(self, position: str, *, skip: int = 0, keys: KeyOf | None = None) -> LogStream:
        place = Point.parse(position)
        assembly = Assembly(place.lsn, skip=skip)
        lookups = self._lookups = Lookups(self._config, keys)
        try:
            log = PostgresLog(self._config, self._decoder(assembly, lookups), assembly, lookups, self._line)
            log.open(place, replays=self._replays)
        except BaseException:
            lookups.close()
            raise
        hides = any(map(column_rule_faults.hidden_columns, self._config.columns.values()))
        return SeenLog(self._config, log, lookups) if hides else log

    def open_reader(self, *, lock_seconds: float | None = None) -> PostgresChunkReader:
        return PostgresChunkReader(self._config, lock_seconds=lock_seconds)

    def open_watermarks(self, worker: str) -> PostgresWatermarks:
        return PostgresWatermarks(self._config, worker)

    def strain(self) -> Strain:
        return load.strain(self._config)

    def horizon(self) -> str | None:
        """`pg_current_snapshot()`, with every transaction that has begun below its xmax.

        The server's own xmax is one after the newest transaction that has *ended*: one whose commit is in the log and
        not visible yet may lie above it. Its lock shows it. Locks are read first: a transaction that has none by then
        has ended, so that the snapshot sees it, or has not come to its commit.

        None on a standby, where visibility follows the log's order.
        """
        with session(self._config) as connection:
            self._replays = standby.recovering(connection)
            if self._replays:
                return None
            begun = [int(row[0]) for row in rows(connection, _BEGUN)]
            return widen_snapshot(str(value(connection, "SELECT pg_current_snapshot()::text")), begun)

    def find_lock_holder(self, table: TableName) -> str | None:
        return load.find_lock_holder(self._config.replica or self._config, table)

    def stamps(self) -> dict[str, TableStamp]:
        with session(self._config) as connection:
            return table_stamps.stamps(connection, catalogue.wanted_tables(connection, self._config), self._config)

    def moment(self) -> Moment:
        if (snapshot := self.horizon()) is None:  # on a standby
            with session(self._config) as connection:
                snapshot = str(value(connection, "SELECT pg_current_snapshot()::text"))
        with closing(self.open_reader()) as reader:
            return Moment(snapshot, reader.log_end())

    def _decoder(self, assembly: Assembly, lookups: Lookups) -> Decoder:
        if self._config.plugin == "wal2json":
            return Wal2jsonDecoder(self._config, assembly, Shapes(self._config, lookups.describe, lookups.base_name))
        forms = self._forms if self._forms.binary and self._exact_in_binary() else Forms(binary=False)
        types = Types(lookups.type_name, lookups.key, lookups.layout, lookups.generated, lookups.former_key)
        return PgoutputDecoder(self._config, assembly, types, forms=forms)

    def _exact_in_binary(self) -> bool:
        """Whether every column of the wanted tables, as they are now, is of a type whose binary form is certain."""
        return all(binary_values.is_supported(c.source_type) for table in self.tables() for c in table.columns)


def widen_snapshot(snapshot: str, begun: Iterable[int]) -> str:
    """The snapshot with its xmax after all of `begun` (32-bit ids), and whatever lies in between as running."""
    xmin, xmax, running = snapshot.split(":")
    # Locks show 32 bits of an id, which wrap around: the newer of two ids is the one less than half of that ahead.
    ahead = [distance for xid in begun if (distance := (xid - int(xmax)) % _XIDS) < _XIDS // 2]
    between = [str(int(xmax) + distance) for distance in range(max(ahead, default=-1) + 1)]
    return f"{xmin}:{int(xmax) + len(between)}:{','.join([running, *between] if running else between)}"
