"""Plain text for stdout: aligned columns, times and durations, nothing that a pipe would choke on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence


def align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a header, columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    return "\n".join(map(line, (header, *rows)))


def moment(time: dt.datetime | None) -> str | None:
    """A time in UTC, ISO 8601 with microseconds."""
    return None if time is None else time.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
