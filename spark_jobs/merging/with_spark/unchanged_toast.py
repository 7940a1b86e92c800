"""Unchanged TOAST values in a MERGE: PostgreSQL does not log a large value that stays, so the lake's row keeps its own.

This is the way of a MERGE by Spark. The way without Spark is `dblog_core.delta_writer.unchanged_toast`.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.delta_tables.column_types import quote


def is_left_out(name: str) -> Column:
    """Whether the row of the batch (`s`) has no value for the column (`fold`): then the lake's row (`t`) has it."""
    # The list is NULL where nothing was left out. Without the default, "equal or left out" would be NULL for a row that
    # differs, and the MERGE would skip its update.
    return F.coalesce(F.array_contains("s.unchanged_toast", name), F.lit(False))


def keep_lake_value(name: str, lake_column: str, new_value: Column) -> Column:
    """What `lake_column` becomes: its present value where the log left column `name` out, otherwise `new_value`.

    The two names differ for a VARIANT, which stays or changes with its text.
    """
    return F.when(is_left_out(name), F.col(f"t.{quote(lake_column)}")).otherwise(new_value)
