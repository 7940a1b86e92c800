"""Rows over time, as one process delivers them: what rates and costs per row are taken from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """So many rows in all had been delivered by then, at so many seconds of the process's own CPU time."""

    seconds: float
    cpu: float
    rows: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Points in the order of time."""

    points: tuple[Point, ...]

    @classmethod
    def of_batches(cls, batches: Iterable[tuple[float, float, int]]) -> Timeline:
        """From (seconds, CPU seconds, rows of the batch)."""
        rows = 0
        points = []
        for seconds, cpu, size in batches:
            rows += size
            points.append(Point(seconds, cpu, rows))
        return cls(tuple(points))

    @property
    def rows(self) -> int:
        return self.points[-1].rows if self.points else 0

    def warm(self, share: float) -> Timeline:
        """Without what came before that share of all rows: a JVM compiles while it runs."""
        return Timeline(tuple(p for p in self.points if p.rows >= self.rows * share))

    def rate(self) -> float:
        """Rows a second, from the first delivery to the last: what a start costs is not in it."""
        first, last = self._ends()
        return (last.rows - first.rows) / (last.seconds - first.seconds)

    def cpu_per_row(self) -> float:
        """Microseconds of CPU time of the process, between the same two."""
        first, last = self._ends()
        return (last.cpu - first.cpu) / (last.rows - first.rows) * 1e6

    def _ends(self) -> tuple[Point, Point]:
        assert len(self.points) > 1, "one delivery has no rate: measure more rows"
        return self.points[0], self.points[-1]
