"""A merge's own row in the table of cuts, written once. The table is kept open, since every merge waits for its row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog_core.delta_writer import delta_types as t
from dblog_core.delta_writer.altering.alterations import AddColumn
from dblog_core.delta_writer.append import AppendedTable
from dblog_core.errors import LakeError, LeaseLost, StagingError
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.tables import alter_table, checkpoints, create_table, log
from dblog_core.storage.location import Location

if TYPE_CHECKING:
    from dblog_core.lake_engine.merging.merge_records import Intent


def _map_to(value: str) -> t.DeltaType:
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}


SHAPE = t.StructType(
    [
        t.StructField("cut", "long"),
        t.StructField("offset", "long"),
        t.StructField("position", "string"),
        t.StructField("commit_time", "timestamp"),
        t.StructField("tables", _map_to("long")),
        t.StructField("merged_at", "timestamp"),
        t.StructField("behind", _map_to("long")),
        t.StructField("incomplete", _map_to("string")),
    ]
)


def open_cuts(path: Location, check: Callable[[], None] = lambda: None) -> AppendedTable:
    """The table of cuts, for `append`; `check` is asked right before each commit."""
    return AppendedTable(path, order="cut", mark=COMMIT_MARK, check=check, committed=checkpoints.follow_commit)


def append(
    table: AppendedTable,
    intent: Intent,
    versions: Mapping[str, int],
    *,
    behind: Mapping[str, int],
    incomplete: Mapping[str, str],
    app: str,
    now: float,
) -> None:
    """Adds the row of a merge, exactly once. Raises LakeError, and LeaseLost once another may merge.

    `behind`: tables that have stopped, with the offset up to which each is in; `incomplete`: those that lack
    rows, with the cause; `now`: seconds since 1970 UTC.
    """
    path = table.location
    row = _row(intent, versions, behind, incomplete, now)
    try:
        if not table.is_as_left():
            _prepare(table)
        columns = {column.name: pa.array([row.get(column.name)], column.type) for column in table.shape()}
        done = table.append(pa.table(columns), app, intent.number)
    except LeaseLost:
        raise
    except (LakeError, StagingError) as error:
        raise LakeError(
            f"the cut of merge {intent.number} cannot be written: {error.reason}",
            where=str(path),
            fix="merge again: it continues where this one stopped. If it always fails here, move this directory away: "
            "the merge begins a new table, and no earlier cut can be read",
        ) from error
    if done.already:  # by an earlier run; or by a later merge, whose records are gone
        log.check_committed(path, app, intent.number)


def _prepare(table: AppendedTable) -> None:
    """Makes the table, or gives it the columns that an older dblog did not have; reads what it is now."""
    path = table.location
    if log.version(path) is None:
        create_table.create_table(path, SHAPE, {})
    if lacking := [column for column in SHAPE if column.name not in table.refresh().names]:
        added = [AddColumn(column.name, column.type) for column in lacking]
        alter_table.open_altered(path, table.check).alter(lambda have: added)
        table.refresh()


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
