"""What the demo's workload reports: a line a second, which another process reads."""

from __future__ import annotations

import json
import threading
from typing import Any

from dblog_core.local.demo.workload import Workload, WorkloadReport

REPORT = WorkloadReport(1_200, 4.0, 310.5, {"order": 1_000, "rollback": 200})


def test_a_report_comes_back_from_its_line_as_it_was() -> None:
    line = REPORT.to_line()
    assert line.endswith("\n") and line.count("\n") == 1
    assert json.loads(line) == {
        "transactions": 1_200,
        "seconds": 4.0,
        "rate": 310.5,
        "kinds": {"order": 1_000, "rollback": 200},
    }
    assert WorkloadReport.from_line(line) == REPORT
    assert REPORT.mean_rate == 300 and WorkloadReport().mean_rate == 0


def test_the_last_report_counts_what_all_clients_have_done() -> None:
    def refuse_connection() -> Any:
        raise AssertionError("nobody works: it is stopped before it begins")

    stop = threading.Event()
    stop.set()
    reports: list[WorkloadReport] = []
    workload = Workload(refuse_connection, "mysql", rows={"orders": 1, "customers": 1}, seed=1)
    for number, client in enumerate(workload._clients):
        client.done["order"] = number
        client.run = lambda *_, **__: None  # type: ignore[method-assign]
    workload.run(stop, rate=1.0, tell=reports.append)
    (last,) = reports
    assert (last.transactions, last.kinds, last.rate) == (6, {"order": 6}, 0.0)
