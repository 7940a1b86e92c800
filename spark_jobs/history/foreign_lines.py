"""Other programs' commits to a history. Nothing of it is ever taken out, and no line is another one's, so that whatever
may have removed, replaced or added lines leaves a gap: the history begins again with the next merge (`dblog.after`).
"""

from __future__ import annotations

from dblog_core.lake.lake_status import TableStatus
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import foreign_commits, log


def find_gap(history: Location, status: TableStatus | None) -> str | None:
    """Why the history no longer has all lines that the table's last merge has left, in words; None where it has them,
    or nobody has recorded how it was left. Raises LakeError for a commit that cannot be read."""
    if status is None or not status.told or status.told_version is None:
        return None
    if (newest := log.version(history)) is None:
        return f"it is gone; a merge left version {status.told_version}"
    judged = foreign_commits.judge(
        history, after=status.told_version, commit=status.told_commit, newest=newest, merged=status.offset
    )
    if judged.damage is None and judged.has_rows:
        return "another program has added lines"
    return judged.damage


def look_at(history: Location) -> tuple[int | None, int | None]:
    """The history's newest version, and the CRC-32 of its commit; None: there is no history."""
    version = log.version(history)
    return version, None if version is None else log.commit_sum(history, version)
