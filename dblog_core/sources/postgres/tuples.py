"""Row messages of pgoutput as Arrow columns, for all rows of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.errors import UnknownLogEvent
from dblog_core.events import changes_schema, image_type
from dblog_core.schema import TableSchema
from dblog_core.sources.postgres.types import from_text

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_I, _U, _D, _K, _O, _N = b"IUDKON"
_TEXT, _NULL, _KEPT = b"tnu"
_KINDS = np.zeros(256, dtype=bool)
_KINDS[[_TEXT, _NULL, _KEPT]] = True
_HEAD = 5  # kind of message and relation oid
_MARGIN = b"\0" * 8  # a length may be looked for after the last value of the last row


@dataclass(slots=True)
class _Image:
    """Where each column's text lies: `starts` and `ends` in the buffer, `present` for a value that is there."""

    starts: list[Places]
    ends: list[Places]
    present: list[Flags]
    kept: list[Flags]
    rows: Flags


def decode(schema: TableSchema, messages: list[bytes], sequences: list[int], transactions: list[int]) -> pa.RecordBatch:
    """The change batch of `messages` (INSERT, UPDATE and DELETE of one table version)."""
    lengths = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    raw = b"".join([*messages, _MARGIN])
    data = np.frombuffer(raw, dtype=np.uint8)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    kind = data[begins]
    marker = data[begins + _HEAD]
    has_old = (marker == _K) | (marker == _O)
    has_new = kind != _D
    _require(((kind == _I) | (kind == _U) | (kind == _D)).all(), schema, "a row message of an unknown kind")
    old, place = _read(data, begins + _HEAD, has_old, schema)
    _require((data[place[has_new]] == _N).all(), schema, "a row image of an unknown kind")
    new, place = _read(data, place, has_new, schema)
    _require((place == ends).all(), schema, "a row message of an unknown length")
    _fill_kept(old, new)
    ops = pa.array(["c", "u", "d"], pa.string()).take(pa.array(_op_codes(kind)))
    columns = [
        pa.array(sequences, pa.int64()),
        pa.array(transactions, pa.int32()),
        ops,
        pa.array(marker == _K),
        _unchanged(schema, new),
        _struct(schema, raw, old),
        _struct(schema, raw, new),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=changes_schema(schema))


def one_row(message: bytes) -> list[bytes | None]:
    """The texts of the new row of one INSERT or UPDATE; None for NULL. For the few rows that are read singly."""
    place = _HEAD
    if message[place] in (_K, _O):
        _, place = _one_tuple(message, place + 1)
    values, _ = _one_tuple(message, place + 1)
    return values


def _one_tuple(message: bytes, place: int) -> tuple[list[bytes | None], int]:
    values: list[bytes | None] = []
    count, place = int.from_bytes(message[place : place + 2]), place + 2
    for _ in range(count):
        kind, place = message[place], place + 1
        if kind == _TEXT:
            end = place + 4 + int.from_bytes(message[place : place + 4])
            values.append(message[place + 4 : end])
            place = end
        else:
            values.append(None)
    return values, place


def _read(data: Bytes, place: Places, rows: Flags, schema: TableSchema) -> tuple[_Image, Places]:
    """The image that begins at `place` (its marker byte) in each of `rows`; and where the message goes on."""
    some = np.flatnonzero(rows)
    everywhere = len(some) == len(rows)
    at = place if everywhere else place[some]
    window = np.lib.stride_tricks.sliding_window_view(data, 4)
    counts = (data[at + 1].astype(np.int64) << 8) | data[at + 2]
    _require((counts == len(schema.columns)).all(), schema, "a row with another number of columns than its table")
    at = at + 3
    image = _Image([], [], [], [], rows)
    for _ in schema.columns:
        kinds = data[at]
        _require(_KINDS[kinds].all(), schema, "a column value of an unknown kind")
        text = kinds == _TEXT
        start = at + 1 + 4 * text
        length = np.ascontiguousarray(window[at + 1]).view(">u4").ravel().astype(np.int64)
        end = start + np.where(text, length, 0)
        for places, found in ((image.starts, start), (image.ends, end)):
            places.append(found if everywhere else _spread(found, some, place))
        for flags, found in ((image.present, text), (image.kept, kinds == _KEPT)):
            flags.append(found if everywhere else _spread(found, some, np.zeros(len(rows), dtype=bool)))
        at = end
    return image, at if everywhere else _spread(at, some, place)


def _spread(found: npt.NDArray[Any], some: Places, rest: npt.NDArray[Any]) -> npt.NDArray[Any]:
    full = rest.copy()
    full[some] = found
    return full


def _fill_kept(old: _Image, new: _Image) -> None:
    """An unchanged TOAST value that the old image holds is taken from there."""
    for number, kept in enumerate(new.kept):
        known = kept & old.present[number]
        if known.any():
            new.starts[number] = np.where(known, old.starts[number], new.starts[number])
            new.ends[number] = np.where(known, old.ends[number], new.ends[number])
            new.present[number] = new.present[number] | known
            new.kept[number] = kept & ~known


def _unchanged(schema: TableSchema, new: _Image) -> pa.Array:
    kind = pa.list_(pa.string())
    if not any(kept.any() for kept in new.kept):
        return pa.nulls(len(new.rows), kind)
    kept = np.column_stack(new.kept)
    names = pa.array([c.name for c in schema.columns], pa.string()).take(pa.array(np.nonzero(kept)[1]))
    counts = kept.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(counts == 0))


def _struct(schema: TableSchema, raw: bytes, image: _Image) -> pa.Array:
    kind = image_type(schema)
    if not image.rows.any():
        return pa.nulls(len(image.rows), kind)
    columns = [
        from_text(_texts(raw, starts, ends, present), column, schema.table)
        for column, starts, ends, present in zip(schema.columns, image.starts, image.ends, image.present, strict=True)
    ]
    mask = None if image.rows.all() else pa.array(~image.rows)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _texts(raw: bytes, starts: Places, ends: Places, present: Flags) -> pa.Array:
    """The values between `starts` and `ends`, gathered without a Python object each.

    An Arrow binary array whose every second value is what we want and whose others are the bytes between: its offsets
    are starts and ends in turn, which grow with the rows. Taking the even ones copies just the values.
    """
    offsets = np.empty(2 * len(starts), dtype=np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    interleaved = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
    even = np.arange(0, len(offsets), 2)
    return interleaved.take(pa.array(even) if present.all() else pa.array(even, mask=~present))


def _op_codes(kind: Bytes) -> Bytes:
    codes = np.zeros(256, dtype=np.uint8)
    codes[[_I, _U, _D]] = [0, 1, 2]
    return codes[kind]


def _require(condition: np.bool_ | bool, schema: TableSchema, what: str) -> None:
    if not condition:
        raise UnknownLogEvent(f"pgoutput sent {what}", where=str(schema.table), fix="upgrade dblog")
