"""Filters of a dump: conditions on columns, all of which a row must pass; values are typed here and bound by the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Filter:
    """`column op values`: op is =, <, <=, >, >= (one value) or in (one or more); values as `values.from_json` gives them."""

    column: str
    op: str
    values: tuple[Any, ...]
