"""A merge's own row in the table of cuts: written once, without a Spark job, since every merge waits for it.

The Delta library reads the whole log since the last checkpoint for each row: up to some hundred requests. So the table
is kept open (`AppendedTable`), and the library makes it, gives it new columns, and makes its checkpoints.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.delta_writer.features import TableRefused
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake.cuts import open_table, storage_options, table_uri
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tables.checkpoints import is_due
from dblog_core.storage.location import Location

if TYPE_CHECKING:
    from dblog_core.lake_engine.merging.merge_records import Intent

_log = logging.getLogger(__name__)

SHAPE = pa.schema(
    [
        ("cut", pa.int64()),
        ("offset", pa.int64()),
        ("position", pa.string()),
        ("commit_time", pa.timestamp("us", tz="UTC")),
        ("tables", pa.map_(pa.string(), pa.int64())),
        ("merged_at", pa.timestamp("us", tz="UTC")),
        ("behind", pa.map_(pa.string(), pa.int64())),
        ("incomplete", pa.map_(pa.string(), pa.string())),
    ]
)


def open_cuts(path: Location, check: Callable[[], None]) -> AppendedTable:
    """The table of cuts, for `append`; `check` is asked right before each commit."""
    return AppendedTable(path, order="cut", mark=COMMIT_MARK, check=check)


def append(
    path: Location,
    intent: Intent,
    versions: Mapping[str, int],
    *,
    behind: Mapping[str, int],
    incomplete: Mapping[str, str],
    app: str,
    now: float,
    table: AppendedTable | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Adds the row of a merge, exactly once. Raises LakeError.

    `behind`: tables that have stopped, with the offset up to which each is in; `incomplete`: those that lack
    rows, with the cause; `now`: seconds since 1970 UTC; `table`:
    `open_cuts` of the path; `check` raises LeaseLost once another may merge.
    """
    row = pa.Table.from_pylist([_row(intent, versions, behind, incomplete, now)], schema=SHAPE)
    try:
        if table is not None and (version := _append(table, row, app, intent.number)) is not None:
            if is_due(version, table.snapshot.metadata.get("configuration") or {}):
                _make_checkpoint(path)
            return
        check()
        _append_by_library(path, row, app, intent.number)
    except (DeltaError, OSError, StagingError) as error:
        raise LakeError(
            f"the cut of merge {intent.number} cannot be written: {' '.join(str(error).split())}",
            where=str(path),
            fix="merge again: it continues where this one stopped. If it always fails here, move this directory away: "
            "the merge begins a new table, and no earlier cut can be read",
        ) from error
    log.check_committed(path, app, intent.number)


def _append(table: AppendedTable, row: pa.Table, app: str, number: int) -> int | None:
    """The version that has the row; None where the library must write it, or find out whether it is there."""
    try:
        if not table.is_as_left():
            table.refresh()
        if table.newest_order(app) >= number or set(table.shape().names) != set(SHAPE.names):
            return None
    except LakeError:  # there is no table, or none that can be read: the library makes it, or says what is wrong
        return None
    try:
        done = table.append(row, app, number)
    except TableRefused:
        return None
    return None if done.already else done.version


def _append_by_library(path: Location, row: pa.Table, app: str, number: int) -> None:
    table = open_table(path) or _create(path)
    # Of this very snapshot: should another process commit as `app` after it, the library refuses our commit.
    last = table.transaction_version(app)
    if last is None or last < number:
        transaction = CommitProperties(app_transactions=[Transaction(app, number)])
        write_deltalake(table, row, mode="append", schema_mode="merge", commit_properties=transaction)


def _make_checkpoint(path: Location) -> None:
    """Makes a checkpoint of the newest version, and removes the log before it that is older than it is kept. Where that
    fails, the log takes longer to read until the next."""
    try:
        if (table := open_table(path)) is not None:
            table.create_checkpoint()
            table.cleanup_metadata()
    except (DeltaError, OSError) as error:
        _log.warning("%s: no checkpoint is made: %s", path, " ".join(str(error).split()))


def _create(path: Location) -> DeltaTable:
    return DeltaTable.create(table_uri(path), SHAPE, mode="ignore", storage_options=storage_options(path))


def _row(
    intent: Intent, versions: Mapping[str, int], behind: Mapping[str, int], incomplete: Mapping[str, str], now: float
) -> dict[str, object]:
    span = intent.span
    return {
        "cut": intent.number,
        "offset": span.offset,
        "position": span.position,
        "commit_time": _time(span.commit_time),
        "tables": list(versions.items()),
        "merged_at": _time(int(now * 1e6)),
        "behind": list(behind.items()),
        "incomplete": list(incomplete.items()),
    }


def _time(micros: int | None) -> dt.datetime | None:
    """Exact: a float of seconds would lose microseconds."""
    return None if micros is None else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
