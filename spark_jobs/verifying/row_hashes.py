"""Row hashes in Spark's expressions: `dblog_core.rows.row_hashes`, of the columns of a lake table or of staged rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from dblog_core.errors import LakeError
from dblog_core.model import schema as shape
from dblog_core.rows.row_hashes import (
    LONGEST,
    LOWEST,
    PRESENT,
    UNIT,
    WINDOW,
    is_compared,
    is_json,
    window_bounds,
    window_exponent,
)
from spark_jobs.delta_tables.column_types import spark_type

_SETTINGS = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}


def row_hash(rows: DataFrame, schema: shape.TableSchema, row: Callable[[str], Column]) -> Column:
    """The hash (bigint) of each of the rows of a staged schema; `row` gives their columns by name.

    Raises LakeError where the rows' session would print values in another way.
    """
    _check_session(rows.sparkSession)
    fields = [
        F.coalesce(field.cast("string"), F.lit(""))
        for c in schema.columns
        for field in _fields(row(c.name).cast(spark_type(c.type)), c)
    ]
    digest = F.sha2(F.concat_ws(",", *fields), 256)
    return F.conv(F.substring(digest, 1, 16), 16, -10).cast("bigint")


def _check_session(session: SparkSession) -> None:
    """Times are printed in the session's zone, decimals without an exponent in ANSI mode alone."""
    if changed := [name for name, value in _SETTINGS.items() if str(session.conf.get(name)).lower() != value.lower()]:
        raise LakeError(
            f"no row can be hashed in a session with another {' and '.join(changed)}",
            fix="take it out of [spark] conf",
        )


def _fields(value: Column, column: shape.Column) -> Iterable[Column]:
    """The column's fields, each NULL where the column is."""
    kind = column.type
    if not is_compared(column):
        return [F.when(value.isNotNull(), PRESENT)]
    if is_json(column):
        return [F.sha2(value, 256)]
    if pa.types.is_string(kind):
        return _content(value, value)
    if pa.types.is_binary(kind):
        return _content(value, F.lower(F.hex(value)))
    if pa.types.is_boolean(kind):
        return [F.when(value, "t").when(~value, "f")]
    if pa.types.is_floating(kind):
        return [_float(value.cast(t.DoubleType()))]
    return [value]


def _content(value: Column, text: Column) -> Iterable[Column]:
    size = F.octet_length(value)
    return [size, F.when(size > LONGEST, F.sha2(value, 256)).otherwise(text)]


def _float(value: Column) -> Column:
    """In the order of floats here NaN is larger than infinity, and that than every other value."""
    low, high = window_bounds(0)
    usual = F.when((value == 0) | ((F.abs(value) >= low) & (F.abs(value) < high)), _parts(value))
    window = _window(F.abs(value))
    scale = F.pow(F.lit(2.0), window * window_exponent(1))
    return usual.when(F.abs(value) >= math.inf, value.cast("string")).when(
        value.isNotNull(), _parts(value * scale * scale, window)
    )


def _window(size: Column) -> Column:
    """The window that a magnitude lies in: by its logarithm, which may be off by one at a window's end."""
    near = F.floor((F.log2(size) - LOWEST) / WINDOW).cast("int")
    low, high = (F.pow(F.lit(2.0), (near + end) * WINDOW + LOWEST) for end in (0, 1))
    return near - (size < low).cast("int") + (size >= high).cast("int")


def _parts(scaled: Column, *window: Column) -> Column:
    whole = scaled.cast("bigint")
    fraction = ((scaled - whole.cast("double")) * UNIT).cast("bigint")
    return F.concat_ws(" ", whole, fraction, *window)
