"""A table of a lake task: as it is now, and with what other programs have committed to it answered."""

from __future__ import annotations

from dataclasses import replace

from dblog_core.lake.lake_status import TableStatus
from dblog_core.lake_engine.merging.answered_commits import answer_commits
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tasks.context import Tools


def at_newest_version(status: TableStatus, lake: LakeTable) -> TableStatus:
    """The table's status with its newest version."""
    return _at(status, lake, lake.version())


def _at(status: TableStatus, lake: LakeTable, version: int | None) -> TableStatus:
    return replace(status, version=version, commit=None if version is None else log.commit_sum(lake.path, version))


def answer_others(tools: Tools, name: str, status: TableStatus, lake: LakeTable) -> TableStatus:
    """The table's status once other programs' commits are answered; a dump is requested of a table that they have
    damaged. Raises LakeError, and what the request of a dump raises."""
    merged = max(status.offset, status.begun or 0)
    answered = answer_commits(lake, after=status.version or 0, commit=status.commit, merged=merged)
    now = _at(status, lake, answered.version)
    if answered.damage is None:
        return now
    awaits = status.awaits
    if status.damage is None or awaits is None:
        assert tools.dumps is not None
        awaits = tools.dumps.submit(name, [])
        tools.step(f"requested {name}")
    damaged = replace(now, damage=answered.damage, damaged_at=merged, awaits=awaits)
    return damaged.with_applied_rows(tools.withheld.count(name))
