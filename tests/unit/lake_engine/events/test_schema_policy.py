"""What the lake's policy makes of a shape, told without Spark: what stops a table, and which types may fit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.errors import LakeError
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import schema_policy
from dblog_core.model.schema import TableSchema
from dblog_core.staging.manifest import LogMark
from tests.unit.staged import table

A = table(id=pa.int64(), a=pa.int32())
B = table(id=pa.int64(), a=pa.int32(), b=pa.string())
C = table(id=pa.int64(), a=pa.int64(), b=pa.string())
SHAPES = {shape.fingerprint: shape for shape in (A, B, C)}


def mark(offset: int, shape: TableSchema, renamed: dict[str, str] | None = None) -> LogMark:
    return LogMark(offset, "s", "shop.orders", "", 0, schema=shape.fingerprint, renamed=renamed)


@pytest.mark.parametrize(
    ("marks", "accepted", "stops"),
    [
        ([mark(5, A)], None, None),
        ([mark(5, B)], None, "at offset 5: column b was added"),
        ([mark(5, B)], 5, None),
        ([mark(5, B), mark(8, C)], 5, "at offset 8"),
        ([mark(5, B), mark(8, C)], 8, None),
        ([mark(5, B), mark(8, B)], 5, None),  # the same again
        ([mark(5, A, {"id": "a", "a": "id"})], None, "at offset 5"),  # names changed places
        ([mark(5, A, {"id": "a", "a": "id"})], 5, None),
    ],
)
def test_fail_stops_at_what_nobody_has_accepted(marks: list[LogMark], accepted: int | None, stops: str | None) -> None:
    work = Work("shop.orders", marks[-1].schema or "", reshaped=tuple(marks))
    try:
        schema_policy.check_accepted(work, A, SHAPES.__getitem__, accepted=accepted)
        message = None
    except LakeError as error:
        message = error.message
    assert (message is None) == (stops is None) and (stops or "") in (message or "")


@pytest.mark.parametrize(
    ("own_type", "lake", "fits"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int8(), True),
        (pa.int64(), pa.decimal128(5, 2), True),
        (pa.decimal128(20, 4), pa.int32(), True),
        (pa.string(), pa.int32(), True),
        (pa.int16(), pa.string(), True),
        (pa.float64(), pa.float32(), True),
        (pa.timestamp("us"), pa.date32(), True),
        (pa.float64(), pa.int64(), False),
        (pa.string(), pa.date32(), False),
        (pa.binary(), pa.string(), False),
        (pa.timestamp("us", tz="UTC"), pa.timestamp("us"), False),
    ],
)
def test_only_types_with_values_in_common_may_fit(own_type: pa.DataType, lake: pa.DataType, fits: bool) -> None:
    newer = table(id=pa.int64(), a=own_type)
    target = table(id=pa.int64(), a=lake)
    if fits:
        schema_policy.check_fits(newer, target)
    else:
        with pytest.raises(LakeError, match="column a is"):
            schema_policy.check_fits(newer, target)
