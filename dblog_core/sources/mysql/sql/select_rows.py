"""SELECTs in the order of a table's key: the statement, its rows from the socket itself, and their Arrow columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.connections import Connection, MySQLResult

from dblog_core.config.source import SourceConfig
from dblog_core.errors import RequestError, ValueOutOfRange
from dblog_core.model.filters import Filter
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.arrow_buffers import LARGEST, Bytes, Int64s
from dblog_core.sources.mysql.sql import explain_plan, key_order, result_values, where_clause
from dblog_core.sources.mysql.sql.connection import rows, translate_errors
from dblog_core.sources.mysql.sql.key_order import KeyOrder
from dblog_core.sources.mysql.sql.result_rows import Rows, TextRows
from dblog_core.sources.mysql.sql.where_clause import Condition
from dblog_core.sources.mysql.values.binary_values import KEY_DATE_FIX, ValueFault

_NO_SUCH_INDEX = 1176


class IndexReplaced(Exception):
    """The index that a SELECT names was dropped since the catalogue was read."""


class KeySelects:
    """SELECTs of a table's rows in the order of its key, over one connection in autocommit."""

    def __init__(self, config: SourceConfig, connection: Connection[Any]) -> None:
        self._config = config
        self._connection = connection
        self._rows = TextRows()
        self._sorted_octets: int | None = None

    def answer(
        self, schema: TableSchema, columns: Sequence[Column], statement: Condition, expected: int | None
    ) -> pa.RecordBatch:
        """The rows that a SELECT of these columns gives, `expected` at most."""
        return self.batch(schema, columns, self.select_places(schema, columns, statement, expected))

    def select_places(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        statement: Condition,
        expected: int | None,
        most: int | None = None,
    ) -> Rows:
        """The places of a SELECT's values; of no use after the next one. Raises TooLarge and IndexReplaced."""
        with translate_errors(self._config, f"reading {schema.table}"), where_clause.comparable(schema):
            return self._run(*statement, len(columns), expected, most)

    def statement(
        self,
        schema: TableSchema,
        order: KeyOrder,
        columns: Sequence[Column],
        condition: Condition,
        direction: str,
        limit: int | None,
        skip: int = 0,
    ) -> Condition:
        tail, values = self.tail(schema, order, condition, direction, limit, skip)
        return f"SELECT {', '.join(map(where_clause.select_column, columns))} {tail}", values

    def tail(
        self,
        schema: TableSchema,
        order: KeyOrder,
        condition: Condition,
        direction: str,
        limit: int | None,
        skip: int = 0,
    ) -> Condition:
        """What follows the columns of a SELECT. Raises RequestError where a limit would cut rows at a wrong place."""
        if limit is not None and order.index is None:
            key_order.check_sort(schema, order, self._count_sorted_octets())
        text, values = condition
        sql = f"FROM {explain_plan.from_item(schema, order.index)}"
        sql += f" WHERE {text}" if text else ""
        sql += f" ORDER BY {where_clause.order(schema, order, direction)}"
        sql += f" LIMIT {int(limit)}" if limit is not None else ""
        return sql + (f" OFFSET {int(skip)}" if skip else ""), values

    def comes_by_index(self, schema: TableSchema, order: KeyOrder, condition: Condition, limit: int) -> bool:
        """Whether the server reads the rows by the index of the order, and does not sort them."""
        if order.index is None:
            return False
        statement = self.statement(schema, order, schema.key_columns, condition, "ASC", limit)
        with translate_errors(self._config, f"planning how to read {schema.table}"), where_clause.comparable(schema):
            plan = explain_plan.explain(self._connection, *statement)
        return explain_plan.index_used(plan, bounded=False) == order.index

    def count(
        self,
        schema: TableSchema,
        order: KeyOrder,
        after: Key | None,
        upto: Key | None,
        filters: Sequence[Filter] = (),
    ) -> int:
        between = where_clause.between(schema, order, after, upto)
        text, values = where_clause.every(between, where_clause.passing(schema, filters))
        statement = f"SELECT COUNT(*) FROM {explain_plan.from_item(schema, order.index)} WHERE {text}"
        with translate_errors(self._config, f"counting rows of {schema.table}"), where_clause.comparable(schema):
            return int(rows(self._connection, statement, values)[0][0])

    @contextlib.contextmanager
    def one_snapshot(self, schema: TableSchema) -> Iterator[None]:
        """All SELECTs have the snapshot of the first one; none has it afterwards."""
        with translate_errors(self._config, f"reading {schema.table}"):
            rows(self._connection, "START TRANSACTION")
        try:
            yield
        except Exception:
            if self._connection.open:
                with translate_errors(self._config, f"reading {schema.table}"):
                    rows(self._connection, "ROLLBACK")
            raise
        except BaseException:
            self.give_up()  # it may be in the midst of a result
            raise
        with translate_errors(self._config, f"reading {schema.table}"):
            rows(self._connection, "COMMIT")

    def _count_sorted_octets(self) -> int:
        """Octets of each value that the session compares when it sorts: an administrator may have set a maximum."""
        if self._sorted_octets is None:
            with translate_errors(self._config, "asking for max_sort_length"):
                self._sorted_octets = int(rows(self._connection, "SELECT @@SESSION.max_sort_length")[0][0])
        return self._sorted_octets

    def _run(self, sql: str, values: list[Any], width: int, expected: int | None, most: int | None) -> Rows:
        """The places of the SELECT's values; of no use after the next one. Raises TooLarge, IndexReplaced and the
        driver's errors."""
        connection: Any = self._connection
        with connection.cursor() as cursor:
            text = cursor.mogrify(sql, tuple(values))  # also without values: the names have their % doubled
        connection._execute_command(3, text)  # COM_QUERY
        result: Any = MySQLResult(connection)
        try:
            result.init_unbuffered_query()
        except pymysql.err.OperationalError as error:
            if error.args[0] == _NO_SUCH_INDEX:
                raise IndexReplaced from error
            raise
        result.unbuffered_active = False  # from here on the rows are ours, and the driver must not wait for them
        received = connection._rfile
        # What the driver has received already comes first; its readinto1() would wait for more beside that.
        ahead = received.read(len(received.peek()))
        # The driver's object of every value would cost more than all else.
        text_rows = self._rows.read(
            received.raw.readinto, width, sequence=connection._next_seq_id, expected=expected, ahead=ahead, most=most
        )
        # An error packet in place of a row: the driver knows which exception it is.
        if isinstance(text_rows, bytes):
            pymysql.err.raise_mysql_exception(text_rows)
        return text_rows

    def give_up(self) -> None:
        """Closes the connection without a word: the rest of a result is still to come."""
        connection: Any = self._connection
        # An orderly close would send a command, between the packets of the result.
        connection._force_close()

    def batch(self, schema: TableSchema, columns: Sequence[Column], text_rows: Rows) -> pa.RecordBatch:
        """The columns that were selected. Raises ValueOutOfRange and RequestError."""
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
