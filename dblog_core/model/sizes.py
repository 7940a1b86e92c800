"""Sizes as people write them: 500, 64K, 10G (of 1024 each)."""

from __future__ import annotations

import re

_FORM = re.compile(r"^(\d+)\s*([KMGT]?)B?$", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse(text: str) -> int:
    """Bytes. Raises ValueError where the text is no size; the text is not in the message."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError("is no size: a whole number, which may end in K, M, G or T, such as 10G")
    return int(match[1]) << _POWERS[match[2].upper()]


def text(size: int) -> str:
    """The size in the largest unit of which there are ten, as `parse` takes it but rounded: 512, 38K, 120M."""
    unit = next(u for u in ("T", "G", "M", "K", "") if size >= 10 << _POWERS[u] or not u)
    return f"{size / (1 << _POWERS[unit]):,.0f}{unit}"
