"""What something costs as it grows: a fixed part and a slope, from some points, held against the largest one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST = 3  # sizes: with fewer a line says nothing of the largest


@dataclass(frozen=True, slots=True)
class Line:
    """fixed + slope × size."""

    fixed: float
    slope: float

    def at(self, size: float) -> float:
        return self.fixed + self.slope * size


@dataclass(frozen=True, slots=True)
class Axis:
    """One cost over one size: the rounds of each size. `what` and `size` name them, `unit` is the cost's; `beyond`: a
    size that was not measured."""

    name: str
    what: str
    unit: str
    size: str
    rounds: Mapping[int, Sequence[float]]
    beyond: int

    @property
    def points(self) -> dict[int, float]:
        """The median of each size, the smallest first."""
        return {size: statistics.median(self.rounds[size]) for size in sorted(self.rounds)}

    @property
    def largest(self) -> tuple[int, float]:
        """The held-out point."""
        return list(self.points.items())[-1]

    @property
    def model(self) -> Line:
        """From all points but the largest. Raises ValueError where they are too few."""
        return fit_line(dict(list(self.points.items())[:-1]))

    @property
    def error(self) -> float:
        """By how much of itself the largest point differs from what the others promise for it."""
        size, largest_value = self.largest
        return (self.model.at(size) - largest_value) / largest_value


def fit_line(points: Mapping[int, float]) -> Line:
    """The line that leaves the least squares, each in parts of its point: the small sizes count as the large ones."""
    if len(points) < LEAST - 1:
        raise ValueError(f"{len(points)} points tell no line")
    weights = {size: 1 / max(abs(value), 1e-9) ** 2 for size, value in points.items()}
    whole = sum(weights.values())
    middle = sum(weights[s] * s for s in points) / whole
    mean = sum(weights[s] * v for s, v in points.items()) / whole
    spread = sum(weights[s] * (s - middle) ** 2 for s in points)
    slope = sum(weights[s] * (s - middle) * (v - mean) for s, v in points.items()) / spread
    return Line(mean - slope * middle, slope)
