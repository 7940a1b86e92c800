"""Prints where the time of the last run of the tests went: by directory, file and fixture, and its slowest tests.

python -m tests.times [FILE] [--slowest N]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fix_times import FILE

ROOT = Path(__file__).parents[1]


@dataclass(slots=True)
class Spent:
    """Seconds of a group of tests."""

    tests: set[str] = field(default_factory=set)
    setup: float = 0.0
    call: float = 0.0
    teardown: float = 0.0

    @property
    def total(self) -> float:
        return self.setup + self.call + self.teardown

    def add(self, line: dict[str, Any]) -> None:
        """`line`: one report of the run's file."""
        self.tests.add(line["test"])
        setattr(self, line["when"], getattr(self, line["when"]) + line["seconds"])


def sum_times(lines: Iterable[dict[str, Any]], group: Callable[[str], str]) -> dict[str, Spent]:
    """The seconds of each group that `group` makes of the tests' ids, the longest first."""
    groups: dict[str, Spent] = defaultdict(Spent)
    for line in lines:
        groups[group(line["test"])].add(line)
    return dict(sorted(groups.items(), key=lambda item: -item[1].total))


def fixtures(lines: Iterable[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """How often each fixture was set up, and the seconds of it, the longest first."""
    counts: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for line in lines:
        for name, value in line["fixtures"].items():
            counts[name] += 1
            seconds[name] += value
    return {name: (counts[name], seconds[name]) for name in sorted(seconds, key=lambda name: -seconds[name])}


def report(machine: dict[str, Any], lines: list[dict[str, Any]], slowest: int) -> str:
    """The whole report, as Markdown."""
    whole_minutes = max(line["at"] for line in lines) / 60
    load = statistics.median(line["load"] for line in lines)
    return "\n".join(
        (
            f"{machine['began']}, commit {machine['commit']}: {whole_minutes:.1f} minutes; {machine['cores']} cores, "
            f"{machine['memory_gib']} GiB; load {machine['load']:.1f} before, {load:.1f} in the median",
            *_table("directory", sum_times(lines, lambda test: test.partition("::")[0].rpartition("/")[0]), 1.0),
            *_table("file", sum_times(lines, lambda test: test.partition("::")[0]), 5.0),
            "",
            "| fixture | set up | seconds |",
            "|---|---:|---:|",
            *(f"| `{name}` | {count} | {s:.1f} |" for name, (count, s) in fixtures(lines).items() if s >= 1),
            *_table(
                f"the {slowest} slowest tests", dict(list(sum_times(lines, lambda test: test).items())[:slowest]), 0.0
            ),
        )
    )


def _table(title: str, groups: dict[str, Spent], least_seconds: float) -> list[str]:
    rows = [
        f"| `{name}` | {len(g.tests)} | {g.setup:.1f} | {g.call:.1f} | {g.teardown:.1f} | {g.total:.1f} |"
        for name, g in groups.items()
        if g.total >= least_seconds
    ]
    return ["", f"| {title} | tests | set-up | call | teardown | seconds |", "|---|---:|---:|---:|---:|---:|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / FILE)
    parser.add_argument("--slowest", type=int, default=50)
    options = parser.parse_args()
    machine, *lines = [json.loads(line) for line in options.file.read_text().splitlines()]
    print(report(machine, lines, options.slowest))


if __name__ == "__main__":
    main()
