"""Files that other processes write to while a test reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def whole_lines(file: Path) -> list[str]:
    """The lines of a file, none where there is none yet. What a writer has begun at its end is no line yet: a long one
    comes page by page."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file that has one a line."""
    return [json.loads(line) for line in whole_lines(file)]


def files_below(directory: Path) -> Iterator[Path]:
    """All files below a directory. One of its directories may go meanwhile, for which `Path.rglob` would fail."""
    for place, _, names in os.walk(directory):
        yield from (Path(place, name) for name in names)
