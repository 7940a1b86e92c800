"""Keys as small numbers, equal for equal keys: what lake, source and log are joined by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.model.schema import TableSchema
from dblog_core.verify.direct.not_direct import NotDirect

Numbers = npt.NDArray[np.int64]


def check_keys(schema: TableSchema) -> None:
    """Raises NotDirect for a key whose equality is not that of its bytes."""
    if any(pa.types.is_floating(column.type) for column in schema.key_columns):
        raise NotDirect("its key has a floating-point number")  # NaN, and two zeros


def number_keys(groups: Sequence[pa.Table]) -> tuple[list[Numbers], int]:
    """The numbers of the keys of each group, and how many there are. A group has the columns of the key."""
    sizes = [len(group) for group in groups]
    every = pa.concat_tables(groups)
    numbers = np.zeros(len(every), np.int64)
    count = 1
    for column in every.columns:
        # NULL is a key like any other: another program may have written one into the lake.
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            raise NotDirect("its keys take more than 2 GiB")
        codes = np.asarray(encoded.indices, np.int64)
        if count == 1:
            numbers = codes
            count = len(encoded.dictionary)
        else:
            _, numbers = np.unique(numbers * len(encoded.dictionary) + codes, return_inverse=True)
            count = int(numbers.max()) + 1 if len(numbers) else 1
    return np.split(numbers, np.cumsum(sizes)[:-1]), count
