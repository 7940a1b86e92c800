"""Values in the type of a staged column, exactly: a value that the type does not have is a misfit, equal to none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.rows.arrow_hashes import find_unprintable
from dblog_core.schema_evolution import compatibility

MISFITS = "value of another type"
"""The column of rows that tells which have a misfit."""

Flags = npt.NDArray[np.bool_]

_TURN = np.int64(0x5D1A_0F3B_7C6E_9241)
"""What the hash of a row with a misfit is turned by, so that no row of the source has it."""


def cast_exactly(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags]:
    """The values in that type, NULL in place of misfits; and which are misfits."""
    if values.null_count == len(values):
        return pa.nulls(len(values), kind), np.zeros(len(values), np.bool_)
    fitting = values if values.type == kind else _cast(values, kind)
    misfits = np.asarray(pc.and_(values.is_valid(), fitting.is_null()))
    if values.type != kind and not compatibility.is_widening(values.type, kind):
        misfits = misfits | ~same_values(values, _cast(fitting, values.type))
    if (unprintable := find_unprintable(fitting)) is not None:
        misfits = misfits | unprintable
    if misfits.any():
        fitting = pc.if_else(pa.array(misfits), pa.scalar(None, kind), fitting)
    return fitting, misfits


def turn_misfits(hashes: npt.NDArray[np.int64], misfits: Flags) -> None:
    """Sets hashes of rows with a misfit apart, in place."""
    hashes[misfits] ^= _TURN


def same_values(left: pa.Array, right: pa.Array) -> Flags:
    """Where they are equal: NULL equals NULL, NaN equals NaN, and 0.0 equals -0.0."""
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return np.asarray(pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(left), pc.is_null(right))))


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
