"""A local Airflow ends when it is asked to, also where its scheduler loses the signal."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import psutil
import pytest

from dblog_core.local.servers.airflow import AirflowServer
from tests.waiting import wait_until

# Airflow loads this file at its start. A signal whose exception is raised within a destructor is lost: Python prints
# it and goes on. So it happens to the first one here.
_LOSES_THE_FIRST_SIGNAL = """
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

_exit = SchedulerJobRunner._exit_gracefully


class _Destroyed:
    def __init__(self, *arguments):
        self._arguments = arguments

    def __del__(self):
        SchedulerJobRunner._exit_gracefully = _exit
        _exit(*self._arguments)


def _lose(self, signum, frame):
    if SchedulerJobRunner._exit_gracefully is _exit:
        _exit(self, signum, frame)
    else:
        _Destroyed(self, signum, frame)


SchedulerJobRunner._exit_gracefully = _lose
"""

# Without an end, and started again whenever it ends, as a capture is.
_ENDLESS = """
from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag


@dag(schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1, is_paused_upon_creation=False)
def endless():
    BashOperator(task_id="run", bash_command="sleep 3600")


endless()
"""


@pytest.mark.in_turn
@pytest.mark.one_of(2)
def test_a_scheduler_that_loses_the_signal_is_asked_again(server_root: Path) -> None:
    root = server_root / "loses-a-signal"
    server = AirflowServer(root / "home", dags=root / "dags", configs=root / "configs")
    try:
        for directory in ("dags", "configs", "home/config"):
            (root / directory).mkdir(parents=True)
        (root / "dags" / "endless.py").write_text(_ENDLESS)
        (root / "home" / "config" / "airflow_local_settings.py").write_text(_LOSES_THE_FIRST_SIGNAL)
        server.start()
        wait_until(lambda: "sleep 3600" in _commands(server), "the endless task is at work")
        began = time.monotonic()
        server.stop()
        took = time.monotonic() - began
        log = (root / "home" / "scheduler" / "log").read_text()
        assert "Exception ignored in" in log and log.count("Exiting gracefully upon receiving signal") >= 2, log
        assert took < 115, log  # without it: all three steps of 40 s, and the scheduler is killed
        assert not _commands(server)
    finally:
        server.kill()
        shutil.rmtree(root, ignore_errors=True)


def _commands(server: AirflowServer) -> list[str]:
    """Of every process that belongs to an Airflow."""
    home = server.environment()["AIRFLOW_HOME"]
    processes = [process.info for process in psutil.process_iter(["cmdline", "environ"])]
    return [" ".join(p["cmdline"]) for p in processes if (p["environ"] or {}).get("AIRFLOW_HOME") == home]
