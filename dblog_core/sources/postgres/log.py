"""The open log: reads the replication connection, lets the decoder fill batches, and confirms what was acknowledged.

psycopg2 moves a replication cursor's flush position by itself when a keepalive arrives and nothing newer than the last
*explicit* flush was read. That would confirm log that our staging has not recorded, and a restart could not tell it
from a loss. So two cursors share the connection: one reads and is never told of a flush (its own replies say "no
news"), the other one only speaks, and it says exactly what `acknowledge` was given.
"""

from __future__ import annotations

import select
import time
from typing import Protocol

import psycopg2.errors
from psycopg2.extras import ReplicationCursor

from dblog_core.config import SourceConfig
from dblog_core.events import LogBatch
from dblog_core.sources.postgres import slots
from dblog_core.sources.postgres.batch import Assembly
from dblog_core.sources.postgres.connection import Connection, connect, session, translated
from dblog_core.sources.postgres.position import Lsn

MAX_ROWS = 10_000
MAX_BYTES = 4 << 20
_LINGER = 0.01  # seconds from a batch's first message until it is handed on between transactions
_LINGER_INSIDE = 0.25  # and inside one, whose rest is on its way: small ones are handed on whole
_LONGEST = 0.05  # seconds that messages without a pause may gather between transactions
_IDLE = 1.0  # seconds between two batches that only move the position
_FEEDBACK = 1.0  # seconds between two signs of life
_NEVER = 2_000_000_000  # seconds: the reading cursor's own feedback


class Decoder(Protocol):
    """Turns a plugin's messages into what an Assembly collects."""

    plugin: str

    def options(self) -> dict[str, str]:
        """Options of START_REPLICATION."""

    def feed(self, message: bytes) -> None:
        """Takes one message. Raises UnknownLogEvent for anything that cannot be decoded without a guess."""


class PostgresLog:
    """The LogStream of a slot."""

    def __init__(self, config: SourceConfig, decoder: Decoder, assembly: Assembly) -> None:
        self._config = config
        self._decoder = decoder
        self._assembly = assembly
        self._confirmed = Lsn(0)
        self._handed = assembly.position
        self._last_batch = self._last_feedback = 0.0
        self._connection: Connection | None = None

    def open(self) -> PostgresLog:
        """Starts the stream at the assembly's position. Raises LogPositionLost or SourceUnavailable."""
        position = self._assembly.position
        with session(self._config) as connection:
            slots.slot_at(connection, self._config, position)
        connection = connect(self._config, replication=True)
        try:
            self._start(connection, position)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._confirmed = Lsn(0)
        return self

    def _start(self, connection: Connection, position: Lsn) -> None:
        with translated(self._config):
            self._reader: ReplicationCursor = connection.cursor(cursor_factory=ReplicationCursor)
            self._speaker: ReplicationCursor = connection.cursor(cursor_factory=ReplicationCursor)
            try:
                command = _start_command(self._config.slot, position, self._decoder.options())
                self._reader.start_replication_expert(command, decode=False, status_interval=_NEVER)  # type: ignore[no-untyped-call]  # its stubs
            except psycopg2.errors.ObjectInUse as error:
                raise slots.active(self._config, None) from error

    def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        deadline = time.monotonic() + timeout
        with translated(self._config):
            self._sign_of_life()
            first, size = 0.0, 0
            while True:
                message = self._reader.read_message()
                now = time.monotonic()
                if message is not None:
                    first = first or now
                    size += len(message.payload)
                    self._decoder.feed(message.payload)
                    if self._assembly.ready and self._full(size, now - first):
                        return self._take(now)
                    continue
                self._assembly.advance(Lsn(self._reader.wal_end))
                wait = self._wait(now, first, deadline)
                if wait <= 0:
                    return self._take(now) if self._due(now) else None
                self._sign_of_life()
                select.select([self._reader], [], [], min(wait, _FEEDBACK))

    def _full(self, size: int, age: float) -> bool:
        longest = _LONGEST if self._assembly.open is None else _LINGER_INSIDE
        return self._assembly.rows >= MAX_ROWS or size >= MAX_BYTES or age >= longest

    def _wait(self, now: float, first: float, deadline: float) -> float:
        """How long the socket may stay silent before `read` returns."""
        if self._assembly.ready:
            return first + (_LINGER if self._assembly.open is None else _LINGER_INSIDE) - now
        if self._due(now):
            return 0.0
        return deadline - now

    def _due(self, now: float) -> bool:
        """Whether there is a batch to hand on: changes, or a position that has moved on for a second."""
        return self._assembly.ready or (self._assembly.position > self._handed and now - self._last_batch >= _IDLE)

    def _take(self, now: float) -> LogBatch:
        self._last_batch = now
        self._handed = self._assembly.position
        return self._assembly.take()

    def acknowledge(self, position: str) -> None:
        self._confirmed = max(self._confirmed, Lsn.parse(position))
        with translated(self._config):
            self._speak()

    def _sign_of_life(self) -> None:
        if time.monotonic() - self._last_feedback >= _FEEDBACK:
            self._speak()

    def _speak(self) -> None:
        # Written as far as flushed, no further: a server that believes us up to date sends no keepalive, and then an
        # idle source's position would stand still.
        self._speaker.send_feedback(write_lsn=self._confirmed, flush_lsn=self._confirmed, force=True)  # type: ignore[no-untyped-call]  # its stubs
        self._last_feedback = time.monotonic()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _start_command(slot: str, position: Lsn, options: dict[str, str]) -> str:
    """START_REPLICATION, whose grammar knows no E'' strings: quotes are doubled, backslashes stand for themselves."""
    listed = ", ".join(f"{_quoted(name, chr(34))} {_quoted(text, chr(39))}" for name, text in options.items())
    return f"START_REPLICATION SLOT {_quoted(slot, chr(34))} LOGICAL {position} ({listed})"


def _quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote
