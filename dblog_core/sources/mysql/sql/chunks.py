"""Chunks: rows in key order by one SELECT. The database compares keys, values are bound, columns become Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.connections import Connection, MySQLResult

from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.errors import RequestError, ServerNotSafe, TableGone, ValueOutOfRange
from dblog_core.interfaces import Chunk, ChunkTooLarge, Hashes, RangeHash, ReadPlan
from dblog_core.model.filters import Filter
from dblog_core.model.key_order import order_text
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.values import Key, keys_of
from dblog_core.rows import row_hashes as canonical
from dblog_core.rows.arrow_buffers import LARGEST, Bytes, Int64s
from dblog_core.sources.mysql.sql import (
    catalogue,
    explain_plan,
    key_order,
    result_values,
    row_hashes,
    where_clause,
)
from dblog_core.sources.mysql.sql.catalogue_cache import Definitions
from dblog_core.sources.mysql.sql.connection import connect, rows, translate_errors, where
from dblog_core.sources.mysql.sql.log_end import Sight
from dblog_core.sources.mysql.sql.result_rows import Rows, TextRows, TooLarge
from dblog_core.sources.mysql.sql.watermarks import qualify
from dblog_core.sources.mysql.sql.where_clause import Condition
from dblog_core.sources.mysql.sql.xa_visibility import await_xa_commits
from dblog_core.sources.mysql.values.binary_values import KEY_DATE_FIX, ValueFault

_USUAL_LIMIT = 1000  # rows of the chunk that EXPLAIN is asked about
_NO_SUCH_INDEX = 1176


class MysqlChunks:
    """A ChunkReader over one connection in autocommit: every SELECT is a new snapshot."""

    def __init__(self, config: SourceConfig, connection: Connection[Any]) -> None:
        self._config = config
        self._connection = connection
        self._keys: Mapping[str, Sequence[str]] = config.keys
        self._indexes: dict[tuple[TableName, tuple[str, ...]], str | None] = {}
        self._definitions = Definitions(connection)
        self._rows = TextRows()
        self._looks: Sight | None = None

    def schema(self, table: TableName) -> TableSchema:
        with translate_errors(self._config, f"reading the shape of {table}"):
            described, _ = self._definitions.look(table, partial(self._describe, table))
        if described is None:
            raise self._missing(table)
        if described.schema is None:
            raise RequestError(
                f"table {table}: {'; '.join(described.faults)}", where=where(self._config), fix="see `dblog check`"
            )
        return described.schema

    def key_order(self, schema: TableSchema) -> str:
        with translate_errors(self._config, f"reading the key's order of {schema.table}"):
            _, columns = self._definitions.look(schema.table, partial(self._describe, schema.table))
        if not columns:
            raise self._missing(schema.table)
        return order_text(key_order.of_key(columns, schema.key))

    def _describe(self, table: TableName) -> tuple[catalogue.Described | None, dict[str, tuple[Any, ...]]]:
        """The table's shape and what the order of its columns depends on: a dump asks for both, of each table."""
        described = catalogue.describe(self._connection, table, self._keys, self._config.columns)
        return described, key_order.describe_columns(self._connection, table)

    def last_key(self, schema: TableSchema) -> Key | None:
        with translate_errors(self._config, "waiting for XA COMMITs"):
            await_xa_commits(self._connection, self._config)
        # After the wait: a row of an XA transaction that is logged, and not visible yet, may be the last one.
        last_row = self._select(schema, schema.key_columns, ("", []), "DESC", 1)
        keys = keys_of(last_row, schema)
        return keys[0] if keys else None

    def estimated_rows(self, table: TableName) -> int:
        sql = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        with translate_errors(self._config, f"estimating {table}"):
            estimates = rows(self._connection, sql, (table.schema, table.name))
        return int(estimates[0][0] or 0) if estimates else 0

    def explain(self, schema: TableSchema, *, filters: Sequence[Filter] = ()) -> ReadPlan:
        passing = where_clause.passing(schema, filters)
        bounds = self._usual_bounds(schema)
        where_ = where_clause.every(where_clause.between(schema, *bounds), passing)
        with translate_errors(self._config, f"planning how to read {schema.table}"), where_clause.comparable(schema):
            statement = self._statement(schema, schema.columns, where_, "ASC", _USUAL_LIMIT)
            index = explain_plan.index_used(
                explain_plan.explain(self._connection, *statement), bounded=bounds != (None, None)
            )
            if not filters:
                return ReadPlan(index, self.estimated_rows(schema.table))
            counted = f"SELECT 1 FROM {qualify(schema.table)} WHERE {passing[0]}"
            return ReadPlan(
                index, explain_plan.passing_rows(explain_plan.explain(self._connection, counted, passing[1]))
            )

    def boundaries(self, schema: TableSchema, *, after: Key | None, upto: Key | None, every: int) -> Iterator[Key]:
        """One SELECT of the key's columns for each key, so that neither memory nor a snapshot grows with the table."""
        while True:
            place = where_clause.between(schema, after, upto)
            keys = keys_of(self._select(schema, schema.key_columns, place, "ASC", 1, skip=every - 1), schema)
            if not keys:
                return
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
        condition = where_clause.every(where_clause.between(schema, after, upto), where_clause.passing(schema, filters))
        return self._chunk(schema, condition, limit, most)

    def read_keys(
        self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = (), most: int | None = None
    ) -> Chunk:
        listed = where_clause.is_one_of(schema, keys) if keys else where_clause.NEVER
        condition = where_clause.every(listed, where_clause.passing(schema, filters))
        return self._chunk(schema, condition, None, most)

    def hashes(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Hashes:
        return self._hashes(schema, where_clause.between(schema, after, upto), limit)

    def hashes_of(self, schema: TableSchema, keys: Sequence[Key]) -> Hashes:
        return self._hashes(schema, where_clause.is_one_of(schema, keys) if keys else where_clause.NEVER, None)

    def range_hash(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> RangeHash:
        def statement() -> Condition:
            tail, values = self._tail(schema, where_clause.between(schema, after, upto), "ASC", limit)
            rules = self._rules(schema)
            return row_hashes.select_range_hash(schema, rules, tail, zero_dates=self._config.zero_dates), values

        self._await_visibility()
        return canonical.range_hash(self._answer(schema, canonical.range_shape(schema), statement, 1), schema, None)

    def sees(self, place: str) -> bool:
        with translate_errors(self._config, "looking at what is visible"):
            return self._sight().sees(place)

    def log_end(self) -> str:
        with translate_errors(self._config, "reading the log's end"):
            return self._sight().end()

    def _sight(self) -> Sight:
        if self._looks is None:
            self._looks = Sight(self._config, self._connection)
        return self._looks

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def _missing(self, table: TableName) -> TableGone:
        return TableGone(
            f"table {table} does not exist", where=where(self._config), fix="name an existing SCHEMA.TABLE"
        )

    def _chunk(self, schema: TableSchema, condition: Condition, limit: int | None, most: int | None) -> Chunk:
        self._await_visibility()

        def statement() -> Condition:
            return self._statement(schema, schema.columns, condition, "ASC", limit)

        try:
            text_rows = self._select_places(schema, schema.columns, statement, limit, most)
        except TooLarge as error:
            # The server would send the rest of the chunk, and a connection cannot be used before that is read.
            self._give_up()
            raise ChunkTooLarge(error.rows) from error
        return Chunk(schema, self._batch(schema, schema.columns, text_rows), None, text_rows.counted_bytes)

    def _give_up(self) -> None:
        """Closes the connection without a word: the rest of a result is still to come."""
        connection: Any = self._connection
        # An orderly close would send a command, between the packets of the result.
        connection._force_close()

    def _hashes(self, schema: TableSchema, condition: Condition, limit: int | None) -> Hashes:
        def statement() -> Condition:
            tail, values = self._tail(schema, condition, "ASC", limit)
            listed = row_hashes.selected_hashes(schema, self._rules(schema), zero_dates=self._config.zero_dates)
            return f"SELECT {listed} {tail}", values

        self._await_visibility()
        hash_rows = self._answer(schema, canonical.hashed_shape(schema), statement, limit)
        canonical.check_hashed(hash_rows, schema)
        return Hashes(schema, hash_rows, None)

    def _rules(self, schema: TableSchema) -> ColumnRules:
        return self._config.hashed_by_server(schema.table)

    def _await_visibility(self) -> None:
        """Returns when a SELECT sees all that the log holds now. Raises ServerNotSafe where none is sure to."""
        with translate_errors(self._config, "looking at binlog_order_commits"):
            refuse_any_order(self._connection, self._config)
        with translate_errors(self._config, "waiting for XA COMMITs"):
            await_xa_commits(self._connection, self._config)

    def _usual_bounds(self, schema: TableSchema) -> tuple[Key | None, Key | None]:
        """Bounds as a chunk in the middle of the table has; open where the table is empty."""
        first = keys_of(self._select(schema, schema.key_columns, ("", []), "ASC", 1), schema)
        last = self.last_key(schema)
        if not first or last is None:
            return None, None
        return (None if first[0] == last else first[0]), last

    def _select(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        condition: Condition,
        direction: str,
        limit: int | None,
        *,
        skip: int = 0,
    ) -> pa.RecordBatch:
        def statement() -> Condition:
            return self._statement(schema, columns, condition, direction, limit, skip)

        return self._answer(schema, columns, statement, limit)

    def _answer(
        self, schema: TableSchema, columns: Sequence[Column], statement: Callable[[], Condition], expected: int | None
    ) -> pa.RecordBatch:
        """The rows that a SELECT of these columns gives, `expected` at most."""
        return self._batch(schema, columns, self._select_places(schema, columns, statement, expected))

    def _select_places(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        statement: Callable[[], Condition],
        expected: int | None,
        most: int | None = None,
    ) -> Rows:
        """The places of a SELECT's values; of no use after the next one. Raises TooLarge."""
        with translate_errors(self._config, f"reading {schema.table}"), where_clause.comparable(schema):
            try:
                return self._run(*statement(), len(columns), expected, most)
            except pymysql.err.OperationalError as error:
                if error.args[0] != _NO_SUCH_INDEX:
                    raise
                self._indexes.pop((schema.table, schema.key), None)  # it was replaced since we looked
                return self._run(*statement(), len(columns), expected, most)

    def _statement(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        condition: Condition,
        direction: str,
        limit: int | None,
        skip: int = 0,
    ) -> Condition:
        tail, values = self._tail(schema, condition, direction, limit, skip)
        return f"SELECT {', '.join(map(where_clause.select_column, columns))} {tail}", values

    def _tail(
        self, schema: TableSchema, condition: Condition, direction: str, limit: int | None, skip: int = 0
    ) -> Condition:
        """What follows the columns of a SELECT."""
        if not schema.key:
            raise RequestError(
                f"table {schema.table} has no key to read it by",
                fix="give it a primary key, or an entry in [source.keys]",
            )
        by_key = (schema.table, schema.key)
        if by_key not in self._indexes:
            self._indexes[by_key] = explain_plan.key_index(self._connection, schema)
        text, values = condition
        sql = f"FROM {explain_plan.from_item(schema, self._indexes[by_key])}"
        sql += f" WHERE {text}" if text else ""
        sql += f" ORDER BY {where_clause.order(schema, direction)}"
        sql += f" LIMIT {int(limit)}" if limit is not None else ""
        return sql + (f" OFFSET {int(skip)}" if skip else ""), values

    def _run(self, sql: str, values: list[Any], width: int, expected: int | None, most: int | None) -> Rows:
        """Runs a SELECT and splits its rows from the socket itself: the driver makes an object of every value."""
        connection: Any = self._connection
        with connection.cursor() as cursor:
            text = cursor.mogrify(sql, tuple(values))  # also without values: the names have their % doubled
        connection._execute_command(3, text)  # COM_QUERY
        result: Any = MySQLResult(connection)
        result.init_unbuffered_query()
        result.unbuffered_active = False  # from here on the rows are ours, and the driver must not wait for them
        received = connection._rfile
        # What the driver has received already comes first; its readinto1() would wait for more beside that.
        ahead = received.read(len(received.peek()))
        text_rows = self._rows.read(
            received.raw.readinto, width, sequence=connection._next_seq_id, expected=expected, ahead=ahead, most=most
        )
        # An error packet in place of a row: the driver knows which exception it is.
        if isinstance(text_rows, bytes):
            pymysql.err.raise_mysql_exception(text_rows)
        return text_rows

    def _batch(self, schema: TableSchema, columns: Sequence[Column], text_rows: Rows) -> pa.RecordBatch:
        arrays = [
            self._array(schema, column, text_rows.raw, starts, lengths)
            for column, starts, lengths in zip(columns, text_rows.starts, text_rows.lengths, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(c.name, c.type) for c in columns]))

    def _array(self, schema: TableSchema, column: Column, raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
        # A zero date in a key must not become NULL: nothing comes after a key that holds one.
        in_key = column.name in schema.key
        if int(lengths.sum(where=lengths > 0)) > LARGEST:
            raise RequestError(
                f"a chunk holds more of column {column.name} than one array can",
                where=str(schema.table),
                fix="ask for fewer rows with a smaller chunk_size",
            )
        try:
            return result_values.read(
                column, raw, starts, lengths, zero_dates="error" if in_key else self._config.zero_dates
            )
        except ValueFault as fault:
            raise ValueOutOfRange(
                f"column {column.name}: a value {fault.why}",
                where=str(schema.table),
                fix=KEY_DATE_FIX if in_key else fault.fix,
            ) from fault


def refuse_any_order(connection: Connection[Any], config: SourceConfig) -> None:
    """Raises ServerNotSafe where commits may become visible in another order than the log's.

    Read right before a chunk's SELECT, after its low watermark. A SELECT is stale only for a transaction that is logged
    before that watermark and becomes visible after it, so what counts is how *those* committed: a look after the
    SELECT would tell nothing more, since all that is logged after the low watermark is evicted anyhow. With the look
    when the reader is opened, and the one of the chunk before, each low watermark has one on either side of it.
    """
    if config.kind == "mariadb":
        return  # it has no such setting, and keeps the order; but for XA, see `await_xa_commits`
    if str(rows(connection, "SELECT @@GLOBAL.binlog_order_commits")[0][0]) != "1":
        raise ServerNotSafe(
            "binlog_order_commits is OFF: a chunk could miss what the log already holds, and stale rows would win",
            where=where(config),
            fix="SET PERSIST binlog_order_commits = ON; then `dblog work --once` continues the dump",
        )


def open_reader(config: SourceConfig, *, lock_seconds: float | None = None) -> MysqlChunks:
    """`lock_seconds` as for `Source.open_reader`; the server takes whole ones."""
    connection = connect(config)
    with translate_errors(config, "preparing to read chunks"):
        if lock_seconds is not None:
            rows(connection, "SET SESSION lock_wait_timeout = %s", (max(1, round(lock_seconds)),))
        refuse_any_order(connection, config)
        if config.kind == "mariadb":  # keys listed by the thousand are ranges of the index, and no join
            rows(connection, "SET SESSION in_predicate_conversion_threshold = 0")
        # MySQL keeps its estimates for a day otherwise; MariaDB has no such setting and no such delay.
        if rows(connection, "SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
            rows(connection, "SET SESSION information_schema_stats_expiry = 0")
    return MysqlChunks(config, connection)
