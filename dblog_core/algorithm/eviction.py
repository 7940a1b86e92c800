"""Eviction: what the log's events leave of a chunk's rows, followed row by row over changes of their keys.

Eviction is by column. An update may leave columns out (`unchanged`): for a row that nobody has seen before, the log
then does not hold what eviction would remove. So each touched row is followed through its events; columns that no event
has set survive, under the row's last key. Which events count is the matter of `visibility`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dblog_core.model.values import Key


@dataclass(frozen=True, slots=True)
class Touch:
    """One row event: the key it concerns, the columns it left out, and the new key where it changed the key.

    A delete or an insert leaves nothing out.
    """

    key: Key
    unchanged: frozenset[str] = frozenset()
    moved_to: Key | None = None


def incomplete_moves(touches: Iterable[Touch]) -> Iterator[tuple[Key, Key]]:
    """The old and the new key of rows that changed it while the log left columns of them out."""
    return ((touch.key, touch.moved_to) for touch in touches if touch.moved_to is not None and touch.unchanged)


class Touches(Protocol):
    """Row events of one table in one transaction, in log order; made from columns only when somebody asks."""

    def __iter__(self) -> Iterator[Touch]: ...

    def __len__(self) -> int: ...


@dataclass(slots=True)
class _Track:
    """A row, followed through the log from the key `first` on, which it has in the chunk if it is there (None: the row
    that is there may be another). `left_out` None: no event yet; empty: wholly overwritten."""

    first: Key | None
    current: Key
    left_out: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Survivor:
    """What is left of an evicted row: columns that no event has set, and the key the row has now."""

    key: Key
    columns: frozenset[str]


@dataclass(slots=True)
class Overlap:
    """What the log holds of a chunk's rows that its SELECT may not have seen.

    `everything`: the table was truncated. `rows`: key in the chunk -> what survives of it (None: nothing).
    `touched`: every key that an event concerned, by its old or its new value. `partial`: where rows are of which these
    events alone do not tell all, and the key that such a row has in the chunk, if it is there (None: nobody knows).
    """

    everything: bool = False
    rows: dict[Key, Survivor | None] = field(default_factory=dict)
    touched: set[Key] = field(default_factory=set)
    partial: dict[Key, Key | None] = field(default_factory=dict)


def follow(stretches: Iterable[Touches | None], *, certain: bool) -> Overlap:
    """Follows rows through events in log order; None among them is a TRUNCATE.

    `certain`: the chunk was read before all of them. Otherwise the row that it has under a key may be a later one than
    that which left the key; nothing of such a row survives.
    """
    overlap = Overlap()
    tracks: dict[Key, _Track] = {}  # by the key that the row has in the chunk
    current: dict[Key, _Track] = {}  # by the key that it has now
    for stretch in stretches:
        if stretch is None:
            overlap.everything = True
            continue
        for touch in stretch:
            _step(touch, tracks, current, certain)
            overlap.touched.add(touch.key)
            if touch.moved_to is not None:
                overlap.touched.add(touch.moved_to)
    for key, track in tracks.items():
        overlap.rows[key] = Survivor(track.current, track.left_out) if track.left_out else None
    overlap.partial = {key: track.first for key, track in current.items() if track.left_out}
    return overlap


def _step(touch: Touch, tracks: dict[Key, _Track], current: dict[Key, _Track], certain: bool) -> None:
    track = current.pop(touch.key, None)
    if track is None and touch.key not in tracks:
        track = tracks[touch.key] = _Track(touch.key, touch.key)
    if touch.moved_to is not None and touch.moved_to not in tracks:
        # A row of the chunk with the new key, if there is one, had to go before this: nothing of it survives.
        tracks[touch.moved_to] = _Track(touch.moved_to, touch.moved_to, frozenset())
    if track is None:  # a later row under a key that the chunk's row has left
        if not certain:
            tracks[touch.key].first = None
            tracks[touch.key] = _Track(touch.key, touch.key, frozenset())
        return
    track.left_out = touch.unchanged if track.left_out is None else track.left_out & touch.unchanged
    if track.left_out:
        track.current = touch.key if touch.moved_to is None else touch.moved_to
        current[track.current] = track
