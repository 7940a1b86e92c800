"""What went wrong recently, kept in the state store: so that a person finds it without knowing whose log to read.

Node `errors`: [{"at": µs UTC of the last time, "first": µs of the first, "times", "part", "error", "fix"}], the newest
first. An error that comes again is counted, not listed again. It is news, not a record: where two write at the same
moment one of them is lost, and where the state store itself does not answer, logs alone tell.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from dblog_core.errors import DblogError, VersionConflict
from dblog_core.interfaces import Json, StateStore

log = logging.getLogger(__name__)

_NODE = "errors"
KEPT = 20
_LONGEST = 2000  # characters of an error: a preflight lists all that is wrong


@dataclass(frozen=True, slots=True)
class RecentError:
    """What went wrong in which part (capture, merge, verify …), how often, and when for the last and the first time:
    microseconds UTC."""

    at_us: int
    first_us: int
    times: int
    part: str
    error: str
    fix: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["at"], data["first"], data["times"], data["part"], data["error"], data["fix"])

    def to_json(self) -> Json:
        return {
            "at": self.at_us,
            "first": self.first_us,
            "times": self.times,
            "part": self.part,
            "error": self.error,
            "fix": self.fix,
        }


def read(state: StateStore) -> list[RecentError]:
    """The newest first."""
    entry = state.get(_NODE)
    return [] if entry is None else [RecentError.from_json(error) for error in orjson.loads(entry.data)]


def record(state: StateStore, part: str, error: DblogError, now: float) -> None:
    """Remembers that `part` (capture, merge, verify …) met the error; `now`: seconds UTC. Never raises a DblogError."""
    try:
        entry = state.get(_NODE)
        errors = [] if entry is None else [RecentError.from_json(error) for error in orjson.loads(entry.data)]
        data = orjson.dumps([each.to_json() for each in _with_error(errors, part, error, int(now * 1e6))])
        if entry is None:
            state.create(_NODE, data)
        else:
            state.update(_NODE, data, entry.version)
    except VersionConflict:
        return
    except DblogError as fault:
        log.debug("an error of the %s is not remembered: %s", part, fault)


def _with_error(errors: Sequence[RecentError], part: str, error: DblogError, at_us: int) -> list[RecentError]:
    text = error.reason[:_LONGEST]
    fix = error.fix[:_LONGEST]
    same = [each for each in errors if (each.part, each.error, each.fix) == (part, text, fix)]
    others = [each for each in errors if each not in same]
    first_us = same[0].first_us if same else at_us
    times = same[0].times if same else 0
    return [RecentError(at_us, first_us, times + 1, part, text, fix), *others][:KEPT]
