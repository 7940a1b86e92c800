"""Whether a chunk holds all rows up to the last of them, so that the next one may begin behind it.

If a server orders keys otherwise than it compares them, a dump skips rows without an error. Numbers, dates and binary
strings have one order everywhere, which is checked here. Every other key comes in order where the server reads rows by
the key's own index. Where it sorts them, it also counts, in the chunk's own snapshot, those between the bounds of a
full chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import RequestError
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, keys_of

_OTHER_KEY = "give the table a primary key of numbers, dates or binary strings"


class RowsOutOfOrder(RequestError):
    """A chunk of which nobody can tell what follows it: no dump of this table may continue."""


def check_ascent(rows: pa.RecordBatch, schema: TableSchema, after: Key | None) -> None:
    """Of keys that have one order everywhere. Raises RowsOutOfOrder where they do not ascend strictly from `after`
    on."""
    if not rows.num_rows:
        return
    is_beyond = after is None or after < keys_of(rows.slice(0, 1), schema)[0]
    if not (is_beyond and _ascends([rows.column(name) for name in schema.key])):
        raise _out_of_order(schema, "their keys do not ascend from row to row")


def check_count(
    rows: pa.RecordBatch, schema: TableSchema, after: Key | None, limit: int, count: Callable[[Key], int]
) -> None:
    """Of all other keys, where the server has sorted them; `count`: how many rows its snapshot has from `after` (not
    included) to a key.

    Raises RowsOutOfOrder where two rows have one key, or the server counts other rows than it gave.
    """
    check_distinct(rows, schema, after)
    if rows.num_rows and rows.num_rows >= limit:
        counted = count(keys_of(rows.slice(rows.num_rows - 1, 1), schema)[0])
        if counted != rows.num_rows:
            raise _out_of_order(
                schema, f"it gave {rows.num_rows:,} rows up to a key, and counts {counted:,} up to there"
            )


def check_distinct(rows: pa.RecordBatch, schema: TableSchema, after: Key | None) -> None:
    """Of all other keys. Raises RowsOutOfOrder where two rows have one key."""
    number = rows.num_rows
    if not number:
        return
    first, last = (keys_of(rows.slice(place, 1), schema)[0] for place in (0, number - 1))
    if after in (first, last) or _count_distinct(rows, schema) < number:
        raise RowsOutOfOrder(
            f"rows of {schema.table} that the server tells apart by their keys print as one key ({_names(schema)}): "
            "nothing can be read behind it, and the lake could not tell them apart",
            fix=f"{_OTHER_KEY}, or change the keys of such rows",
        )


def check_last(schema: TableSchema, count_beyond: int) -> None:
    """Raises RowsOutOfOrder where rows lie beyond the key that the server called the last one."""
    if count_beyond:
        raise _out_of_order(schema, "rows lie beyond the one that it gave as the last")


def _ascends(columns: Sequence[pa.Array]) -> bool:
    """Whether rows ascend strictly by the columns."""
    equal_so_far = None
    for column in columns:
        before = column.slice(0, len(column) - 1)
        behind = column.slice(1)
        equal = pc.equal(before, behind)
        wrong = pc.greater(before, behind)
        if equal_so_far is not None:
            wrong = pc.and_(equal_so_far, wrong)
            equal = pc.and_(equal_so_far, equal)
        if pc.any(wrong).as_py():
            return False
        equal_so_far = equal
    return not pc.any(equal_so_far).as_py()


def _count_distinct(rows: pa.RecordBatch, schema: TableSchema) -> int:
    if len(schema.key) == 1:
        return len(rows.column(schema.key[0]).unique())
    keys = pa.table([rows.column(name) for name in schema.key], names=[str(i) for i in range(len(schema.key))])
    return int(keys.group_by(keys.column_names, use_threads=False).aggregate([]).num_rows)


def _out_of_order(schema: TableSchema, why: str) -> RowsOutOfOrder:
    return RowsOutOfOrder(
        f"the server does not put the rows of {schema.table} in the order in which it compares their keys "
        f"({_names(schema)}), and rows would be skipped: {why}",
        fix=f"build the index of its key again, and request the dump again; if that does not help, {_OTHER_KEY}",
    )


def _names(schema: TableSchema) -> str:
    return ", ".join(schema.key)
