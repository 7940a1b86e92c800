"""A small super-changelog with all that an output can meet: transactions over tables and segments, a chunk, marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from dblog_core.interfaces import Json
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from tests.unit.staged import MICROSECONDS, chunk, log_rows, manifest, publish, table

ORDERS = table()
OTHER = table("shop.other")


def stage(directory: Path) -> Staging:
    """Segments 1 to 4; the transaction at the end of the second goes on in the third."""
    staging = Staging(str(directory), source="shop")
    staging.put_schema(ORDERS)
    shape = LogMark(1, "s", "shop.orders", "p1", MICROSECONDS, schema=ORDERS.fingerprint)
    publish(staging, 1, 1, 3, (ORDERS, _creates("tx1", 2, 3)), marks=(shape,))
    _publish_partial(staging)
    mixed = log_rows(
        ORDERS,
        {"offset": 6, "op": "c", "transaction": "tx2", "after": {"id": 6, "name": "Ω"}},
        {"offset": 8, "op": "u", "transaction": "tx3", "after": {"id": 2, "name": "x"}, "unchanged": ["big"]},
        {"offset": 9, "op": "d", "transaction": "tx4", "before": {"id": 3}, "key_only": True},
    )
    other = log_rows(OTHER, {"offset": 7, "op": "c", "transaction": "tx2", "after": {"id": 1, "name": "a", "big": "b"}})
    publish(staging, 3, 6, 9, (ORDERS, mixed), (OTHER, other))
    rows = [{"id": n, "name": f"dumped {n}", "big": None} for n in (10, 11, 12)]
    placed = chunk(staging, ORDERS, 10, *rows, evicted=(1,))
    end = LogMark(13, "f", "shop.orders", "p9", MICROSECONDS, dump="d1", since=5, since_segment=2)
    truncate_mark = LogMark(14, "t", "shop.other", "p9", MICROSECONDS, transaction="tx5")
    publish(staging, 4, 10, 14, chunks=(placed,), marks=(end, truncate_mark))
    return staging


def go_on(staging: Staging, segment: int, first: int, count: int = 2) -> None:
    """Another segment of `count` rows, in one transaction."""
    publish(staging, segment, first, first + count - 1, (ORDERS, _creates(f"tx{first}", first, first + count - 1)))


def ends_in_transaction(lines: Sequence[Json], whole: Sequence[Json]) -> bool:
    """Whether the lines end inside a transaction of the whole super-changelog."""
    rest = [line["transaction"] for line in whole if lines and line["offset"] > lines[-1]["offset"]]
    return bool(lines) and lines[-1]["transaction"] is not None and lines[-1]["transaction"] in rest


def _publish_partial(staging: Staging) -> None:
    writer = staging.open_segment(2, 1)
    writer.add(ORDERS, _creates("tx2", 4, 5))
    staging.publish(replace(manifest(2, 4, 5, files=writer.write()), partial=2))


def _creates(transaction: str, first: int, last: int) -> pa.RecordBatch:
    rows = range(first, last + 1)
    values = [{"id": n, "name": f"n{n}", "big": None} for n in rows]
    return log_rows(
        ORDERS,
        *({"offset": n, "op": "c", "transaction": transaction, "after": v} for n, v in zip(rows, values, strict=True)),
    )
