"""How far the rounds of a continuous merge are apart: further where each commit writes large deletion vectors.

A commit writes the vectors of all files that it touches, whole. So the more dead rows many files have, the more bytes
a commit of a few rows is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BYTES_A_SECOND = 4 << 20
"""Of vectors, on average."""
LONGEST_SECONDS = 30.0
"""Between the beginnings of two rounds, however large the vectors are."""


class CommitPace:
    """Used by one thread."""

    def __init__(self, vector_bytes: Callable[[], int], now: Callable[[], float] = time.monotonic) -> None:
        """`vector_bytes`: of all vectors that were written so far; `now`: seconds."""
        self._vector_bytes = vector_bytes
        self._now = now
        self._began = now()
        self._before = vector_bytes()

    def is_due(self) -> bool:
        """Whether the vectors of the last round leave room for another one."""
        written = self._vector_bytes() - self._before
        return self._now() - self._began >= min(written / BYTES_A_SECOND, LONGEST_SECONDS)

    def begin(self) -> None:
        """A round begins now."""
        self._began = self._now()
        self._before = self._vector_bytes()
