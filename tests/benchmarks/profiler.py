"""Where a process spends its CPU time: threads are looked at every few milliseconds, and the CPU time that each has
used since the last look is booked on the place of our code where it is now.

Compiled kernels and libraries are booked on the line of ours that calls them. What no Python thread has used is that of
libraries' own threads (Arrow's pool).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY = 0.004  # seconds between two looks
PACKAGE = "dblog_core"
OTHER = "threads of libraries"


class Profiler:
    """Books CPU seconds on places while entered."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profiler", daemon=True)
        self._last: dict[int, float] = {}
        self._began = 0.0
        self.seconds: Counter[str] = Counter()

    def __enter__(self) -> Profiler:
        self._began = time.process_time()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        total = time.process_time() - self._began
        self._stop.set()
        self._thread.join()
        self.seconds[OTHER] = max(0.0, total - sum(self.seconds.values()))

    def shares(self, most: int) -> list[tuple[str, float]]:
        """The places that cost most, and their shares of all CPU time."""
        total = sum(self.seconds.values())
        return [(place, seconds / total) for place, seconds in self.seconds.most_common(most)]

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            for ident, frame in sys._current_frames().items():
                spent = self._cpu_spent(ident)
                place = "the profiler" if ident == threading.get_ident() else _place(frame)
                self.seconds[place] += spent

    def _cpu_spent(self, ident: int) -> float:
        """CPU seconds of the thread since the last look at it; none at the first."""
        try:
            now = time.clock_gettime(time.pthread_getcpuclockid(ident))
        except OSError:  # it has ended since
            return 0.0
        before = self._last.get(ident, now)
        self._last[ident] = now
        return max(0.0, now - before)


def _place(frame: FrameType | None) -> str:
    """The innermost function of ours, as module.function."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parts:
            parts = path.with_suffix("").parts
            module = ".".join(parts[len(parts) - parts[::-1].index(PACKAGE) :])
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside of ours"
