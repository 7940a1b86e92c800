"""A clock that no setting of the time moves and no suspended machine stops, and the identity of a process on it."""

from __future__ import annotations

import os
import time
from pathlib import Path


def boottime() -> float:
    """Seconds since this machine was started, the same for all its processes, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Names this run of the machine: readings of `boottime` compare within one only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_space() -> str:
    """Names the set of processes in which our pids have their meaning: containers on one machine have one each."""
    return str(Path("/proc/self/ns/pid").readlink())


def process_start(pid: int) -> int | None:
    """When the process was started, in ticks since boot; None if it is gone. Unique with the pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold anything, so count from its closing parenthesis (proc(5)).
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def own_process() -> tuple[int, int]:
    """Our pid and start."""
    pid = os.getpid()
    start = process_start(pid)
    assert start is not None, "a running process has a start"
    return pid, start
