"""Chunks: rows in key order by one SELECT. The database compares keys, values are bound, columns become Arrow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import RequestError, ServerNotSafe, SourceUnavailable, TableGone
from dblog_core.interfaces import Chunk, ChunkTooLarge, Hashes, RangeHash, ReadPlan
from dblog_core.model.filters import Filter
from dblog_core.model.key_order import order_text
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import Key, keys_of
from dblog_core.rows import key_progress
from dblog_core.rows import row_hashes as canonical
from dblog_core.rows.key_progress import RowsOutOfOrder
from dblog_core.sources.mysql.sql import (
    catalogue,
    explain_plan,
    key_order,
    row_hashes,
    where_clause,
)
from dblog_core.sources.mysql.sql.catalogue_cache import Definitions
from dblog_core.sources.mysql.sql.connection import connect, rows, translate_errors, where
from dblog_core.sources.mysql.sql.key_order import IndexRows, KeyOrder
from dblog_core.sources.mysql.sql.log_end import Sight
from dblog_core.sources.mysql.sql.result_rows import TooLarge
from dblog_core.sources.mysql.sql.row_hashes import StagedForms
from dblog_core.sources.mysql.sql.select_rows import IndexReplaced, KeySelects
from dblog_core.sources.mysql.sql.watermarks import qualify
from dblog_core.sources.mysql.sql.where_clause import Condition
from dblog_core.sources.mysql.sql.xa_visibility import await_xa_commits

_USUAL_LIMIT = 1000  # rows of the chunk that EXPLAIN is asked about
_COUNTS = 3
"""Readings of a chunk until one is as the server counts it: some engines have no snapshots, and a row may be added
between the two SELECTs."""

Result = TypeVar("Result")
Read = TypeVar("Read", Chunk, Hashes)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the catalogue says of a table: its shape, and what the order of its key depends on."""

    described: catalogue.Described | None
    columns: Mapping[str, tuple[Any, ...]]
    indexes: IndexRows


class MysqlChunks:
    """A ChunkReader over one connection in autocommit: every SELECT is a new snapshot."""

    def __init__(self, config: SourceConfig, connection: Connection[Any]) -> None:
        self._config = config
        self._connection = connection
        self._keys: Mapping[str, Sequence[str]] = config.keys
        self._looks: dict[TableName, _Look] = {}
        self._definitions = Definitions(connection)
        self._selects = KeySelects(config, connection)
        self._sight_of_log: Sight | None = None

    def origin(self, table: TableName) -> None:
        """The log's statements tell what becomes of a table."""

    def schema(self, table: TableName) -> TableSchema:
        with translate_errors(self._config, f"reading the shape of {table}"):
            described = self._look(table).described
        if described is None:
            raise self._missing(table)
        if described.schema is None:
            raise RequestError(
                f"table {table}: {'; '.join(described.faults)}", where=where(self._config), fix="see `dblog check`"
            )
        return described.schema

    def column_names(self, table: TableName) -> tuple[str, ...]:
        with translate_errors(self._config, f"reading the columns of {table}"):
            return catalogue.column_names(self._connection, table)

    def key_order(self, schema: TableSchema) -> str:
        with translate_errors(self._config, f"reading the key's order of {schema.table}"):
            look = self._look(schema.table)
        if not look.columns:
            raise self._missing(schema.table)
        return order_text(key_order.of_key(look.columns, schema.key, key_order.of_indexes(look.indexes, schema)))

    def _look(self, table: TableName) -> _Look:
        look = self._definitions.look(table, partial(self._describe, table))
        self._looks[table] = look
        return look

    def _describe(self, table: TableName) -> _Look:
        """A dump asks for all of it, of each table."""
        return _Look(
            catalogue.describe(self._connection, table, self._keys, self._config.columns),
            key_order.describe_columns(self._connection, table),
            key_order.list_unique_indexes(self._connection, table),
        )

    def _by_order(self, schema: TableSchema, read: Callable[[KeyOrder], Result]) -> Result:
        """What is read by the order that the newest look at the table has shown: who reads chunk after chunk looks at
        `key_order` after each. Read a second time where the index of that order is gone since."""
        with contextlib.suppress(IndexReplaced):
            return read(self._order(schema))
        del self._looks[schema.table]
        try:
            return read(self._order(schema))
        except IndexReplaced as error:
            raise SourceUnavailable(
                f"the index of the key of {schema.table} is replaced again and again", where=where(self._config)
            ) from error

    def _order(self, schema: TableSchema) -> KeyOrder:
        if not schema.key:
            raise RequestError(
                f"table {schema.table} has no key to read it by",
                fix="give it a primary key, or an entry in [source.keys]",
            )
        with translate_errors(self._config, f"reading the key's order of {schema.table}"):
            look = self._looks.get(schema.table) or self._look(schema.table)
        return key_order.of_indexes(look.indexes, schema)

    def last_key(self, schema: TableSchema) -> Key | None:
        return self._by_order(schema, partial(self._last_key, schema))

    def _last_key(self, schema: TableSchema, order: KeyOrder) -> Key | None:
        with translate_errors(self._config, "waiting for XA COMMITs"):
            await_xa_commits(self._connection, self._config)
        # After the wait: a row of an XA transaction that is logged, and not visible yet, may be the last one.
        if key_order.is_plain(schema, order):
            return self._end_key(schema, order, "DESC")
        with self._selects.one_snapshot(schema):
            last = self._end_key(schema, order, "DESC")
            if last is not None:
                key_progress.check_last(schema, self._selects.count(schema, order, last, None))
        return last

    def _end_key(self, schema: TableSchema, order: KeyOrder, direction: str) -> Key | None:
        keys = keys_of(self._select(schema, order, ("", []), direction, 1), schema)
        return keys[0] if keys else None

    def estimated_rows(self, table: TableName) -> int:
        sql = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        with translate_errors(self._config, f"estimating {table}"):
            estimates = rows(self._connection, sql, (table.schema, table.name))
        return int(estimates[0][0] or 0) if estimates else 0

    def explain(self, schema: TableSchema, *, filters: Sequence[Filter] = ()) -> ReadPlan:
        return self._by_order(schema, partial(self._explain, schema, filters))

    def _explain(self, schema: TableSchema, filters: Sequence[Filter], order: KeyOrder) -> ReadPlan:
        passing = where_clause.passing(schema, filters)
        bounds = self._usual_bounds(schema, order)
        where_ = where_clause.every(where_clause.between(schema, order, *bounds), passing)
        with translate_errors(self._config, f"planning how to read {schema.table}"), where_clause.comparable(schema):
            statement = self._selects.statement(schema, order, schema.columns, where_, "ASC", _USUAL_LIMIT)
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

        def next_key(order: KeyOrder) -> list[Key]:
            place = where_clause.between(schema, order, after, upto)
            return keys_of(self._select(schema, order, place, "ASC", 1, skip=every - 1), schema)

        while keys := self._by_order(schema, next_key):
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
        def read(order: KeyOrder) -> Chunk:
            between = where_clause.between(schema, order, after, upto)
            condition = where_clause.every(between, where_clause.passing(schema, filters))
            return self._in_order(
                *(schema, order, after, limit, filters, condition),
                lambda: self._chunk(schema, order, condition, limit, most),
            )

        return self._by_order(schema, read)

    def read_keys(
        self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = (), most: int | None = None
    ) -> Chunk:
        condition = where_clause.every(_is_one_of(schema, keys), where_clause.passing(schema, filters))
        self._await_visibility()
        return self._by_order(schema, lambda order: self._chunk(schema, order, condition, None, most))

    def hashes(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Hashes:
        def read(order: KeyOrder) -> Hashes:
            condition = where_clause.between(schema, order, after, upto)
            return self._in_order(
                *(schema, order, after, limit, (), condition), lambda: self._hashes(schema, order, condition, limit)
            )

        return self._by_order(schema, read)

    def hashes_of(self, schema: TableSchema, keys: Sequence[Key]) -> Hashes:
        self._await_visibility()
        return self._by_order(schema, lambda order: self._hashes(schema, order, _is_one_of(schema, keys), None))

    def range_hash(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> RangeHash:
        def read(order: KeyOrder) -> RangeHash:
            tail, values = self._selects.tail(
                schema, order, where_clause.between(schema, order, after, upto), "ASC", limit
            )
            forms = StagedForms.of(self._config, schema.table)
            statement = row_hashes.select_range_hash(schema, order, forms, tail)
            answer = self._selects.answer(schema, canonical.range_shape(schema), (statement, values), 1)
            return canonical.range_hash(answer, schema, None)

        self._await_visibility()
        return self._by_order(schema, read)

    def sees(self, place: str) -> bool:
        with translate_errors(self._config, "looking at what is visible"):
            return self._sight().sees(place)

    def log_end(self) -> str:
        with translate_errors(self._config, "reading the log's end"):
            return self._sight().end()

    def _sight(self) -> Sight:
        if self._sight_of_log is None:
            self._sight_of_log = Sight(self._config, self._connection)
        return self._sight_of_log

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def _missing(self, table: TableName) -> TableGone:
        return TableGone(
            f"table {table} does not exist", where=where(self._config), fix="name an existing SCHEMA.TABLE"
        )

    def _in_order(
        self,
        schema: TableSchema,
        order: KeyOrder,
        after: Key | None,
        limit: int,
        filters: Sequence[Filter],
        condition: Condition,
        select: Callable[[], Read],
    ) -> Read:
        """What is selected by a condition, which lacks nothing up to its last row. Raises RowsOutOfOrder."""
        self._await_visibility()
        if key_order.is_plain(schema, order):
            answer = select()
            key_progress.check_ascent(answer.rows, schema, after)
            return answer
        if self._selects.comes_by_index(schema, order, condition, limit):
            answer = select()
            key_progress.check_distinct(answer.rows, schema, after)
            return answer

        def count(last: Key) -> int:
            return self._selects.count(schema, order, after, last, filters)

        def select_and_count() -> Read:
            with self._selects.one_snapshot(schema):
                answer = select()
                key_progress.check_count(answer.rows, schema, after, limit, count)
            return answer

        for _ in range(_COUNTS - 1):
            with contextlib.suppress(RowsOutOfOrder):
                return select_and_count()
        return select_and_count()

    def _chunk(
        self, schema: TableSchema, order: KeyOrder, condition: Condition, limit: int | None, most: int | None
    ) -> Chunk:
        statement = self._selects.statement(schema, order, schema.columns, condition, "ASC", limit)
        try:
            text_rows = self._selects.select_places(schema, schema.columns, statement, limit, most)
        except TooLarge as error:
            # The server would send the rest of the chunk, and a connection cannot be used before that is read.
            self._selects.give_up()
            raise ChunkTooLarge(error.rows) from error
        batch = self._selects.batch(schema, schema.columns, text_rows)
        return Chunk(schema, batch, None, text_rows.counted_bytes)

    def _hashes(self, schema: TableSchema, order: KeyOrder, condition: Condition, limit: int | None) -> Hashes:
        tail, values = self._selects.tail(schema, order, condition, "ASC", limit)
        listed = row_hashes.selected_hashes(schema, StagedForms.of(self._config, schema.table))
        statement = f"SELECT {listed} {tail}"
        hash_rows = self._selects.answer(schema, canonical.hashed_shape(schema), (statement, values), limit)
        canonical.check_hashed(hash_rows, schema)
        return Hashes(schema, hash_rows, None)

    def _await_visibility(self) -> None:
        """Returns when a SELECT sees all that the log holds now. Raises ServerNotSafe where none is sure to."""
        with translate_errors(self._config, "looking at binlog_order_commits"):
            refuse_any_order(self._connection, self._config)
        with translate_errors(self._config, "waiting for XA COMMITs"):
            await_xa_commits(self._connection, self._config)

    def _usual_bounds(self, schema: TableSchema, order: KeyOrder) -> tuple[Key | None, Key | None]:
        """Bounds as a chunk in the middle of the table has; open where the table is empty."""
        first = self._end_key(schema, order, "ASC")
        last = self._last_key(schema, order)
        if first is None or last is None:
            return None, None
        return (None if first == last else first), last

    def _select(
        self,
        schema: TableSchema,
        order: KeyOrder,
        condition: Condition,
        direction: str,
        limit: int | None,
        *,
        skip: int = 0,
    ) -> pa.RecordBatch:
        """Keys alone."""
        statement = self._selects.statement(schema, order, schema.key_columns, condition, direction, limit, skip)
        return self._selects.answer(schema, schema.key_columns, statement, limit)


def _is_one_of(schema: TableSchema, keys: Sequence[Key]) -> Condition:
    return where_clause.is_one_of(schema, keys) if keys else where_clause.NEVER


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
    connection = connect(config, lock_seconds=lock_seconds)
    with translate_errors(config, "preparing to read chunks"):
        refuse_any_order(connection, config)
    return MysqlChunks(config, connection)
