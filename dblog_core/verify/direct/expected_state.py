"""What the lake is to hold at a place of the log: a version's rows with the staged events on top, by their numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dblog_core.verify.direct.exact_cast import Flags
from dblog_core.verify.direct.hashed_events import Events
from dblog_core.verify.direct.key_numbers import Numbers
from dblog_core.verify.direct.lake_hashes import LakeRows

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class State:
    """By the number of a key: how many rows it has, and the hash of one of them. `lake_rows`: the row of the lake that
    it is; `events`: the event whose image it is (NOWHERE: it is not)."""

    copies: Numbers
    hashes: Numbers
    lake_rows: Numbers
    events: Numbers

    @property
    def exists(self) -> Flags:
        return self.copies > 0


def apply_events(count: int, lake: LakeRows, lake_keys: Numbers, events: Events, event_keys: Numbers) -> State:
    """As a merge would: a key's last event replaces or removes its rows that are older. `count`: of keys; `lake_keys`,
    `event_keys`: the number of each row's key.

    An event that leaves columns out counts like any other: its hash means nothing (`State.events`).
    """
    emptied = int(events.truncates.max()) if len(events.truncates) else NOWHERE
    alive = lake.offsets >= emptied if emptied >= 0 else np.ones(len(lake), np.bool_)
    first = int(np.searchsorted(events.offsets, emptied, side="right"))
    last = np.full(count, NOWHERE, np.int64)
    last[event_keys[first:]] = np.arange(first, len(events))  # of several for one key the last one stays
    lives = np.zeros(count, np.bool_)
    has_event = last >= 0
    lives[has_event] = events.lives[last[has_event]]
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
    at_lake = np.full(count, NOWHERE, np.int64)
    at_lake[lake_keys[stays]] = np.flatnonzero(stays)
    hashes = np.zeros(count, np.int64)
    from_lake = at_lake >= 0
    hashes[from_lake] = lake.hashes[at_lake[from_lake]]
    hashes[by_event] = events.hashes[last[by_event]]
    return State(copies, hashes, at_lake, np.where(by_event, last, NOWHERE))
