"""The page of what was measured: tables and a plot between two markers of docs/benchmarks.md, all from the results.

python -m tests.benchmarks.report        writes the page from the last results
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.benchmarks.results import DEBEZIUM, OURS, Bar, Figure, Results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".local" / "benchmarks.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOT = ROOT / "docs" / "images" / "benchmarks.svg"
BEGIN = "<!-- measured: written by `make bench` -->"
END = "<!-- end of what was measured -->"
LEAST = 0.03  # a smaller share of CPU time is not shown
SECTIONS = ("Log", "Dump", "Memory", "Latency", "Lake", "TPC-H", "Verify", "Source")


def write(results: Results) -> None:
    """Renders the page and its plot; a page with lines that are not among these results, but another machine's, is left
    alone."""
    figures = results.figures()
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    measured, separator, after = rest.partition(END)
    assert separator, f"{PAGE} has lost its markers"
    if not figures:
        return
    tables = body(figures, results.machine(), results.profiles())
    if lacking := _names_in(measured) - _names_in(tables):
        print(f"\n{PAGE} is left alone: {len(lacking)} of its lines were not measured here, such as {min(lacking)}")
        return
    plot(figures)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}")


def _names_in(tables: str) -> set[str]:
    """The first cells."""
    return {line.split(" | ")[0].removeprefix("| ") for line in tables.splitlines() if line.startswith("| ")}


def body(
    figures: list[Figure], machine: dict[str, object], profiles: dict[str, list[tuple[str, float]]] | None = None
) -> str:
    """What stands between the markers."""
    when = max(f.taken for f in figures)[:10]
    facts = (
        f"Measured on {when}: {machine['processors']} processors ({machine['model']}), {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}; clients and servers together."
    )
    smaller = sorted({f.scale for f in figures} - {"usual"})
    note = f" Scales other than the usual one in it: {', '.join(smaller)}." if smaller else ""
    parts = [facts + note, "![Rates beside Debezium and the servers' own tools](images/benchmarks.svg)"]
    for section in SECTIONS:
        lines = [_line(f) for f in figures if f.section == section]
        if lines:
            head = f"| what | dblog | {DEBEZIUM} | the server's own tool | bar | reached |\n|---|---|---|---|---|---|"
            parts.append(f"### {section}\n\n{head}\n" + "\n".join(lines))
    if profiles:
        parts.append(
            "### Where the CPU time goes\n\n| path | shares of the process's CPU time, by function |\n|---|---|"
        )
        parts[-1] += "".join(f"\n| {path} | {_shares(shares)} |" for path, shares in profiles.items())
    return "\n\n".join(parts)


def _shares(shares: list[tuple[str, float]]) -> str:
    return ", ".join(f"{share:.0%} `{place}`" for place, share in shares if share >= LEAST)


def plot(figures: list[Figure]) -> None:
    """Drawn by the environment of the peers, which has the library for it."""
    rates = [
        {"title": f.title, "medians": f.medians}
        for f in figures
        if f.unit == "rows/s" and {OURS, DEBEZIUM} <= set(f.medians)
    ]
    python = ROOT / ".venv-bench" / "bin" / "python"
    if rates and python.exists():
        PLOT.parent.mkdir(exist_ok=True)
        command = [python, Path(__file__).with_name("plot.py"), PLOT]
        subprocess.run(command, input=json.dumps(rates), text=True, check=True)


def _line(figure: Figure) -> str:
    medians = figure.medians
    tools = [f"{_number(v)} ({who})" for who, v in medians.items() if who not in (OURS, DEBEZIUM)]
    debezium = _number(medians[DEBEZIUM]) if DEBEZIUM in medians else ""
    bars = "; ".join(_bar(b, figure.unit) for b in figure.bars)
    reached = "; ".join(_describe_bar(b, medians) for b in figure.bars)
    name = f"{figure.title}, {figure.unit}"
    return f"| {name} | **{_number(medians[OURS])}** | {debezium} | {', '.join(tools)} | {bars} | {reached} |"


def _bar(bar: Bar, unit: str) -> str:
    side = "at most" if bar.at_most else "at least"
    return f"{side} {bar.value:g} {unit}" if bar.other is None else f"{side} {bar.value:.3g} × {bar.other}"


def _describe_bar(bar: Bar, medians: dict[str, float]) -> str:
    ratio = bar.of(medians)
    if ratio is None:
        return "not measured"
    verdict = "yes" if bar.is_reached(medians) else "no"
    return verdict if bar.other is None else f"{verdict}, {_number(ratio)} ×"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


if __name__ == "__main__":
    write(Results(RESULTS))
