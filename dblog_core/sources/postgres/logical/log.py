"""The open log: reads the replication connection, lets the decoder fill batches, and confirms what was acknowledged.

Nothing is read through psycopg2's cursors: `replication_stream` reads, and `slot_feedback` says why. An idle source's
position moves too: where the log has nothing for us, a batch without rows says how far it is read.
"""

from __future__ import annotations

import select
import time
from typing import Protocol

import psycopg2.errors
from psycopg2.extras import ReplicationCursor

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceUnavailable
from dblog_core.model.events import LogBatch
from dblog_core.sources.postgres import timelines
from dblog_core.sources.postgres.logical.batch import Assembly
from dblog_core.sources.postgres.logical.catalogue_lookups import Lookups
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.replication_stream import CopyStream
from dblog_core.sources.postgres.logical.slot_feedback import FEEDBACK_SECONDS, SlotFeedback
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.sql import slots, standby
from dblog_core.sources.postgres.sql.connection import Connection, connect, session, translate_errors
from dblog_core.sources.postgres.sql.slots import FIRST, Line

_POSITION_SECONDS = 0.1  # between two batches that only move the position, of an idle source
_NEVER = 2_000_000_000  # seconds: psycopg2's own feedback
_NAPS = (0.001, 0.008)  # seconds, least and most, that messages gather on the socket: waking costs more than reading
# So few messages after a nap say that it was too short, so many that it was too long.
_FEW = 64
_MANY = 256


class Decoder(Protocol):
    """Turns a plugin's messages into what an Assembly collects."""

    plugin: str

    def options(self) -> dict[str, str]:
        """Options of START_REPLICATION."""

    def feed(self, arrived: Messages, *, aged: bool) -> bool:
        """Takes messages; whether all are taken. If not, the batch has to be handed on first. What is in the batch may
        point into the messages until then. `aged`: the batch ends with the next transaction that does.

        Raises UnknownLogEvent for anything that cannot be decoded without a guess.
        """

    def take(self) -> LogBatch:
        """The batch so far; the next one begins."""

    def close(self) -> None: ...


class PostgresLog:
    """The LogStream of a slot."""

    def __init__(
        self, config: SourceConfig, decoder: Decoder, assembly: Assembly, lookups: Lookups, line: Line = FIRST
    ) -> None:
        self._config = config
        self._line = line
        self._lookups = lookups
        self._decoder = decoder
        self._assembly = assembly
        self._handed_position = assembly.position
        self._last_batch = 0.0
        self._messages = Messages()
        self._nap = _NAPS[0]
        self._connection: Connection | None = None
        self._stream: CopyStream | None = None
        self._replayed = False

    def open(self, place: Point, *, replays: bool = False) -> PostgresLog:
        """Starts the stream at the assembly's position, which is at `place`; `replays`: of a standby alone. Raises
        LogPositionLost or SourceUnavailable."""
        position = self._assembly.position
        self._replayed = self._lookups.recovering()  # before we ask for its timeline, which a promotion changes
        if replays and not self._replayed:
            raise standby.promotion_error(self._config)
        with session(self._config) as connection:
            # Before the stream: asked for a place before the confirmed one, the server would begin at that, without an
            # error.
            slots.slot_at(connection, self._config, position, self._line)
        connection = connect(self._config, replication=True, name=self._line.name)
        try:
            with translate_errors(self._config):
                # Over the connection that will stream: another one might lead to another server.
                self._assembly.timeline = timelines.compare(connection, self._config, place)
            self._start(connection, position)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return self

    def _start(self, connection: Connection, position: Lsn) -> None:
        with translate_errors(self._config):
            speaker: ReplicationCursor = connection.cursor(cursor_factory=ReplicationCursor)
            try:
                command = _start_command(self._config.slot, position, self._decoder.options())
                speaker.start_replication_expert(command, decode=False, status_interval=_NEVER)  # type: ignore[no-untyped-call]  # its stubs
            except psycopg2.errors.ObjectInUse as error:
                raise slots.active(self._config, None) from error
            except psycopg2.errors.ObjectNotInPrerequisiteState:
                with session(self._config) as other:  # it was invalidated a moment ago: that says why
                    slots.slot_at(other, self._config, position, self._line)
                raise
            self._feedback = SlotFeedback(speaker)
            self._stream = CopyStream(connection)

    def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        stream = self._open_stream()
        deadline = time.monotonic() + timeout
        first: float | None = None
        with translate_errors(self._config):
            while True:
                count_before = self._messages.count
                more = stream.receive(self._messages)
                arrived = self._messages.count - count_before
                now = time.monotonic()
                self._feedback.send_when_due(now, is_asked=stream.take_request())
                aged = first is not None and now - first >= linger
                if not self._decoder.feed(self._messages, aged=aged) or (more and self._assembly.ready):
                    return self._take(now)
                if not self._assembly.ready:
                    self._messages.clear()  # nothing of it is in the batch
                if not more:
                    # A keepalive's place counts once all that was sent before it is taken.
                    self._assembly.advance(Lsn(stream.wal_end))
                if self._assembly.ready:
                    first = now if first is None else first
                    ends = deadline if self._assembly.open is not None else min(deadline, first + linger)
                    if now >= ends:
                        return self._take(now)
                    if not more:
                        self._sleep(arrived, ends - now)
                elif self._is_position_due(now):
                    return self._take(now)
                elif now >= deadline:
                    return None
                elif not more:
                    select.select([self._feedback], [], [], min(deadline - now, FEEDBACK_SECONDS))

    def _sleep(self, arrived: int, longest: float) -> None:
        """Lets more arrive; the less has, the longer."""
        if arrived < _FEW:
            self._nap = min(2 * self._nap, _NAPS[1])
        elif arrived > _MANY:
            self._nap = max(self._nap / 2, _NAPS[0])
        time.sleep(min(self._nap, longest))

    def _open_stream(self) -> CopyStream:
        if self._stream is None:
            raise SourceUnavailable("the log is closed", where=f"source {self._config.name}", fix="open it again")
        return self._stream

    def _is_position_due(self, now: float) -> bool:
        """Whether the position alone is worth a batch: no captured row comes, and the log has moved on all the same."""
        return self._assembly.position > self._handed_position and now - self._last_batch >= _POSITION_SECONDS

    def _take(self, now: float) -> LogBatch:
        """Of a standby only what it has replayed as one: the log after a promotion is on another timeline, which begins
        once the server has ceased to say that it is in recovery."""
        if self._replayed and not self._lookups.recovering():
            raise standby.promotion_error(self._config)
        self._last_batch = now
        self._handed_position = self._assembly.position
        batch = self._decoder.take()
        self._messages.clear()
        return batch

    def acknowledge(self, position: str) -> None:
        with translate_errors(self._config):
            self._feedback.confirm(Point.parse(position).lsn)

    def close(self) -> None:
        self._decoder.close()
        self._lookups.close()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _start_command(slot: str, position: Lsn, options: dict[str, str]) -> str:
    """START_REPLICATION, whose grammar knows no E'' strings: quotes are doubled, backslashes stand for themselves."""
    listed = ", ".join(f"{_quote(name, chr(34))} {_quote(text, chr(39))}" for name, text in options.items())
    return f"START_REPLICATION SLOT {_quote(slot, chr(34))} LOGICAL {position} ({listed})"


def _quote(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote
