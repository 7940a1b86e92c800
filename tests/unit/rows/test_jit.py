"""Kernels are compiled once, and from then on found on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import importlib
from numba.core.dispatcher import Dispatcher
from dblog_core.rows.jit import MODULES
hits = misses = kernels = 0
for module in map(importlib.import_module, MODULES):
    for found in vars(module).values():
        if isinstance(found, Dispatcher) and found.__module__ == module.__name__ and found.signatures:
            kernels += 1
            hits += sum(found.stats.cache_hits.values())
            misses += sum(found.stats.cache_misses.values())
print(kernels, hits, misses)
"""


def count(**environment: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return [int(number) for number in done.stdout.split()]


@pytest.mark.thorough
def test_a_second_start_compiles_nothing() -> None:
    count()  # fills the cache, should this be a fresh checkout
    kernels, hits, misses = count()
    assert misses == 0
    assert kernels > 0 and hits >= kernels


def test_where_no_cache_can_be_written_kernels_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from numba.core import caching

    from dblog_core.rows import jit

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    kernel = jit.kernel(jit.int64, jit.int64)(twice)
    assert kernel(21) == 42
    assert "NUMBA_CACHE_DIR" in caplog.text


@pytest.mark.parametrize(("mode", "is_used"), [(0o755, True), (0o777, False), (0o1777, False)])
def test_a_cache_into_which_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: int, is_used: bool
) -> None:
    """What numba reads there is unpickled and executed."""
    from numba.core import config

    from dblog_core.rows import jit

    cache = tmp_path / "kernels"
    cache.mkdir()
    cache.chmod(mode)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    monkeypatch.setattr(config, "CACHE_DIR", str(cache))
    kernel = jit.kernel(jit.int64, jit.int64)(twice)
    assert kernel(21) == 42
    assert bool(list(cache.rglob("*.nbi"))) == is_used
    assert (f"others may write into {cache}" in caplog.text) != is_used


SHIPPED = """
import sys
import tempfile
from pathlib import Path

def refuse(*_, **__):
    raise PermissionError(13, "nobody may write here")

if "sealed" in sys.argv:
    tempfile.TemporaryFile = refuse
from numba.core import caching
if "sealed" in sys.argv:
    caching.IndexDataCacheFile.save = refuse
from dblog_core.rows import jit

def twice(number):
    return number * 2

kernel = jit.kernel(jit.int64, jit.int64)(twice)
assert kernel(21) == 42
print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


@pytest.mark.thorough
def test_kernels_of_an_image_are_found_where_nobody_may_write(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SHIPPED)
    classes = "dblog_core.rows.shipped_kernels.ShippedKernels,UserProvidedCacheLocator"

    def run(*arguments: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, script, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
                "NUMBA_CACHE_LOCATOR_CLASSES": classes,
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip(), done.stderr

    assert run() == ("0 1", "")
    assert run("sealed") == ("1 0", "")
    # Another version of the module than the one that was compiled: it still runs.
    script.write_text(SHIPPED + "# changed\n")
    printed, warned = run("sealed")
    assert printed.startswith("0 ") and "twice is compiled at every start" in warned


def twice(number: int) -> int:
    return number * 2
