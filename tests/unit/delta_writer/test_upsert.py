"""Changes become one commit, exactly once: delta-rs reads what a model says after every step."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.join_files import join_files
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.upsert import Overtaken, upsert
from dblog_core.errors import LakeError, LeaseLost, StagingUnavailable
from dblog_core.storage.location import Location
from tests.unit.delta_writer.tables import (
    APP,
    FIELDS,
    OFFSET,
    FaultyStorage,
    Row,
    Table,
    commit_of,
    newest,
    row,
    write_commit,
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.made(tmp_path)


def filled(table: Table, count: int = 100, **options: Any) -> OpenTable:
    """A writer that has put rows 0 to count - 1, in two files."""
    writer = table.writer(**options)
    half = count // 2
    table.merge(writer, [row(i, offset=1) for i in range(half)])
    table.merge(writer, [row(i, offset=1) for i in range(half, count)])
    return writer


def test_each_change_is_in_the_table_once(table: Table) -> None:
    writer = filled(table)
    puts = [row(i, "new", offset=2) for i in (3, 70, 500)]
    done = table.merge(writer, puts, [row(4), row(71), row(600)])
    assert (done.inserted, done.updated, done.deleted, done.absent) == (1, 2, 2, 1)
    table.check()


def test_a_commit_is_one_version_with_its_transaction(table: Table) -> None:
    writer = filled(table)
    table.merge(writer, [row(3, "new", offset=2)], [row(70)])
    actions = commit_of(table.path, 3)
    assert [a["txn"]["version"] for a in actions if "txn" in a] == [3]
    assert actions[0]["commitInfo"]["userMetadata"] == "dblog"
    assert actions[0]["commitInfo"]["operationMetrics"]["numTargetRowsUpdated"] == "1"
    assert len([a for a in actions if "remove" in a]) == 2 and len([a for a in actions if "add" in a]) == 3
    vectors = [p for p in table.path.iterdir() if p.name.startswith("deletion_vector")]
    assert len(vectors) == 1, "both vectors lie in one file"


def test_the_same_merge_again_changes_nothing(table: Table) -> None:
    writer = filled(table)
    again = upsert(writer, table.changes([row(3, "again", offset=9)]), APP, 2)
    assert again.already and again.version == 2
    fresh = upsert(table.writer(), table.changes([row(3, "again", offset=9)]), APP, 1)
    assert fresh.already, "another process finds it in the log"
    table.check()


def test_an_empty_work_leaves_its_transaction(table: Table) -> None:
    writer = filled(table)
    table.merge(writer, [], [row(1000)])
    assert writer.snapshot.txns == {APP: 3} and newest(table.path) == 3
    table.check()


def test_a_vector_grows_on_the_one_before(table: Table) -> None:
    """Mutant: vector not merged with the old one."""
    writer = filled(table)
    for i in range(0, 30, 3):
        table.merge(writer, [], [row(i)])
        table.check()
        table.merge(table.writer(), [row(i + 1, "by another process", offset=i)])
        table.check()
    assert len(table.rows) == 90


def test_a_file_without_a_live_row_is_gone(table: Table) -> None:
    writer = filled(table)
    table.merge(writer, [], [row(i) for i in range(50)])
    assert len(writer.snapshot.files) == 1
    table.check()


def test_a_dump_row_loses_against_a_newer_one(table: Table) -> None:
    """Mutant: delete of the wrong version of a key."""
    writer = filled(table)
    table.merge(writer, [row(1, "newer", offset=50), row(2, "same", offset=20)])
    puts = [row(i, "dump", offset=20) for i in (1, 2, 3, 200)]
    done = upsert(writer, table.changes(puts, [row(1, offset=20), row(60, offset=20)][1:], dump=True), APP, 4)
    assert (done.older, done.updated, done.inserted, done.deleted) == (2, 1, 1, 1)
    table.expect([puts[2], puts[3]], [row(60)])
    table.check()


def test_a_dead_row_is_no_row_of_its_key(table: Table) -> None:
    writer = filled(table)
    table.merge(writer, [row(1, "newer", offset=50)], [row(2)])
    table.merge(writer, [], [row(1)])
    done = upsert(writer, table.changes([row(1, "dump", offset=20), row(2, "dump", offset=20)], dump=True), APP, 5)
    assert (done.inserted, done.updated, done.older) == (2, 0, 0)
    table.expect([row(1, "dump", offset=20), row(2, "dump", offset=20)])
    table.check()
    again = upsert(writer, table.changes([], [row(70), row(70 + 1)]), APP, 6)
    assert (again.deleted, again.absent) == (2, 0)
    gone = upsert(writer, table.changes([], [row(70)]), APP, 7)
    assert (gone.deleted, gone.absent) == (0, 1)


def test_a_dump_row_that_says_nothing_new_is_left_out(table: Table) -> None:
    table.fields["score"] = "double"
    table = Table.made(table.lake / "other", fields=table.fields)
    writer = table.writer()
    nan = float("nan")
    table.merge(writer, [row(1, offset=1, score=-0.0), row(2, offset=1, score=nan), row(3, offset=1, note="")])
    puts = [row(1, offset=9, score=0.0), row(2, offset=9, score=nan), row(3, offset=9, note="x"), row(4, offset=9)]
    changes = table.changes(puts, dump=True)
    same = Changes(changes.rows, changes.deleted, changes.guarded, same=("id", "note", "amount", "score"))
    done = upsert(writer, same, APP, 2)
    assert (done.unchanged, done.updated, done.inserted) == (2, 1, 1)
    assert [r[OFFSET] for r in table.read()] == [1, 1, 9, 9]


def test_rows_without_an_offset_are_older_than_any(table: Table) -> None:
    writer = filled(table)
    write_deltalake(str(table.path), table.arrow([{"id": 900, "note": "foreign"}]), mode="append")
    done = upsert(writer, table.changes([row(900, "dump", offset=1)], dump=True), APP, 3)
    assert done.updated == 1
    table.expect([row(900, "dump", offset=1)])
    table.check()


def test_keys_that_somebody_doubled_are_one_again_after_their_next_change(table: Table) -> None:
    """Mutant: stale index believed."""
    writer = filled(table)
    for _ in range(2):
        write_deltalake(str(table.path), table.arrow([row(5, "twin"), row(6, "twin"), row(7, "twin")]), mode="append")
    assert len(table.read()) == 106
    table.merge(writer, [row(5, "one", offset=3)], [row(6)])
    table.rows.pop((7,))
    assert [r for r in table.read() if r["id"] != 7] == table.model()
    done = upsert(writer, table.changes([row(7, "dump", offset=9)], dump=True), APP, 4)
    assert done.updated == 1
    table.expect([row(7, "dump", offset=9)])
    table.check()


def test_a_doubled_key_with_a_newer_row_is_left_to_it(table: Table) -> None:
    writer = filled(table)
    write_deltalake(str(table.path), table.arrow([row(5, "twin", offset=90)]), mode="append")
    done = upsert(writer, table.changes([row(5, "dump", offset=50)], dump=True), APP, 3)
    assert done.older == 1 and len(table.read("id = 5")) == 2


def test_a_file_that_tells_of_too_few_rows_loses_none(table: Table) -> None:
    for told, gone in ((1, 2), (2, 3)):
        table = Table.made(table.lake / str(told))
        writer = table.writer()
        table.merge(writer, [row(i, offset=1) for i in range(4)])
        actions = commit_of(table.path, 1)
        added = next(a["add"] for a in actions if "add" in a)
        added["stats"] = json.dumps({"numRecords": told})
        write_commit(table.path, 1, *actions)
        table.merge(table.writer(), [], [row(i) for i in range(gone)])
        assert len(table.read()) == 4 - gone
        new = next(a["add"] for a in commit_of(table.path, 2) if "add" in a)
        assert json.loads(new["stats"])["numRecords"] == 4


def test_a_table_that_was_put_in_the_place_of_another_is_read_anew(table: Table) -> None:
    writer = filled(table)
    shutil.rmtree(table.path)
    other = Table.made(table.lake)
    others = other.writer()
    for i in range(4):
        other.merge(others, [row(i, "of the other", offset=1)])
    other.merges = 10
    other.merge(writer, [row(2, "ours", offset=9), row(70, "ours", offset=9)])
    other.check()


def test_rows_of_later_row_groups_are_found_where_they_stand(table: Table) -> None:
    """Mutant: wrong row number."""
    rows = [row(i, offset=1) for i in range(100)]
    groups_of_ten = WriterProperties(max_row_group_size=10)
    write_deltalake(str(table.path), table.arrow(rows), mode="append", writer_properties=groups_of_ten)
    table.expect(rows)
    writer = table.writer()
    table.merge(writer, [row(i, "new", offset=2) for i in (5, 55, 95)], [row(15), row(77)])
    table.check()
    table.merge(writer, [], [row(55), row(54), row(99)])
    table.check()
    assert join_files(writer) > 0
    table.check()
    table.merge(writer, [row(56, "after the join", offset=3)], [row(98)])
    table.check()


RIVALS: dict[str, Callable[[Table], None]] = {}


def rival(work: Callable[[Table], None]) -> Callable[[Table], None]:
    RIVALS[work.__name__] = work
    return work


def opened(table: Table) -> DeltaTable:
    return DeltaTable(str(table.path))


@rival
def optimizes(table: Table) -> None:
    opened(table).optimize.compact()


@rival
def deletes(table: Table) -> None:
    opened(table).delete("id % 7 = 3")
    table.rows = {key: held for key, held in table.rows.items() if key[0] % 7 != 3}


@rival
def updates(table: Table) -> None:
    opened(table).update({"note": "'updated'"}, predicate="id % 11 = 5")
    for key, held in table.rows.items():
        if key[0] % 11 == 5:
            held["note"] = "updated"


@rival
def appends(table: Table) -> None:
    """A key that the change under way has too."""
    write_deltalake(str(table.path), table.arrow([row(10_000, "foreign")]), mode="append")
    table.expect([row(10_000, "foreign")])


@rival
def checkpoints(table: Table) -> None:
    opened(table).create_checkpoint()


@rival
def vacuums(table: Table) -> None:
    opened(table).optimize.compact()
    opened(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@rival
def widens(table: Table) -> None:
    """A property of the table changes."""
    opened(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})


@pytest.mark.parametrize("what", RIVALS)
def test_whoever_commits_in_between_is_heard(table: Table, what: str) -> None:
    writer = filled(table)
    table.merge(writer, [row(21, "marked before", offset=2)], [row(20), row(80)])
    puts = [row(i, "ours", offset=5) for i in (3, 55, 10_000)]
    gone = [row(10), row(60)]
    met: list[int] = []

    def between() -> None:
        if not met:
            RIVALS[what](table)
        met.append(newest(table.path))

    writer.check = between
    table.merge(writer, puts, gone)
    assert len(met) == (1 if what == "checkpoints" else 2), "a plan on the older version is given up"
    table.check()
    writer.check = lambda: None
    table.merge(writer, [row(i, "later", offset=6) for i in range(0, 100, 9)])
    table.check()


def test_a_file_that_a_vacuum_took_before_its_commit_is_written_again(table: Table) -> None:
    writer = filled(table)
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
    writer = filled(table)
    twin = table.writer()
    puts = [row(3, "once", offset=5), row(700, "once", offset=5)]
    writer.check = lambda: None if newest(table.path) > 2 else upsert(twin, table.changes(puts), APP, 3) and None
    done = upsert(writer, table.changes(puts), APP, 3)
    assert done.already
    table.expect(puts)
    table.check()


def test_a_shape_that_changes_in_between_stops_the_merge(table: Table) -> None:
    writer = filled(table)

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
    writer = filled(table)

    def feed() -> None:
        changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
        changed["metaData"]["configuration"]["delta.enableChangeDataFeed"] = "true"
        write_commit(table.path, 3, changed)

    writer.check = feed
    with pytest.raises(TableRefused, match="its change data feed is on"):
        upsert(writer, table.changes([row(3, "new", offset=5)]), APP, 3)


def test_others_who_commit_all_the_time_are_an_error(table: Table) -> None:
    writer = filled(table, 10)
    writer.check = lambda: write_commit(table.path, newest(table.path) + 1, {"commitInfo": {}})
    with pytest.raises(Overtaken, match="20 times"):
        upsert(writer, table.changes([row(3, "new", offset=5)]), APP, 3)


def test_who_has_lost_the_lake_commits_nothing(table: Table) -> None:
    writer = filled(table)

    def lost() -> None:
        raise LeaseLost("another merge has taken the lake over")

    writer.check = lost
    with pytest.raises(LeaseLost):
        upsert(writer, table.changes([row(3, "new", offset=5)]), APP, 3)
    assert newest(table.path) == 2
    table.check()
    writer.check = lambda: None
    table.merge(writer, [row(3, "after all", offset=5)])
    table.check()


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("dies", [False, True], ids=["the same process goes on", "a new one goes on"])
def test_a_fault_at_any_step_loses_and_doubles_nothing(tmp_path: Path, late: bool, dies: bool) -> None:
    """Each call of storage fails once: before it does anything, or with its answer lost."""
    base = Table.made(tmp_path / "0")
    filled(base)
    merged = FaultyStorage(base.lake)
    writer = base.writer(Location(merged, "table"))
    upsert(writer, base.changes([]), APP, 0)  # reads the log and the keys, so that the calls are those of the merge
    began = len(merged.calls)
    puts = [row(i, "ours", offset=5) for i in (3, 55, 700)]
    gone = [row(10), row(60)]
    upsert(writer, base.changes(puts, gone), APP, 3)
    calls = merged.calls[began:]
    assert [c.split()[0] for c in calls].count("create") == 3, "a file of vectors, one of rows, and the commit"
    for number in range(1, len(calls) + 1):
        table = Table.made(tmp_path / f"{number}-{late}")
        filled(table)
        faulty = FaultyStorage(table.lake, late=late)
        writer = table.writer(Location(faulty, "table"))
        upsert(writer, table.changes([]), APP, 0)
        faulty.fail_at = len(faulty.calls) + number
        table.expect(puts, gone)
        try:
            upsert(writer, table.changes(puts, gone), APP, 3)
        except StagingUnavailable:
            again = table.writer() if dies else writer
            upsert(again, table.changes(puts, gone), APP, 3)
        table.check()
        assert newest(table.path) == 3, calls[number - 1]
        after = table.writer() if dies else writer
        table.merges = 3
        table.merge(after, [row(3, "later", offset=6)], [row(55)])
        table.check()


def test_an_answer_that_is_lost_is_looked_up(table: Table) -> None:
    filled(table)
    faulty = FaultyStorage(table.lake, late=True)
    writer = table.writer(Location(faulty, "table"))
    create = faulty.create

    def lose(relative: str, data: Any) -> bool:
        done = create(relative, data)
        if relative.endswith("3.json"):
            raise StagingUnavailable("storage does not answer", where=relative)
        return done

    faulty.create = lose  # type: ignore[method-assign]
    done = table.merge(writer, [row(3, "ours", offset=5)])
    assert not done.already and done.updated == 1, "the commit was found to be ours"
    table.check()


def test_a_log_that_was_cleaned_behind_a_stopped_process_is_not_gone_on_with(table: Table) -> None:
    """Its next version is free again: only the commit before it tells."""
    writer = filled(table)
    other = table.writer()
    for i in range(3):
        table.merge(other, [row(i, "meanwhile", offset=7 + i)])

    def clean() -> None:
        opened(table).create_checkpoint()
        for version in range(5):
            (table.path / "_delta_log" / f"{version:020d}.json").unlink()

    clean()
    table.merge(writer, [row(3, "after", offset=20)])
    assert writer.snapshot.version == 6 and newest(table.path) == 6
    assert table.read() == table.model()


def test_a_process_that_is_stopped_right_before_its_commit_says_that_it_was_lost(table: Table) -> None:
    writer = filled(table)

    def stopped() -> None:
        other = table.writer()
        for i in range(3):
            table.merges += 1
            upsert(other, table.changes([row(i, "meanwhile", offset=7 + i)]), "other", i)
            table.expect([row(i, "meanwhile", offset=7 + i)])
        opened(table).create_checkpoint()
        for version in range(5):
            (table.path / "_delta_log" / f"{version:020d}.json").unlink()

    writer.check = stopped
    with pytest.raises(LakeError, match="stopped for too long"):
        upsert(writer, table.changes([row(50, "lost", offset=20)]), APP, 3)
    assert table.read() == table.model()


@pytest.mark.parametrize("soak_round", range(1))
def test_whatever_happens_in_any_order_the_rows_are_right(tmp_path: Path, soak_seed: int, soak_round: int) -> None:
    """Random batches, rivals at any point, restarts with and without the saved index, files joined."""
    dice = random.Random(soak_seed)
    table = Table.made(tmp_path, mapped=dice.random() < 0.3)
    rivals = ["checkpoints"] if table.mapped else [name for name in RIVALS if name != "widens"]  # delta-rs can no more
    writer = table.writer(index=tmp_path / "index")
    index = tmp_path / "index"
    table.merge(writer, [row(i, offset=1) for i in range(800)])
    offset = 10
    for number in range(20):
        offset += 10
        count = dice.choice([3, 40, 400])
        keys = dice.sample([*range(1000), 10_000], count)
        gone = {key for key in keys if dice.random() < 0.3}
        puts = [row(key, f"round {number}", offset=offset) for key in keys if key not in gone]
        what = dice.choice([None, None, *rivals])
        # The model keeps one row a key: a rival's append of one that is there is another test's.
        if what == "appends" and (10_000,) in table.rows:
            what = None
        done: list[str] = []

        def between(what: str | None = what, done: list[str] = done) -> None:
            if what and not done:
                done.append(what)
                RIVALS[what](table)

        writer.check = between
        table.merge(writer, puts, [row(key) for key in sorted(gone)])
        writer.check = lambda: None
        table.check()
        if dice.random() < 0.3:
            join_files(writer, below=dice.choice([1 << 12, 1 << 20]))
            table.check()
        fate = dice.random()
        if fate < 0.15:
            writer = table.writer()
        elif fate < 0.3:
            writer.save()
            writer = table.writer(index=index)


class TestKeys:
    """Keys that are not one integer are found by their hash."""

    def test_text_decimals_and_several_columns(self, tmp_path: Path) -> None:
        kinds = {"shop": "string", "number": "decimal(20,4)", "day": "date", "tag": "binary"}
        import datetime as dt
        from decimal import Decimal

        fields = {**kinds, "note": "string", OFFSET: "long"}
        table = Table.made(tmp_path, fields=fields, keys=tuple(kinds))

        def one(i: int, note: str) -> Row:
            day = dt.date(1970, 1, 1) + dt.timedelta(days=i % 5 - 2)
            shop = ["", "a", "ab", "a" * 30, "ä€😀"][i % 5]
            number = (Decimal(i) / 4 - 100).quantize(Decimal("0.0001"))
            return {
                "shop": shop,
                "number": number,
                "day": day,
                "tag": bytes([i % 3] * (i % 4)),
                "note": note,
                OFFSET: 1,
            }

        writer = table.writer()
        table.merge(writer, [one(i, "first") for i in range(500)])
        table.merge(writer, [one(i, "second") for i in range(0, 600, 7)], [one(i, "") for i in range(1, 500, 7)])
        table.check()
        table.merge(table.writer(), [one(i, "third") for i in range(0, 600, 5)])
        table.check()

    def test_a_key_without_a_value_is_refused(self, table: Table) -> None:
        writer = filled(table)
        changes = table.changes([{"id": None, "note": "x", OFFSET: 1, "amount": None}])
        with pytest.raises(LakeError, match="no value in id"):
            upsert(writer, changes, APP, 3)

    def test_two_changes_of_a_key_are_a_defect(self, table: Table) -> None:
        writer = filled(table)
        with pytest.raises(LakeError, match="two changes"):
            upsert(writer, table.changes([row(1, "a"), row(1, "b")]), APP, 3)

    def test_rows_of_others_without_a_key_stay(self, table: Table) -> None:
        write_deltalake(str(table.path), table.arrow([{"id": None, "note": "foreign"}]), mode="append")
        writer = filled(table)
        table.expect([{"id": None, "note": "foreign"}])
        table.merge(writer, [row(0, "new", offset=4)])
        table.check()


def test_names_are_the_tables_and_files_have_the_physical_ones(tmp_path: Path) -> None:
    table = Table.made(tmp_path, mapped=True)
    writer = filled(table)
    table.merge(writer, [row(3, "new", offset=2)], [row(70)])
    table.check()
    added = [a["add"] for a in commit_of(table.path, 3) if "add" in a]
    new = next(a for a in added if "deletionVector" not in a)
    assert set(json.loads(new["stats"])["minValues"]) == {"col-0", "col-1", "col-3"}
    held = pq.read_schema(table.path / new["path"])
    assert held.names == ["col-0", "col-1", "col-2", "col-3"]
    assert [held.field(i).metadata[b"PARQUET:field_id"] for i in range(4)] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "from disk"])
def test_a_name_that_becomes_that_of_another_column_is_another_key(tmp_path: Path, saved: bool) -> None:
    """Mutant: stale index believed."""
    table = Table.made(tmp_path, mapped=True, fields={**FIELDS, "other": "long"})
    writer = table.writer(index=tmp_path / "index")
    table.merge(writer, [row(i, offset=1, other=99 - i) for i in range(10)])
    writer.save()
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    text = changed["metaData"]["schemaString"]
    swapped = text.replace('"id"', '"was"').replace('"other"', '"id"').replace('"was"', '"other"')
    changed["metaData"]["schemaString"] = swapped
    write_commit(table.path, 2, changed)
    table.rows = {
        (row_before["other"],): {**row_before, "id": row_before["other"], "other": row_before["id"]}
        for row_before in table.rows.values()
    }
    writer = table.writer(index=tmp_path / "index") if saved else writer
    table.merges = 2
    done = table.merge(writer, [row(95, "changed", offset=2)], [row(99), row(5)])
    assert (done.updated, done.deleted, done.absent) == (1, 1, 1)
    table.check()


def test_a_column_that_takes_no_null_gets_none(table: Table) -> None:
    writer = filled(table)
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    shape = json.loads(changed["metaData"]["schemaString"])
    shape["fields"][1]["nullable"] = False
    changed["metaData"]["schemaString"] = json.dumps(shape)
    write_commit(table.path, 3, changed)
    with pytest.raises(LakeError, match="column note takes no NULL"):
        upsert(writer, table.changes([{**row(3, offset=5), "note": None}]), APP, 3)
    table.merges = 3
    table.merge(writer, [], [row(3)])  # a deleted row needs no value
    table.check()


@pytest.mark.parametrize(("codec", "name"), [("snappy", "SNAPPY"), ("GZIP", "GZIP"), ("uncompressed", "UNCOMPRESSED")])
def test_the_table_says_how_files_are_compressed(table: Table, codec: str, name: str) -> None:
    writer = filled(table)
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    changed["metaData"]["configuration"]["delta.parquet.compression.codec"] = codec
    write_commit(table.path, 3, changed)
    table.merges = 3
    table.merge(writer, [row(3, "new", offset=5)])
    new = next(a["add"]["path"] for a in commit_of(table.path, 4) if "add" in a and "deletionVector" not in a["add"])
    assert pq.ParquetFile(table.path / new).metadata.row_group(0).column(0).compression == name
    table.check()


def test_a_key_column_that_somebody_drops_stops_the_table(table: Table) -> None:
    writer = filled(table)
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    shape = json.loads(changed["metaData"]["schemaString"])
    shape["fields"] = [f for f in shape["fields"] if f["name"] != "id"]
    changed["metaData"]["schemaString"] = json.dumps(shape)
    write_commit(table.path, 3, changed)
    with pytest.raises(LakeError, match="no column id any more"):
        upsert(writer, table.changes([row(3, offset=5)]), APP, 3)


def test_wrong_rows_are_told_by_their_columns(table: Table) -> None:
    writer = filled(table)
    changes = table.changes([row(3)])
    wrong = Changes(changes.rows.drop_columns(["note"]), changes.deleted, changes.guarded)
    with pytest.raises(LakeError, match="note"):
        upsert(writer, wrong, APP, 3)
    text = changes.rows.set_column(2, "amount", pa.array(["many"]))
    with pytest.raises(LakeError, match="amount"):
        upsert(writer, Changes(text, np.array([False]), np.array([False])), APP, 3)
    table.check()
