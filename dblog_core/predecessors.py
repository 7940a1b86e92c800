"""Names of the captures that have led before: a new leader may end what one of them has left open at the source.

A leader that was killed on another machine, paused or cut off still holds its connection to the log, and PostgreSQL
gives a slot to one connection at a time: without this a takeover waits for the server's `wal_sender_timeout`. A name is
chance, written here before the log is opened under it, and found by who has the lease after it, and by nobody else: a
capture with another state store is never taken for a predecessor.

Node `terms`: [{"name", "epoch"}], the newest first.
"""

from __future__ import annotations

import secrets

import orjson

from dblog_core.errors import VersionConflict
from dblog_core.interfaces import StateStore

_NODE = "terms"
KEPT = 20


def enter(state: StateStore, epoch: int) -> tuple[str, frozenset[str]]:
    """A name for the term that begins, and those of the terms before it, with lower epochs or the same. Raises
    StateUnavailable."""
    name = secrets.token_hex(6)
    while True:
        entry = state.get(_NODE)
        known = [] if entry is None else orjson.loads(entry.data)
        data = orjson.dumps([{"name": name, "epoch": epoch}, *known][:KEPT])
        try:
            if entry is None:
                state.create(_NODE, data)
            else:
                state.update(_NODE, data, entry.version)
        except VersionConflict:
            continue  # a leader that does not know yet that it is none
        return name, frozenset(term["name"] for term in known if term["epoch"] <= epoch)
