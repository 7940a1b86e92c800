"""What a merge leaves in the lake."""

from __future__ import annotations

import pyarrow as pa

from tests.spark.lakes import TestLake
from tests.spark.segments import table

ORDERS = table("orders", id=pa.int64(), name=pa.string(), big=pa.string())
CODES = table("codes", key=("part", "code"), part=pa.binary(), code=pa.string(), price=pa.decimal128(10, 2))


def test_log_and_chunk_rows_become_the_source_tables(lake: TestLake) -> None:
    build = lake.build
    build.create(ORDERS, {"id": 1, "name": "a", "big": "x"})
    build.create(ORDERS, {"id": 2, "name": "b", "big": None})
    build.create(CODES, {"part": b"\x00\xff", "code": "é", "price": None})
    build.chunk(ORDERS, [{"id": i, "name": f"n{i}", "big": None} for i in range(3, 7)], evicted=[0, 2])
    build.update(ORDERS, {"id": 2, "name": "B", "big": None})
    build.seal()
    (merged,) = lake.merge_well()
    assert lake.rows(ORDERS) == [
        {"id": 1, "name": "a", "big": "x"}, {"id": 2, "name": "B", "big": None},
        {"id": 4, "name": "n4", "big": None}, {"id": 6, "name": "n6", "big": None},
    ]  # fmt: skip
    assert [(r["_dblog_offset"], r["_dblog_origin"]) for r in lake.rows(ORDERS, provenance=True)] == [
        (1, "log"), (8, "log"), (5, "dump"), (7, "dump"),
    ]  # fmt: skip
    assert lake.rows(CODES) == [{"part": b"\x00\xff", "code": "é", "price": None}]
    assert merged.offset == build.offset and all(t.error is None for t in merged.tables)
    build.delete(ORDERS, {"id": 1})
    build.create(ORDERS, {"id": 9, "name": "z", "big": "zz"})
    build.seal()
    lake.merge_well()
    assert [r["id"] for r in lake.rows(ORDERS)] == [2, 4, 6, 9]
    assert [(c["cut"], c["offset"], c["tables"]) for c in lake.cuts()] == [
        (1, 8, {"shop.orders": 1, "shop.codes": 1}), (2, 10, {"shop.orders": 2, "shop.codes": 1}),
    ]  # fmt: skip
    assert lake.merge_well() == []
