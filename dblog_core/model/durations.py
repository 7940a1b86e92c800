"""Lengths of time as people write them: 90s, 15m, 36h, 7d, 2w, or forever."""

from __future__ import annotations

import math
import re

FOREVER = ("forever", "never")
"""Words for no end: what is kept, and what never happens."""

PATTERN = r"^\s*(\d+\s*[smhdw]|forever|never)\s*$"
_FORM = re.compile(r"^(\d+)\s*([smhdw])$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse(text: str) -> float:
    """Seconds; infinity for forever and never. Raises ValueError where the text is no length of time; the text is not
    in the message."""
    if text.strip() in FOREVER:
        return math.inf
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError("is no length of time: a whole number with s, m, h, d or w, such as 36h, or forever")
    return float(int(match[1]) * _SECONDS[match[2]])


def text(seconds: float) -> str:
    """The largest whole unit: 7d, 36h."""
    if math.isinf(seconds):
        return FOREVER[0]
    whole = round(seconds)
    unit = next(u for u in ("d", "h", "m", "s") if whole % _SECONDS[u] == 0)
    return f"{whole // _SECONDS[unit]}{unit}"


def in_words(seconds: float) -> str:
    """A time in its two largest units."""
    whole = round(seconds)
    if whole < 1:
        return "< 1 s"
    for size, unit, small_size, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small_size} {small}"
    return f"{whole} s"
