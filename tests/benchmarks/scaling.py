"""The tables of docs/scaling.md: measured points, the model of all points but the largest, and its error there.

python -m tests.benchmarks.scaling        writes the page from the last figures
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.model import Axis
from tests.benchmarks.results import NAMES as NAMES
from tests.benchmarks.results import machine

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scaling.md"
FIGURES = Path(__file__).with_name("scaling.json")
BEGIN = "<!-- measured: written by `make bench` -->"
END = "<!-- end of what was measured -->"
NOISE = 0.05
FAR = 100
SIZES = ("sources", "tables", "transactions a second", "rows", "rows of the table")


class Page:
    """Figures of a run beside those of earlier ones; a new one replaces that of its name."""

    def __init__(self, scale: str, figures: Path = FIGURES) -> None:
        self._scale = scale
        self._file = figures.with_stem(f"{figures.stem}-quick") if scale == "quick" else figures

    def add(self, axis: Axis) -> None:
        """Keeps a figure, and prints what the model makes of it."""
        taken_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        record = asdict(axis) | {"scale": self._scale, "taken": taken_at, "machine": machine()}
        axes = {**self.read().get("axes", {}), axis.name: record}
        self._file.write_text(json.dumps({"axes": axes}, indent=1) + "\n")
        print(f"\n{row(axis)}")

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def write(self) -> None:
        """Renders the page, but not from a quick look."""
        if self._scale != "quick" and (page_record := self.read()):
            before, _, rest = PAGE.read_text().partition(BEGIN)
            _, marker, after = rest.partition(END)
            assert marker, f"{PAGE} has lost its markers"
            PAGE.write_text(f"{before}{BEGIN}\n\n{body(page_record)}\n\n{END}{after}")


def axis_of(record: dict[str, Any]) -> Axis:
    rounds = {int(size): rounds for size, rounds in record["rounds"].items()}
    return Axis(record["name"], record["what"], record["unit"], record["size"], rounds, record["beyond"])


def body(figures: dict[str, Any]) -> str:
    """What stands between the markers."""
    axes = [axis_of(axis_record) for axis_record in figures["axes"].values()]
    machines = dict[str, list[dict[str, Any]]]()
    for axis_record in figures["axes"].values():
        facts = axis_record["machine"]
        where = f"{facts['processors']} processors ({facts['model']}), {facts['memory_gib']} GiB, {facts['system']}"
        machines.setdefault(f"{where}, Python {facts['python']}", []).append(axis_record)
    parts = [
        "Clients and servers together, and others on the machine.",
        "\n".join(_describe_measurement(*where_and_records) for where_and_records in machines.items()),
    ]
    head = "| what | measured | model | at the largest | modelled beyond |\n|---|---|---|---|---|"
    lines = {size: [row(axis) for axis in axes if axis.size == size] for size in SIZES}
    parts += [f"### By {size}\n\n{head}\n" + "\n".join(size_lines) for size, size_lines in lines.items() if size_lines]
    return "\n\n".join(parts)


def _describe_measurement(where: str, records: list[dict[str, Any]]) -> str:
    """What was measured on a machine, and when."""
    last = max(records, key=lambda record_of_size: str(record_of_size["taken"]))
    sizes = ", ".join(size for size in SIZES if any(record_of_size["size"] == size for record_of_size in records))
    return f"- {last['taken'][:10]}, {where} (load {last['machine']['load']} at the last figure): by {sizes}."


def row(axis: Axis) -> str:
    """A line of the table."""
    points = ", ".join(f"{size:,}: {number(value)}" for size, value in axis.points.items())
    line = axis.model
    (size, largest) = axis.largest
    per = 1 if axis.beyond <= 10_000 else 1_000_000
    of = axis.size if per == 1 else f"million {axis.size}"
    if (line.slope < 0 and abs(axis.error) < 0.25) or level(axis):
        return f"| {axis.what}, {axis.unit} | {points} | does not grow | {number(largest)} measured | |"
    model = f"{number(line.fixed)} + {number(line.slope * per)} × {of}"
    prediction = f"{number(line.at(size))} predicted, {number(largest)} measured ({round(axis.error, 2) + 0.0:+.0%})"
    beyond = f"{axis.beyond:,}: {number(line.at(axis.beyond))}"
    return f"| {axis.what}, {axis.unit} | {points} | {model} | {prediction} | {beyond} |"


def level(axis: Axis) -> bool:
    """Whether it moves within noise, and the model goes so far beyond what was measured that noise would count."""
    points = list(axis.points.values())
    return max(points) <= (1 + NOISE) * min(points) and axis.beyond >= FAR * axis.largest[0]


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


if __name__ == "__main__":
    Page("usual").write()
