"""How the source fares, looked at about once a second by all workers of a process together."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, Source, Strain

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # between two looks


@dataclass(frozen=True, slots=True)
class Reading:
    """One look: its number, and what the source suffered from; `strain` is None where it could not be asked."""

    number: int
    strain: Strain | None


class Gauge:
    """Readings of one source; threads share it, and only one of them asks the server at a time."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._asking = threading.Lock()
        self._last: Reading | None = None
        self._at = 0.0
        self._failing = False

    def read(self) -> Reading | None:
        """The newest reading, made now if the last is a second old; None while another makes the first one.

        A fault that may pass is a warning and a reading without strain; raises what does not pass.
        """
        if self._asking.acquire(blocking=False):
            try:
                if self._last is None or self._clock.monotonic() >= self._at + POLL_SECONDS:
                    self._last = Reading(self._last.number + 1 if self._last else 1, self._ask())
                    self._at = self._clock.monotonic()
            finally:
                self._asking.release()
        return self._last

    def _ask(self) -> Strain | None:
        try:
            strain = self._source.strain()
        except DblogError as error:
            if not error.transient:
                raise
            if not self._failing:  # once, not once a second
                log.warning("the source's load cannot be read: %s", error)
            self._failing = True
            return None
        self._failing = False
        return strain
