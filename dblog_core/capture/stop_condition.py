"""When a capture that ends at a given place has come far enough."""

from __future__ import annotations

from typing import Protocol

from dblog_core.interfaces import Clock, Source
from dblog_core.model.position_spec import Form, Place

LATE = 1_000_000
"""Microseconds: a transaction is given its time before its place in the log, and MariaDB logs whole seconds."""


class Goal(Protocol):
    """Up to where a capture runs."""

    def is_reached(self, position: str, commit_time: int | None) -> bool:
        """Whether all of it lies before `position`; `commit_time`: of the last transaction before that."""


class AtPosition:
    """Everything that is committed before a position."""

    def __init__(self, source: Source, target: str) -> None:
        self._source = source
        self._target = target

    def is_reached(self, position: str, commit_time: int | None) -> bool:
        return self._source.has_reached(position, self._target)


class AtTime:
    """Everything that is committed at or before a time, in the log's order: up to the first transaction that was
    committed more than a second later, or to where the log ends when the server's clock is there."""

    def __init__(self, source: Source, clock: Clock, time: int) -> None:
        self._source = source
        self._clock = clock
        self._late = time + LATE
        self._look_at = clock.monotonic()
        self._end: str | None = None

    def is_reached(self, position: str, commit_time: int | None) -> bool:
        if commit_time is not None and commit_time > self._late:
            return True
        if self._end is None and self._clock.monotonic() >= self._look_at:
            self._look()
        return self._end is not None and self._source.has_reached(position, self._end)

    def _look(self) -> None:
        """The clock first: what is committed up to the time lies before an end that is read after it."""
        # The source's clock: commit times are its own.
        now = self._source.time()
        if now > self._late:
            self._end = self._source.current_position()
        else:
            self._look_at = self._clock.monotonic() + max(1.0, (self._late - now) / 1e6)


def find_goal(source: Source, clock: Clock, place: Place) -> Goal:
    """Raises SourceRefused for a place that no log of this server has."""
    if place.form is Form.TIME:
        return AtTime(source, clock, place.time)
    return AtPosition(source, source.find_target(place))
