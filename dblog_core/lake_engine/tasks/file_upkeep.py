"""A table's files put in order, one rewrite after the other: what maintenance does.

Each rewrite is a commit of its own. A crash leaves a part of the work done.
"""

from __future__ import annotations

from collections.abc import Callable

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import cluster_files
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.rewriting.purge_files import purge_file
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model.schema import TableSchema
from dblog_core.storage.location import Location

SHARE = 0.2
"""Of a file's rows that are dead: with more it is written again."""


def open_table(lake: Lake, path: Location, schema: TableSchema) -> OpenTable:
    """The lake table of this shape at `path`."""
    return lake.open_tables.table(path, schema, lake.check)


def open_history(lake: Lake, path: Location) -> OpenTable:
    """The history at `path`, whose lines lie in their order."""
    return OpenTable(path, (OFFSET,), order=OFFSET, mark=COMMIT_MARK, only_grows=True, check=lake.check)


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


def purge_deleted(table: OpenTable, check: Callable[[], None]) -> None:
    """Writes every file again of which a row may have been deleted, and no other."""
    while purge_file(table, only_deleted=True):
        check()


def purge_all(table: OpenTable, check: Callable[[], None]) -> bool:
    """Writes every file with a dead row again; whether none is left."""
    while purge_file(table):
        check()
    return all(live.vector is None for live in table.snapshot.files.values())
