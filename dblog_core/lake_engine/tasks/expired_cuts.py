"""Forgets cuts that are older than they are kept, and joins the files of those that stay: one came with each merge."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from dblog_core.errors import LakeError
from dblog_core.lake.cuts import open_table
from dblog_core.storage.location import Location

_READ_HOURS = 1  # for readers of the table of cuts at this moment
_LOG_PROPERTY = "delta.logRetentionDuration"


@dataclass(frozen=True, slots=True)
class Kept:
    """The oldest cut that is kept, and when its merge ended (seconds UTC); how many were removed. `number` 0: none."""

    number: int
    merged_at: float
    removed: int


def drop(path: Location, *, before: float, keep: float) -> Kept:
    """Removes cuts that no moment since `before` (seconds UTC) is read at: the newest of the older ones stays. Log of
    the table of cuts that is older than `keep` (seconds) goes as well: each merge adds a file to it.

    Raises LakeError.
    """
    try:
        if (table := open_table(path)) is None:
            return Kept(0, math.inf, 0)
        rows = table.to_pyarrow_table(columns=["cut", "merged_at"]).sort_by("cut")
        if not len(rows):
            return Kept(0, math.inf, 0)
        old = 0 if math.isinf(before) else pc.sum(pc.less_equal(rows["merged_at"], _time(before))).as_py() or 0
        first = max(0, old - 1)
        oldest = Kept(rows["cut"][first].as_py(), rows["merged_at"][first].as_py().timestamp(), first)
        if oldest.removed:
            table.delete(f"cut < {oldest.number}")
        table.optimize.compact()
        table.vacuum(retention_hours=_READ_HOURS, enforce_retention_duration=False, dry_run=False)
        _clean_log(table, keep)
        return oldest
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise LakeError(
            f"old cuts cannot be removed: {' '.join(str(error).split())}",
            where=str(path),
            fix="maintain the lake again",
        ) from error


def _clean_log(table: DeltaTable, keep: float) -> None:
    if not math.isinf(keep):
        interval = f"interval {max(1, math.ceil(keep / 3600))} hours"
        if table.metadata().configuration.get(_LOG_PROPERTY) != interval:
            table.alter.set_table_properties({_LOG_PROPERTY: interval})
    # A log begins with a checkpoint: this one is for the maintenance by which it is old enough.
    table.create_checkpoint()
    table.cleanup_metadata()


def _time(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
