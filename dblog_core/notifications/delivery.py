"""Tells one channel what happens to dumps, from what the state store says of them: the capture never waits for it.

    notify/NAME            {"began": ISO time, "open": [dumps that were not over then]}: the first look
    dumps/ID/told/NAME     what the channel was told of the dump (`news`)
    signals/KEY/told/NAME  whether it was told of a signal that was refused

A notice is sent first and remembered then, so a crash repeats some and loses none.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading

import orjson

from dblog_core.dumps import dump_store
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.notifications.changes import Notice, news, refusal
from dblog_core.notifications.channels import Receiver
from dblog_core.signals import inbox
from dblog_core.state import compare_and_set, recent_errors

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between two looks at the state store
LONGEST = 60.0  # seconds between two attempts to tell a receiver that does not take a notice
_SAVE = 100  # notices after which the place is written, so that a crash repeats no more


def follow(receiver: Receiver, source: str, state: StateStore, clock: Clock, stop: threading.Event) -> None:
    """Tells a receiver until `stop` is set; what it does not take is shown by `status`, and tried again."""
    follower, wait = Follower(receiver, source, state, clock), LOOK
    while not clock.wait(stop, wait):
        try:
            follower.look(stop)
            wait = LOOK
        except DblogError as error:
            wait = min(2 * wait, LONGEST)
            log.warning("notify %s: %s", receiver.name, error)
            recent_errors.record(state, f"notify {receiver.name}", error, clock.time())


class Follower:
    """One receiver of one source."""

    def __init__(self, receiver: Receiver, source: str, state: StateStore, clock: Clock) -> None:
        self._name, self._channel, self._events = receiver.name, receiver.channel, frozenset(receiver.events)
        self._source, self._state, self._clock = source, state, clock
        self._over: set[str] = set()
        self._signals: set[str] = set()
        self._first: Json | None = None

    def look(self, stop: threading.Event) -> None:
        """Tells all that is new. Raises NotToldYet where the channel does not take it; the next look goes on there."""
        first = self._first = self._first or self._begin()
        ids = self._state.children("dumps")
        self._over &= set(ids)
        for dump_id in ids:
            if dump_id in self._over or (status := dump_store.find_dump(self._state, dump_id)) is None:
                continue
            if not self._of_before(status, first):
                self._tell_of(status, stop)
            if stop.is_set():
                return
            if status.state in OVER:
                self._over.add(dump_id)
        self._tell_of_refused(first)

    def _begin(self) -> Json:
        """What there was when the channel was looked at first: its past is nobody's news."""
        open_dumps = [status.id for status in dump_store.list_unfinished_dumps(self._state)]
        fresh = {"began": self._now(), "open": open_dumps, "signals": inbox.names(self._state)}
        found: Json = compare_and_set.change(self._state, f"notify/{self._name}", lambda known: known or fresh)
        self._signals = set(found["signals"])
        return found

    def _of_before(self, status: DumpStatus, first: Json) -> bool:
        return status.state in OVER and status.requested_at < first["began"] and status.id not in first["open"]

    def _tell_of(self, status: DumpStatus, stop: threading.Event) -> None:
        path = f"dumps/{status.id}/told/{self._name}"
        entry = self._state.get(path)
        told = before = None if entry is None else orjson.loads(entry.data)
        try:
            for count, (notice, place) in enumerate(news(status, told), 1):
                self._tell(notice)
                told = place
                if stop.is_set():
                    return
                if count % _SAVE == 0:
                    before = self._save(path, told)
        finally:
            if told != before:
                self._save(path, told)

    def _save(self, path: str, told: Json | None) -> Json | None:
        compare_and_set.change(self._state, path, lambda _: told)
        return told

    def _tell_of_refused(self, first: Json) -> None:
        names = set(inbox.names(self._state))
        self._signals &= names
        for name in sorted(names - self._signals):
            record, path = inbox.read(self._state, name), f"signals/{name}/told/{self._name}"
            if record is None or record["state"] not in inbox.OVER:
                continue
            if record["state"] == inbox.REFUSED and self._state.get(path) is None:
                self._tell(refusal(name, record))
                compare_and_set.change(self._state, path, lambda _: True)
            self._signals.add(name)

    def _tell(self, notice: Notice) -> None:
        if not self._events or notice.event in self._events:
            self._channel.tell(notice.id, notice.to_json(self._source, self._now()))

    def _now(self) -> str:
        return dt.datetime.fromtimestamp(self._clock.time(), dt.UTC).isoformat(timespec="microseconds")
