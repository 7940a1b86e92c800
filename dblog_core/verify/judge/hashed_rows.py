"""Hashed rows of the lake and hashed events of the log, in columns, with their keys as small numbers.

A row of the lake has `hash`, `offset`, and where it is: `file` and `row`. An event has `hash`, `offset` and `file`, and
says whether the row `lives` after it, whether it is `born` by it, whether the source's log has it (`logged`), whether
its image is `whole`, and which columns the log left out of that (`unchanged`). A partial event of a row that had
another key before is `moved`, and has that key too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.delta_writer.features import ValuesTooLarge
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.verify.judge.exact_values import MISFITS, cast_exactly

Numbers = npt.NDArray[np.int64]

KEY = "key "
"""The beginning of the names of a key's columns."""
OLD_KEY = "old key "
NAMES = pa.list_(pa.string())
Images = TypeVar("Images")
IMAGE_BYTES = 64 << 20
"""Of rows that are in memory at once with their values, unless a single one has more."""
ANY_SIZE = 1 << 62

EVENT_FLAGS = ("lives", "born", "logged", "whole", "moved")


class HashedRows:
    """`rows`: their columns; `key`: the columns of a key, which are named with KEY there."""

    def __init__(self, rows: pa.Table, key: pa.Schema) -> None:
        self.rows = rows.combine_chunks()
        self._key = key
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def keys(self) -> pa.Table:
        return select_keys(self.rows, self._key)

    @cached_property
    def moved_from(self) -> pa.Table:
        """The former key of each event that is `moved`."""
        return select_keys(self.rows, self._key, OLD_KEY).filter(self.rows["moved"])

    @property
    def offsets(self) -> Numbers:
        return self.array("offset")

    @property
    def hashes(self) -> Numbers:
        return self.array("hash")

    def array(self, name: str) -> npt.NDArray[Any]:
        """A column without NULL."""
        if name not in self._arrays:
            self._arrays[name] = np.asarray(self.rows[name])
        return self._arrays[name]

    def where(self, chosen: Flags) -> Self:
        """Some of them."""
        return self if chosen.all() else type(self)(self.rows.filter(pa.array(chosen)), self._key)


def key_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a table of keys."""
    return pa.schema([pa.field(column.name, column.type) for column in schema.key_columns])


def event_schema(key: pa.Schema) -> pa.Schema:
    """The columns of events."""
    keys = [pa.field(prefix + field.name, field.type) for prefix in (KEY, OLD_KEY) for field in key]
    numbers = [pa.field(name, pa.int64()) for name in ("offset", "hash", "file")]
    flags = [pa.field(name, pa.bool_()) for name in EVENT_FLAGS]
    return pa.schema([*keys, *numbers, *flags, pa.field("unchanged", NAMES)])


def select_keys(rows: pa.Table, key: pa.Schema, prefix: str = KEY) -> pa.Table:
    """The keys of rows."""
    return pa.table([rows[prefix + name] for name in key.names], schema=key)


def key_columns(
    columns: Sequence[pa.Array | pa.ChunkedArray], key: pa.Schema, prefix: str = KEY
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """The columns of keys as rows have them (`make_keys`)."""
    keys = make_keys(columns, key)
    return {prefix + name: keys[name] for name in key.names}


def make_keys(columns: Sequence[pa.Array | pa.ChunkedArray], key: pa.Schema) -> pa.Table:
    """A table of keys in these types. Floats that the source takes for equal are alike: -0.0 is 0.0, and NaN is NaN.
    A value that a type does not have is NULL, as no key of the source is."""
    arrays = []
    for column, field in zip(columns, key, strict=True):
        array = join_chunks(column) if isinstance(column, pa.ChunkedArray) else column
        array = array if array.type == field.type else cast_exactly(array, field.type)[0]
        arrays.append(_unify_floats(array) if pa.types.is_floating(array.type) else array)
    return pa.table(arrays, schema=key)


def _unify_floats(array: pa.Array) -> pa.Array:
    numbers = np.asarray(array.fill_null(0.0)) + 0.0  # -0.0 + 0.0 is 0.0
    numbers = np.where(np.isnan(numbers), np.nan, numbers).astype(array.type.to_pandas_dtype())
    return pa.array(numbers, array.type, mask=np.asarray(array.is_null()))


def number_keys(groups: Sequence[pa.Table]) -> tuple[list[Numbers], int]:
    """The numbers of the keys of each group (`make_keys`), equal for equal keys; and how many there are."""
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


def keys_of_numbers(groups: Sequence[pa.Table], numbers: Sequence[Numbers], chosen: Numbers) -> pa.Table:
    """The keys that have the chosen numbers. `numbers`: of the keys of each group."""
    every = np.concatenate(numbers)
    position = np.zeros(int(every.max(initial=-1)) + 1, np.int64)
    position[every] = np.arange(len(every))
    return pa.concat_tables(groups).take(pa.array(position[chosen])).combine_chunks()


def read_in_pieces(rows: Numbers, read: Callable[[Numbers, int], Images]) -> Iterator[tuple[Numbers, Images]]:
    """The images of rows: of as many at once as have room. `read` is given how many bytes they may have."""
    if not len(rows):
        return
    try:
        images = read(rows, IMAGE_BYTES if len(rows) > 1 else ANY_SIZE)
    except ValuesTooLarge:
        for half in np.array_split(rows, 2):
            yield from read_in_pieces(half, read)
        return
    yield rows, images


def gather_images(
    parts: Iterable[tuple[Numbers, pa.Table]], schema: TableSchema, *, max_bytes: int, where: str
) -> pa.Table:
    """Rows with all their values and MISFITS, in the order of their positions, which each part has with its rows.
    Raises ValuesTooLarge where they have more than `max_bytes`."""
    tables = [schema.arrow.append(pa.field(MISFITS, pa.bool_())).empty_table()]
    positions = [np.empty(0, np.int64)]
    size = 0
    for positions_of_part, rows in parts:
        size += rows.nbytes
        if size > max_bytes:
            raise ValuesTooLarge("rows have too large values", where=where)
        tables.append(rows)
        positions.append(positions_of_part)
    order = np.argsort(np.concatenate(positions), kind="stable")
    return pa.concat_tables(tables).take(pa.array(order))
