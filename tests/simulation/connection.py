"""Connections to the simulated source: every call is a step; after a fault all calls fail."""

from __future__ import annotations

from dblog_core.errors import SourceUnavailable
from tests.simulation.scheduler import Simulation


def broken_connection() -> SourceUnavailable:
    return SourceUnavailable("the connection broke", where="the simulated source", fix="it is tried again")


class Connection:
    """Every call is a step; after a fault all calls fail."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._name = name
        self._broken = False

    def _fail(self) -> SourceUnavailable:
        self._broken = True
        return broken_connection()

    def _before(self, what: str) -> None:
        self._simulation.step(f"{self._name} {what}", self._fail)
        if self._broken:
            raise broken_connection()

    def _after(self, what: str) -> None:
        self._simulation.after(f"{self._name} {what}", self._fail)
