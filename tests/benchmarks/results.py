"""What was measured: figures with all their rounds, kept in one JSON file, a figure at a time."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

OURS = "dblog"
DEBEZIUM = "Debezium"
NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL"}


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach: so many times `other`, or (without other) the number itself.

    `at_most`: less is better, and the value is an upper limit.
    """

    value: float
    other: str | None = None
    at_most: bool = False

    def of(self, medians: Mapping[str, float]) -> float | None:
        """What is compared with the value; None where the other has not been measured."""
        if self.other is None:
            return medians[OURS]
        return medians[OURS] / medians[self.other] if self.other in medians else None

    def is_reached(self, medians: Mapping[str, float]) -> bool | None:
        value = self.of(medians)
        if value is None:
            return None
        return value <= self.value if self.at_most else value >= self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the tables: for each who was measured the rounds, in `unit`."""

    name: str
    section: str
    title: str
    unit: str
    series: dict[str, list[float]]
    bars: tuple[Bar, ...] = ()
    scale: str = "usual"
    taken: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))

    @property
    def medians(self) -> dict[str, float]:
        return {who: statistics.median(rounds) for who, rounds in self.series.items() if rounds}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Figure:
        return cls(**{**data, "bars": tuple(Bar(**b) for b in data["bars"])})


class Results:
    """The file of all figures; a new one replaces that of its name."""

    def __init__(self, file: Path, *, scale: str = "usual") -> None:
        self._file = file
        self._scale = scale

    def add(self, figure: Figure) -> None:
        """Keeps a figure and prints its medians."""
        figure = replace(figure, scale=self._scale)
        print(f"\n{figure.title}, {figure.unit}: {figure.medians}")
        figures_by_name = {f.name: f for f in self.figures()} | {figure.name: figure}
        self._write([asdict(f) for f in figures_by_name.values()], self.profiles())

    def add_profile(self, path: str, shares: Sequence[tuple[str, float]]) -> None:
        """Keeps where the CPU time of a path goes: places and shares."""
        profiles = {**self.profiles(), path: [list(s) for s in shares]}
        self._write([asdict(f) for f in self.figures()], profiles)

    def profiles(self) -> dict[str, list[tuple[str, float]]]:
        return dict(self._read().get("profiles", {}))

    def _write(self, figures: list[dict[str, Any]], profiles: Mapping[str, Any]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"machine": machine(), "figures": figures, "profiles": profiles}, indent=1))
        part.rename(self._file)

    def figures(self) -> list[Figure]:
        return [Figure.from_json(f) for f in self._read().get("figures", [])]

    def machine(self) -> dict[str, Any]:
        return dict(self._read().get("machine", {}))

    def find(self, name: str) -> Figure | None:
        return next((f for f in self.figures() if f.name == name), None)

    def with_debezium_of(self, figure: Figure, name: str) -> Figure:
        """The figure with Debezium's rounds of another one, where that has been measured."""
        other = self.find(name)
        rounds = {DEBEZIUM: other.series[DEBEZIUM]} if other is not None and DEBEZIUM in other.series else {}
        return replace(figure, series={**figure.series, **rounds})

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}


def machine() -> dict[str, Any]:
    """What the figures depend on beside the code."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    return {
        "processors": psutil.cpu_count(),
        "model": model or platform.machine(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def _lines(file: str) -> list[str]:
    path = Path(file)
    return path.read_text().splitlines() if path.exists() else []
