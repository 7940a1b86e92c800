"""Tells one channel what happens to dumps, from what the state store says of them: the capture never waits for it.

    notify/NAME            {"began": ISO time, "open": [dumps that were not over then]}: the first look
    dumps/ID/told/NAME     what the channel has reported of the dump (`changes`)
    signals/KEY/told/NAME  whether it has reported a refused signal

A notice is sent first and remembered then, so a crash repeats some and loses none.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import orjson

from dblog_core.dumps import dump_store
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.notifications.changes import (
    Notice,
    NoticeMessage,
    SentNotices,
    notices_since,
    refusal_notice,
)
from dblog_core.notifications.channels import Receiver
from dblog_core.signals import inbox
from dblog_core.signals.signal_record import SignalState
from dblog_core.state import compare_and_set, recent_errors

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two looks at the state store
LONGEST_WAIT_SECONDS = 60.0  # between two attempts to tell a receiver that does not take a notice
_NOTICES_PER_SAVE = 100  # notices after which the place is written, so that a crash repeats no more


def tell_until_stopped(receiver: Receiver, source: str, state: StateStore, clock: Clock, stop: threading.Event) -> None:
    """Tells a receiver until `stop` is set; what it does not take is shown by `status`, and tried again."""
    follower = NoticeFollower(receiver, source, state, clock)
    wait = LOOK_SECONDS
    while not clock.wait(stop, wait):
        try:
            follower.tell_news(stop)
            wait = LOOK_SECONDS
        except DblogError as error:
            # A receiver that is away for long is asked seldom, and hears all when it is back.
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            log.warning("notify %s: %s", receiver.name, error)
            recent_errors.record(state, f"notify {receiver.name}", error, clock.time())


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What there was at the first look for a receiver: ISO 8601, dumps that had not ended, and the signals' nodes."""

    began: str
    open_dumps: frozenset[str]
    signals: frozenset[str]

    @classmethod
    def from_json(cls, data: Json) -> Self:
        return cls(data["began"], frozenset(data["open"]), frozenset(data["signals"]))

    def to_json(self) -> Json:
        return {"began": self.began, "open": sorted(self.open_dumps), "signals": sorted(self.signals)}

    def comes_after(self, dump_id: str, requested_at: str) -> bool:
        """Whether a dump, which is over now, was over by then. `requested_at`: ISO 8601."""
        return requested_at < self.began and dump_id not in self.open_dumps


def has_told_end(state: StateStore, dump_id: str, requested_at: str, channels: Collection[str]) -> bool:
    """Whether each of these channels knows of the end of a dump that is over, or began after it."""
    first_looks = state.get_all([_first_look_path(name) for name in channels])
    places = state.get_all([_place_path(dump_id, name) for name in channels])
    return all(
        first is None
        or FirstLook.from_json(orjson.loads(first.data)).comes_after(dump_id, requested_at)
        or (place is not None and SentNotices.from_json(orjson.loads(place.data)).over)
        for first, place in zip(first_looks, places, strict=True)
    )


def _first_look_path(channel: str) -> str:
    return f"notify/{channel}"


def _place_path(dump_id: str, channel: str) -> str:
    return f"dumps/{dump_id}/told/{channel}"


class NoticeFollower:
    """One receiver of one source."""

    def __init__(self, receiver: Receiver, source: str, state: StateStore, clock: Clock) -> None:
        self._name = receiver.name
        self._channel = receiver.channel
        self._events = frozenset(receiver.events)
        self._source = source
        self._state = state
        self._clock = clock
        self._over: set[str] = set()
        self._signals: set[str] = set()
        self._first: FirstLook | None = None

    def tell_news(self, stop: threading.Event) -> None:
        """Tells all that is new. Raises NotToldYet where the channel does not take it; the next look continues
        there."""
        first = self._first = self._first or self._begin()
        ids = self._state.children("dumps")
        # Forgets dumps that are gone from the state store, so that the set stays bounded.
        self._over &= set(ids)
        for dump_id in ids:
            if dump_id in self._over or (status := dump_store.find_dump(self._state, dump_id)) is None:
                continue
            if not self._was_over_before(status, first):
                self._tell_of_dump(status, stop)
            if stop.is_set():
                return
            # Only now: `stop` may have cut its notices short.
            if status.state in OVER:
                self._over.add(dump_id)
        self._tell_of_refused_signals(first)

    def _begin(self) -> FirstLook:
        """What there was when the channel was looked at first: its past is nobody's news."""
        open_dumps = frozenset(status.id for status in dump_store.list_unfinished_dumps(self._state))
        fresh = FirstLook(self._now(), open_dumps, frozenset(inbox.node_names(self._state))).to_json()
        path = _first_look_path(self._name)
        first = FirstLook.from_json(
            compare_and_set.change(self._state, path, lambda first_before: first_before or fresh)
        )
        self._signals = set(first.signals)
        return first

    def _was_over_before(self, status: DumpStatus, first: FirstLook) -> bool:
        return status.state in OVER and first.comes_after(status.id, status.requested_at)

    def _tell_of_dump(self, status: DumpStatus, stop: threading.Event) -> None:
        path = _place_path(status.id, self._name)
        entry = self._state.get(path)
        sent = saved = SentNotices() if entry is None else SentNotices.from_json(orjson.loads(entry.data))
        try:
            for count, (notice, sent_then) in enumerate(notices_since(status, sent), 1):
                self._tell(notice)
                sent = sent_then
                if stop.is_set():
                    return
                if count % _NOTICES_PER_SAVE == 0:
                    saved = self._save(path, sent)
        finally:
            # Also after an error: what the receiver has taken must not come again.
            if sent != saved:
                self._save(path, sent)

    def _save(self, path: str, sent: SentNotices) -> SentNotices:
        compare_and_set.change(self._state, path, lambda _: sent.to_json())
        return sent

    def _tell_of_refused_signals(self, first: FirstLook) -> None:
        names = set(inbox.node_names(self._state))
        self._signals &= names
        for name in sorted(names - self._signals):
            record = inbox.read_signal(self._state, name)
            path = f"signals/{name}/told/{self._name}"
            if record is None or not record.state.is_over:
                continue
            # The dump of an accepted signal reports it.
            if record.state is SignalState.REFUSED and self._state.get(path) is None:
                self._tell(refusal_notice(name, record))
                compare_and_set.change(self._state, path, lambda _: True)
            self._signals.add(name)

    def _tell(self, notice: Notice) -> None:
        if not self._events or notice.event in self._events:
            self._channel.tell(NoticeMessage(notice, self._source, self._now()))

    def _now(self) -> str:
        return dt.datetime.fromtimestamp(self._clock.time(), dt.UTC).isoformat(timespec="microseconds")
