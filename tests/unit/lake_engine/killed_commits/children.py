"""Processes that are killed: each works at a lake, and ends by SIGKILL at one of its writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

from tests.unit.lake_engine.killed_commits.kinds import BY_NAME
from tests.unit.lake_engine.killed_commits.storage_writes import Fault, Writes
from tests.unit.lake_engine.killed_commits.world import World
from tests.waiting import PATIENCE_SECONDS

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


def kill_process(world: World, fault: Fault) -> None:
    """A process of its own does the work of the world, and is killed."""
    child = _PROCESSES.Process(target=_work, args=(world.kind.name, world.path, fault))
    child.start()
    child.join(PATIENCE_SECONDS)
    assert child.exitcode == -signal.SIGKILL, f"it ended with {child.exitcode}"


def _work(kind: str, path: Path, fault: Fault) -> None:
    writes = Writes(fault, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with writes.count_writes():
        World(path, BY_NAME[kind]).work()
