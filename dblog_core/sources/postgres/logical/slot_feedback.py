"""What is said to the server about the slot: up to where the log is recorded, and that the capture lives.

psycopg2's own reader moves a replication cursor's flush position without being asked, when a keepalive arrives and
nothing newer than the last *explicit* flush was read. That would confirm log that our staging has not recorded, and a
restart could not tell it from a loss. So one cursor only speaks: it says exactly what was acknowledged. Speaking is a
few bytes into the socket; no answer is waited for.
"""

from __future__ import annotations

import time

from psycopg2.extras import ReplicationCursor

from dblog_core.sources.postgres.position import Lsn

FEEDBACK_SECONDS = 1.0
"""Between two signs of life."""


class SlotFeedback:
    """The side of the replication connection that speaks; it begins with nothing confirmed."""

    def __init__(self, speaker: ReplicationCursor) -> None:
        self._speaker = speaker
        self._confirmed = Lsn(0)
        self._last_sent = 0.0

    def fileno(self) -> int:
        """For `select`."""
        return int(self._speaker.fileno())  # type: ignore[no-untyped-call]  # its stubs

    def confirm(self, position: Lsn) -> None:
        """Says that all up to the position is recorded. It never moves back."""
        self._confirmed = max(self._confirmed, position)
        self._send()

    def send_when_due(self, now: float, *, is_asked: bool) -> None:
        """A sign of life, where the server asks for one or has had none for a while: it ends silent connections."""
        if is_asked or now - self._last_sent >= FEEDBACK_SECONDS:
            self._send()

    def _send(self) -> None:
        # Written as far as flushed, no further: a server that believes us up to date sends no keepalive, and then an
        # idle source's position would stand still.
        self._speaker.send_feedback(write_lsn=self._confirmed, flush_lsn=self._confirmed, force=True)  # type: ignore[no-untyped-call]  # its stubs
        self._last_sent = time.monotonic()
