"""Reads chunks: one short REPEATABLE READ transaction each, through a binary COPY, straight into Arrow.

Only the server compares keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from psycopg2 import sql

from dblog_core.config.source import SourceConfig
from dblog_core.errors import RequestError
from dblog_core.interfaces import VALUE_BYTES, Chunk, ChunkTooLarge, Hashes, RangeHash, ReadPlan
from dblog_core.model.filters import Filter
from dblog_core.model.key_order import order_text
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.table_identity import Origin
from dblog_core.model.values import Key, keys_of
from dblog_core.rows import key_progress
from dblog_core.rows import row_hashes as canonical
from dblog_core.rows.arrow_buffers import LARGEST
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.sql import (
    catalogue,
    copy_out,
    explain_plan,
    key_order,
    standby,
    where_clause,
)
from dblog_core.sources.postgres.sql.chunk_rows import (
    Check,
    Decode,
    Selection,
    decode_rows,
    name_column,
    refusing,
    select_column,
)
from dblog_core.sources.postgres.sql.connection import (
    Connection,
    connect,
    translate_errors,
    value,
)
from dblog_core.sources.postgres.sql.row_hashes import HashQuery
from dblog_core.sources.postgres.sql.watermarks import identifier
from dblog_core.sources.postgres.sql.where_clause import Operators
from dblog_core.sources.postgres.table_origins import find_origins

_USUAL_LIMIT = 1000  # rows of the chunk that EXPLAIN is asked about
# As the planner estimates: the density of the last ANALYZE, times the pages of now. A table that was restored or filled
# since has none (reltuples -1, or 0 on no page); then rows are as wide as their types, 32 bytes where those do not say.
# Of a partitioned table its leaves are counted.
_ESTIMATE = f"""
    WITH RECURSIVE {catalogue.TREE},
    leaf AS (
        SELECT c.reltuples, c.relpages, pg_relation_size(c.oid) / current_setting('block_size')::bigint AS pages,
          (SELECT 28 + coalesce(sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END), 0) FROM pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS row_bytes
        FROM tree JOIN pg_class c ON c.oid = tree.relid WHERE c.relkind = 'r')
    SELECT coalesce(sum(pages * CASE WHEN reltuples >= 0 AND relpages > 0 THEN reltuples / relpages
      ELSE greatest(current_setting('block_size')::float8 / row_bytes, 1) END), 0)::bigint FROM leaf
"""


class PostgresChunkReader:
    """A ChunkReader on one connection, made on first use; to the read replica where there is one."""

    def __init__(self, config: SourceConfig, *, lock_seconds: float | None = None) -> None:
        self._lock_seconds = lock_seconds
        self._config = config.replica or config
        self._primary = config if config.replica is not None else None
        self._awaited: tuple[str, standby.Waiting] | None = None
        self._connection: Connection | None = None
        self._replays = False  # whether this is a standby: as it was when the connection was made
        self._sources: dict[TableName, sql.Composable] = {}
        self._known_operators: dict[str, Operators | None] = {}

    def schema(self, table: TableName) -> TableSchema:
        with translate_errors(self._config):
            return self._table(table).schema(self._config)

    def column_names(self, table: TableName) -> tuple[str, ...]:
        with translate_errors(self._config):
            return tuple(column.name for column in self._table(table).columns)

    def key_order(self, schema: TableSchema) -> str:
        """By the newest catalogue, as COPY compares; not by the one that the snapshot of a chunk shows."""
        with translate_errors(self._config):
            columns = key_order.columns(self._open(), schema.table, schema.key)
        if not columns:
            raise catalogue.missing(schema.table)
        return order_text(columns)

    def origin(self, table: TableName) -> Origin | None:
        with translate_errors(self._config):
            return find_origins(self._open(), [table], self._config.columns).get(table)

    def estimated_rows(self, table: TableName) -> int:
        with translate_errors(self._config):
            oid = self._table(table).oid
            return int(value(self._open(), _ESTIMATE, ([oid],)))

    def last_key(self, schema: TableSchema) -> Key | None:
        def check(rows: pa.RecordBatch, connection: Connection) -> None:
            for key in keys_of(rows, schema):
                key_progress.check_last(schema, self._count(connection, schema, self._condition(schema, key, None, ())))

        keys = self._keys(schema, (), direction="DESC", check=None if key_order.is_plain(schema) else check)
        return keys[0] if keys else None

    def explain(self, schema: TableSchema, *, filters: Sequence[Filter] = ()) -> ReadPlan:
        # The plan of a chunk in the middle: from the first key on, as chunks are read.
        first = self._keys(schema, ())
        last = self.last_key(schema)
        after = first[0] if first and first[0] != last else None
        bounds = where_clause.between(schema, after, last, self._operators(schema))
        passing = where_clause.passing(schema, filters, self._operators(schema, filters))
        tail = self._query(schema, where_clause.every([*bounds, *passing]), where_clause.order(schema), _USUAL_LIMIT)
        chunk = sql.SQL("SELECT {} {}").format(sql.SQL(", ").join(map(name_column, schema.columns)), tail)
        counted = sql.SQL("SELECT FROM {} WHERE {}").format(self._source(schema.table), where_clause.every(passing))
        with translate_errors(self._config), refusing(schema, filters):
            connection = self._open()
            index = explain_plan.index_used(
                explain_plan.explain(connection, chunk, settings=explain_plan.BY_INDEX), bounded=last is not None
            )
            if not filters:
                return ReadPlan(index, self.estimated_rows(schema.table))
            return ReadPlan(index, int(explain_plan.explain(connection, counted)["Plan Rows"]))

    def boundaries(self, schema: TableSchema, *, after: Key | None, upto: Key | None, every: int) -> Iterator[Key]:
        """One SELECT of the key's columns for each key, so that neither memory nor a snapshot grows with the table."""
        while keys := self._keys(
            schema, where_clause.between(schema, after, upto, self._operators(schema)), skip=every - 1
        ):
            after = keys[0]
            yield after

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
        condition = self._condition(schema, after, upto, filters)
        query = self._query(schema, where_clause.every(condition), where_clause.order(schema), limit)
        check: Check = partial(self._check_order, schema, after, limit, query, filters)
        if key_order.is_plain(schema):
            check = lambda rows, _: key_progress.check_ascent(rows, schema, after)  # noqa: E731
        return self._chunk(schema, schema.columns, query, explain_plan.BY_INDEX, filters, most, check)

    def read_keys(
        self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = (), most: int | None = None
    ) -> Chunk:
        condition = [
            where_clause.is_one_of(schema, keys, self._operators(schema)),
            *where_clause.passing(schema, filters, self._operators(schema, filters)),
        ]
        query = self._query(schema, where_clause.every(condition), where_clause.order(schema), None)
        return self._chunk(schema, schema.columns, query, explain_plan.BY_LOOKUP, filters, most)

    def hashes(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Hashes:
        condition = where_clause.between(schema, after, upto, self._operators(schema))
        query = self._query(schema, where_clause.every(condition), where_clause.order(schema), limit)
        # The hashes are sorted once more, so that they ascend whatever rows they are of.
        check = partial(self._check_order, schema, after, limit, query, ())
        return self._hashes(schema, condition, limit, explain_plan.BY_INDEX, check)

    def hashes_of(self, schema: TableSchema, keys: Sequence[Key]) -> Hashes:
        return self._hashes(
            schema, [where_clause.is_one_of(schema, keys, self._operators(schema))], None, explain_plan.BY_LOOKUP
        )

    def range_hash(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> RangeHash:
        condition = where_clause.between(schema, after, upto, self._operators(schema))
        answer = canonical.range_shape(schema)
        rows, snapshot = self._select_hashes(schema, answer, condition, limit, explain_plan.BY_INDEX, HashQuery.range)
        return canonical.range_hash(rows, schema, snapshot)

    def sees(self, place: str) -> bool:
        """The snapshot tells what a SELECT does not see, wherever that is in the log; a standby, what it has
        replayed."""
        with translate_errors(self._config):
            connection = self._open()
            # On the primary the snapshot itself tells what it does not see; on a standby its replay does.
            if not self._replays or standby.replayed_lsn(connection) >= Point.parse(place).lsn:
                return True
            if not standby.recovering(connection):
                self.close()
                raise standby.promotion_error(self._config)
            if self._awaited is None or self._awaited[0] != place:
                what = f"has not replayed up to {Point.parse(place).lsn}"
                self._awaited = place, standby.Waiting(connection, self._config, what)
            self._awaited[1].look()
            return False

    def log_end(self) -> str:
        with translate_errors(self._config):
            connection = self._open()
            if self._replays:
                return str(standby.seen_lsn(connection, self._config))
            # Not the flushed end: with synchronous_commit = off a SELECT shows commits before they are flushed.
            return str(Lsn.parse(value(connection, "SELECT pg_current_wal_insert_lsn()::text")).end_of_record())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = connect(self._config, lock_seconds=self._lock_seconds)
            try:
                self._replays = standby.recovering(connection)
                if self._primary is not None:
                    # A standby that is behind would show rows from before events that the log has brought long ago.
                    standby.follow(connection, self._config, self._primary)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _table(self, name: TableName) -> catalogue.CatalogueTable:
        return catalogue.table(self._open(), name)

    def _operators(self, schema: TableSchema, filters: Sequence[Filter] = ()) -> dict[str, Operators]:
        """The operators of types that users and extensions have made, see `where_clause`.

        Of what is compared alone: we may have no right to name the types of other columns.
        """
        compared = {*schema.key, *(f.column for f in filters)}
        extension_types = {c.source_type for c in schema.columns if c.name in compared and "." in c.source_type}
        if not_asked := extension_types - self._known_operators.keys():
            with translate_errors(self._config):
                listed = key_order.operators(self._open(), not_asked)
            self._known_operators.update({name: listed.get(name) for name in not_asked})
        return {name: known for name in extension_types if (known := self._known_operators[name]) is not None}

    def _source(self, name: TableName) -> sql.Composable:
        """The FROM item: an inheritance parent without its children, whose rows the log shows under their own names."""
        if name not in self._sources:
            only = "{}" if self._table(name).partitioned else "ONLY {}"
            self._sources[name] = sql.SQL(only).format(identifier(name))
        return self._sources[name]

    def _check_order(
        self,
        schema: TableSchema,
        after: Key | None,
        limit: int,
        query: sql.Composable,
        filters: Sequence[Filter],
        rows: pa.RecordBatch,
        connection: Connection,
    ) -> None:
        """Raises RowsOutOfOrder where the query's rows lack something up to the last of them."""
        if explain_plan.comes_by_index(connection, schema, query):
            return key_progress.check_distinct(rows, schema, after)

        def count(last: Key) -> int:
            return self._count(connection, schema, self._condition(schema, after, last, filters))

        return key_progress.check_count(rows, schema, after, limit, count)

    def _condition(
        self, schema: TableSchema, after: Key | None, upto: Key | None, filters: Sequence[Filter]
    ) -> list[sql.Composable]:
        between = where_clause.between(schema, after, upto, self._operators(schema))
        return [*between, *where_clause.passing(schema, filters, self._operators(schema, filters))]

    def _count(self, connection: Connection, schema: TableSchema, condition: Sequence[sql.Composable]) -> int:
        """The rows, in the snapshot that the connection has now."""
        counted = sql.SQL("{}; SELECT count(*) FROM {} AS t WHERE {}").format(
            sql.SQL(explain_plan.IN_RANGE), self._source(schema.table), where_clause.every(condition)
        )
        return int(value(connection, counted))

    def _keys(
        self,
        schema: TableSchema,
        condition: Sequence[sql.Composable],
        *,
        direction: str = "ASC",
        skip: int = 0,
        check: Check | None = None,
    ) -> list[Key]:
        """The first key that fits after `skip` others; none or one."""
        order = where_clause.order(schema, direction)
        query = self._query(schema, where_clause.every(condition), order, 1, skip)
        chunk = self._chunk(schema, schema.key_columns, query, explain_plan.BY_INDEX, check=check)
        return keys_of(chunk.rows, schema)

    def _query(
        self,
        schema: TableSchema,
        condition: sql.Composable,
        order: sql.Composable,
        limit: int | None,
        skip: int = 0,
    ) -> sql.Composable:
        """What follows the columns of a SELECT."""
        if not schema.key:
            raise RequestError(
                f"table {schema.table} has no key to read it by",
                fix="give it a primary key, or an entry in [source.keys]",
            )
        with translate_errors(self._config):
            return sql.SQL("FROM {} AS t WHERE {} ORDER BY {}{}{}").format(
                self._source(schema.table),
                condition,
                order,
                sql.SQL("" if limit is None else f" LIMIT {limit:d}"),
                sql.SQL(f" OFFSET {skip:d}" if skip else ""),
            )

    def _chunk(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        query: sql.Composable,
        settings: str,
        filters: Sequence[Filter] = (),
        most: int | None = None,
        check: Check | None = None,
    ) -> Chunk:
        def select(now: Sequence[Column]) -> sql.Composable:
            return sql.SQL("SELECT {} {}").format(sql.SQL(", ").join(map(select_column, now)), query)

        def decode(now: Sequence[Column], copied: copy_out.Bytes) -> pa.RecordBatch:
            return decode_rows(copied, now, schema.table)

        snapshot, rows, size = self._copy_in_snapshot(schema, columns, select, decode, settings, filters, most, check)
        return Chunk(schema, rows, snapshot, size + rows.num_rows * rows.num_columns * VALUE_BYTES)

    def _hashes(
        self,
        schema: TableSchema,
        condition: Sequence[sql.Composable],
        limit: int | None,
        settings: str,
        check: Check | None = None,
    ) -> Hashes:
        rows, snapshot = self._select_hashes(
            schema, canonical.hashed_shape(schema), condition, limit, settings, HashQuery.hashes, check
        )
        canonical.check_hashed(rows, schema)
        return Hashes(schema, rows, snapshot)

    def _select_hashes(
        self,
        schema: TableSchema,
        answer: Sequence[Column],
        condition: Sequence[sql.Composable],
        limit: int | None,
        settings: str,
        ask: Callable[[HashQuery, str, str], str],
        check: Check | None = None,
    ) -> tuple[pa.RecordBatch, str | None]:
        """The rows of `answer` that a query of hashes gives, and its snapshot."""
        with translate_errors(self._config):
            connection = self._open()
        recoded = connection.get_parameter_status("server_encoding") not in ("UTF8", "SQL_ASCII")
        tail = self._query(schema, where_clause.every(condition), where_clause.order(schema), limit)

        def select(now: Sequence[Column]) -> sql.Composable:
            kinds.update({column.name: column for column in now})
            sent = sql.SQL(", ").join(select_column(kinds[name]) for name in schema.key)
            query = HashQuery(now, schema.key, self._config.rules_of(schema.table), self._config.has_hash_key, recoded)
            return sql.SQL(ask(query, tail.as_string(connection), sent.as_string(connection)))

        def decode(_: Sequence[Column], copied: copy_out.Bytes) -> pa.RecordBatch:
            return decode_rows(copied, [kinds.get(column.name, column) for column in answer], schema.table)

        kinds: dict[str, Column] = {}
        snapshot, rows, _ = self._copy_in_snapshot(schema, schema.columns, select, decode, settings, check=check)
        return rows, snapshot

    def _copy_in_snapshot(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        select: Callable[[Sequence[Column]], sql.Composable],
        decode: Decode,
        settings: str,
        filters: Sequence[Filter] = (),
        most: int | None = None,
        check: Check | None = None,
    ) -> tuple[str | None, pa.RecordBatch, int]:
        """The snapshot (None on a standby), the rows of what is selected, and their bytes. `decode` has the columns as
        they were in the snapshot; `check` looks at the rows while it lasts."""
        with translate_errors(self._config), refusing(schema, filters):
            connection = self._open()
            selection = Selection(schema, columns, self._source(schema.table), settings, select, decode, check)
            try:
                return selection.read(connection, self._config, replays=self._replays, most=most)
            except copy_out.TooLarge as error:
                self.close()
                if most is not None:
                    raise ChunkTooLarge(error.rows) from error
                raise RequestError(
                    f"a chunk of {schema.table} has more than {LARGEST} bytes",
                    fix="ask for fewer rows with a smaller chunk_size",
                ) from error
            except BaseException:
                self.close()  # whatever state it is in, the next chunk gets a new connection
                raise
