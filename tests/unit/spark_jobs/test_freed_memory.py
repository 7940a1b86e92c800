"""A merge that runs for weeks holds as much memory as its tables need, whatever it has merged before."""

from __future__ import annotations

import subprocess
import sys

_MERGES = """
import threading

import numpy as np
import psutil

from spark_jobs.entry_point import return_freed_memory

return_freed_memory()
kept = []


def merge():
    large = []
    for _ in range(12):
        large.append(np.ones(1 << 20))
        kept.append(np.ones(1 << 13))  # such as an entry of a cache: it lies behind the large one


def run(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


run(lambda: np.ones(30 << 17))
before = psutil.Process().memory_info().rss
for _ in range(3):
    run(merge)
print(psutil.Process().memory_info().rss - before - sum(array.nbytes for array in kept))
"""


def test_large_arrays_that_are_freed_go_back_to_the_system() -> None:
    """Arrays of 8 MiB, between small ones that stay, in threads that end."""
    ended = subprocess.run([sys.executable, "-c", _MERGES], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 32 << 20
