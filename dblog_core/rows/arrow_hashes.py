"""Row hashes of Arrow batches, column by column: `row_hashes` without an object for each value.

A value whose text Arrow does not print as the definition does (years beyond 9999) is `NotHashable`; no source has one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.schema import Column, TableSchema
from dblog_core.rows.row_hashes import LONGEST, LOWEST, PRESENT, UNIT, WINDOW, is_compared, is_json, window_exponent

Hashes = npt.NDArray[np.int64]
Columns = Mapping[str, pa.Array]

_BYTES = 16 << 20  # of values whose texts are in memory at once: several times as much
_ROWS = 65_536
_EMPTY = pa.scalar("")
_US_A_DAY = 86_400 * 1_000_000
_DAYS = (-719_162, 2_932_896)  # 0001-01-01 and 9999-12-31, since 1970-01-01
_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2").view(np.uint16)


class NotHashable(Exception):
    """A value, or a type, that has no canonical text here."""


def hash_rows(rows: Columns, schema: TableSchema) -> Hashes:
    """The hash of each row, as the table's staged schema has it. `rows`: arrays by column name, of the staged types.

    Raises NotHashable.
    """
    columns = schema.columns
    count = max((len(array) for array in rows.values()), default=0)
    size = sum(rows[column.name].nbytes for column in columns)
    step = max(1, min(_ROWS, count * _BYTES // max(size, 1)))
    parts = []
    for start in range(0, count, step):
        fields = [field for c in columns for field in _fields(rows[c.name].slice(start, step), c)]
        parts.append(_hash_texts(pc.binary_join_element_wise(*_fill_nulls(fields), pa.scalar(",", pa.large_string()))))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def find_unprintable(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which values of a staged type are `NotHashable`; None: none is."""
    if not (pa.types.is_date32(values.type) or pa.types.is_timestamp(values.type)):
        return None
    is_date = pa.types.is_date32(values.type)
    numbers = values.cast(pa.int32() if is_date else pa.int64())
    a_day = 1 if is_date else _US_A_DAY
    first = _DAYS[0] * a_day
    end = (_DAYS[1] + 1) * a_day
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or first <= ends["min"] <= ends["max"] < end:
        return None
    return np.asarray(pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end)), False))


def sum_exactly(hashes: Hashes) -> int:
    """The sum of all hashes, which may need more than 64 bits."""
    return (int(np.sum(hashes >> 32)) << 32) + int(np.sum(hashes & 0xFFFFFFFF))


def _fill_nulls(fields: list[pa.Array]) -> Iterator[pa.Array]:
    """With an empty text for NULL."""
    for field in fields:
        # Large ones throughout: the texts of many columns together may pass 2 GiB.
        texts = field.cast(pa.large_string())
        yield texts.fill_null("") if texts.null_count else texts


def _hash_texts(texts: pa.Array) -> Hashes:
    digests = np.frombuffer(_sha256(texts), ">i8")
    return digests[:: hashlib.sha256().digest_size // 8].astype(np.int64)


def _fields(values: pa.Array, column: Column) -> list[pa.Array]:
    """The column's fields, each NULL where the column is."""
    kind = column.type
    if values.type != kind:
        raise NotHashable(f"column {column.name} is {values.type}, and {kind} in the table's shape")
    if not is_compared(column):
        return [pc.if_else(values.is_valid(), pa.scalar(PRESENT), pa.scalar(None, pa.string()))]
    if is_json(column):
        return [_digests(values, pa.array(np.arange(len(values))))]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _content(values)
    if pa.types.is_boolean(kind):
        return [pc.if_else(values, "t", "f")]
    if pa.types.is_floating(kind):
        return [_float_texts(values)]
    if pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind):
        return [_number_texts(values)]
    if pa.types.is_date32(kind):
        _check_years(values, column)
        return [values.cast(pa.string())]
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        _check_years(values, column)
        return [_time_texts(values)]
    raise NotHashable(f"column {column.name} is {kind}")


def _content(values: pa.Array) -> list[pa.Array]:
    """How many octets, and the text; the digest in its place where that is long."""
    octets = pc.binary_length(values)
    texts = values if pa.types.is_string(values.type) else _hexadecimal(values)
    long = pc.fill_null(pc.greater(octets, LONGEST), False)
    if pc.any(long).as_py():
        digests = _digests(values, pc.indices_nonzero(long))
        texts = pc.replace_with_mask(texts, long, digests.cast(texts.type))
    return [octets.cast(pa.string()), texts]


def _digests(values: pa.Array, chosen: pa.Array) -> pa.Array:
    """The SHA-256 in hexadecimal of the values at these places; NULL for NULL."""
    values = values.take(chosen)
    digests = _sha256(values.fill_null("" if pa.types.is_string(values.type) else b""))
    texts = _texts_of_bytes(np.arange(len(values) + 1) * hashlib.sha256().digest_size, np.frombuffer(digests, np.uint8))
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _sha256(values: pa.Array) -> bytes:
    """The digests of all values, one after the other; none is NULL."""
    sha256 = hashlib.sha256
    return b"".join([sha256(value).digest() for value in _objects(values)])


def _objects(values: pa.Array) -> npt.NDArray[np.object_]:
    objects: npt.NDArray[np.object_] = values.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    return objects


def _hexadecimal(values: pa.Array) -> pa.Array:
    """Bytes as text, two digits for each."""
    dense = pa.concat_arrays([values])  # a slice's offsets begin elsewhere
    _, offsets, data = dense.buffers()
    edges = np.frombuffer(offsets, np.int32)[dense.offset : dense.offset + len(dense) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    texts = _texts_of_bytes(edges - edges[0], octets[edges[0] : edges[-1]])
    return pc.if_else(dense.is_valid(), texts, None) if dense.null_count else texts


def _texts_of_bytes(edges: npt.NDArray[np.int64], octets: npt.NDArray[np.uint8]) -> pa.Array:
    """Two hexadecimal digits for each byte; `edges`: where each value begins, and the last one ends."""
    digits = pa.py_buffer(_HEX[octets])
    return pa.LargeStringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges * 2), digits)


def _number_texts(values: pa.Array) -> pa.Array:
    # Arrow prints decimals of much scale with an exponent: the digits are put about the point here.
    if not pa.types.is_decimal(values.type) or values.type.scale == 0:
        whole = values if not pa.types.is_decimal(values.type) else values.cast(pa.decimal128(38, 0))
        return whole.cast(pa.string())
    scale = values.type.scale
    texts = _without_point(values).cast(pa.string())
    digits = pc.utf8_lpad(pc.utf8_ltrim(texts, "-"), scale + 1, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -scale)
    after = pc.utf8_slice_codeunits(digits, -scale)
    sign = pc.if_else(pc.starts_with(texts, "-"), "-", "")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), after, ".")


def _without_point(values: pa.Array) -> pa.Array:
    """Decimals as the whole numbers that they are made of; the same bytes under another type."""
    validity, data = values.buffers()
    kind = pa.decimal128(38, 0)
    return pa.Array.from_buffers(kind, len(values), [validity, data], offset=values.offset)


def _time_texts(values: pa.Array) -> pa.Array:
    # In UTC, with six digits of a fraction: those at the end that are 0 go, and the point with all of them.
    texts = values.cast(pa.timestamp("us")).cast(pa.string())
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")


def _check_years(values: pa.Array, column: Column) -> None:
    """Raises NotHashable for a year that has not four digits."""
    if find_unprintable(values) is not None:
        raise NotHashable(f"column {column.name} has a date outside of the years 1 to 9999")


def _float_texts(values: pa.Array) -> pa.Array:
    """`row_hashes.float_field` of each."""
    present = np.asarray(values.is_valid())
    numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0))
    finite = np.isfinite(numbers)
    exact = np.where(finite, numbers, 0.0)
    # frexp's exponent is that of a fraction from 0.5 up to 1; that of 0 means nothing, and its window is 0.
    window = np.where(exact == 0, 0, (np.frexp(exact)[1] - 1 - LOWEST) // WINDOW).astype(np.int64)
    scale = np.ldexp(1.0, window * window_exponent(1))
    scaled = exact * scale * scale
    whole = np.trunc(scaled)
    fraction = ((scaled - whole) * UNIT).astype(np.int64)
    texts = [pa.array(part).cast(pa.string()) for part in (whole.astype(np.int64), fraction)]
    texts = pc.binary_join_element_wise(*texts, " ")
    if window.any():
        others = pc.binary_join_element_wise(texts, pa.array(window).cast(pa.string()), " ")
        texts = pc.if_else(pa.array(window != 0), others, texts)
    if not finite.all():
        names = np.where(np.isnan(numbers), "NaN", np.where(numbers > 0, "Infinity", "-Infinity"))
        texts = pc.if_else(pa.array(finite), texts, pa.array(names.tolist(), pa.string()))
    return texts if present.all() else pc.if_else(pa.array(present), texts, None)
