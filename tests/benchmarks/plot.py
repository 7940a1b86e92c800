"""Draws rates as bars: of ours, Debezium and the servers' own tools. Run by the Python of `.venv-bench`.

Reads a JSON list of {"title", "medians": {who: rows a second}} from its input; the picture's file is its argument.
"""

from __future__ import annotations

import json
import sys

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "dblog"  # the same figures give the same file
mpl.rcParams["svg.fonttype"] = "none"

from matplotlib import pyplot  # noqa: E402 - after the choice of what draws

COLOURS = {"dblog": "#1f6f8b", "Debezium": "#c8553d"}
HEIGHT = 0.26  # of one bar


def main() -> None:
    figures = json.load(sys.stdin)
    drawing, axes = pyplot.subplots(figsize=(9, 0.75 * len(figures) + 1))
    seen: set[str] = set()
    for place, figure in enumerate(figures):
        for number, (who, rate) in enumerate(figure["medians"].items()):
            label = who if who in COLOURS else "the server's own tool"
            colour = COLOURS.get(who, "#9aa5ab")
            y = place + (number - 1) * HEIGHT
            axes.barh(y, rate, HEIGHT * 0.92, color=colour, label=None if label in seen else label)
            axes.text(rate * 1.04, y, f"{rate:,.0f}", va="center", fontsize=7, color="#444")
            seen.add(label)
    axes.set_yticks(range(len(figures)), [f["title"] for f in figures], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("rows a second, medians, log scale", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    drawing.savefig(sys.argv[1], bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
