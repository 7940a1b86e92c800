"""How far the rounds of a continuous merge are apart: further where each commit writes much beside the new rows.

A commit writes the vectors of all files that it touches, whole; where a table takes no vectors, it writes these files
again. So the more dead rows many files have, or the larger the files are, the more bytes a commit of a few rows is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BYTES_A_SECOND = 4 << 20
"""Of vectors and copies of files, on average."""
LONGEST_SECONDS = 30.0
"""Between the beginnings of two rounds, however much is written."""


class CommitPace:
    """Used by one thread."""

    def __init__(self, rewritten_bytes: Callable[[], int], now: Callable[[], float] = time.monotonic) -> None:
        """`rewritten_bytes`: of all vectors and copies that were written so far; `now`: seconds."""
        self._rewritten_bytes = rewritten_bytes
        self._now = now
        self._began = now()
        self._before = rewritten_bytes()

    def is_due(self) -> bool:
        """Whether what the last round has written leaves room for another one."""
        written = self._rewritten_bytes() - self._before
        return self._now() - self._began >= min(written / BYTES_A_SECOND, LONGEST_SECONDS)

    def begin(self) -> None:
        """A round begins now."""
        self._began = self._now()
        self._before = self._rewritten_bytes()
