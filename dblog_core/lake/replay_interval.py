"""Intervals of the super-changelog, between two commit times or offsets: what a replay applies again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from dblog_core.errors import RequestError
from dblog_core.interfaces import Json
from dblog_core.lake.cuts import At, parse_at

_HOUR = dt.timedelta(hours=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Unit(StrEnum):
    """What an end of an interval counts."""

    OFFSET = "offset"
    TIME = "time"


def interval(start: str | None, end: str | None, now: dt.datetime) -> tuple[At, At]:
    """The two ends; None: an hour before the end, and now.

    Raises RequestError for an interval that ends before it begins, or begins nowhere.
    """
    high = now if end is None else parse_at(end)
    if start is not None:
        low = parse_at(start)
    elif isinstance(high, dt.datetime):
        low = high - _HOUR
    else:
        raise RequestError("an interval that ends at an offset needs its begin", fix="give its begin as well")
    # An offset and a time cannot be compared here: only the log knows the offset's time.
    offsets = isinstance(low, int) and isinstance(high, int) and low > high
    times = isinstance(low, dt.datetime) and isinstance(high, dt.datetime) and low > high
    if offsets or times:
        raise RequestError(f"the interval ends ({end or 'now'}) before it begins ({start})", fix="swap its two ends")
    return low, high


@dataclass(frozen=True, slots=True)
class IntervalEnd:
    """Where an interval begins or ends, that place included: an offset, or a commit time in microseconds since 1970,
    UTC."""

    unit: Unit
    value: int

    @classmethod
    def at(cls, place: At) -> Self:
        if isinstance(place, int):
            return cls(Unit.OFFSET, place)
        return cls(Unit.TIME, (place - _EPOCH) // dt.timedelta(microseconds=1))

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        ((unit, value),) = record.items()
        return cls(Unit(unit), int(value))

    def to_json(self) -> Json:
        return {self.unit.value: self.value}
