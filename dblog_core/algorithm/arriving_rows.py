"""Rows that change their key while a dump reads: where a dump that heals has still to look for them.

Such a row may leave a range that is still to be read for one that has been, so that no chunk finds it; where the log
leaves columns out of that change, nobody has seen their values. It has *arrived*. Its *trail* is remembered: the key
that it has by the log, and the keys that it left, where a SELECT finds it that does not see the change yet.

A dump ends, whatever is written, since it stops looking for a row once it has brought it whole, wherever the row goes:

- A chunk finds the row under a key of its trail. What the SELECT did not see of the row's way stands in the window, and
  gives the row's present key. The row is brought, and each later change of its key carries that along.
- Once all ranges are read, a row without a trail has been brought. Its changes of key leave no trail from then on. So
  trails only become fewer: a look at a row that finds it is the last one.
- A look misses a row that has changed its key between the last published progress and the SELECT. After a few looks the
  worker reads the whole table in one SELECT, where it fits into a chunk: that misses no row, except where the order of
  the log judges it and the row moves inside its window. In a larger table, rows may move faster than any look. The task
  fails after `LOOKS_IN_VAIN` looks in a row that leave no trail fewer, and says why. A look that leaves fewer begins
  that count again. Trails only become fewer, so these looks end as well.

What of this a restart loses (which rows are brought while ranges are still to be read) costs another look at a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from itertools import chain

Trail = tuple[str, ...]
"""Keys of one row (`values.key_text`): the one that it has by the log, then those that it left, the latest first."""
Move = tuple[str, str]
"""The old and the new key of a row that changed its key while the log left columns of it out."""

ARRIVED = 200_000
"""Bytes of trails, remembered at most for a table of a dump; more end its claim to heal. What a task's progress says
has to fit into a node of ZooKeeper."""
LOOKS_BY_KEYS = 3
"""Looks at keys after the last range, after which a table that fits into a chunk is read whole."""
LOOKS_IN_VAIN = 500
"""Looks in a row, after the last range, that leave no trail fewer: the worker then gives up. A look takes about as
long as the capture needs to publish a segment; a row that is met by one in fifty of them is met."""
LOOKS = 1_000
"""The same, of a worker that does not give up: they end the claim to heal."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a placed chunk says about rows that have arrived, up to its place in the log.

    `keys`: those that it is of; `whole`: it is of the whole table; `touched`: keys of events that its SELECT may
    not have seen; `missed`: keys of rows of which those events alone do not tell all and that the chunk does not have,
    each with the key under which the chunk would have it (None: nobody knows).
    """

    keys: Set[str]
    touched: Set[str]
    missed: Mapping[str, str | None]
    whole: bool = False


class LookWay(Enum):
    """How a worker looks for rows."""

    BY_KEYS = "by keys"
    WHOLE = "whole"  # it reads the whole table
    GIVE_UP = "give up"  # it does not: the task fails


def choose_look(looks: int, looks_in_vain: int, *, may_fit: bool) -> LookWay:
    """The next look after so many, of which the last ones left no trail fewer; `may_fit`: nothing has shown that the
    table has more rows than a chunk."""
    if looks_in_vain >= LOOKS_IN_VAIN:
        return LookWay.GIVE_UP
    return LookWay.WHOLE if may_fit and looks >= LOOKS_BY_KEYS else LookWay.BY_KEYS


def follow_moves(
    trails: Iterable[Trail], moves: Iterable[Move], whole_rows: set[str], *, all_read: bool
) -> tuple[Trail, ...]:
    """The trails after these moves, in log order. `whole_rows`: keys of rows that are brought whole: follows the moves;
    `all_read`: no range is left, so that rows without a trail are brought."""
    by_key = {trail[0]: trail for trail in trails}
    for key, to in moves:
        trail = by_key.pop(key, None)
        if trail is None and (all_read or key in whole_rows):
            by_key.pop(to, None)  # of a row that has gone from there
            whole_rows.discard(key)
            whole_rows.add(to)
        else:
            whole_rows.discard(to)
            by_key[to] = tuple(dict.fromkeys((to, *(trail or (key,)))))
    return tuple(by_key.values())


def apply_look(trails: Iterable[Trail], look: Look, whole_rows: set[str]) -> tuple[Trail, ...]:
    """The trails that are left after a look; what it has brought joins `whole_rows`."""
    left = []
    for trail in trails:
        if trail[0] in look.missed:
            left.append(_without_left_keys(trail, look.missed[trail[0]]))
        elif look.whole or trail[0] in look.keys or trail[0] in look.touched:
            whole_rows.add(trail[0])
        else:  # it went there before the SELECT, which saw that, and after somebody chose the keys
            left.append(trail[:1])
    return tuple(left)


def _without_left_keys(trail: Trail, seen_at: str | None) -> Trail:
    """The trail without keys that the row had left for every SELECT from now on: the chunk's saw it at `seen_at`."""
    return trail[: trail.index(seen_at) + 1] if seen_at in trail else trail


def shorten(trails: tuple[Trail, ...]) -> tuple[Trail, ...] | None:
    """The trails within `ARRIVED` bytes, if need be without the keys that rows left; None: there are too many rows."""
    if sum(map(len, chain.from_iterable(trails))) <= ARRIVED:
        return trails
    ends = tuple(trail[:1] for trail in trails)
    return ends if sum(len(key) for (key,) in ends) <= ARRIVED else None


__all__ = [
    "ARRIVED", "LOOKS", "LOOKS_BY_KEYS", "LOOKS_IN_VAIN", "Look", "LookWay", "Move", "Trail", "apply_look",
    "choose_look", "follow_moves", "shorten",
]  # fmt: skip
