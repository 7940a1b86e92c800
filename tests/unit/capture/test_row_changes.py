"""Key changes become a delete and a create; offsets and transactions are joined on; keys are read for the windows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.algorithm.eviction import Touch
from dblog_core.capture.row_changes import ChangeTouches, log_rows, split_key_changes, stretches
from dblog_core.model.events import Transaction
from dblog_core.staging import inline_rows
from dblog_core.staging.row_format import log_schema
from tests.fake_source import ORDERS, Row, changes_batch


def row(key: int, name: str = "n", big: str | None = "b") -> Row:
    return {"id": key, "name": name, "big": big}


def test_updates_that_keep_the_key_pass_untouched() -> None:
    changes = changes_batch(ORDERS, [(0, 0, "c", None, row(1), ()), (3, 1, "u", row(1), row(1, "x"), ())])
    split = split_key_changes(changes)
    assert split.batch is changes.batch and split.moved_from is None
    assert split.sequence.tolist() == [0, 6]


def test_a_key_change_is_a_delete_and_then_a_create_with_the_old_key() -> None:
    changes = changes_batch(
        ORDERS,
        [
            (0, 0, "c", None, row(1), ()),
            (1, 0, "u", row(1), row(2), ("big",)),
            (2, 0, "d", row(9), None, ()),
        ],
    )
    split = split_key_changes(changes)
    rows = split.batch.to_pylist()
    assert [r["op"] for r in rows] == ["c", "d", "c", "d"]
    assert split.sequence.tolist() == [0, 2, 3, 4]
    assert rows[1]["before"] == row(1) and rows[1]["after"] is None and rows[1]["unchanged"] is None
    assert rows[2]["before"] is None and rows[2]["after"] == row(2, big=None) and rows[2]["unchanged"] == ["big"]
    assert split.moved_from is not None and split.moved_from.to_pylist() == [None, None, {"id": 1}, None]


def test_a_deleted_row_is_not_taken_for_half_of_a_key_change() -> None:
    changes = changes_batch(
        ORDERS, [(0, 0, "d", row(5), None, ()), (1, 0, "u", row(1), row(2), ("big",)), (2, 0, "u", row(3), row(3), ())]
    )
    assert list(ChangeTouches.of(split_key_changes(changes))) == [
        Touch((5,)),
        Touch((1,), frozenset({"big"}), (2,)),
        Touch((3,)),
    ]


def test_slices_keep_images_and_touches_together() -> None:
    changes = changes_batch(ORDERS, [(i, 0, "u", row(i), row(i + (i == 3)), ()) for i in range(6)])
    first, (part,), last = stretches([split_key_changes(changes)], [2 * 3, 2 * 5])
    assert list(ChangeTouches.of(part)) == [Touch((3,), moved_to=(4,)), Touch((4,))]
    assert [len(rest[0]) for rest in (first, last)] == [3, 1]


@pytest.mark.parametrize("numbers", [[1, 0], [0, 1, 0], [1, 1, 1], [0]])
def test_log_rows_carry_offset_and_their_own_transaction(numbers: list[int]) -> None:
    events = [(i, number, "c", None, row(i), ()) for i, number in enumerate(numbers)]
    changes = changes_batch(ORDERS, events)
    transactions = [Transaction("a", "p0", 0), Transaction("b", "p1", 1_000_000)]
    offsets = np.arange(7, 7 + 2 * len(numbers), 2)
    batch = log_rows(split_key_changes(changes), offsets, transactions)
    assert batch.column("commit_time").cast(pa.int64()).to_pylist() == [1_000_000 * n for n in numbers]
    rows = batch.to_pylist()
    expected_rows = [(o, "ab"[n], f"p{n}") for o, n in zip(offsets, numbers, strict=True)]
    assert [(r["offset"], r["transaction"], r["position"]) for r in rows] == expected_rows
    assert {r["origin"] for r in rows} == {"log"} and rows[0]["moved_from"] is None
    assert inline_rows.plain(batch).schema.equals(log_schema(ORDERS))
