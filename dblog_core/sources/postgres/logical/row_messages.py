"""Kernels over pgoutput's messages: transactions and row changes found in one pass, then the places of their values.

`scan` takes what comes by the thousand (BEGIN, COMMIT and rows of tables that are known) and stops at anything else,
which Python reads. `places` walks the row images of one table version. See "Logical Replication Message Formats" in the
manual.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dblog_core.rows.jit import (
    BYTES,
    INT64_ROWS,
    INT64S,
    RAW,
    boolean,
    int64,
    kernel,
    part,
)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]

BODY, END, KIND, VERSION, SEQUENCE, TRANSACTION = range(6)
"""Rows of the array of row changes. BODY: where the message continues after the relation's oid; KIND: I, U or D."""
XID, FINAL, COMMITTED = range(3)
"""Rows of the array of transactions that have a change in this scan; the xid is OPENED where one began before it."""
OPENED = -1
OPEN, IN_OPEN, LAST_SEQUENCE, ROWS, IN_BATCH, TRANSACTIONS, POSITION, BEGUN, ENOUGH, CURRENT = range(10)
"""The state of a scan: whether a transaction is open, its row changes so far, the last sequence number, rows in the
batch, the open transaction's number in the batch (-1: none yet), transactions in the batch, the position after the last
commit, transactions that the scan has added, rows with which a batch ends when a transaction does; CURRENT and the two
after it: the open transaction, as above."""
STATE = CURRENT + 3
STRANGER = -1
SINGLY = -2
UNREADABLE = -3
"""Codes of relations: rows that nobody wants, rows that Python reads, and rows that it passes over. Others: the number
of the table version."""
FINE, COUNT, IMAGE, LENGTH, VALUE = range(5)
"""What `places` finds: the last ones are what is wrong."""
TEXT_FORM = 1
BINARY_FORM = 2
NULL = -1
KEPT = -2
"""Lengths of what is no value: NULL, and an unchanged TOAST value, which the message leaves out."""

_B, _C, _I, _U, _D, _K, _O, _N = b"BCIUDKON"
_TEXT, _BINARY, _NULL, _KEPT = b"tbnu"
_BEGIN_SIZE = 20
_COMMIT_SIZE = 25
_SMALLEST = 5


@part
def _number(raw: Bytes, at: int, size: int) -> int:
    value = 0
    for i in range(size):
        value = (value << 8) | raw[at + i]
    return value


@part
def _find(numbers: Int64s, number: int) -> int:
    """The place of a number among growing ones; -1 if it is not there."""
    low = 0
    high = len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(numbers) and numbers[low] == number else -1


@kernel(int64, RAW, INT64S, INT64S, int64, int64, int64)
def find_kind(raw: Bytes, starts: Int64s, ends: Int64s, first: int, count: int, kind: int) -> int:
    """The first message of this kind from `first` on; `count` if there is none."""
    for number in range(first, count):
        if ends[number] > starts[number] and raw[starts[number]] == kind:
            return number
    return count


@part
def _boundary(raw: Bytes, kind: int, at: int, size: int, state: Int64s) -> bool:
    """Takes a BEGIN or COMMIT; whether it is one in its place."""
    if kind == _B and not state[OPEN] and size == _BEGIN_SIZE:
        state[OPEN] = 1
        state[IN_OPEN] = 0
        state[IN_BATCH] = -1
        state[CURRENT + FINAL] = _number(raw, at, 8)
        state[CURRENT + COMMITTED] = _number(raw, at + 8, 8)
        state[CURRENT + XID] = _number(raw, at + 16, 4)
        return True
    if kind == _C and state[OPEN] and size == _COMMIT_SIZE:
        state[OPEN] = 0
        state[POSITION] = max(state[POSITION], _number(raw, at + 9, 8))
        return True
    return False


@part
def _add(kind: int, body: int, end: int, version: int, state: Int64s, rows: Places, begun: Places) -> bool:
    """Adds a row change to the batch; False where that is full."""
    row = state[ROWS]
    if row == rows.shape[1]:
        return False
    if state[IN_BATCH] < 0:
        number = state[BEGUN]
        if number == begun.shape[1]:
            return False
        for i in range(3):
            begun[i, number] = state[CURRENT + i]
        state[BEGUN] += 1
        # A transaction gets its number with its first row: those without a captured row cost nothing.
        state[IN_BATCH] = state[TRANSACTIONS]
        state[TRANSACTIONS] += 1
    state[IN_OPEN] += 1
    state[LAST_SEQUENCE] += 1
    state[ROWS] += 1
    rows[BODY, row] = body
    rows[END, row] = end
    rows[KIND, row] = kind
    rows[VERSION, row] = version
    rows[SEQUENCE, row] = state[LAST_SEQUENCE]
    rows[TRANSACTION, row] = state[IN_BATCH]
    return True


@part
def _change(
    raw: Bytes, kind: int, at: int, end: int, oids: Int64s, codes: Int64s, state: Int64s, rows: Places, begun: Places
) -> bool:
    """Takes a row message, if it is one of a known table and there is room for it."""
    if not state[OPEN] or end - at < 4:
        return False
    # A relation that the scan does not know yet is for Python.
    place = _find(oids, _number(raw, at, 4))
    if place < 0:
        return False
    code = codes[place]
    # Passed over here, without a Python call: most rows of a busy server may be such.
    if code == STRANGER:
        return True
    if code < 0:
        return False
    return _add(kind, at + 4, end, code, state, rows, begun)


@kernel(int64, RAW, INT64S, INT64S, int64, int64, boolean, INT64S, INT64S, INT64S, INT64S, INT64_ROWS, INT64_ROWS)
def scan(
    raw: Bytes,
    starts: Int64s,
    ends: Int64s,
    first: int,
    count: int,
    streamed: bool,
    aborted: Int64s,
    oids: Int64s,
    codes: Int64s,
    state: Int64s,
    rows: Places,
    begun: Places,
) -> int:
    """Takes messages from `first` on; the number of the first that it leaves to Python, or for the next batch.

    `streamed`: messages name their (sub)transaction before all else, and those of `aborted` ones are passed over.
    """
    for number in range(first, count):
        at = starts[number]
        end = ends[number]
        if end - at < _SMALLEST:
            return number
        kind = raw[at]
        at += 1
        if streamed:
            # A rolled-back savepoint: its rows were streamed before anybody knew.
            if len(aborted) and _find(aborted, _number(raw, at, 4)) >= 0:
                continue
            at += 4
        if kind in (_I, _U, _D):
            if not _change(raw, kind, at, end, oids, codes, state, rows, begun):
                return number
        elif streamed or not _boundary(raw, kind, at, end - at, state):
            return number
        # A batch ends between transactions where it can.
        elif kind == _C and state[ROWS] >= state[ENOUGH]:
            return number + 1
    return count


@part
def _image(
    raw: Bytes,
    at: int,
    end: int,
    row: int,
    columns: int,
    starts: Places,
    lengths: Places,
    forms: Bytes,
) -> int:
    """Walks one row image; where the message continues, or minus what is wrong with it."""
    if end - at < 2 or _number(raw, at, 2) != columns:
        return -COUNT
    at += 2
    for column in range(columns):
        if at >= end:
            return -LENGTH
        kind = raw[at]
        at += 1
        if kind in (_TEXT, _BINARY):
            if end - at < 4:
                return -LENGTH
            length = _number(raw, at, 4)
            at += 4
            # The length is the server's word: it must not lead into the next message.
            if length > end - at:
                return -LENGTH
            starts[column, row] = at
            lengths[column, row] = length
            forms[column] |= TEXT_FORM if kind == _TEXT else BINARY_FORM
            at += length
        elif kind in (_NULL, _KEPT):
            starts[column, row] = 0
            lengths[column, row] = NULL if kind == _NULL else KEPT
        else:
            return -VALUE
    return at


@part
def _no_image(starts: Places, lengths: Places, row: int) -> None:
    for column in range(starts.shape[0]):
        starts[column, row] = 0
        lengths[column, row] = NULL


@part
def _fill_kept(new_starts: Places, new_lengths: Places, old_starts: Places, old_lengths: Places, row: int) -> None:
    for column in range(new_starts.shape[0]):
        # With REPLICA IDENTITY FULL the old image has what the new one leaves out.
        if new_lengths[column, row] == KEPT and old_lengths[column, row] >= 0:
            new_starts[column, row] = old_starts[column, row]
            new_lengths[column, row] = old_lengths[column, row]


@kernel(int64, RAW, INT64S, INT64S, INT64S, INT64_ROWS, INT64_ROWS, INT64_ROWS, INT64_ROWS, BYTES, BYTES)
def places(
    raw: Bytes,
    bodies: Int64s,
    ends: Int64s,
    kinds: Int64s,
    new_starts: Places,
    new_lengths: Places,
    old_starts: Places,
    old_lengths: Places,
    markers: Bytes,
    forms: Bytes,
) -> int:
    """Fills the places of all values, [column, row]; what is wrong with the messages, FINE if nothing.

    `markers`: K or O where the message holds an old image, otherwise N. Where all changes are INSERTs, the arrays for
    old images may be empty. `forms`: in which forms a column's values came. An unchanged value that the old image holds
    is taken from there.
    """
    columns = new_starts.shape[0]
    room = old_starts.shape[1]
    for row in range(len(bodies)):
        at = bodies[row]
        end = ends[row]
        delete = kinds[row] == _D
        # K: an old image with the columns of the replica identity alone, which an update has only where it changed one
        # of them. O: the whole old row, by REPLICA IDENTITY FULL. N: no old image.
        marker = raw[at] if at < end else 0
        markers[row] = marker
        old = marker in (_K, _O)
        if (old and (row >= room or kinds[row] == _I)) or (delete and not old):
            return IMAGE
        if old:
            at = _image(raw, at + 1, end, row, columns, old_starts, old_lengths, forms)
        elif row < room:
            _no_image(old_starts, old_lengths, row)
        if delete:
            _no_image(new_starts, new_lengths, row)
        elif at >= 0:
            if at >= end or raw[at] != _N:
                return IMAGE
            at = _image(raw, at + 1, end, row, columns, new_starts, new_lengths, forms)
            if old:
                _fill_kept(new_starts, new_lengths, old_starts, old_lengths, row)
        if at < 0:
            return int(-at)
        # Bytes that are left over mean a form that is not known here, and not a row.
        if at != end:
            return LENGTH
    return FINE
