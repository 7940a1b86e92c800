"""Intervals of the super-changelog, between two commit times or offsets: what a replay applies again."""

from __future__ import annotations

import datetime as dt

from dblog_core.errors import RequestError
from dblog_core.interfaces import Json
from dblog_core.lake.cuts import At, parse_at

_HOUR = dt.timedelta(hours=1)


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


def end_json(at: At) -> Json:
    """An end as the lake task `replay` has it: times in microseconds since 1970, UTC."""
    if isinstance(at, int):
        return {"offset": at}
    return {"time": (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)}
