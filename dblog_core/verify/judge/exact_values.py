"""Values in the types of staged columns, exactly: a value that the type does not have is a misfit, equal to none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.order_guard import Flags, equal_values
from dblog_core.model import column_defaults
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import Columns, Hashes, find_unprintable, hash_rows
from dblog_core.schema_evolution import compatibility

MISFITS = "value of another type"
"""The column of rows that tells which have a misfit."""

_TURN = np.int64(0x5D1A_0F3B_7C6E_9241)
"""What the hash of a row with a misfit is turned by, so that no row of the source has it."""


def cast_exactly(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags]:
    """The values in that type, NULL in place of misfits; and which are misfits."""
    if values.null_count == len(values):
        return pa.nulls(len(values), kind), np.zeros(len(values), np.bool_)
    fitting = values if values.type == kind else _cast(values, kind)
    misfits = np.asarray(pc.and_(values.is_valid(), fitting.is_null()))
    if values.type != kind and not compatibility.is_widening(values.type, kind):
        misfits = misfits | ~equal_values(values, _cast(fitting, values.type))
    if (unprintable := find_unprintable(fitting)) is not None:
        misfits = misfits | unprintable
    if misfits.any():
        fitting = pc.if_else(pa.array(misfits), pa.scalar(None, kind), fitting)
    return fitting, misfits


def fit_columns(
    image: Mapping[str, pa.Array], schema: TableSchema, offsets: pa.Array, constants: Mapping[str, tuple[int, Any]]
) -> tuple[dict[str, pa.Array], Flags]:
    """Rows in the columns and types of the shape, and which of them have a misfit. A column that the image lacks is
    NULL. `offsets`: of the rows; `constants`: by column the value of rows from before an offset."""
    columns: dict[str, pa.Array] = {}
    misfits: Flags = np.zeros(len(offsets), np.bool_)
    for column in schema.columns:
        values = pa.nulls(len(offsets), column.type)
        if column.name in image:
            values, is_misfit = cast_exactly(image[column.name], column.type)
            misfits = misfits | is_misfit
        if column.name in constants:  # a merge that died may have added it to the lake already
            before, value = constants[column.name]
            is_older = pc.fill_null(pc.less(offsets, before), False)
            values = pc.if_else(is_older, column_defaults.scalar(value, column), values)
        columns[column.name] = values
    return columns, misfits


def hash_values(columns: Columns, misfits: Flags, schema: TableSchema) -> Hashes:
    """The hashes of rows; of rows with a misfit such that no row of the source has them."""
    hashes = hash_rows(columns, schema)
    hashes[misfits] ^= _TURN
    return hashes


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in that type; NULL in place of those that Arrow cannot cast."""
    try:
        return values.cast(kind)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(values), kind)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, kind)
        half = len(values) // 2
        return pa.concat_arrays([_cast(values[:half], kind), _cast(values[half:], kind)])
