"""Values as the same values of another type, exactly or not at all: for a lake that keeps its columns as they are.

Cast to the other type and back, a value must be what it was.
"""

from __future__ import annotations

import pyarrow as pa

from dblog_core.delta_writer.delta_types import describe
from dblog_core.delta_writer.order_guard import equal_values
from dblog_core.delta_writer.shape import name_of_type
from dblog_core.errors import LakeError
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import quote_for_shell

_WHOLE = pa.decimal128(19, 0)
"""Every integer of 64 bits: Arrow casts integers to no decimal of fewer digits, whatever their values are."""


def cast_exactly(
    values: pa.ChunkedArray,
    to_type: pa.DataType,
    *,
    table: TableName,
    name: str,
    offsets: pa.Array | pa.ChunkedArray,
) -> pa.ChunkedArray:
    """The same values as those of the lake's type. Raises LakeError with the column and the offset of the first value
    for which there is none."""
    if (fitted := _try_cast(values, to_type)) is not None:
        return fitted
    first = 0
    count = len(values)
    while count > 1:  # the first of these has no such value, or a later one
        half = count // 2
        if _try_cast(values.slice(first, half), to_type) is None:
            count = half
        else:
            first += half
            count -= half
    before, behind = _describe_misfit(name, values.type, to_type)
    raise LakeError(f"{before}{offsets[first].as_py()}{behind}", where=str(table), fix=_advise_accept(table))


def _try_cast(values: pa.ChunkedArray, to_type: pa.DataType) -> pa.ChunkedArray | None:
    """None where a value is none of the type."""
    try:
        fitted = cast(values, to_type)
        back = cast(fitted, values.type)
    except pa.ArrowInvalid:
        return None
    return fitted if equal_values(back, values).all() else None


def cast(values: pa.ChunkedArray, to_type: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_integer(values.type):
        if pa.types.is_decimal(to_type):
            return values.cast(_WHOLE).cast(to_type)
        # Arrow refuses all integers beyond 2^53, of which some are a float.
        return values.cast(to_type, safe=not pa.types.is_floating(to_type))
    return values.cast(to_type, safe=not pa.types.is_date(to_type))  # a time of the day is lost, and missed then


def _describe_misfit(name: str, from_type: pa.DataType, to_type: pa.DataType) -> tuple[str, str]:
    """What comes before the offset, and behind it."""
    types = (
        f" is {describe(name_of_type(from_type))}, and fits no {describe(name_of_type(to_type))}, which the lake has"
    )
    return f"column {name}: the value at offset ", types


def _advise_accept(table: TableName) -> str:
    return f"run `dblog schema accept {quote_for_shell(table)}`: the lake takes the new shape"
