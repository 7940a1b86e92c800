"""A table's files put in order without Spark, one rewrite after the other: what maintenance does of tables that the
merge may mark rows in.

Each rewrite is a commit of its own. A crash leaves a part of the work done.
"""

from __future__ import annotations

from collections.abc import Callable

from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import cluster_files
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.rewriting.purge_files import purge_file, with_deleted
from dblog_core.lake.lake_status import TableStatus
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from spark_jobs.delta_tables.column_types import OFFSET
from spark_jobs.lake_tasks.upkeep import SHARE
from spark_jobs.merging.lake import Lake


def open_for_rewriting(lake: Lake, path: Location, staging: Staging, status: TableStatus) -> OpenTable | None:
    """The lake table at `path`; None where Spark must write its files again."""
    if lake.open_tables is None or status.schema is None:
        return None
    table = lake.open_tables.table(path, staging.schema(status.schema), lake.check)
    try:
        table.refresh()
    except TableRefused:
        return None
    return table


def open_history(lake: Lake, path: Location) -> OpenTable | None:
    """The history at `path`, whose lines lie in their order; None where Spark must write its files again."""
    history = OpenTable(path, (OFFSET,), order=OFFSET, mark=COMMIT_MARK, only_grows=True, check=lake.check)
    try:
        history.refresh()
    except TableRefused:
        return None
    return history


def join_small_files(table: OpenTable, check: Callable[[], None]) -> None:
    """Joins small files until no two are worth it, and writes files again that have many dead rows."""
    while join_files(table):
        check()
    while purge_file(table, share=SHARE):
        check()


def cluster_all(table: OpenTable, check: Callable[[], None]) -> bool:
    """Puts files in the order of the key as long as they share too many keys, and it is worth it; whether any was.
    After an upkeep beside the merges nothing is left to do."""
    limit = cluster_files.limit_of(table)
    done = 0
    while done < limit and (ordered := cluster_files.cluster_files(table)):
        done += ordered
        check()
    return done > 0


def has_large_files(table: OpenTable) -> bool:
    """Whether files are too large to be put in order here."""
    return any(map(cluster_files.is_large, table.snapshot.files.values()))


def purge_deleted(table: OpenTable, check: Callable[[], None]) -> bool:
    """Writes every file again of which a row may have been deleted, and no other; whether none is left."""
    while purge_file(table, only_deleted=True):
        check()
    return not with_deleted(table)


def purge_all(table: OpenTable, check: Callable[[], None]) -> bool:
    """Writes every file with a dead row again; whether none is left."""
    while purge_file(table):
        check()
    return all(live.vector is None for live in table.snapshot.files.values())
