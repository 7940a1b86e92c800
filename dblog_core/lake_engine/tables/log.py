"""A Delta table's own log without a Spark job: what a merge has committed, and what commits were; and all that
`dblog_core.lake.table_commits` says of one."""

from __future__ import annotations

import bisect
import math
import zlib
from contextlib import suppress

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.files import TableFiles
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake.table_commits import (
    actions_of,
    commit_info,
    commit_numbers,
    commit_sum,
    is_ours,
    note_commit,
    read_actions,
    read_commit,
    version,
    version_from,
)
from dblog_core.storage.location import Location

__all__ = [
    "already_committed",
    "app_by_offset",
    "check_committed",
    "check_unused",
    "commit_sum",
    "find_newest_transaction",
    "is_ours",
    "metrics",
    "newest_before",
    "newest_transaction",
    "note_commit",
    "operation",
    "read_actions",
    "read_commit",
    "same_rows",
    "version",
    "version_from",
]


def newest_transaction(table: Location, app: str) -> int | None:
    """The newest transaction version that `app` has committed; None if the log names none."""
    newest = version(table)
    while newest is not None and newest >= 0 and (data := read_commit(table, newest)) is not None:
        for action in actions_of(table, newest, data):
            txn = action.get("txn")
            if txn is not None and txn["appId"] == app:
                return int(txn["version"])
        newest -= 1
    if newest is None or newest < 0:
        return None
    # Older commits were cleaned away. What they said stands in the checkpoint that made them superfluous.
    with suppress(TableRefused):
        return snapshot.newest(TableFiles.at(table)).txns.get(app)
    return None


def app_by_offset(app: str, adopted: int) -> str:
    """The name of transactions whose numbers are offsets: those of another staging are not to be compared. `adopted`:
    the merge with which the lake was taken over to its staging; 0: it never was."""
    return f"{app}:{adopted}" if adopted else app


def find_newest_transaction(table: Location, app: str) -> int | None:
    """As `newest_transaction`; None too where the log cannot be read: the merge of that table says so."""
    try:
        return newest_transaction(table, app)
    except (LakeError, StagingError) as error:
        if error.transient:
            raise
    return None


def operation(table: Location, number: int) -> str | None:
    """What commit `number` says that it was, such as OPTIMIZE; None where it is gone, or says nothing."""
    info = commit_info(table, number)
    return None if info is None else str(info.get("operation"))


def metrics(table: Location, number: int) -> tuple[str, dict[str, int]]:
    """What commit `number` was, and Delta's own counts of what it did; none where it is gone, or says nothing."""
    info = commit_info(table, number) or {}
    counts = (info.get("operationMetrics") or {}).items()
    return str(info.get("operation")), {name: int(value) for name, value in counts if str(value).isdigit()}


def newest_before(table: Location, moment: float) -> int | None:
    """The newest version from before `moment`, in seconds since the epoch, by what the commits say of their time. None:
    the log has no such commit."""
    commits = sorted(commit_numbers(table))

    def commit_time(number: int) -> float:
        stated = (commit_info(table, number) or {}).get("timestamp")
        return stated / 1000 if isinstance(stated, int) else math.inf  # one of unknown age counts as young

    place = bisect.bisect_left(commits, moment, key=commit_time)
    return commits[place - 1] if place else None


def _keeps_all(table: Location, number: int, data: bytes) -> bool:
    """Whether a commit changed neither rows nor shape, as OPTIMIZE and VACUUM do. One that cannot be read does not
    count: the merge of that table says so."""
    try:
        actions = actions_of(table, number, data)
    except LakeError:
        return False
    for action in actions:
        changed = action.get("add") or action.get("remove")
        if "metaData" in action or "protocol" in action or (changed and changed.get("dataChange", True)):
            return False
    return True


def same_rows(table: Location, number: int, checksum: int | None) -> tuple[int, int | None]:
    """The newest version that has the rows and the shape of version `number`, with the CRC-32 of its commit: a VACUUM
    leaves the newest ones alone. It is `number` itself where that commit no longer has this `checksum`."""
    first = number
    before = checksum
    while (data := read_commit(table, number + 1)) is not None and _keeps_all(table, number + 1, data):
        if number == first and before is not None and commit_sum(table, first) != before:
            break
        number += 1
        checksum = zlib.crc32(data)
    return number, checksum


def check_unused(table: Location, app: str, number: int) -> None:
    """Raises LakeError if a merge of that number, or a later one, has committed: Delta would skip ours silently."""
    newest = newest_transaction(table, app)
    if newest is not None and newest >= number:
        raise already_committed(table, number, newest)


def already_committed(table: Location, number: int, newest: int) -> LakeError:
    """The error of merge `number` where merge `newest` was the last to commit."""
    return _older_records_error(table, f"merge {number} would be left out: merge {newest} has committed here already")


def check_committed(table: Location, app: str, expected: int) -> None:
    """Raises LakeError unless the merge's commit is there: Delta skips a version at or below its own silently."""
    newest = newest_transaction(table, app)
    if newest != expected:
        raise _older_records_error(
            table, f"merge {expected} left no commit: the table says that merge {newest} was its last"
        )


def _older_records_error(table: Location, what: str) -> LakeError:
    return LakeError(
        what,
        where=str(table),
        fix="the lake's _dblog directory is older than its tables: restore it, or begin a new lake with a dump",
    )
