"""Character sets of several bytes a character, of which no codec is known to agree with the servers on every character.

So the server itself is asked what each code becomes, once a character set and connection to the log: a statement lists
all codes that a column may hold, and the answer has one character for each. A code that stands for nothing is the
server's `?`, as in a SELECT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import uintp
from pymysql.connections import Connection

from dblog_core.rows.jit import (
    BYTES,
    INT32S,
    INT64S,
    RAW,
    boolean,
    int64,
    kernel,
    part,
)
from dblog_core.sources.mysql.sql.connection import rows

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Number = Any  # numpy's number where it was read, Python's where it is written here


@dataclass(frozen=True, slots=True)
class Form:
    """Which codes there are: single bytes beside ASCII; pairs by the ranges of their first and second bytes, ends
    included; `threes`: 8F before two bytes of A1 to FE; `fours`: GB 18030's, with digits in the second and fourth;
    `twins`: some characters have two codes, which the server tells apart and prints alike."""

    singles: tuple[tuple[int, int], ...]
    firsts: tuple[tuple[int, int], ...]
    seconds: tuple[tuple[int, int], ...]
    threes: bool = False
    fours: bool = False
    twins: bool = False


_KANA = ((0xA1, 0xDF),)
_SHIFT = Form(_KANA, ((0x81, 0x9F), (0xE0, 0xFC)), ((0x40, 0x7E), (0x80, 0xFC)), twins=True)
_EUC = Form((), ((0x8E, 0x8E), (0xA1, 0xFE)), ((0xA1, 0xFE),), threes=True, twins=True)
_CHINESE = ((0x40, 0x7E), (0x80, 0xFE))
# The ranges may hold codes that stand for nothing: which these are, the server says.
FORMS = {
    "big5": Form((), ((0xA1, 0xF9),), ((0x40, 0x7E), (0xA1, 0xFE)), twins=True),
    "cp932": _SHIFT,
    "eucjpms": _EUC,
    "euckr": Form((), ((0x81, 0xFE),), ((0x41, 0x5A), (0x61, 0x7A), (0x81, 0xFE))),
    "gb18030": Form((), ((0x81, 0xFE),), _CHINESE, fours=True),
    "gb2312": Form((), ((0xA1, 0xF7),), ((0xA1, 0xFE),)),
    "gbk": Form((), ((0x81, 0xFE),), _CHINESE),
    "sjis": _SHIFT,
    "ujis": _EUC,
}
_PAIRS = 1 << 16
"""Places of single bytes and pairs in a table; those of three and four bytes come after."""
_LISTED = 39_420
"""Codes of four bytes in the first plane, counted from 81308130; those of the other planes go by a sum."""
_SUMMED = 189_000
_BEYOND = 0x10000
"""The first code of four bytes outside of the first plane, 90308130, and its character."""
_NONE = -1
_SIZE = 32
_POINT = (1 << 32) - 1
_STANDS_FOR_NOTHING = 63
_AT_ONCE = 8_000
"""Codes that one statement lists: few enough for any `max_allowed_packet`."""


@part
def _write_utf8(out: Bytes, at: Number, point: Number) -> Number:
    """Writes a character in UTF-8; returns the place behind it."""
    if point < 0x80:
        out[uintp(at)] = point
        return at + 1
    if point < 0x800:
        out[uintp(at)] = 0xC0 | point >> 6
        out[uintp(at + 1)] = 0x80 | point & 0x3F
        return at + 2
    if point < 0x10000:
        out[uintp(at)] = 0xE0 | point >> 12
        out[uintp(at + 1)] = 0x80 | point >> 6 & 0x3F
        out[uintp(at + 2)] = 0x80 | point & 0x3F
        return at + 3
    out[uintp(at)] = 0xF0 | point >> 18
    out[uintp(at + 1)] = 0x80 | point >> 12 & 0x3F
    out[uintp(at + 2)] = 0x80 | point >> 6 & 0x3F
    out[uintp(at + 3)] = 0x80 | point & 0x3F
    return at + 4


@part
def _four(first: Number, second: Number, third: Number, fourth: Number, points: Int64s) -> Number:
    """The character of a code of four bytes; -1: it is none."""
    if not (0x81 <= first <= 0xFE and 0x81 <= third <= 0xFE and 0x30 <= fourth <= 0x39):
        return np.int64(_NONE)
    place = (((first - 0x81) * 10 + second - 0x30) * 126 + third - 0x81) * 10 + fourth - 0x30
    if place < _LISTED:
        return points[uintp(_PAIRS + place)]
    if _SUMMED <= place < _SUMMED + 0x100000:
        return np.int64(place - _SUMMED + _BEYOND)
    return np.int64(_STANDS_FOR_NOTHING)


@part
def _code(raw: Bytes, at: Number, left: Number, points: Int64s, threes: bool, fours: bool) -> Number:
    """The next character, and the number of its bytes in the bits above it; -1: the `left` bytes begin with no code."""
    first: Any = np.int64(raw[uintp(at)])
    size = 1
    point = points[uintp(first)]
    # No character on its own: the first byte of a longer code.
    if point < 0 and left >= 2:
        second: Any = np.int64(raw[uintp(at + 1)])
        size = 2
        point = points[uintp(first << 8 | second)]
        if threes and first == 0x8F:
            size = 3
            point = np.int64(_NONE)
            if left >= 3:
                point = points[uintp(_PAIRS + (second << 8 | np.int64(raw[uintp(at + 2)])))]
        elif fours and 0x30 <= second <= 0x39:
            size = 4
            point = np.int64(_NONE)
            if left >= 4:
                third: Any = np.int64(raw[uintp(at + 2)])
                point = _four(first, second, third, np.int64(raw[uintp(at + 3)]), points)
    return point if point < 0 else point | size << _SIZE


@kernel(int64, RAW, INT64S, INT64S, INT64S, boolean, boolean, INT32S, BYTES)
def recode(
    raw: Bytes,
    starts: Int64s,
    lengths: Int64s,
    points: Int64s,
    threes: bool,
    fours: bool,
    offsets: Int32s,
    out: Bytes,
) -> Number:
    """Text as UTF-8, which takes three bytes for each of its own at most. Fills `offsets` and `out` as Arrow lays out
    strings; returns the row of the first value with bytes that are no code, or -1. A negative length is empty."""
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        place = starts[row]
        stop = starts[row] + max(lengths[row], 0)
        while place < stop:
            code = _code(raw, place, stop - place, points, threes, fours)
            if code < 0:
                return row
            at = _write_utf8(out, at, code & _POINT)
            place += code >> _SIZE
    offsets[len(starts)] = at
    return -1


class Multibyte:
    """One character set of a server. `points`: the character of each place, -1 where no code has it."""

    def __init__(self, form: Form, points: Int64s) -> None:
        self._form = form
        self._points = points

    @property
    def has_twins(self) -> bool:
        """Whether two texts of the server may be one here."""
        return self._form.twins

    def __call__(self, value: bytes) -> str:
        """The text of one value. Raises ValueError where its bytes are no text of the character set."""
        if not value:
            return ""
        offsets, out, bad = self.recode(np.frombuffer(value, np.uint8), np.zeros(1, np.int64), np.array([len(value)]))
        if bad >= 0:
            raise ValueError("it is no text of its character set")
        return out[: offsets[-1]].tobytes().decode()

    def recode(self, raw: Bytes, starts: Int64s, lengths: Int64s) -> tuple[Int32s, Bytes, int]:
        """Offsets and UTF-8 bytes of values as Arrow lays out strings, and the first row whose bytes are no text (-1:
        none is)."""
        room = 3 * int(np.maximum(lengths, 0).sum())
        offsets = np.empty(len(starts) + 1, np.int32)
        out = np.empty(room, np.uint8)
        bad = recode(raw, starts, lengths, self._points, self._form.threes, self._form.fours, offsets, out)
        return offsets, out, int(bad)


def codes(form: Form) -> Iterator[tuple[int, bytes]]:
    """The place and the bytes of each code that is asked for."""
    singles = [*range(0x80), *_within(form.singles)]
    yield from ((byte, bytes([byte])) for byte in singles)
    for first in _within(form.firsts):
        # In EUC one byte of half-width kana follows 8E.
        seconds = _within(_KANA if first == 0x8E and form.threes else form.seconds)
        yield from ((first << 8 | second, bytes([first, second])) for second in seconds)
    if form.threes:
        pairs = [(second, third) for second in range(0xA1, 0xFF) for third in range(0xA1, 0xFF)]
        yield from ((_PAIRS + (second << 8 | third), bytes([0x8F, second, third])) for second, third in pairs)
    if form.fours:
        yield from ((_PAIRS + number, four(number)) for number in range(_LISTED))


def four(number: int) -> bytes:
    """The code of four bytes with this number, counted from 81308130."""
    first, rest = divmod(number, 12_600)
    second, rest = divmod(rest, 1_260)
    third, fourth = divmod(rest, 10)
    return bytes([0x81 + first, 0x30 + second, 0x81 + third, 0x30 + fourth])


def _within(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [byte for low, high in ranges for byte in range(low, high + 1)]


def ask(connection: Connection[Any], charset: str) -> Multibyte:
    """Asks the server what the codes of one of `FORMS` become. Raises the driver's errors, and ValueError where the
    answer does not have a character for each."""
    form = FORMS[charset]
    points = np.full(_PAIRS + (_PAIRS if form.threes else _LISTED if form.fours else 0), _NONE, dtype=np.int64)
    every = list(codes(form))
    for listed in (every[at : at + _AT_ONCE] for at in range(0, len(every), _AT_ONCE)):
        # As a hexadecimal literal the bytes are not touched by the connection's own character set.
        code_bytes = b"".join(code for _, code in listed).hex()
        text = rows(connection, f"SELECT CONVERT(CONVERT(x'{code_bytes}' USING {charset}) USING utf8mb4)")[0][0]
        if text is None or len(text) != len(listed):
            raise ValueError(f"the server does not read character set {charset} as one character a code")
        points[[place for place, _ in listed]] = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    return Multibyte(form, points)
