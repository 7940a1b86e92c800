"""Others commit to the table while a change of ours is under way: it hears them, or ends with an error."""

from __future__ import annotations

import json

import pytest

from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.table_log import Overtaken
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.errors import LakeError, LeaseLost
from tests.unit.delta_writer.rivals import RIVALS
from tests.unit.delta_writer.tables import (
    APP,
    Table,
    commit_of,
    fill_table,
    newest,
    row,
    write_commit,
)


@pytest.mark.parametrize("what", RIVALS)
def test_whoever_commits_in_between_is_heard(table: Table, what: str) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(21, "marked before", offset=2)], [row(20), row(80)])
    puts = [row(i, "ours", offset=5) for i in (3, 55, 10_000)]
    deletes = [row(10), row(60)]
    commits: list[int] = []

    def between() -> None:
        if not commits:
            RIVALS[what](table)
        commits.append(newest(table.path))

    writer.check = between
    table.merge(writer, puts, deletes)
    assert len(commits) == (1 if what == "checkpoints" else 2), "a plan on the older version is given up"
    table.check()
    writer.check = lambda: None
    table.merge(writer, [row(i, "later", offset=6) for i in range(0, 100, 9)])
    table.check()


@pytest.mark.parametrize("what", ["appends", "optimizes"])
def test_who_must_look_at_the_commits_of_others_first_gives_up(table: Table, what: str) -> None:
    writer = fill_table(table)
    puts = [row(3, "ours", offset=5)]
    before = newest(table.path)
    RIVALS[what](table)
    rivals = newest(table.path)
    assert rivals > before and writer.is_as_left()
    with pytest.raises(Overtaken):
        upsert(writer, table.changes(puts), APP, 3, is_fresh=True, gives_up=True)
    assert newest(table.path) == rivals
    table.merge(writer, puts)
    table.check()


def test_a_file_that_a_vacuum_took_before_its_commit_is_written_again(table: Table) -> None:
    writer = fill_table(table)
    files_before = set(table.path.glob("*.parquet"))

    def vacuum() -> None:
        """Removes what no version names, as one without a retention does, and commits that."""
        writer.check = lambda: None
        for path in set(table.path.glob("*.parquet")) - files_before:
            path.unlink()
        write_commit(table.path, 3, {"commitInfo": {"operation": "VACUUM END"}})

    writer.check = vacuum
    table.merge(writer, [row(3, "ours", offset=5)], [row(10)])
    table.check()


def test_a_twin_that_commits_the_same_merge_wins(table: Table) -> None:
    writer = fill_table(table)
    twin = table.writer()
    puts = [row(3, "once", offset=5), row(700, "once", offset=5)]
    writer.check = lambda: None if newest(table.path) > 2 else upsert(twin, table.changes(puts), APP, 3) and None
    done = upsert(writer, table.changes(puts), APP, 3)
    assert done.already
    table.expect(puts)
    table.check()


def test_a_shape_that_changes_in_between_stops_the_merge(table: Table) -> None:
    writer = fill_table(table)

    def drop() -> None:
        head = commit_of(table.path, 0)
        changed = json.loads(json.dumps(next(a for a in head if "metaData" in a)))
        shape = json.loads(changed["metaData"]["schemaString"])
        shape["fields"] = [f for f in shape["fields"] if f["name"] != "amount"]
        changed["metaData"]["schemaString"] = json.dumps(shape)
        write_commit(table.path, 3, changed)

    writer.check = drop
    with pytest.raises(LakeError, match=r"do not fit the table.*amount"):
        upsert(writer, table.changes([row(3, "new", offset=5)]), APP, 3)
    assert newest(table.path) == 3


def test_a_feature_that_appears_in_between_stops_the_merge(table: Table) -> None:
    writer = fill_table(table)

    def forbid() -> None:
        changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
        changed["metaData"]["configuration"]["delta.appendOnly"] = "true"
        write_commit(table.path, 3, changed)

    writer.check = forbid
    with pytest.raises(TableRefused, match="it takes appended rows alone"):
        upsert(writer, table.changes([row(3, "new", offset=5)]), APP, 3)


def test_others_who_commit_all_the_time_are_an_error(table: Table) -> None:
    writer = fill_table(table, 10)
    writer.check = lambda: write_commit(table.path, newest(table.path) + 1, {"commitInfo": {}})
    with pytest.raises(Overtaken, match="20 times"):
        upsert(writer, table.changes([row(3, "new", offset=5)]), APP, 3)


def test_who_has_lost_the_lake_commits_nothing(table: Table) -> None:
    writer = fill_table(table)

    def lose_lease() -> None:
        raise LeaseLost("another merge has taken the lake over")

    writer.check = lose_lease
    with pytest.raises(LeaseLost):
        upsert(writer, table.changes([row(3, "new", offset=5)]), APP, 3)
    assert newest(table.path) == 2
    table.check()
    writer.check = lambda: None
    table.merge(writer, [row(3, "after all", offset=5)])
    table.check()


@pytest.mark.parametrize("what", ["appends", "updates"])
def test_each_part_keeps_its_own_file_when_all_is_planned_again(table: Table, what: str) -> None:
    writer = fill_table(table)
    parts = [[row(i, f"part {i % 3}", offset=5) for i in range(start, 300, 3)] for start in range(3)]
    done: list[str] = []

    def between() -> None:
        if not done:
            done.append(what)
            RIVALS[what](table)

    writer.check = between
    upserted = upsert(writer, [table.changes(part) for part in parts], APP, 3)
    assert upserted.inserted + upserted.updated == 300
    for part in parts:
        table.expect(part)
    table.check()
