"""A merge that runs for weeks holds as much memory as its tables need, whatever it has merged before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dblog_core.lake_engine import lake_job
from dblog_core.lake_engine.lake_job import Caller

_MERGES = """
import threading

import numpy as np
import psutil

from dblog_core.lake_engine.lake_job import return_freed_memory

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


@pytest.mark.thorough
def test_large_arrays_that_are_freed_go_back_to_the_system() -> None:
    """Arrays of 8 MiB, between small ones that stay, in threads that end."""
    ended = subprocess.run([sys.executable, "-c", _MERGES], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 32 << 20


def test_a_job_has_asked_for_it_before_it_does_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(lake_job, "return_freed_memory", lambda: asked.append("asked"))
    config: Any = None
    with pytest.raises(AttributeError), lake_job.open_lake_job(config, "merge", Caller(Event(), print), wait_seconds=0):
        pytest.fail("there is no configuration")
    assert asked == ["asked"]
