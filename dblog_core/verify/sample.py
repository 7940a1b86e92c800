"""Samples: which rows are drawn, and what they say about the whole.

That is the exact binomial bound of Clopper and Pearson, one-sided.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dblog_core.interfaces import ChunkReader
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json

_STEPS = 100  # halvings: more than a float has digits


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many rows to draw (None: all are compared), as rows or as a share of the table, and the confidence."""

    rows: int | None = None
    share: float | None = None
    confidence: float = 0.99

    @property
    def is_sample(self) -> bool:
        return self.rows is not None or self.share is not None


def draw_keys(reader: ChunkReader, schema: TableSchema, size: SampleSize) -> list[Any]:
    """Keys (JSON) of the source: every n-th of the key's index, from a random one on, so each row is as likely."""
    rows = max(reader.estimated_rows(schema.table), 1)
    drawn_rows = size.rows if size.rows is not None else max(1, round(rows * (size.share or 0)))
    step = max(1, rows // max(drawn_rows, 1))
    # A fixed start would draw the same rows each time, and never those between.
    first = secrets.randbelow(step) + 1
    start = next(reader.boundaries(schema, after=None, upto=None, every=first), None)
    if start is None:
        return []
    more = reader.boundaries(schema, after=start, upto=None, every=step)
    return [key_to_json(start), *(key_to_json(key) for key in more)]


def differing_share(keys: Sequence[Any], unequal: Collection[str], confidence: float) -> float:
    """The largest share of the whole that differs, by drawn keys of which those differ whose `repr` is in `unequal`."""
    differing = sum(repr(key) in unequal for key in keys)
    return at_most(differing, len(keys), confidence) if keys else 1.0


def at_most(differing: int, rows: int, confidence: float) -> float:
    """With this confidence the share of the whole that differs is at most the result (0 to 1).

    `differing` of `rows` drawn rows differ. For none it is the rule of three, exactly: 1 - (1 - confidence)^(1/rows).
    Raises ValueError for a confidence outside 0 to 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
    if differing >= rows:
        return 1.0
    low = differing / rows
    high = 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _probability_of_at_most(differing, rows, middle) > 1 - confidence:
            low = middle  # so large a share would still show as few differences: the bound lies higher
        else:
            high = middle
    return high


def _probability_of_at_most(differing: int, rows: int, share: float) -> float:
    """The probability of `differing` or fewer among `rows`, each of which differs with probability `share`."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return 0.0
    logs = [
        math.lgamma(rows + 1)
        - math.lgamma(k + 1)
        - math.lgamma(rows - k + 1)
        + k * math.log(share)
        + (rows - k) * math.log1p(-share)
        for k in range(differing + 1)
    ]
    largest = max(logs)
    return math.exp(largest) * sum(math.exp(value - largest) for value in logs)
