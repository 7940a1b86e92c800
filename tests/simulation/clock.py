"""The drawn clock behind `interfaces.Clock`."""

from __future__ import annotations

from typing import Any

from tests.simulation.scheduler import EPOCH, Signal, Simulation


class SimClock:
    """`interfaces.Clock` on the drawn clock."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def monotonic(self) -> float:
        return self._simulation.now

    def time(self) -> float:
        return EPOCH + self._simulation.now

    def sleep(self, seconds: float) -> None:
        self._simulation.wait(seconds)

    def wait(self, event: Any, seconds: float) -> bool:
        """A real event has nobody to set it while we wait: it is looked at again and again."""
        if isinstance(event, Signal):
            return event.wait(seconds)
        ends = self._simulation.now + seconds
        while not event.is_set() and self._simulation.now < ends:
            self._simulation.wait(min(0.2, ends - self._simulation.now))
        return bool(event.is_set())
