"""Dumps that are so large that somebody has to approve them."""

from __future__ import annotations

from tests.fix_airflow import DUMP, Live
from tests.waiting import wait_until


def large_dump(live: Live) -> str:
    """The run of a dump that waits for somebody's approval, and takes an answer."""
    live.capturing()
    run = live.client.trigger(DUMP, {"tables": [live.table("orders")], "pks": list(range(1, 2001))})
    wait_until(
        lambda: live.task_states(DUMP, run).get("approve") == {"awaiting_input"},
        "the run waits for an approval",
        describe=lambda: live.task_states(DUMP, run),
    )
    # Airflow takes an answer that comes before it has noticed the asking process's end for a failure, and asks again.
    wait_until(lambda: _has_ended(live, run), "the asking process has ended")
    assert live.dump_of(run) is None, "nothing is requested yet"
    return run


def _has_ended(live: Live, run: str) -> bool:
    """Whether the scheduler has taken note of the end of the run's first process."""
    return any("Received executor event" in line and run in line for line in live.scheduler_log())
