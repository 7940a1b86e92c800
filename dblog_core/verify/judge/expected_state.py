"""The rows that the lake is to hold at a place of the log: a version's rows with the staged events on top."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dblog_core.delta_writer.order_guard import Flags
from dblog_core.verify.judge.hashed_rows import HashedRows, Numbers, number_keys

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class State:
    """By the number of a key: how many rows it has, the hash of one of them, and the event whose image that is
    (NOWHERE: it is of the lake)."""

    copies: Numbers
    hashes: Numbers
    events: Numbers

    @property
    def exists(self) -> Flags:
        return self.copies > 0


def apply_events(
    count: int, lake: HashedRows, lake_keys: Numbers, events: HashedRows, event_keys: Numbers, truncated_at: int
) -> State:
    """As a merge would: a key's last event replaces or removes its rows that are older. `count`: of keys; `lake_keys`,
    `event_keys`: the number of each row's key; `events`: by growing offset; `truncated_at`: the last TRUNCATE.

    An event that leaves columns out counts like any other: its hash means nothing (`State.events`).
    """
    alive = lake.offsets >= truncated_at if truncated_at != NOWHERE else np.ones(len(lake), np.bool_)
    first = int(np.searchsorted(events.offsets, truncated_at, side="right"))
    last = np.full(count, NOWHERE, np.int64)
    last[event_keys[first:]] = np.arange(first, len(events))  # of several for one key the last one stays
    lives = np.zeros(count, np.bool_)
    has_event = last >= 0
    lives[has_event] = events.array("lives")[last[has_event]]
    newest = np.full(count, NOWHERE, np.int64)
    newest[has_event] = events.offsets[last[has_event]]
    is_older = has_event[lake_keys] & (newest[lake_keys] > lake.offsets)
    stays = alive & ~is_older
    replaced = alive & is_older & lives[lake_keys]
    copies = np.bincount(lake_keys[stays | replaced], minlength=count)
    appended = lives & (np.bincount(lake_keys[alive], minlength=count) == 0)
    copies[appended] = 1
    by_event = appended
    by_event[lake_keys[replaced]] = True
    hashes = np.zeros(count, np.int64)
    hashes[lake_keys[stays]] = lake.hashes[stays]
    hashes[by_event] = events.hashes[last[by_event]]
    return State(copies, hashes, np.where(by_event, last, NOWHERE))


def find_superseded(events: HashedRows, settled: int) -> Flags:
    """The events up to the place `settled` that no answer needs, of events by growing offset.

    A comparison needs a key at two places of the log at most: where the source's SELECT certainly was, `settled`, and
    the end of its window. So of all events up to `settled` the last one of a key is enough, however often the key has
    changed. Two events need those before them. A row of which the log left columns out has their values from earlier
    events, of its own key or of the key that it had before. And a row that came from another key has the values of the
    life that the delete of that key has ended.
    """
    early = int(np.searchsorted(events.offsets, settled, side="right"))
    (keys, old_keys), count = number_keys([events.keys, events.moved_from])
    early_keys = keys[:early]
    numbers = np.arange(early)
    last = np.full(count, NOWHERE, np.int64)
    last[early_keys] = numbers  # of several for one key the last one stays
    counts = last[early_keys] == numbers
    before_last = np.full(count, NOWHERE, np.int64)
    before_last[early_keys[~counts]] = numbers[~counts]
    ended = before_last[early_keys[counts & ~events.array("lives")[:early]]]
    counts[ended[ended != NOWHERE]] = True
    is_followed = np.zeros(count, np.bool_)
    is_followed[early_keys[~events.array("whole")[:early]]] = True
    is_followed[old_keys] = True
    superseded = np.zeros(len(events), np.bool_)
    superseded[:early] = ~(counts | is_followed[early_keys])
    return superseded
