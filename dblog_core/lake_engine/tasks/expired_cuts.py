"""Forgets cuts that are older than they are kept, and joins the files of those that stay: one came with each merge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.stored_rows import living_rows
from dblog_core.delta_writer.upserting.upsert import remove_rows
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.tables import checkpoints, log, log_cleanup, unneeded_files
from dblog_core.storage.location import Location

_READ_SECONDS = 3600.0  # for readers of the table of cuts at this moment


@dataclass(frozen=True, slots=True)
class Kept:
    """The oldest cut that is kept, and when its merge ended (seconds UTC); how many were removed. `number` 0: none."""

    number: int
    merged_at: float
    removed: int


def drop(path: Location, *, before: float, now: float, check: Callable[[], None] = lambda: None) -> Kept:
    """Removes cuts that no moment since `before` (seconds UTC) is read at: the newest of the older ones stays. Log and
    files of the table of cuts that no reader needs go as well: each merge adds some.

    Raises LakeError.
    """
    if log.version(path) is None:
        return Kept(0, math.inf, 0)
    table = OpenTable(path, ["cut"], order="cut", mark=COMMIT_MARK, check=check, committed=checkpoints.follow_commit)
    try:
        cuts = _read(table)
        if not cuts:
            return Kept(0, math.inf, 0)
        first = max(0, sum(merged_at <= before for _, merged_at in cuts) - 1)
        number, merged_at = cuts[first]
        if first:
            remove_rows(table, "dblog:expired-cuts", number, below=number)
        while join_files(table):
            check()
        _clean(path, table, now - _READ_SECONDS, check)
        return Kept(number, merged_at, first)
    except (LakeError, StagingError) as error:
        raise LakeError(
            f"old cuts cannot be removed: {error.reason}", where=str(path), fix="maintain the lake again"
        ) from error


def _read(table: OpenTable) -> list[tuple[int, float]]:
    """The numbers of all cuts, in order, and when the merge of each ended."""
    shape = table.refresh()
    parts = [
        part
        for live in table.snapshot.files.values()
        for part in living_rows(table.files, live, shape, ["cut", "merged_at"])
    ]
    return sorted((row["cut"], row["merged_at"].timestamp()) for part in parts for row in part.to_pylist())


def _clean(path: Location, table: OpenTable, before: float, check: Callable[[], None]) -> None:
    """Removes files and log that only versions from before that time need."""
    if (oldest := log.newest_before(path, before)) is None:
        return
    since = unneeded_files.nearest_readable_version(table.files, oldest)
    unneeded_files.remove_unneeded(table.files, since, before=before, check=check)
    # A log begins with a checkpoint: this one is for the maintenance by which it is old enough.
    if not log_cleanup.has_checkpoint(path):
        checkpoints.write(path)
    log_cleanup.clean(path, oldest)
