"""Which of the driver's folds a work takes: all at once, in parts, or by buckets of keys."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import fold_in_buckets, fold_in_parts, fold_on_driver
from dblog_core.lake_engine.events.fold_in_buckets import SpooledParts
from dblog_core.lake_engine.events.fold_in_parts import FoldedParts
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging

FoldedRows: TypeAlias = pa.Table | FoldedParts | SpooledParts
"""All rows at once, or in parts where memory has no room for all."""


def fold_work(staging: Staging, work: Work, schema: TableSchema) -> FoldedRows:
    """The folded rows of the work, which has files or chunks.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError where the local
    disk has no room.
    """
    if fold_on_driver.is_small(work) and (rows := fold_on_driver.fold_work(staging, work, schema)) is not None:
        return rows
    if fold_on_driver.has_unchanged_toast(work):
        return fold_in_buckets.fold_buckets(staging, work, schema)
    return fold_in_parts.fold_parts(staging, work, schema)
