"""A capture and its workers that are asked to end while they start: at any moment they end in order."""

from __future__ import annotations

import signal
import time

import pytest

from tests.integration.cli_world import Commands, config, dblog, tables
from tests.unit.commands.test_early_signals import catches
from tests.waiting import wait_until

__all__ = ["config", "dblog", "tables"]

DELAYS = (0.0, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.5)


@pytest.mark.one_of(3)
@pytest.mark.in_turn("source_kind")
@pytest.mark.parametrize("command", [["capture"], ["work"], ["status", "--watch"]])
def test_a_signal_at_any_moment_of_the_start_ends_a_command_with_0(dblog: Commands, command: list[str]) -> None:
    for delay in DELAYS:
        process = dblog.start(*command)
        wait_until(lambda pid=process.pid: catches(pid, signal.SIGTERM), "the signals are held")
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        done = dblog.end(process)
        assert done.returncode == 0, f"after {delay} s: {done.stderr}"
