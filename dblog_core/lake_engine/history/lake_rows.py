"""The lake's rows of some keys, as they are before a merge: what lines of a history take values from."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.features import check_rows_readable
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.shape import Shape, readable_shape_of
from dblog_core.delta_writer.stored_rows import rows_at
from dblog_core.errors import LakeError
from dblog_core.lake_engine.events.unchanged_values import Ids
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell

_MOST_BYTES = 256 << 20


def find_rows(
    table: OpenTable, schema: TableSchema, keys: Sequence[pa.Array], names: Sequence[str]
) -> tuple[pa.Table, Ids]:
    """The table's rows of these keys, which differ: these columns and OFFSET, and the number of each one's key; of
    several of one key the newest comes last.

    Raises ValuesTooLarge where the rows of several keys have more than 256 MiB; TableRefused for a table that this
    package does not read, and LakeError for one that has another column.
    """
    shape = _read_shape(table, schema, names)
    names = [*names, OFFSET]
    parts = [pa.table({name: pa.array([], shape[name].type) for name in names})]
    numbers = [np.empty(0, np.int64)]
    most = _MOST_BYTES if len(keys[0]) > 1 else sys.maxsize
    for hit in table.hits(table.key_arrays(pa.table(list(keys), names=list(schema.key)), shape), shape):
        room = most - sum(part.nbytes for part in parts)
        parts.append(rows_at(table.files, hit.file, shape, names, hit.rows, most=room))
        numbers.append(hit.change_numbers)
    rows = pa.concat_tables(parts)
    order = np.argsort(np.asarray(pc.fill_null(rows[OFFSET], -1)), kind="stable")
    return rows.take(pa.array(order)), np.concatenate(numbers)[order]


def _read_shape(table: OpenTable, schema: TableSchema, names: Sequence[str]) -> Shape:
    """Of a table that is read alone: what only a writer must keep to is no matter."""
    table.look()
    where = str(table.files)
    check_rows_readable(table.snapshot.protocol, table.snapshot.metadata, where)
    shape = readable_shape_of(table.snapshot.metadata, {*schema.key, *names, OFFSET}, where)
    have = {column.name: column.type for column in shape}
    kinds = {c.name: c.type for c in schema.columns if c.name in (*schema.key, *names)} | {OFFSET: pa.int64()}
    if other := [name for name, kind in kinds.items() if have.get(name) != kind]:
        raise LakeError(
            f"the lake table has no column {', '.join(other)} of the type that the source's table has",
            where=where,
            fix=f"undo that change, or run `dblog reset {quote_for_shell(schema.table)}`: the table is built again",
        )
    return shape
