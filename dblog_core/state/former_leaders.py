"""Names of the captures that have led before: a new leader may end what one of them has left open at the source.

A leader that was killed on another machine, paused or cut off still holds its connection to the log, and PostgreSQL
gives a slot to one connection at a time: without this a takeover waits for the server's `wal_sender_timeout`. A name is
chance, written here before the log is opened under it, and found by who has the lease after it, and by nobody else: a
capture with another state store is never taken for a predecessor.

Node `terms`: [{"name", "epoch"}], the newest first.
"""

from __future__ import annotations

import secrets

from dblog_core.interfaces import StateStore
from dblog_core.state import compare_and_set

_NODE = "terms"
KEPT = 20  # beside the newest


def enter(state: StateStore, epoch: int) -> tuple[str, frozenset[str]]:
    """A name for the term that begins, and those of the terms before it, with lower epochs or the same. Raises
    StateUnavailable."""
    name = secrets.token_hex(6)
    terms = compare_and_set.change(
        state, _NODE, lambda before: [{"name": name, "epoch": epoch}, *(before or ())[:KEPT]]
    )
    return name, frozenset(term["name"] for term in terms[1:] if term["epoch"] <= epoch)
