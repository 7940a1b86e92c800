"""Ends servers whose starter has died, by whatever way: no `kill -9` of a test run leaves anything behind.

The guard is a small process of its own. It reads `PID CREATED` lines from a pipe that only the starter writes to; when
the pipe ends, the starter is gone, and what still runs is killed.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
import time
from collections.abc import Iterable

import psutil

_lock = threading.Lock()
_guard: subprocess.Popen[str] | None = None


def watch(pid: int, created: float) -> None:
    """From now on the process and its children do not outlive us."""
    global _guard  # noqa: PLW0603  # one guard for the whole process, whoever starts servers in it
    with _lock:
        if _guard is None or _guard.poll() is not None:
            command = [sys.executable, "-m", "dblog_core.local.servers.guard"]
            _guard = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True)
            atexit.register(_end, _guard)
        assert _guard.stdin is not None
        _guard.stdin.write(f"{pid} {created}\n")


def _end(guard: subprocess.Popen[str]) -> None:
    """What still runs when we end in order is killed before we are gone."""
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def kill_tree(process: psutil.Process) -> None:
    """SIGKILL for a process and all below it, at once; returns when they are gone."""
    try:
        # Before the kill: afterwards children have another parent.
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue  # it ended by itself in between
    # Whoever starts the server anew must find its port and its files free.
    while any(runs(member) for member in family):
        time.sleep(0.01)


def runs(process: psutil.Process) -> bool:
    """A zombie has ended: it only waits for its parent, which may be a slow init, to take notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find(pid: int, created: float) -> psutil.Process | None:
    """The process, unless it has ended (its number may then belong to another)."""
    try:
        process = psutil.Process(pid)
        # psutil computes the time from the boot time, which a clock that is set moves a little.
        same = abs(process.create_time() - created) < 1
    except psutil.NoSuchProcess:
        return None
    return process if same and runs(process) else None


def _main(lines: Iterable[str]) -> None:
    # It ends when the pipe does: when the starter has died.
    watched = [line.split() for line in lines]
    for pid, created in watched:
        if process := find(int(pid), float(created)):
            kill_tree(process)


if __name__ == "__main__":
    _main(sys.stdin)
