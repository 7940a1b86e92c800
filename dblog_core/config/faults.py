"""A fault of a configuration: the place in the file, what is wrong there, and the fix.

No value of the file is ever repeated in a fault, so that a password in the wrong place stays where it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

Place = tuple[str | int, ...]


_OWN_TABLES: dict[Place, int] = {
    ("output",): 2,
    ("signals", "http"): 2,
    ("signals", "kafka"): 2,
    ("source", "keys"): 2,
    ("source", "columns"): 3,
    ("lake", "tables"): 3,
    ("spark", "conf"): 2,
}


NO_FILE = "names a file that does not exist"
"""Of a file that those alone need who have use for the section."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to repair. `place` is the path of keys in the file."""

    place: Place
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{show(self.place)}: {self.what}; {self.fix}"


def show(place: Place) -> str:
    """A place as it stands in the file: `[source.columns."shop.customers"] mask, entry 2`."""
    depth = next((n for table, n in _OWN_TABLES.items() if table == place[: len(table)]), 1)
    parts = [p for p in place if p != "[key]"]
    header = ".".join(_quote(p) for p in parts[:depth])
    entries = [_quote(p) if isinstance(p, str) else f"entry {p + 1}" for p in parts[depth:]]
    return f"[{header}] {', '.join(entries)}".rstrip()


def _quote(part: str | int) -> str:
    text = str(part)
    return text if text.replace("_", "").replace("-", "").isalnum() else json.dumps(text, ensure_ascii=False)
