"""What the engine asks of time, and of what runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading


class Clock(Protocol):
    """Time and sleep, so that tests can draw them."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits until the event is set, `seconds` at most; whether it is set."""


class Running(Protocol):
    """Something that continues beside its starter, such as a thread."""

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end, `timeout` seconds at most."""


Spawn = Callable[[str, Callable[[], None]], Running]
"""Starts a function beside the caller, under a name: in a thread, or as a simulation runs it."""
