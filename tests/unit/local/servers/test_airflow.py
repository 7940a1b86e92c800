"""How what an Airflow has started is ended."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from dblog_core.local.servers import airflow


def test_a_process_that_ends_while_its_session_is_looked_for_keeps_no_other_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, brief = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
    session_of = os.getsid

    def end_brief(pid: int) -> int:
        session = session_of(pid)
        if pid == brief.pid:
            brief.kill()
            brief.wait()
            return leader.pid
        return session

    monkeypatch.setattr(os, "getsid", end_brief)
    monkeypatch.setattr(psutil, "pids", lambda: [brief.pid, leader.pid])
    airflow._kill_session(leader.pid)
    leader.wait()
    assert not psutil.pid_exists(leader.pid)
