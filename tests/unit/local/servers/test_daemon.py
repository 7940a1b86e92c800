"""A server's process, which may end at any moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from dblog_core.local.servers import guard
from dblog_core.local.servers.daemon import Daemon


def test_one_that_ends_between_two_looks_leaves_no_zombie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon("sleeper", tmp_path)
    command = "trap '' TERM; echo deaf; exec sleep 60"  # so that it ends when it is told here, and never before
    daemon.start(["sh", "-c", command], ready=lambda: "deaf" in daemon.log_end())
    pid = daemon.pid
    assert pid is not None
    find = guard.find
    looks = list[int]()

    def ended_since(number: int, created: float) -> psutil.Process | None:
        looks.append(number)
        if len(looks) > 1:  # the signal is sent
            os.kill(number, signal.SIGKILL)
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
        return find(number, created)

    monkeypatch.setattr(guard, "find", ended_since)
    daemon.stop()
    assert looks == [pid, pid] and not psutil.pid_exists(pid)
