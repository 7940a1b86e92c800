"""Values of Delta's type VARIANT, and the JSON texts that they are made of, as plain values: the encoder's plain twin.

A VARIANT is decoded, and a text is parsed as Spark's `try_parse_json` parses it.
Source: https://github.com/apache/parquet-format/blob/master/VariantEncoding.md; Spark 4, `VariantBuilder.java`.
"""

from __future__ import annotations

import decimal
import json
import re
import struct
from itertools import pairwise
from typing import Any

_MOST_DIGITS = 38
_LONGEST_NUMBER = 1_000  # digits: what Spark's parser takes
_LONGEST_NAME = 50_000  # units of UTF-16, too
_DEEPEST = 1_000  # levels, too

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKET = re.compile(r"[][{}]")

_NOTHING = object()
"""What a text becomes that no VARIANT can hold."""


class _Unparsable(ValueError):
    """No VARIANT can hold the text."""


# Texts --------------------------------------------------------------------------------------------------------------


def parse_text(text: str | None) -> Any:
    """The value of a text, `_NOTHING` where there is none. Numbers are tagged: ("n", exact) or ("f", double)."""
    if text is None or _is_too_deep(text):
        return _NOTHING
    try:
        parsed = json.loads(
            text,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse,
            object_pairs_hook=_object,
        )
        return _elements(parsed)
    except ValueError:
        return _NOTHING


def _is_too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= _DEEPEST:
        return False
    depth = 0
    for sign in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if sign in "[{" else -1
        if depth > _DEEPEST:
            return True
    return False


def _text(value: str) -> str:
    """The text itself; Spark's parser takes no half of a surrogate pair."""
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise _Unparsable("half a surrogate pair")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = {_text(name): _elements(value) for name, value in pairs}
    if any(2 * len(name) > _LONGEST_NAME < len(name.encode("utf-16-le")) // 2 for name in fields):
        raise _Unparsable("a name is too long")
    if len(fields) != len(pairs):
        raise _Unparsable("a name stands twice")
    return fields


def _elements(value: Any) -> Any:
    if isinstance(value, list):
        return [_elements(each) for each in value]
    return _text(value) if isinstance(value, str) else value


def _number(text: str) -> tuple[str, Any]:
    leading_zero = text.removeprefix("-").startswith("0.")
    if len(text) > _LONGEST_NUMBER < sum(map(str.isdigit, text)) - leading_zero:
        raise _Unparsable("a number is too long")
    if not set(text) <= set("-0123456789."):
        return "f", float(text)
    value = decimal.Decimal(text)
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    fits = len(digits) <= _MOST_DIGITS and -exponent <= _MOST_DIGITS
    return ("n", value) if fits else ("f", float(text))


def _refuse(name: str) -> Any:
    raise _Unparsable(f"{name} is no JSON")


# The encoding -------------------------------------------------------------------------------------------------------

_INTEGERS = {3: "<b", 4: "<h", 5: "<i", 6: "<q"}
_DECIMALS = {8: 4, 9: 8, 10: 16}  # bytes


def decode(value: bytes, metadata: bytes) -> Any:
    """The value of a VARIANT, in the forms of `parse_text`; other types as a tag and their bytes."""
    return _value(value, 0, _names(metadata))


def _read_number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _names(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    count = _read_number(metadata, 1, size)
    ends = [_read_number(metadata, 1 + size * (1 + i), size) for i in range(count + 1)]
    begin = 1 + size * (count + 2)
    return [metadata[begin + a : begin + b].decode() for a, b in pairwise(ends)]


def _value(data: bytes, at: int, names: list[str]) -> Any:
    kind = data[at] & 3
    about = data[at] >> 2
    if kind == 0:
        return _primitive(data, at + 1, about)
    if kind == 1:
        return data[at + 1 : at + 1 + about].decode()
    offset_size = (about & 3) + 1
    if kind == 2:
        id_size = ((about >> 2) & 3) + 1
        count_size = 4 if about >> 4 & 1 else 1
    else:
        id_size = 0
        count_size = 4 if about >> 2 & 1 else 1
    count = _read_number(data, at + 1, count_size)
    ids = at + 1 + count_size
    offsets = ids + id_size * count
    begin = offsets + offset_size * (count + 1)
    starts = [begin + _read_number(data, offsets + offset_size * i, offset_size) for i in range(count)]
    values = [_value(data, start, names) for start in starts]
    if kind == 3:
        return values
    return {names[_read_number(data, ids + id_size * i, id_size)]: value for i, value in enumerate(values)}


def _primitive(data: bytes, at: int, kind: int) -> Any:
    if kind <= 2:
        return (None, True, False)[kind]
    if kind in _INTEGERS:
        return "n", decimal.Decimal(struct.unpack_from(_INTEGERS[kind], data, at)[0])
    if kind == 7:
        return "f", struct.unpack_from("<d", data, at)[0]
    if kind in _DECIMALS:
        number = int.from_bytes(data[at + 1 : at + 1 + _DECIMALS[kind]], "little", signed=True)
        with decimal.localcontext(prec=100):
            return "n", decimal.Decimal(number).scaleb(-data[at])
    if kind == 16:
        size = _read_number(data, at, 4)
        return data[at + 4 : at + 4 + size].decode()
    # No text becomes a value of another type.
    return "another type", kind
