"""What a sample says about the whole: the exact binomial bound of Clopper and Pearson, one-sided. Pure."""

from __future__ import annotations

import math

_STEPS = 100  # halvings: more than a float has digits


def at_most(differing: int, rows: int, confidence: float) -> float:
    """With this confidence the share of the whole that differs is at most the result (0 to 1).

    `found` of `rows` drawn rows differ. For none it is the rule of three, exactly: 1 - (1 - confidence)^(1/rows).
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
    """The probability of `found` or fewer among `rows`, each of which differs with probability `share`."""
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
