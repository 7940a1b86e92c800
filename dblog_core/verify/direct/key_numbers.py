"""Keys as small numbers, equal for equal keys: what lake, source and log are joined by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.verify.direct.exact_cast import cast_exactly

Numbers = npt.NDArray[np.int64]


def key_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a table of keys."""
    return pa.schema([pa.field(column.name, column.type) for column in schema.key_columns])


def make_keys(columns: Sequence[pa.Array | pa.ChunkedArray], kind: pa.Schema) -> pa.Table:
    """A table of keys in these types. Floats that the source takes for equal are alike: -0.0 is 0.0, and NaN is NaN.
    A value that a type does not have is NULL, as no key of the source is."""
    arrays = []
    for column, field in zip(columns, kind, strict=True):
        array = join_chunks(column) if isinstance(column, pa.ChunkedArray) else column
        array = array if array.type == field.type else cast_exactly(array, field.type)[0]
        arrays.append(_unify_floats(array) if pa.types.is_floating(array.type) else array)
    return pa.table(arrays, schema=kind)


def _unify_floats(array: pa.Array) -> pa.Array:
    numbers = np.asarray(array.fill_null(0.0)) + 0.0  # -0.0 + 0.0 is 0.0
    numbers = np.where(np.isnan(numbers), np.nan, numbers).astype(array.type.to_pandas_dtype())
    return pa.array(numbers, array.type, mask=np.asarray(array.is_null()))


def number_keys(groups: Sequence[pa.Table]) -> tuple[list[Numbers], int]:
    """The numbers of the keys of each group (`make_keys`), and how many there are."""
    sizes = [len(group) for group in groups]
    every = pa.concat_tables(groups)
    numbers = np.zeros(len(every), np.int64)
    count = 1
    for column in every.columns:
        codes, kinds = _number_values(column)
        if count == 1:
            numbers = codes
            count = kinds
        else:
            _, numbers = np.unique(numbers * kinds + codes, return_inverse=True)
            count = int(numbers.max()) + 1 if len(numbers) else 1
    return np.split(numbers, np.cumsum(sizes)[:-1]), count


def _number_values(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    """The number of each value of a column, and how many there are."""
    # Large texts: those of a column together may pass 2 GiB.
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    values = join_chunks(column.cast(wide.get(column.type, column.type)))
    # NULL is a key like any other: another program may have written one into the lake.
    encoded = values.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices, np.int64), len(encoded.dictionary)
