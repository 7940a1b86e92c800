"""MySQL's binary JSON as the text that the server itself prints (sql-common/json_binary.h, json_dom.cc).

Kernels print whole columns. What they leave, a double of more than 15 digits or an opaque value of a rare type, has a
mark in its place, and is printed here.
"""

from __future__ import annotations

import base64
import decimal
import math
import re
import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dblog_core.rows import arrow_buffers
from dblog_core.sources.mysql.values import decimals, json_kernel, json_opaque_kernel, temporal

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_SPECIAL = re.compile(r'[\x00-\x1f"\\]')
_QUOTE = {**{i: f"\\u{i:04x}" for i in range(32)}, **_ESCAPES}


class NoDocument(ValueError):
    """Bytes that are no JSON document: the number of their row, and why."""

    def __init__(self, row: int, why: object) -> None:
        super().__init__(str(why))
        self.row = row


def print_documents(raw: Bytes, starts: Int64s, lengths: Int64s) -> tuple[Int32s, Bytes]:
    """The texts of documents as Arrow lays out strings: offsets, and bytes that are UTF-8 where the documents' are.

    `raw[starts[i] : starts[i] + lengths[i]]` is a document; a length below 0 is a NULL, and empty. Raises NoDocument,
    and ValueError for texts that do not fit one array.
    """
    offsets, text, is_marked = _print_by_kernels(raw, starts, lengths)
    return _print_rest(raw, offsets, text) if is_marked else (offsets, text)


def _print_by_kernels(raw: Bytes, starts: Int64s, lengths: Int64s) -> tuple[Int32s, Bytes, bool]:
    """The texts, and whether they have marks in place of values that no kernel prints."""
    offsets, text, marks = _walk(raw, starts, lengths)
    if marks:
        offsets, text, marks = _print_marked(raw, offsets, text, marks)
    return offsets, text, marks > 0


def _walk(raw: Bytes, starts: Int64s, lengths: Int64s) -> tuple[Int32s, Bytes, int]:
    """The texts, and how many marks they have at most in place of values that the kernel does not print."""
    rows = len(starts)
    offsets = np.zeros(rows + 1, dtype=np.int32)
    # Most texts are no longer than their documents, which have offsets and types beside the values.
    room = min(int(np.maximum(lengths, 0).sum()) + 64 * rows + 1024, arrow_buffers.LARGEST)
    out = np.empty(room, dtype=np.uint8)
    stack = np.zeros(json_kernel.STACK, dtype=np.int64)
    done = 0
    while done < rows:
        done = json_kernel.print_documents(raw, starts, lengths, done, offsets, out, stack)
        if done < 0:
            raise NoDocument(-1 - done, "it is no JSON document")
        if done < rows:
            out = _grow(out, int(offsets[done]), int(lengths[done]))
    return offsets, out[: offsets[-1]], int(stack[-1])


def _grow(out: Bytes, used: int, needed: int) -> Bytes:
    """More room for text, of which `used` bytes are there and a document of `needed` bytes comes next."""
    if len(out) == arrow_buffers.LARGEST:
        raise _too_large()
    larger = np.empty(min(2 * len(out) + 8 * needed, arrow_buffers.LARGEST), dtype=np.uint8)
    larger[:used] = out[:used]
    return larger


def _too_large() -> ValueError:
    return ValueError("the documents do not fit one array")


def _print_marked(raw: Bytes, places: Int32s, text: Bytes, marks: int) -> tuple[Int32s, Bytes, int]:
    """With the decimals, dates and times printed; and how many marks stay."""
    offsets = np.zeros(len(places), dtype=np.int32)
    room = len(text) + json_opaque_kernel.LONGEST * marks
    out = np.empty(min(room, arrow_buffers.LARGEST), dtype=np.uint8)
    left = json_opaque_kernel.print_marked(raw, text, places, offsets, out)
    if left < 0:
        raise _too_large()
    return offsets, out[: offsets[-1]], left


def _print_rest(raw: Bytes, offsets: Int32s, text: Bytes) -> tuple[Int32s, Bytes]:
    """With the values printed that no kernel prints: few, and one by one."""
    marks = np.flatnonzero(text == 0)
    # Of equal offsets the last one: rows before it are empty, and have no mark.
    rows = np.searchsorted(offsets, marks, side="right") - 1
    growth = np.zeros(len(offsets), dtype=np.int64)
    parts: list[bytes | memoryview] = []
    end = 0
    for row, mark in zip(rows.tolist(), marks.tolist(), strict=True):
        behind = mark + json_kernel.MARK
        try:
            value = _print_value(raw, text[mark + 1 : behind].tobytes())
        except _UNREADABLE as error:
            raise NoDocument(row, error) from error
        parts += [text[end:mark].data, value]
        growth[row + 1] += len(value) - json_kernel.MARK
        end = behind
    parts.append(text[end:].data)
    ends = offsets + np.cumsum(growth)
    if ends[-1] > arrow_buffers.LARGEST:
        raise _too_large()
    return ends.astype(np.int32), np.frombuffer(b"".join(parts), dtype=np.uint8)


_UNREADABLE = (ValueError, IndexError, KeyError, struct.error)
"""What printing a value that is none may raise."""


def _print_value(raw: Bytes, mark: bytes) -> bytes:
    """The text of the value that a mark, without its zero byte, stands for (`json_kernel.MARK`)."""
    kind = _seven_bits(mark[:2])
    start = _seven_bits(mark[2:7])
    value = raw[start : start + _seven_bits(mark[7:])].tobytes()
    if kind == json_kernel.LONG_DOUBLE:
        return double(struct.unpack("<d", value)[0]).encode()
    return opaque(kind, value).encode()


def _seven_bits(part: bytes) -> int:
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(part))


def quote(text: str) -> str:
    """A string of JSON: with the escapes that the server prints, and no others."""
    return f'"{text.translate(_QUOTE)}"' if _SPECIAL.search(text) else f'"{text}"'


def double(value: float) -> str:
    """As the server's `my_gcvt`: the shortest exact digits, plain where the point lies among or near them.

    Raises ValueError where it is not finite: no document holds such a number.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    if value == 0:
        return "-0.0" if str(value)[0] == "-" else "0.0"
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # as that of any finite number
    text = "".join(map(str, digits))
    point = len(digits) + exponent
    minus = "-" if sign else ""
    if -14 <= point <= 15 or 0 < point < len(text):
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        if point >= len(text):
            return f"{minus}{text}{'0' * (point - len(text))}.0"
        return f"{minus}{text[:point]}.{text[point:]}"
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}e{point - 1}"


def opaque(field_type: int, data: bytes) -> str:
    """A value with the type of a column; of a type that JSON has no form for, as base64.

    Raises ValueError, IndexError or KeyError for bytes that no server stores.
    """
    if (print_it := _OPAQUES.get(field_type)) is not None:
        return print_it(data)
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))
    return quote(f"base64:type{field_type}:{lines}")


_LINE = 76
"""Characters after which the server breaks base64 into lines, which its text of a document shows."""


def _decimal(data: bytes) -> str:
    # Precision and scale stand before the packed digits.
    return decimals.to_text(data[2:], precision=data[0], scale=data[1])


def _packed_number(data: bytes) -> int:
    return int.from_bytes(data[:8], "little", signed=True)


# By enum_field_types: 246 NEWDECIMAL, 10 DATE, 11 TIME, 7 TIMESTAMP, 12 DATETIME.
_OPAQUES: dict[int, Callable[[bytes], str]] = {
    246: _decimal,
    10: lambda data: quote(temporal.packed_date(_packed_number(data))),
    11: lambda data: quote(temporal.packed_time(_packed_number(data), 6)),
    7: lambda data: quote(temporal.packed_datetime(_packed_number(data))),
    12: lambda data: quote(temporal.packed_datetime(_packed_number(data))),
}
