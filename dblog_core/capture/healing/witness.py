"""A commit of the capture's own, which a server must have whose log was read past it.

A server that was put back from a backup, or a snapshot of its disk, and has written more log since may have other log
at our position, and nothing about that position shows it. So the capture commits a number into the watermark table now
and then, and a larger one each time. A manifest names the largest one that its position lies behind. A server that has
only a smaller one there is an older one (`Source.require_witness`).

What this does not see is a server that was put back to a state from after the newest number: a minute at most.
"""

from __future__ import annotations

from typing import Protocol

from dblog_core.interfaces import Clock, WrittenWitness

INTERVAL_SECONDS = 60.0


class WitnessSource(Protocol):
    """What a witness needs of `interfaces.Source`."""

    def write_witness(self, after: str) -> WrittenWitness | None: ...

    def has_reached(self, position: str, target: str) -> bool: ...


class Witness:
    """The newest one of a term. `write` is called by one thread, the rest by the capture's loop."""

    def __init__(self, source: WitnessSource, clock: Clock, staged: str = "") -> None:
        """`staged`: that of the newest manifest; empty: none, or the log after it is given up."""
        self._source = source
        self._clock = clock
        self._staged = staged
        self._written: WrittenWitness | None = None
        self._due = clock.monotonic()

    def write_when_due(self) -> None:
        """Commits another one, at most one an interval. Raises what the source raises."""
        now = self._clock.monotonic()
        if self._written is None and now >= self._due:
            self._due = now + INTERVAL_SECONDS
            self._written = self._source.write_witness(self._staged)

    def staged_at(self, position: str, *, is_whole: bool) -> str:
        """The newest one that lies before a manifest's position; empty: there is none. `is_whole`: the position lies
        between two transactions."""
        written = self._written
        if written is not None and is_whole and self._source.has_reached(position, written.position):
            self._staged = written.text
            self._written = None
        return self._staged
