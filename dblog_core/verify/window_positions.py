"""Where the capture says that a verification's windows lie: read from the manifests, as they are published."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, StateStore
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Probed
from dblog_core.state.lease_holder import CAPTURE

_LOOK_SECONDS = 0.05  # between two looks for a segment
_PATIENCE_SECONDS = 60.0  # without any capture: long enough for a standby


class Interrupted(Exception):
    """The verification was asked to stop."""


class Patience:
    """With a capture that has gone: a standby may follow it."""

    def __init__(self, state: StateStore, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._seen_at: float | None = None

    def expect_capture(self) -> bool:
        """True. Raises DblogError once no capture has led for long enough, by looks that follow each other."""
        now = self._clock.monotonic()
        # A leader that comes back starts the time again.
        if self._seen_at is None or self._state.leader(CAPTURE) is not None:
            self._seen_at = now
        elif now - self._seen_at > _PATIENCE_SECONDS:
            raise no_capture_error()
        return True


class WindowPositions:
    """Follows the manifests from the newest one on. Thread-safe."""

    def __init__(self, staging: Staging, state: StateStore, clock: Clock, stop: threading.Event) -> None:
        self._staging = staging
        self._state = state
        self._clock = clock
        self._stop = stop
        # From the head on: our windows are opened later, so that no earlier manifest can hold them.
        self._segment = staging.head_number()
        self._place_by_window: dict[str, Probed] = {}
        self._lock = threading.Lock()

    def wait_for_positions(self, windows: Iterable[str]) -> dict[str, Probed]:
        """The place of every window, waiting for it. Raises Interrupted, and DblogError where no capture runs."""
        awaited = set(windows)
        patience = Patience(self._state, self._clock)
        while True:
            # The first look reads for all: each manifest is read once, and a window's place is kept until it is
            # asked for.
            with self._lock:
                self._read_on()
                if awaited <= self._place_by_window.keys():
                    return {window: self._place_by_window.pop(window) for window in awaited}
            patience.expect_capture()
            if self._clock.wait(self._stop, _LOOK_SECONDS):
                raise Interrupted

    def _read_on(self) -> None:
        for manifest in self._staging.manifests(self._segment):
            self._place_by_window.update((probed.window, probed) for probed in manifest.probes)
            self._segment = manifest.segment


def no_capture_error() -> DblogError:
    """The error where no capture reads the log."""
    return DblogError(
        "no capture is running, and only the log can say what a comparison has seen", fix="start `dblog capture`"
    )
