"""JSON texts become values of the type VARIANT, byte for byte as Spark's `try_parse_json` makes them.

A value is two byte strings: `metadata` has the names of all fields of all objects, in the order in which the text first
has them; in `value` objects have the numbers of their names, in the order of the names. A text that is no JSON has no
VARIANT, nor one with limits passed: it is NULL then.
Source: https://github.com/apache/parquet-format/blob/master/VariantEncoding.md; Spark 4.2, `VariantBuilder.java`, whose
parser is Jackson's.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

VARIANT: Final = pa.struct(
    [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)]
)

_LARGEST = 128 << 20
"""Bytes of a value, and of its names."""
_MOST_DIGITS = 1_000
_DEEPEST = 1_000
"""Levels of objects and lists within each other."""
_LONGEST_NAME = 50_000
_LONGEST_TEXT = 20_000_000
"""Units of UTF-16 of one name, and of one text."""
_DECIMAL_DIGITS = 38
_FEW_NAMES = 32
"""Of an object, that are remembered with their order: documents of a column are alike."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"[][{}]")
_SPACE = " \t\n\r"

_SMALL = [struct.pack("<Bb", 3 << 2, number) for number in (*range(128), *range(-128, 0))]
_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"

_Fields = tuple[tuple[str, Any], ...]


class _NoVariant(ValueError):
    """No VARIANT holds the text."""


def encode_texts(texts: pa.Array | pa.ChunkedArray) -> pa.StructArray:
    """The VARIANTs of JSON texts (strings); NULL for NULL, and for a text that has none."""
    # A document of so many levels takes a few calls for each.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * _DEEPEST))
    encoded = [(None if text is None else encode(text)) or (None, None) for text in texts.to_pylist()]
    value = pa.array([parts[0] for parts in encoded], pa.binary())
    metadata = pa.array([parts[1] for parts in encoded], pa.binary())
    return join_parts(value, metadata, value.is_null())


def join_parts(value: pa.Array, metadata: pa.Array, is_null: pa.Array) -> pa.StructArray:
    """VARIANTs of their parts. Where one is NULL its parts are empty, as files have to have them."""
    parts = [pc.fill_null(part.cast(pa.binary()), b"") for part in (value, metadata)]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=is_null)


def encode(text: str) -> tuple[bytes, bytes] | None:
    """`value` and `metadata` of a JSON text; None where it has no VARIANT."""
    try:
        _check_depth(text)
        ids: dict[str, int] = {}
        value = _encode_value(_parse(text), ids)
        names = tuple(ids)
        metadata = (_encode_few_names if len(names) <= _FEW_NAMES else _encode_names)(names)
    except ValueError:  # a half of a surrogate pair has no bytes
        return None
    return None if len(value) > _LARGEST or len(metadata) > _LARGEST else (value, metadata)


# Texts --------------------------------------------------------------------------------------------------------------


def _parse(text: str) -> Any:
    """The value of the text: objects are tuples of pairs, numbers are encoded."""
    start = len(text) - len(text.lstrip(_SPACE))
    value, end = _DECODER.raw_decode(text, start)
    if end < len(text):
        _check_behind(value, text[end])
    return value


def _check_behind(value: Any, following: str) -> None:
    """Jackson takes the first value, and looks at one character behind it, unless the value ends by a sign."""
    if isinstance(value, bytes) and following not in _SPACE:
        raise _NoVariant("a number does not end")
    if (value is None or isinstance(value, bool)) and (following.isalnum() or following in "_$"):
        raise _NoVariant("a word does not end")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    depth = 0
    for sign in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if sign in "[{" else -1
        if depth > _DEEPEST:
            raise _NoVariant("too many levels")


def _refuse(name: str) -> Any:
    raise _NoVariant(f"{name} is no JSON")


def _integer(text: str) -> bytes:
    if len(text) < 19:
        return _encode_integer(int(text))
    _check_digits(text)
    number = int(text)
    if -(1 << 63) <= number < 1 << 63:
        return _encode_integer(number)
    return _encode_decimal(number, 0) or _encode_double(text)


def _fraction(text: str) -> bytes:
    _check_digits(text)
    whole, _, fraction = text.partition(".")
    is_decimal = fraction.isdigit()  # no exponent
    encoded = _encode_decimal(int(whole + fraction), len(fraction)) if is_decimal else None
    return encoded or _encode_double(text)


def _check_digits(text: str) -> None:
    if len(text) <= _MOST_DIGITS:
        return
    digits = sum(map(str.isdigit, text)) - text.removeprefix("-").startswith("0.")  # this zero is not counted
    if digits > _MOST_DIGITS:
        raise _NoVariant("a number is too long")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_fraction, parse_constant=_refuse, object_pairs_hook=tuple)

# The encoding -------------------------------------------------------------------------------------------------------


def _encode_integer(number: int) -> bytes:
    if -128 <= number < 128:
        return _SMALL[number]
    if -(1 << 15) <= number < 1 << 15:
        return struct.pack("<Bh", 4 << 2, number)
    if -(1 << 31) <= number < 1 << 31:
        return struct.pack("<Bi", 5 << 2, number)
    return struct.pack("<Bq", 6 << 2, number)


def _encode_decimal(unscaled: int, scale: int) -> bytes | None:
    """None where it has too many digits."""
    digits = max(len(str(abs(unscaled))), scale)
    if digits <= 9:
        return struct.pack("<BBi", 8 << 2, scale, unscaled)
    if digits <= 18:
        return struct.pack("<BBq", 9 << 2, scale, unscaled)
    if digits <= _DECIMAL_DIGITS:
        return struct.pack("<BB", 10 << 2, scale) + unscaled.to_bytes(16, "little", signed=True)
    return None


def _encode_double(text: str) -> bytes:
    return struct.pack("<Bd", 7 << 2, float(text))


def _encode_value(value: Any, ids: dict[str, int]) -> bytes:
    """`ids`: the numbers of names, which grow."""
    kind = type(value)
    if kind is bytes:
        return bytes(value)
    if kind is str:
        return _encode_text(value)
    if kind is tuple:
        return _encode_object(value, ids)
    if kind is list:
        return _encode_list([_encode_value(each, ids) for each in value])
    return _NULL if value is None else _TRUE if value else _FALSE


def _encode_text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 64:
        return bytes((len(data) << 2 | 1,)) + data
    _check_length(text, _LONGEST_TEXT)
    return struct.pack("<BI", 16 << 2, len(data)) + data


def _check_length(text: str, longest: int) -> None:
    if len(text) > longest // 2 and len(text.encode("utf-16-le")) // 2 > longest:
        raise _NoVariant("a text is too long")


def _encode_list(parts: list[bytes]) -> bytes:
    offsets = list(accumulate(map(len, parts), initial=0))
    size = _bytes_of(offsets[-1])
    is_long = len(parts) > 255
    head = bytes((3 | (size - 1) << 2 | is_long << 4,))
    return b"".join((head, len(parts).to_bytes(4 if is_long else 1, "little"), _pack(offsets, size), *parts))


def _encode_object(fields: _Fields, ids: dict[str, int]) -> bytes:
    parts: list[bytes] = []
    numbers: list[int] = []
    for name, value in fields:
        number = ids.get(name)
        if number is None:
            number = ids[name] = len(ids)
        numbers.append(number)
        parts.append(_encode_value(value, ids))
    offsets = list(accumulate(map(len, parts), initial=0))
    names = tuple([name for name, _ in fields])
    order = (_order_few if len(names) <= _FEW_NAMES else _order_names)(names)
    id_size = _bytes_of(max(numbers, default=0))
    size = _bytes_of(offsets[-1])
    is_long = len(parts) > 255
    head = bytes((2 | (size - 1) << 2 | (id_size - 1) << 4 | is_long << 6,))
    count = len(parts).to_bytes(4 if is_long else 1, "little")
    in_order = _pack([numbers[i] for i in order], id_size)
    places = _pack([*[offsets[i] for i in order], offsets[-1]], size)
    return b"".join((head, count, in_order, places, *parts))


def _order_names(names: tuple[str, ...]) -> list[int]:
    """The places of the names in their order: as Java orders texts, by the units of UTF-16."""
    for name in names:
        _check_length(name, _LONGEST_NAME)
    if len(set(names)) < len(names):
        raise _NoVariant("a name stands twice")
    units = [name.encode("utf-16-be") for name in names]
    return sorted(range(len(names)), key=units.__getitem__)


_order_few = lru_cache(256)(_order_names)


def _encode_names(names: tuple[str, ...]) -> bytes:
    parts = [name.encode() for name in names]
    offsets = list(accumulate(map(len, parts), initial=0))
    size = _bytes_of(max(offsets[-1], len(parts)))
    head = bytes((1 | (size - 1) << 6,))
    return b"".join((head, len(parts).to_bytes(size, "little"), _pack(offsets, size), *parts))


_encode_few_names = lru_cache(256)(_encode_names)


def _bytes_of(number: int) -> int:
    """How many bytes all numbers up to this one take."""
    return 1 if number < 1 << 8 else 2 if number < 1 << 16 else 3 if number < 1 << 24 else 4


def _pack(numbers: list[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    if size == 3:
        return b"".join(number.to_bytes(3, "little") for number in numbers)
    return struct.pack(f"<{len(numbers)}{'H' if size == 2 else 'I'}", *numbers)
