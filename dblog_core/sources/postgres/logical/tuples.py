"""Row messages of pgoutput as Arrow columns, for all rows of one table version in a batch at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.errors import UnknownLogEvent
from dblog_core.model.events import THEN_DUMPED, Unreadable, changes_schema, image_type
from dblog_core.model.schema import Column, TableSchema
from dblog_core.rows import row_faults
from dblog_core.rows.arrow_buffers import fixed_width_array, gather, repeat_value, text, validity_bitmap
from dblog_core.rows.row_faults import Refusal
from dblog_core.sources.postgres.logical import row_messages
from dblog_core.sources.postgres.values import binary_values
from dblog_core.sources.postgres.values.types import from_text

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_I, _U, _D, _K, _O = b"IUDKO"
_TEXT, _BINARY = b"tb"
_WRONG = {
    row_messages.COUNT: "a row with another number of columns than its table",
    row_messages.IMAGE: "a row image of an unknown kind",
    row_messages.LENGTH: "a row message of an unknown length",
    row_messages.VALUE: "a column value of an unknown kind",
}
# Made of buffers, as all arrays here: pa.array would import pandas, to see whether its argument is of it.
_OPS = text(gather(np.frombuffer(b"cud", dtype=np.uint8), np.arange(3), np.ones(3, dtype=np.int64)))
_OP_CODES = np.zeros(256, dtype=np.int8)
_OP_CODES[[_I, _U, _D]] = [0, 1, 2]


@dataclass(slots=True)
class Image:
    """Where the values of each column lie, [column, row]; a negative length is none. `rows`: which have this image."""

    starts: Places
    lengths: Places
    rows: Flags


@dataclass(frozen=True, slots=True)
class Placed:
    """Row changes of one table version, and where their values lie. `rows`: columns of `row_messages.scan`'s array;
    `markers`: K or O where there is an old image; `forms`: in which forms the values of each column came."""

    schema: TableSchema
    rows: Places
    markers: Bytes
    forms: Bytes
    old: Image
    new: Image


def decode(schema: TableSchema, raw: Bytes, rows: Places) -> pa.RecordBatch:
    """The change batch of the row changes (columns of `row_messages.scan`'s array) of one table version."""
    placed = place(schema, raw, rows)
    return to_batch(placed, *(_struct(schema, raw, image, placed.forms) for image in (placed.old, placed.new)))


def place(schema: TableSchema, raw: Bytes, rows: Places) -> Placed:
    """Finds the values of row changes. Raises UnknownLogEvent."""
    kinds = rows[row_messages.KIND]
    columns = len(schema.columns)
    count = rows.shape[1]
    # An insert has no old image: a batch of inserts alone needs no places for them.
    inserts = bool((kinds == _I).all())
    new = _room(columns, count)
    old = _room(columns, 0 if inserts else count)
    markers = np.empty(count, dtype=np.uint8)
    forms = np.zeros(columns, dtype=np.uint8)
    wrong = row_messages.places(
        raw,
        rows[row_messages.BODY],
        rows[row_messages.END],
        kinds,
        new.starts,
        new.lengths,
        old.starts,
        old.lengths,
        markers,
        forms,
    )
    if wrong:
        raise UnknownLogEvent(f"pgoutput sent {_WRONG[wrong]}", where=str(schema.table), fix="upgrade dblog")
    new.rows = kinds != _D
    old.rows = (markers == _K) | (markers == _O)
    return Placed(schema, rows, markers, forms, old, new)


def to_batch(placed: Placed, before: pa.Array, after: pa.Array) -> pa.RecordBatch:
    """The change batch with these images."""
    rows = placed.rows
    arrays = [
        fixed_width_array(
            rows[row_messages.SEQUENCE].copy(), None, pa.int64()
        ),  # the next batch is scanned into the same rows
        fixed_width_array(rows[row_messages.TRANSACTION].astype(np.int32), None, pa.int32()),
        _list_ops(rows[row_messages.KIND]),
        _flags(placed.markers == _K),
        _list_unchanged(placed.schema, placed.new),
        before,
        after,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=changes_schema(placed.schema))


def decode_placed(
    schema: TableSchema, raw: Bytes, rows: Places, where: Callable[[int], str]
) -> tuple[pa.RecordBatch, Unreadable | None]:
    """`decode` of the rows before the first one with a value that has no exact form, and the error for it.

    `where`: the place of a transaction, by its number, for messages. Columns are decoded as wholes, which know of no
    rows; so the row is looked for by halves, once something is wrong.
    """
    try:
        return decode(schema, raw, rows), None
    except Exception as error:  # noqa: BLE001 - `row_faults` says which errors are of the rows
        low = 0
        high = rows.shape[1]
        while high - low > 1:
            middle = (low + high) // 2
            found_there = _refusal(schema, raw, rows[:, low:middle])
            low, high = (low, middle) if found_there else (middle, high)
        # Alone it may be read, where rows do not fit each other.
        refused = _refusal(schema, raw, rows[:, low:high]) or row_faults.explain(error, schema.table)
        refused.where = f"{refused.where} at {where(int(rows[row_messages.TRANSACTION, low]))}"
        if low and _refusal(schema, raw, rows[:, :low]):
            low = 0
        batch = decode(schema, raw, rows[:, :low]) if low else no_rows(schema)
        return batch, _unreadable(schema, rows[:, low], refused)


def no_rows(schema: TableSchema) -> pa.RecordBatch:
    """A change batch of no change."""
    kinds = changes_schema(schema)
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in kinds], schema=kinds)


def _refusal(schema: TableSchema, raw: Bytes, rows: Places) -> Refusal | None:
    try:
        decode(schema, raw, rows)
    except Exception as error:  # noqa: BLE001 - as above
        return row_faults.explain(error, schema.table)
    return None


def _unreadable(schema: TableSchema, row: Places, refused: Refusal) -> Unreadable:
    fix = f"{refused.fix}; {THEN_DUMPED}"
    return Unreadable(
        int(row[row_messages.SEQUENCE]), int(row[row_messages.TRANSACTION]), schema.table, refused.reason, fix
    )


def _room(columns: int, count: int) -> Image:
    starts, lengths = (np.empty((columns, count), dtype=np.int64) for _ in range(2))
    return Image(starts, lengths, np.zeros(count, dtype=np.bool_))


def one_row_or_none(message: bytes) -> list[bytes | None]:
    """As `one_row`; no value of a message that is cut short."""
    try:
        return one_row(message)
    except IndexError:
        return []


def one_row(message: bytes) -> list[bytes | None]:
    """The values of the new row of one INSERT or UPDATE, in the form in which they came; None for NULL. For the few
    rows that are read singly. Raises IndexError for a message that is cut short."""
    # Behind the message's kind and the relation's oid.
    place = 5
    if message[place] in (_K, _O):
        _, place = _one_tuple(message, place + 1)
    values, _ = _one_tuple(message, place + 1)
    return values


def _one_tuple(message: bytes, place: int) -> tuple[list[bytes | None], int]:
    values: list[bytes | None] = []
    count = int.from_bytes(message[place : place + 2])
    place = place + 2
    for _ in range(count):
        kind = message[place]
        place = place + 1
        if kind in (_TEXT, _BINARY):
            end = place + 4 + int.from_bytes(message[place : place + 4])
            values.append(message[place + 4 : end])
            place = end
        else:
            values.append(None)
    return values, place


def _list_ops(kinds: Places) -> pa.Array:
    # A batch of one kind of change, as most are, needs no array of them.
    if len(kinds) and (kinds == kinds[0]).all():
        return repeat_value(_OPS[int(_OP_CODES[kinds[0]])], len(kinds))
    return _OPS.take(fixed_width_array(_OP_CODES[kinds], None, pa.int8()))


def _list_unchanged(schema: TableSchema, new: Image) -> pa.Array:
    kind = pa.list_(pa.string())
    is_unchanged = new.lengths == row_messages.KEPT
    if not is_unchanged.any():
        return pa.nulls(len(new.rows), kind)
    # Transposed: by row, then by column, as a list for each row wants it.
    numbers = np.nonzero(is_unchanged.T)[1]
    counts = is_unchanged.sum(axis=0)
    names = [c.name.encode() for c in schema.columns]
    sizes = np.fromiter(map(len, names), dtype=np.int64, count=len(names))
    joined = np.frombuffer(b"".join(names), dtype=np.uint8)
    places = np.cumsum(sizes) - sizes
    listed = text(gather(joined, places[numbers], sizes[numbers]))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(fixed_width_array(offsets, None, pa.int32()), listed, mask=_flags(counts == 0))


def _flags(values: Flags) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, validity_bitmap(values)])


def _struct(schema: TableSchema, raw: Bytes, image: Image, forms: Bytes) -> pa.Array:
    if not image.rows.any():
        return no_images(schema, image)
    columns = [
        to_arrow(raw, starts, lengths, column, schema, int(form))
        for column, starts, lengths, form in zip(schema.columns, image.starts, image.lengths, forms, strict=True)
    ]
    return to_struct(schema, image, columns)


def no_images(schema: TableSchema, image: Image) -> pa.Array:
    """One for each row, where none has any."""
    return pa.nulls(len(image.rows), image_type(schema))


def to_struct(schema: TableSchema, image: Image, columns: list[pa.Array]) -> pa.Array:
    """The images whose values these are."""
    mask = None if image.rows.all() else _flags(~image.rows)
    return pa.StructArray.from_arrays(columns, fields=list(image_type(schema)), mask=mask)


def to_arrow(raw: Bytes, starts: Places, lengths: Places, column: Column, schema: TableSchema, form: int) -> pa.Array:
    """The values of one column. Raises ValueOutOfRange or UnknownLogEvent."""
    if form == row_messages.BINARY_FORM and binary_values.is_supported(column.source_type):
        return binary_values.to_arrow(raw, starts, lengths, column, schema.table)
    if form & row_messages.BINARY_FORM:  # we did not ask for it: such a type has the stream restarted
        raise UnknownLogEvent(
            f"pgoutput sent binary values of type {column.source_type}",
            where=f"{schema.table}.{column.name}",
            fix="upgrade dblog",
        )
    return from_text(gather(raw, starts, lengths), column, schema.table)
