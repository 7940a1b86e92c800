"""Which of the driver's folds a work takes: all at once, in parts, or by buckets of keys."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from dblog_core.lake.merge_plan import Work
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from spark_jobs.events import fold_in_buckets, fold_in_parts, fold_on_driver
from spark_jobs.events.fold_in_buckets import SpooledParts
from spark_jobs.events.fold_in_parts import FoldedParts

FoldedRows: TypeAlias = pa.Table | FoldedParts | SpooledParts
"""All rows at once, or in parts where memory has no room for all."""


def fold_work(staging: Staging, work: Work, schema: TableSchema, *, may_mark: bool) -> FoldedRows | None:
    """The folded rows of the work; None for a work that is Spark's. `may_mark`: whether the table may be written
    without Spark: a MERGE takes neither parts nor values of another key's row.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names.
    """
    rows: FoldedRows | None = None
    if fold_on_driver.fits_driver(work, unchanged_toast=may_mark):
        rows = fold_on_driver.fold_work(staging, work, schema)
    if rows is None and may_mark:
        if fold_in_parts.fits_parts(work):
            rows = fold_in_parts.fold_parts(staging, work, schema)
        elif fold_in_buckets.fits_buckets(work):
            rows = fold_in_buckets.fold_buckets(staging, work, schema)
    return rows
