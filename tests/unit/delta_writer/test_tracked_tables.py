"""Tables whose rows are tracked and whose commits carry times: ids that rows keep, and times that never go back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from dblog_core.delta_writer import commit, due_actions, snapshot
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.rewriting.purge_files import purge_file
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.upserting import upsert
from dblog_core.errors import LakeError
from tests.unit.delta_writer.rivals import open_delta
from tests.unit.delta_writer.tables import (
    FIELDS,
    TRACKED_CONF,
    TRACKED_FEATURES,
    Table,
    commit_of,
    fill_table,
    live_adds,
    metadata,
    newest,
    protocol,
    read_tracked,
    row,
    schema_string,
    write_commit,
)

Patch = AbstractContextManager[object]


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    return Table.create_at(tmp_path, vectors=request.param, tracked=True)


def _versions(table: Table) -> dict[int, int]:
    return {key[0]: version for key, _, version in read_tracked(table.path, table.fields, table.keys)}


def _switch(table: Table, *features: str, **configuration: str) -> None:
    """Another program gives the table other features and properties."""
    conf = {"delta.enableDeletionVectors": str(table.vectors).lower(), **configuration}
    actions = [protocol(*features, vectors=table.vectors), metadata(schema_string(FIELDS), **conf)]
    info = {"commitInfo": {"timestamp": 1, "inCommitTimestamp": 10**15, "operation": "SET TBLPROPERTIES"}}
    write_commit(table.path, newest(table.path) + 1, info, *actions)


def test_a_row_keeps_its_id_and_its_version_says_when_it_changed(table: Table) -> None:
    writer = fill_table(table)
    table.check()
    table.merge(writer, [row(5, "new", offset=2), row(200, offset=2)], [row(7)])
    table.check()
    assert {number: _versions(table)[number] for number in (1, 5, 200)} == {1: 1, 5: 3, 200: 3}
    later_writer = table.writer()  # a process that knows nothing of the table yet
    table.merge(later_writer, [row(5, "newer", offset=3), row(7, "born again", offset=3)], [row(200)])
    table.check()
    before = {key: row_id for key, row_id, _ in read_tracked(table.path, table.fields, table.keys)}
    versions = _versions(table)
    while join_files(later_writer) or purge_file(later_writer):
        table.check()
        assert _versions(table) == versions, "rows were copied, and have not changed"
    assert {key: row_id for key, row_id, _ in read_tracked(table.path, table.fields, table.keys)} == before
    table.merge(later_writer, [row(6, "at last", offset=4)])
    table.check()
    assert _versions(table) == {**versions, 6: newest(table.path)}


def test_rows_that_go_by_their_order_leave_the_others_as_they_were(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(number, "new", offset=9) for number in range(30, 60)])
    table.check()
    versions = _versions(table)
    upsert.remove_rows(writer, "app", 1, below=9)
    table.rows = {key: values for key, values in table.rows.items() if 30 <= key[0] < 60}
    table.check()
    assert _versions(table) == {number: versions[number] for number in range(30, 60)}


def test_a_checkpoint_tells_what_the_log_told(table: Table) -> None:
    fill_table(table)
    open_delta(table).create_checkpoint()
    for version in range(newest(table.path)):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    read = snapshot.newest(TableFiles.at(table.location()))
    assert json.loads(read.domains["delta.rowTracking"]) == {"rowIdHighWaterMark": 99}
    assert sorted(live.add["baseRowId"] for live in read.files.values()) == [0, 50]
    table.merge(table.writer(), [row(5, "new", offset=2), row(200, offset=2)])
    after = snapshot.newest(TableFiles.at(table.location()))
    added = [live.add for live in after.files.values() if live.add["defaultRowCommitVersion"] == 3]
    assert added and min(add["baseRowId"] for add in added) == 100
    assert json.loads(after.domains["delta.rowTracking"])["rowIdHighWaterMark"] > 100


def test_a_commit_is_later_than_the_one_before_whatever_the_clock_says(table: Table) -> None:
    clock = itertools.chain([5_000_000, 5_000_000, 5_000_000], itertools.repeat(7))
    writer = table.writer(now_ms=lambda: next(clock))
    for number in range(4):
        table.merge(writer, [row(number)])
    times = [commit_of(table.path, v)[0]["commitInfo"]["inCommitTimestamp"] for v in range(5)]
    assert times == sorted(set(times)) and times[2] > 4_999_999
    table.check()


def test_a_time_that_follows_from_a_commit_that_is_gone_is_not_made_up(table: Table) -> None:
    fill_table(table)
    open_delta(table).create_checkpoint()
    (table.path / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(LakeError, match=r"carry times, and that of version 2 is gone"):
        table.merge(table.writer(), [row(5, "new", offset=2)])


def test_ids_are_given_before_rows_are_tracked_and_not_where_that_is_suspended(table: Table) -> None:
    table.tracked = False
    _switch(table, *TRACKED_FEATURES)  # supported: other programs count on ids, and no row keeps one
    writer = table.writer()
    table.merge(writer, [row(1), row(2)])
    table.merge(writer, [row(1, "new", offset=2)])
    assert all("baseRowId" in add for add in live_adds(table.path))
    assert "tags" not in commit_of(table.path, newest(table.path))[0]["commitInfo"]
    _switch(table, *TRACKED_FEATURES, **{"delta.rowTrackingSuspended": "true"})
    table.merge(table.writer(), [row(3)])
    assert "baseRowId" not in commit_of(table.path, newest(table.path))[-1]["add"]


def test_ids_whose_column_nobody_names_are_refused(table: Table) -> None:
    conf: dict[str, Any] = {name: value for name, value in TRACKED_CONF.items() if "materializedRowId" not in name}
    _switch(table, *TRACKED_FEATURES, **conf)
    with pytest.raises(LakeError, match=r"its property delta\.rowTracking\.materializedRowIdColumnName is missing"):
        table.merge(table.writer(), [row(1)])


def _give_new_ids() -> Patch:
    """A row that is updated counts as a new one."""
    return mock.patch.object(upsert, "row_ids", lambda table, shape, hits, puts: pa.nulls(len(puts), pa.int64()))


def _copy_without_ids() -> Patch:
    return mock.patch.object(Shape, "with_tracking", lambda shape: shape)


def _count_ids_from_each_commit() -> Patch:
    """The highest id is not looked up."""
    assign = due_actions._with_row_ids
    return mock.patch.object(
        due_actions,
        "_with_row_ids",
        lambda version, actions, where: assign(replace(version, domains={}), actions, where),
    )


def _forget_ids_of_removed_files() -> Patch:
    return mock.patch.object(commit, "_OF_REMOVED", ("deletionVector", "tags"))


def _trust_the_clock() -> Patch:
    return mock.patch.object(due_actions, "_time_of", return_value=None)


@pytest.mark.parametrize(
    "mistake",
    [_give_new_ids, _copy_without_ids, _count_ids_from_each_commit, _forget_ids_of_removed_files, _trust_the_clock],
)
def test_each_mistake_is_found(table: Table, mistake: Callable[[], Patch]) -> None:
    with mistake(), pytest.raises((AssertionError, KeyError)):
        _change_and_copy(table)


def _change_and_copy(table: Table) -> None:
    """Under a clock that goes back."""
    clock = itertools.count(10**6, -1)
    writer = fill_table(table, now_ms=lambda: next(clock))
    table.check()
    table.merge(writer, [row(5, "new", offset=2), row(200, offset=2)], [row(7)])
    table.check()
    while join_files(writer) or purge_file(writer):
        table.check()
