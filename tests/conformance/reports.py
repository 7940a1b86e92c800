"""What `status`, `check` and dumps say of single tables: a reason and a fix for exactly one table.

A text that only holds the table's name is no report of it: another table's name may be a part of it, and a warning may
speak of something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dblog_core.dumps.dump_records import TaskStatus
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Problem
from dblog_core.monitoring.gone_tables import GONE

_FIX = "fix: "


@dataclass(frozen=True, slots=True)
class Report:
    """`warns`: the table is captured all the same, so that a difference is no more expected than without it. `blocks`:
    while it stands, the table is not captured, or stands still. `recorded`: it is of the past, and stays there after
    its fix."""

    why: str
    fix: str
    warns: bool = False
    blocks: bool = False
    recorded: bool = False

    @classmethod
    def from_text(cls, text: str, *, blocks: bool = False, recorded: bool = False) -> Report:
        """From a text that ends with its fix."""
        why, _, fix = text.partition(_FIX)
        return cls(why.rstrip(" ;\n"), fix, blocks=blocks, recorded=recorded)

    @property
    def text(self) -> str:
        """As a person reads it."""
        return f"{self.why}\n  fix: {self.fix}"


Reports = dict[str, list[Report]]
"""By the table's name."""


def merge_reports(*parts: Reports) -> Reports:
    """All of them, in this order."""
    merged: Reports = {}
    for part in parts:
        for table, reports in part.items():
            merged.setdefault(table, []).extend(reports)
    return merged


def from_status(tables: Iterable[Mapping[str, Any]]) -> Reports:
    """Of the tables that `dblog status --json` shows as `stopped` or `incomplete`."""
    reports: Reports = {}
    for table in tables:
        if table["state"] == "ok":
            continue
        why = f"{table['state']}: {table['error'] or table['cause']}"
        read = Report.from_text(why, blocks=True)
        reports[table["table"]] = [Report(read.why, read.fix or str(table["fix"]), blocks=True)]
    return reports


def from_dumps(dumps: Iterable[DumpStatus]) -> Reports:
    """Of the tables whose newest dump has failed or was refused. `dumps`: the oldest first."""
    reports: Reports = {}
    for dump in dumps:
        for task in dump.tasks:
            _take_task(reports, task)
        for refused in dump.refused:
            reports[refused.table] = [Report(f"no dump: {refused.reason}", refused.fix, recorded=True)]
    return reports


def _take_task(reports: Reports, task: TaskStatus) -> None:
    if task.error is not None and not task.gone:
        reports[task.table] = [Report.from_text(f"its dump has failed: {task.error}", recorded=True)]
    elif task.is_whole:
        reports.pop(task.table, None)


def from_problems(problems: Iterable[Problem]) -> Reports:
    """Of what `dblog check` says of single tables. One that prevents their capture is fatal, and so is for its lake
    copy that a table is gone; all others are warnings."""
    reports: Reports = {}
    for problem in problems:
        if problem.table is not None:
            warns = not problem.fatal and GONE not in problem.what
            report = Report(problem.what, problem.fix, warns=warns, blocks=problem.fatal)
            reports.setdefault(problem.table, []).append(report)
    return reports
