"""Where the capture says that a verification's windows lie: read from the manifests, as they are published."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, StateStore
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Probed
from dblog_core.state.leases import CAPTURE

_LOOK = 0.05  # seconds between two looks for a segment
_PATIENCE = 60.0  # seconds without any capture: long enough for a standby


class Interrupted(Exception):
    """The verification was told to stop."""


class Patience:
    """With a capture that has gone: a standby may follow it."""

    def __init__(self, state: StateStore, clock: Clock) -> None:
        self._state, self._clock = state, clock
        self._seen_at: float | None = None

    def waits(self) -> bool:
        """True. Raises DblogError once no capture has led for long enough, by looks that follow each other."""
        now = self._clock.monotonic()
        if self._seen_at is None or self._state.leader(CAPTURE) is not None:
            self._seen_at = now
        elif now - self._seen_at > _PATIENCE:
            raise no_capture()
        return True


class Places:
    """Follows the manifests from the newest one on. Thread-safe."""

    def __init__(self, staging: Staging, state: StateStore, clock: Clock, stop: threading.Event) -> None:
        self._staging, self._state, self._clock, self._stop = staging, state, clock, stop
        self._segment = staging.head_number()
        self._known: dict[str, Probed] = {}
        self._lock = threading.Lock()

    def of(self, windows: Iterable[str]) -> dict[str, Probed]:
        """The place of every window, waiting for it. Raises Interrupted, and DblogError where no capture runs."""
        wanted = set(windows)
        patience = Patience(self._state, self._clock)
        while True:
            with self._lock:
                self._read_on()
                if wanted <= self._known.keys():
                    return {window: self._known.pop(window) for window in wanted}
            patience.waits()
            if self._clock.wait(self._stop, _LOOK):
                raise Interrupted

    def _read_on(self) -> None:
        for manifest in self._staging.manifests(self._segment):
            self._known.update((probed.window, probed) for probed in manifest.probes)
            self._segment = manifest.segment


def no_capture() -> DblogError:
    """What to say where nobody reads the log."""
    return DblogError(
        "no capture is running, and only the log can say what a comparison has seen", fix="start `dblog capture`"
    )
