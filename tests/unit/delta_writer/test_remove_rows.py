"""Rows below a number of the order column go, whatever the statistics say, and all other rows stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dblog_core.delta_writer.table_log import Overtaken
from dblog_core.delta_writer.upserting.upsert import remove_rows
from tests.unit.delta_writer.tables import APP, OFFSET, Table, commit_of, fill_table, newest, row, write_commit


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    return Table.create_at(tmp_path, vectors=request.param)


def forget_older(table: Table, below: int) -> int:
    """What goes from the model, and how many rows that are."""
    before = len(table.rows)
    table.rows = {key: r for key, r in table.rows.items() if r[OFFSET] is None or r[OFFSET] >= below}
    return before - len(table.rows)


def test_rows_go_by_their_order_from_whole_files_and_from_parts(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(k, "new", offset=5) for k in (3, 60, 200)], [row(4)])
    table.merge(writer, [row(k, "newer", offset=9) for k in (5, 61)])
    for below in (1, 5, 6, 9):
        done = remove_rows(writer, f"{APP}:gone", below, below=below)
        expected = forget_older(table, below)
        assert (done.deleted if done else 0) == expected
        table.check()
    assert remove_rows(writer, f"{APP}:gone", 9, below=9) is None
    table.merge(writer, [row(k, "after", offset=10) for k in (3, 5)])
    table.check()


def test_the_commit_is_a_delete_with_its_counts(table: Table) -> None:
    writer = fill_table(table)
    count = len(table.rows)
    remove_rows(writer, f"{APP}:gone", 2, below=2)
    (info,) = [action["commitInfo"] for action in commit_of(table.path, newest(table.path)) if "commitInfo" in action]
    assert info["operation"] == "DELETE" and info["operationMetrics"]["numDeletedRows"] == str(count)


def _without(*names: str) -> Callable[[dict[str, Any]], None]:
    def forget(statistics: dict[str, Any]) -> None:
        for name in names:
            statistics.get(name, {}).pop(OFFSET, None)

    return forget


@pytest.mark.parametrize("forget", [_without("minValues"), _without("maxValues"), _without("nullCount")])
def test_files_without_such_statistics_are_read(table: Table, forget: Callable[[dict[str, Any]], None]) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(k, "new", offset=5) for k in (3, 60)])
    adds = [dict(live.add) for live in writer.snapshot.files.values()]
    for add in adds:
        statistics = json.loads(add["stats"])
        forget(statistics)
        add["stats"] = json.dumps(statistics)
    write_commit(table.path, newest(table.path) + 1, *({"add": {**add, "dataChange": False}} for add in adds))
    done = remove_rows(writer, f"{APP}:gone", 5, below=5)
    assert done is not None and done.deleted == forget_older(table, 5)
    assert table.read() == table.model()


def test_a_row_without_an_order_stays(table: Table) -> None:
    """Somebody else has written it: it is answered on its own."""
    writer = fill_table(table)
    table.merge(writer, [row(300, "theirs", offset=None), row(301, "ours", offset=2)])  # type: ignore[arg-type]
    remove_rows(writer, f"{APP}:gone", 3, below=3)
    forget_older(table, 3)
    assert [r["id"] for r in table.read()] == [300]


def test_it_is_planned_again_on_what_another_has_committed(table: Table) -> None:
    writer = fill_table(table)
    rival = table.writer()

    def between() -> None:
        writer.check = lambda: None
        table.merge(rival, [row(3, "theirs", offset=1), row(900, "theirs", offset=9)])

    writer.check = between
    remove_rows(writer, f"{APP}:gone", 5, below=5)
    forget_older(table, 5)
    table.check()


def test_it_gives_up_where_others_commit_all_the_time(table: Table) -> None:
    writer = fill_table(table)
    writer.check = lambda: write_commit(table.path, newest(table.path) + 1, {"commitInfo": {}})
    with pytest.raises(Overtaken):
        remove_rows(writer, f"{APP}:gone", 5, below=5)
