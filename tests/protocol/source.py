"""The checker's source: scripted transactions on one small table, commits that are logged before they are visible.

A row is (v, big): each value is the number of the transaction that set it, 0 at the beginning. `big` is the kind of
value that an update may leave out of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from dblog_core.algorithm.eviction import Touch
from dblog_core.algorithm.range_cursor import RangeCursor

Row = tuple[int, int]
Rows = dict[int, Row]
BIG = frozenset({"big"})
FULL = 100
"""Transaction id of the first script; those of watermarks are larger than any."""


class Visible(Enum):
    """When a logged commit becomes visible: at once, in log order, or in any order."""

    ATOMIC = "atomic"
    LOG_ORDER = "log order"
    ANY_ORDER = "any order"


@dataclass(frozen=True, slots=True)
class Op:
    """put (insert or update), born (a put of the first values), part (an update that leaves `big` out), same (an update
    that changes nothing), delete, move (a change of key that leaves `big` out), truncate, alter."""

    kind: str
    key: int = 0
    to: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """What the log shows of an op: the row after it, columns left out, the old key of a change of key, and the table's
    shape (how often it was altered); a change of shape itself is not logged."""

    op: str
    key: int
    row: Row | None = None
    unchanged: frozenset[str] = frozenset()
    moved_from: int | None = None
    shape: int = 0

    @property
    def touch(self) -> Touch:
        if self.moved_from is not None:
            return Touch((self.moved_from,), self.unchanged, (self.key,))
        return Touch((self.key,), self.unchanged)


Script = tuple[Op, ...]


def conflicts(first: Script, second: Script) -> bool:
    """Whether they cannot both be open: they write one key, or one of them has the table to itself."""
    return bool(_keys(first) & _keys(second)) or any(op.kind in ("truncate", "alter") for op in (*first, *second))


def _keys(script: Script) -> set[int]:
    return {key for op in script for key in (op.key, op.to) if key}


def alters(script: Script) -> int:
    return sum(op.kind == "alter" for op in script)


def is_in_range(key: int, cursor: RangeCursor) -> bool:
    return (cursor.after is None or key > cursor.after) and (cursor.upto is None or key <= cursor.upto)


def run(script: Script, number: int, rows: Rows, shape: int = 0) -> list[Event]:
    """Applies a script to `rows`; an op that finds no row, or one in its way, does nothing."""
    events: list[Event] = []
    for op in script:
        if op.kind == "alter":
            shape += 1
        elif op.kind == "truncate":
            rows.clear()
            events.append(Event("t", 0, shape=shape))
        elif (event := _change(op, number, rows)) is not None:
            events.append(replace(event, shape=shape))
    return events


def _change(op: Op, number: int, rows: Rows) -> Event | None:
    old = rows.get(op.key)
    match op.kind:
        case "put":
            rows[op.key] = (number, number)
            return Event("c" if old is None else "u", op.key, rows[op.key])
        case "born":  # with the values of the beginning: to the lake, such a row looks as if nothing had happened
            rows[op.key] = (0, 0)
            return Event("c" if old is None else "u", op.key, (0, 0))
        case "part" if old is not None:
            rows[op.key] = (number, old[1])
            return Event("u", op.key, rows[op.key], BIG)
        case "same" if old is not None:
            return Event("u", op.key, old)
        case "delete" if old is not None:
            del rows[op.key]
            return Event("d", op.key)
        case "move" if old is not None and op.to not in rows:
            del rows[op.key]
            rows[op.to] = (number, old[1])
            return Event("u", op.to, rows[op.to], BIG, moved_from=op.key)
    return None
