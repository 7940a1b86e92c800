"""Compiled: where the packets and events of a received buffer lie, and what their headers say.

One call walks all events that a buffer holds whole. It checks packet numbers, lengths, and the checksums of small
events (large ones are faster in zlib's own code, which a kernel cannot call). Of the events that a busy log consists of
it reads what is wanted of their bodies too, and gives them a code of their own; whatever looks unusual in them makes an
event `OTHER`, which is then read, and judged, in Python.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from dblog_core.rows.jit import (
    INT64_ROWS,
    INT64S,
    RAW,
    int64,
    kernel,
    part,
)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

# What an event is. The row events come first: a code is an index into their ops.
CREATES, UPDATES, DELETES, SAME_MAP, BEGIN, XID, GTID, GTID_BEGIN, MARIADB_GTID, OTHER = range(10)

# Rows of the result, one column an event. A, B, C by code:
#   row events     table number, where the first image begins, number of columns
#   SAME_MAP       table number: the bytes are those of the last map of that number in this buffer
#   GTID           number, commit time in microseconds, 1 where the server is that of the last GTID in this buffer
#   GTID_BEGIN     the same; a BEGIN follows, which is left out
#   MARIADB_GTID   number, domain, flags
CODE, TYPE, ARTIFICIAL, TIMESTAMP, SERVER, END, SIZE, START, STOP, A, B, C = range(12)
FIELDS: Final = 12

# Why a walk ended.
GOOD, MORE, FULL, OUT_OF_STEP, LARGE, NO_EVENT, BAD_SIZE, BAD_CHECKSUM, BAD_ALGORITHM = range(9)

# The state of a walk, which the next call continues; MAPS: table number, start and stop of each slot.
# BRIEF: leave out what says nothing new, which is a BEGIN after its GTID, and the same map again.
AT, SEQUENCE, PACKETS, CHECKSUMS, NEEDED, COUNT, OWNER, FIRST, LENGTH, BRIEF, MAPS = range(11)
_SLOTS: Final = 64
STATE: Final = MAPS + 3 * _SLOTS

HEADER: Final = 19
CHECKSUM: Final = 4
LARGEST: Final = 0xFFFFFF
"""A packet of this length continues in the next one."""
SMALL: Final = 2048
"""Bytes of an event up to which its checksum is verified here."""

_ARTIFICIAL: Final = 0x20
_PREPARED: Final = 64
_QUERY: Final = 2
_ROTATE: Final = 4
_FORMAT_DESCRIPTION: Final = 15
_XID: Final = 16
_TABLE_MAP: Final = 19
_GTID: Final = 33
_XA_PREPARE: Final = 38
_PAYLOAD: Final = 40
_MARIADB_GTID: Final = 162
_QUERY_COMPRESSED: Final = 165


def _crc_tables() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1).astype(np.uint32)
    tables = [table]
    for _ in range(7):
        tables.append((tables[-1] >> 8) ^ table[tables[-1] & 0xFF])
    return np.stack(tables)


_CRC = _crc_tables()


@kernel(types.uint32, RAW, int64, int64)
def crc32(raw: Bytes, at: int, end: int) -> Any:
    """The CRC32 of raw[at:end], which must lie inside, eight bytes at a time."""
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= 8:
        crc ^= (
            np.uint32(raw[np.uintp(at)])
            | np.uint32(raw[np.uintp(at + 1)]) << np.uint32(8)
            | np.uint32(raw[np.uintp(at + 2)]) << np.uint32(16)
            | np.uint32(raw[np.uintp(at + 3)]) << np.uint32(24)
        )
        crc = (
            _CRC[7, crc & np.uint32(255)]
            ^ _CRC[6, (crc >> np.uint32(8)) & np.uint32(255)]
            ^ _CRC[5, (crc >> np.uint32(16)) & np.uint32(255)]
            ^ _CRC[4, crc >> np.uint32(24)]
            ^ _CRC[3, raw[np.uintp(at + 4)]]
            ^ _CRC[2, raw[np.uintp(at + 5)]]
            ^ _CRC[1, raw[np.uintp(at + 6)]]
            ^ _CRC[0, raw[np.uintp(at + 7)]]
        )
        at += 8
    while at < end:
        crc = _CRC[0, (crc ^ np.uint32(raw[np.uintp(at)])) & np.uint32(255)] ^ (crc >> np.uint32(8))
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@part
def _number(raw: Bytes, at: int, size: int) -> Any:
    """A little-endian number of up to seven bytes, or of eight whose highest bit is not set."""
    number: Any = np.int64(0)
    for i in range(size):
        number |= np.int64(raw[np.uintp(at + i)]) << (8 * i)
    return number


@part
def _whole_rows(raw: Bytes, at: int, stop: int, bitmaps: int) -> int:
    """Where the first image begins, for a row event whose column count stands at `at`; -1 where columns are missing."""
    if at >= stop or raw[np.uintp(at)] > 252 or raw[np.uintp(at)] == 251:
        return -1
    # A length-encoded count: one byte up to 250, or 252 and two bytes. Tables have at most 4,096 columns.
    count: Any = np.int64(raw[np.uintp(at)])
    at += 1
    if count == 252:
        if stop - at < 2:
            return -1
        count = _number(raw, at, 2)
        at += 2
    size = (count + 7) // 8
    if stop - at < bitmaps * size:
        return -1
    for _ in range(bitmaps):
        for i in range(size):
            # With binlog_row_image = MINIMAL or NOBLOB an image leaves columns out. The long way then stops that table.
            every_column = 0xFF if i < count // 8 else (1 << (count % 8)) - 1
            if raw[np.uintp(at + i)] & every_column != every_column:
                return -1
        at += size
    return at


@part
def _same_map(raw: Bytes, state: Int64s, start: int, stop: int) -> int:
    """Whether raw[start:stop] equals the last table map of its number, which it replaces."""
    table = _number(raw, start, 6)
    # Tables whose numbers share a slot push each other out, which costs the long way and nothing else.
    slot = MAPS + 3 * (table % _SLOTS)
    last_table = state[slot]
    first = state[slot + 1]
    last = state[slot + 2]
    state[slot] = table
    state[slot + 1] = start
    state[slot + 2] = stop
    if last_table != table or last - first != stop - start or last <= first or first < 0:
        return 0
    for i in range(stop - start):
        if raw[np.uintp(first + i)] != raw[np.uintp(start + i)]:
            return 0
    return 1


@part
def _is_begin(raw: Bytes, start: int, stop: int) -> int:
    """Whether the body of a QUERY is that of `BEGIN`."""
    if stop - start < 13:
        return 0
    at = start + 13 + _number(raw, start + 11, 2) + np.int64(raw[np.uintp(start + 8)]) + 1
    if stop - at != 5:
        return 0
    begin = (
        raw[np.uintp(at)] == 66
        and raw[np.uintp(at + 1)] == 69
        and raw[np.uintp(at + 2)] == 71
        and raw[np.uintp(at + 3)] == 73
        and raw[np.uintp(at + 4)] == 78
    )
    return 1 if begin else 0


@part
def _rows(raw: Bytes, state: Int64s, out: Any, n: int, kind: int, start: int, stop: int) -> int:
    """The code of a row event, with its details."""
    if stop - start < 10:
        return OTHER
    code = kind - 23
    first = start + 8
    if kind >= 30:
        code = kind - 30
        first += _number(raw, first, 2)  # partition numbers and such; the length counts itself
    begin = _whole_rows(raw, first, stop, 2 if code == UPDATES else 1)
    if begin < 0:
        return OTHER
    table = _number(raw, start, 6)
    if table == 0xFFFFFF or table == 0xFFFFFFFF or table == 0xFFFFFFFFFFFF:
        return OTHER
    out[A, n] = table
    out[B, n] = begin
    out[C, n] = np.int64(raw[np.uintp(first)]) if raw[np.uintp(first)] < 251 else _number(raw, first + 1, 2)
    return code


@part
def _gtid(raw: Bytes, state: Int64s, out: Any, n: int, start: int, stop: int) -> int:
    """MySQL's GTID event (libbinlogevents, control_events.h)."""
    if stop - start < 25 or raw[np.uintp(start + 24)] > 127:
        return OTHER
    commit_time = 0
    if stop - start >= 49 and raw[np.uintp(start + 25)] == 2:
        commit_time = _number(raw, start + 42, 7)
        if commit_time >> 55:  # the origin committed at another time, which follows
            if stop - start < 56:
                return OTHER
            commit_time = _number(raw, start + 49, 7)
    same = 1
    owner = state[OWNER]
    state[OWNER] = start + 1
    if owner < 0:
        same = 0
    else:
        for i in range(16):
            if raw[np.uintp(owner + i)] != raw[np.uintp(start + 1 + i)]:
                same = 0
                break
    out[A, n] = _number(raw, start + 17, 8)
    out[B, n] = commit_time
    out[C, n] = same
    return GTID


@part
def _code(raw: Bytes, state: Int64s, out: Any, n: int, kind: int, start: int, stop: int) -> int:
    if 30 <= kind <= 32 or 23 <= kind <= 25:
        return _rows(raw, state, out, n, kind, start, stop)
    if kind == _TABLE_MAP:
        if stop - start < 8 or not _same_map(raw, state, start, stop):
            return OTHER
        out[A, n] = _number(raw, start, 6)
        return SAME_MAP
    if kind == _XID:
        return XID
    if kind == _QUERY:
        return BEGIN if _is_begin(raw, start, stop) else OTHER
    if kind == _GTID:
        return _gtid(raw, state, out, n, start, stop)
    if kind == _MARIADB_GTID and stop - start >= 13 and raw[np.uintp(start + 7)] < 128:
        out[A, n] = _number(raw, start, 8)
        out[B, n] = _number(raw, start + 8, 4)
        out[C, n] = raw[np.uintp(start + 12)]
        return MARIADB_GTID
    return OTHER


@part
def _begins_anew(out: Any, n: int, kind: int) -> bool:
    """Whether table maps must come again after the event, to say what the numbers of tables mean: the server may have
    restarted, XA rows or those of a compressed transaction may come between, or rows are held back with the maps before
    them.
    """
    if out[CODE, n] == MARIADB_GTID:
        return bool(out[C, n] & _PREPARED)
    if out[CODE, n] != OTHER:
        return False
    return kind in (_QUERY, _ROTATE, _FORMAT_DESCRIPTION, _XA_PREPARE, _PAYLOAD, _MARIADB_GTID, _QUERY_COMPRESSED)


@part
def _event(raw: Bytes, state: Int64s, out: Any, n: int, begin: int, end: int) -> int:
    """Reads the event that raw[begin:end] is; returns GOOD or what is wrong with it."""
    if end - begin < HEADER or _number(raw, begin + 9, 4) != end - begin:
        return BAD_SIZE
    kind: Any = np.int64(raw[np.uintp(begin + 4)])
    stop = end
    # The description of a file's format carries a checksum field always, and says itself whether it is used.
    if kind == _FORMAT_DESCRIPTION:
        if end - begin < HEADER + CHECKSUM + 1:
            return BAD_SIZE
        if raw[np.uintp(end - CHECKSUM - 1)] > 1:
            return BAD_ALGORITHM
        state[CHECKSUMS] = raw[np.uintp(end - CHECKSUM - 1)]
    if state[CHECKSUMS]:
        stop -= CHECKSUM
        if stop - begin < HEADER:
            return BAD_SIZE
        if end - begin <= SMALL and crc32(raw, begin, stop) != _number(raw, stop, 4):
            return BAD_CHECKSUM
    # What the server made up for the connection is in no file: on the long way it does not move our offset.
    artificial = _number(raw, begin + 17, 2) & _ARTIFICIAL
    out[TYPE, n] = kind
    out[ARTIFICIAL, n] = artificial
    out[TIMESTAMP, n] = _number(raw, begin, 4)
    out[SERVER, n] = _number(raw, begin + 5, 4)
    out[END, n] = _number(raw, begin + 13, 4)
    out[SIZE, n] = end - begin
    out[START, n] = begin + HEADER
    out[STOP, n] = stop
    code = OTHER if artificial else _code(raw, state, out, n, kind, begin + HEADER, stop)
    out[CODE, n] = code
    if _begins_anew(out, n, kind):
        for i in range(MAPS, STATE):
            state[i] = -1
    return GOOD


@part
def _in_packet(raw: Bytes, filled: int, state: Int64s) -> int:
    """Finds the event in the packet at the state's place: BEGIN and LENGTH. Returns GOOD or why there is none."""
    at = state[AT]
    state[NEEDED] = 4
    if filled - at < 4:
        return MORE
    length = _number(raw, at, 3)
    state[NEEDED] = 4 + length
    if filled - at < 4 + length:
        return MORE
    if np.int64(raw[np.uintp(at + 3)]) != state[SEQUENCE]:
        return OUT_OF_STEP
    if length == LARGEST:
        return LARGE
    # A packet with an event begins with a zero byte, an error with 0xFF, the stream's end with 0xFE.
    if length == 0 or raw[np.uintp(at + 4)] != 0:
        return NO_EVENT
    state[FIRST] = at + 5
    state[LENGTH] = length - 1
    return GOOD


@part
def _in_file(raw: Bytes, filled: int, state: Int64s) -> int:
    """Finds the event at the state's place, where events follow each other; as `_in_packet`."""
    at = state[AT]
    state[NEEDED] = HEADER
    if filled - at < HEADER:
        return MORE
    size = _number(raw, at + 9, 4)
    if size < HEADER:
        return BAD_SIZE
    state[NEEDED] = size
    if filled - at < size:
        return MORE
    state[FIRST] = at
    state[LENGTH] = size
    return GOOD


@part
def _says_nothing_new(out: Any, n: int) -> bool:
    """Whether event `n` may be left out; a GTID that its BEGIN follows gets a mark that says so."""
    if out[CODE, n] == BEGIN and n > 0 and out[CODE, n - 1] == GTID:
        out[CODE, n - 1] = GTID_BEGIN
        return True
    return bool(out[CODE, n] == SAME_MAP)


@kernel(int64, RAW, int64, INT64S, INT64_ROWS)
def walk(raw: Bytes, filled: int, state: Int64s, out: Any) -> int:
    """Reads the events of raw[:filled] from the state's place on, as many as `out` holds; returns why it ended.

    COUNT of them are read; NEEDED: bytes from the state's place on with which the next one is whole.
    """
    state[COUNT] = 0
    if filled > len(raw) or state[AT] < 0 or len(state) < STATE or out.shape[0] < FIELDS:
        return NO_EVENT
    while state[COUNT] < out.shape[1]:
        n = state[COUNT]
        why = _in_packet(raw, filled, state) if state[PACKETS] else _in_file(raw, filled, state)
        if why == GOOD:
            why = _event(raw, state, out, n, state[FIRST], state[FIRST] + state[LENGTH])
        if why != GOOD:
            return why
        state[AT] = state[FIRST] + state[LENGTH]
        state[SEQUENCE] = (state[SEQUENCE] + 1) & 255
        if not (state[BRIEF] and state[LENGTH] <= SMALL and _says_nothing_new(out, n)):
            state[COUNT] = n + 1
    return FULL
