"""A change that mends wins against a row of its own order, and takes nothing from a row of another life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.upserting.upsert import upsert
from tests.unit.delta_writer.tables import OFFSET, Row, Table, row


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """Keys 0 to 5 of the orders 0 to 5."""
    filled = Table.create_at(tmp_path, vectors=request.param)
    filled.merge(filled.writer(), [row(key, offset=key) for key in range(6)])
    return filled


def mend(table: Table, puts: Sequence[Row], *, keeps: int | None = None, born_at: int = 0) -> Upserted:
    """`keeps`: the number of the row that keeps its note."""
    mask = np.arange(len(puts)) == (-1 if keeps is None else keeps)
    changes = replace(
        table.changes(puts, dump=True),
        same=["note"],
        mends=True,
        born_at=np.full(len(puts), born_at),
        unchanged_toast={"note": mask},
    )
    table.merges += 1
    return upsert(table.writer(), changes, "app", table.merges)


def test_a_row_of_the_same_order_is_written_again_where_it_differs_and_a_newer_one_stays(table: Table) -> None:
    done = mend(
        table, [row(1, "right", offset=1), row(2, offset=2), row(3, "older", offset=2), row(4, "new", offset=9)]
    )
    assert (done.updated, done.unchanged, done.older) == (2, 1, 1)
    table.expect([row(1, "right", offset=1), row(4, "new", offset=9)])
    table.check()
    assert mend(table, [row(1, "right", offset=1)]).unchanged == 1


@pytest.mark.parametrize("born_at", [2, 3])
def test_a_value_is_kept_of_the_same_life_alone(table: Table, born_at: int) -> None:
    """The row of key 2 has the order 2, and equals the change in all that this one says."""
    done = mend(table, [row(2, None, offset=7), row(4, "right", offset=4)], keeps=0, born_at=born_at)
    table.expect([row(4, "right", offset=4)], [row(2)] if born_at == 3 else [])
    assert (done.withheld, done.deleted, done.unchanged) == ((1, 1, 0) if born_at == 3 else (0, 0, 1))
    assert table.read() == table.model()


def test_a_row_without_an_order_has_no_value_for_a_change(table: Table) -> None:
    table.merge(table.writer(), [{**row(2, "theirs"), OFFSET: None}])
    assert mend(table, [row(2, None, offset=7)], keeps=0).withheld == 1
    table.expect([], [row(2)])
    table.check()
