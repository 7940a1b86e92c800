"""Signals as rows of a table in the source: they come through the log, and are no lines of the super-changelog.

The capture puts them into the inbox before it publishes the manifest whose place in the log lies behind them. So a
crash at any moment leaves a signal in the inbox, or in front of the place where the log is read again; found twice, it
has one id.
"""

from __future__ import annotations

import logging

from dblog_core.errors import RequestError
from dblog_core.interfaces import StateStore
from dblog_core.model.events import SignalSeen
from dblog_core.signals import inbox
from dblog_core.signals.message import Message

log = logging.getLogger(__name__)

CHANNEL = "table"


def put_row(state: StateStore, seen: SignalSeen, *, at_us: int) -> None:
    """Takes in a row; one without an id is remembered as refused, under an id of its own."""
    if not seen.id:
        error = RequestError("a row of the signal table has no id", fix="give each row an id of its own")
        log.warning("%s", error)
        inbox.put_refusal(state, f"row-{at_us}", channel=CHANNEL, at_us=at_us, error=error)
    elif not inbox.put_signal(state, Message(seen.id, seen.type, seen.data), channel=CHANNEL, at_us=at_us):
        log.info("signal %s was taken in before", seen.id)


def put_refusal_of_rest(state: StateStore, transaction: str, max_rows: int, *, at_us: int) -> None:
    """Tells that a transaction had more rows than are taken in; nothing remembers the ids of the rest."""
    error = RequestError(
        f"one transaction ({transaction}) put more than {max_rows:,} rows into the signal table: those after the first"
        f" {max_rows:,} are refused",
        fix=f"insert at most {max_rows:,} signals in a transaction;"
        " the refused ones may be inserted again, with their ids",
    )
    log.warning("%s", error)
    inbox.put_refusal(state, f"transaction-{transaction}", channel=CHANNEL, at_us=at_us, error=error)
