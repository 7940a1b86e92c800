"""A merge's own row in the table of cuts: written once, without a Spark job, since every merge waits for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from dblog_core.errors import LakeError
from dblog_core.lake.cuts import open_table, storage_options, table_uri
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import log

if TYPE_CHECKING:
    from spark_jobs.merging.merge_records import Intent

SHAPE = pa.schema(
    [
        ("cut", pa.int64()),
        ("offset", pa.int64()),
        ("position", pa.string()),
        ("commit_time", pa.timestamp("us", tz="UTC")),
        ("tables", pa.map_(pa.string(), pa.int64())),
        ("merged_at", pa.timestamp("us", tz="UTC")),
        ("behind", pa.map_(pa.string(), pa.int64())),
    ]
)


def append(
    path: Location,
    intent: Intent,
    versions: Mapping[str, int],
    *,
    behind: Mapping[str, int],
    app: str,
    now: float,
) -> None:
    """Adds the row of a merge, exactly once. Raises LakeError.

    `behind`: tables that have stopped, with the offset up to which each is in; `now`: seconds since 1970 UTC.
    """
    try:
        table = open_table(path) or _create(path)
        # Of this very snapshot: should another process commit as `app` after it, the library refuses our commit.
        last = table.transaction_version(app)
        if last is None or last < intent.number:
            row = pa.Table.from_pylist([_row(intent, versions, behind, now)], schema=SHAPE)
            transaction = CommitProperties(app_transactions=[Transaction(app, intent.number)])
            write_deltalake(table, row, mode="append", schema_mode="merge", commit_properties=transaction)
    except (DeltaError, OSError) as error:
        raise LakeError(
            f"the cut of merge {intent.number} cannot be written: {' '.join(str(error).split())}",
            where=str(path),
            fix="merge again: it continues where this one stopped",
        ) from error
    log.check_committed(path, app, intent.number)


def _create(path: Location) -> DeltaTable:
    return DeltaTable.create(table_uri(path), SHAPE, mode="ignore", storage_options=storage_options(path))


def _row(intent: Intent, versions: Mapping[str, int], behind: Mapping[str, int], now: float) -> dict[str, object]:
    span = intent.span
    return {
        "cut": intent.number,
        "offset": span.offset,
        "position": span.position,
        "commit_time": _time(span.commit_time),
        "tables": list(versions.items()),
        "merged_at": _time(int(now * 1e6)),
        "behind": list(behind.items()),
    }


def _time(micros: int | None) -> dt.datetime | None:
    """Exact: a float of seconds would lose microseconds."""
    return None if micros is None else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
