"""What went wrong of late, kept in the state store: so that a person finds it without knowing whose log to read.

Node `errors`: [{"at": µs UTC of the last time, "first": µs of the first, "times", "part", "error", "fix"}], the newest
first. An error that comes again is counted, not listed again. It is news, not a record: where two write at the same
moment one of them is lost, and where the state store itself does not answer, logs alone tell.
"""

from __future__ import annotations

import logging

import orjson

from dblog_core.errors import DblogError, VersionConflict
from dblog_core.interfaces import Json, StateStore

log = logging.getLogger(__name__)

_NODE = "errors"
KEPT = 20
_LONGEST = 2000  # characters of an error: a preflight lists all that is wrong


def read(state: StateStore) -> list[Json]:
    """The newest first."""
    entry = state.get(_NODE)
    return [] if entry is None else orjson.loads(entry.data)


def record(state: StateStore, part: str, error: DblogError, now: float) -> None:
    """Remembers that `part` (capture, merge, verify …) met the error; `now`: seconds UTC. Never raises a DblogError."""
    try:
        entry = state.get(_NODE)
        known = [] if entry is None else orjson.loads(entry.data)
        data = orjson.dumps(_with(known, part, error, int(now * 1e6)))
        if entry is None:
            state.create(_NODE, data)
        else:
            state.update(_NODE, data, entry.version)
    except VersionConflict:
        return
    except DblogError as fault:
        log.debug("an error of the %s is not remembered: %s", part, fault)


def _with(known: list[Json], part: str, error: DblogError, at: int) -> list[Json]:
    told = {"part": part, "error": error.reason[:_LONGEST], "fix": error.fix[:_LONGEST]}
    same = [e for e in known if all(e[name] == value for name, value in told.items())]
    others = [e for e in known if e not in same]
    first, times = (same[0]["first"], same[0]["times"]) if same else (at, 0)
    return [{"at": at, "first": first, "times": times + 1, **told}, *others][:KEPT]
