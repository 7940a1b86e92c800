"""One step that continues beside its starter: a worker stages a chunk while it reads the next.

There is never more than one. Its fault is raised where its starter looks for it, begins the next, or awaits its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dblog_core.interfaces import Running, Spawn

log = logging.getLogger(__name__)


class BackgroundStep:
    """Steps of one worker, each begun when the previous one is over; for one thread."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._running: Running | None = None
        self._fault: BaseException | None = None

    def begin(self, name: str, step: Callable[[], None]) -> None:
        """Starts the step as soon as the previous one is over. Raises the fault of that one, and then starts
        nothing.
        """
        self.wait()
        self._running = self._spawn(name, lambda: self._run(step))

    def wait(self) -> None:
        """Waits for the end of the step that continues. Raises its fault."""
        self._join()
        self.raise_fault()

    def raise_fault(self) -> None:
        """Raises the fault of a step that has ended by one."""
        fault = self._fault
        self._fault = None
        if fault is not None:
            raise fault

    def abandon(self, why: BaseException) -> None:
        """Waits for the end of the step that continues, where `why` ends the worker's attempt in any case."""
        self._join()
        if self._fault is not None and self._fault is not why:
            log.warning("beside that: %s", self._fault)
        self._fault = None

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as fault:  # noqa: BLE001 - whatever it is, the starter raises it
            self._fault = fault

    def _join(self) -> None:
        if self._running is not None:
            self._running.join()
            self._running = None
