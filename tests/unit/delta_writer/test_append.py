"""Rows that are appended by their order are in the table once, whatever fails, and whoever else writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.delta_writer.features import BatchRefused, TableRefused
from dblog_core.errors import LeaseLost, StagingUnavailable
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from tests.unit.delta_writer.tables import FaultyStorage, commit_of, metadata, newest, schema_string, write_commit

APP = "dblog:shop:shop.orders:history"
ORDER = "_dblog_offset"
SETTINGS = {"delta.enableDeletionVectors": "false", "delta.appendOnly": "true"}
OURS = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"],
                     "writerFeatures": ["timestampNtz", "invariants", "appendOnly"]}}  # fmt: skip


@dataclass
class Appended:
    """A table that rows are appended to, and the orders of those that it should have."""

    lake: Path
    orders: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.lake / "table"
        write_commit(self.path, 0, OURS, metadata(schema_string({"v": "string", ORDER: "long"}), **SETTINGS))

    def writer(self, storage: LocalStorage | None = None, check: Callable[[], None] = lambda: None) -> AppendedTable:
        storage = storage or LocalStorage(self.lake, temporary="_dblog/tmp")
        return AppendedTable(Location(storage, "table"), order=ORDER, mark="dblog", check=check)

    def append(self, writer: AppendedTable, orders: Sequence[int], number: int) -> Any:
        writer.refresh()
        done = writer.append(rows(orders), APP, number)
        self.orders = [*self.orders, *(order for order in orders if order not in self.orders)]
        return done

    def read(self) -> list[int]:
        found = QueryBuilder().register("t", DeltaTable(str(self.path))).execute(f"select {ORDER} from t")
        return sorted(pa.table(found.read_all())[ORDER].to_pylist())

    def check(self) -> None:
        assert self.read() == sorted(self.orders)


def rows(orders: Sequence[int]) -> pa.Table:
    return pa.table({"v": [f"v{order}" for order in orders], ORDER: pa.array(orders, pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> Appended:
    return Appended(tmp_path)


def test_each_row_is_appended_once_with_its_transaction_and_statistics(table: Appended) -> None:
    writer = table.writer()
    assert table.append(writer, [3, 1, 4], 4).rows == 3
    assert table.append(writer, [4, 5, 9], 9).rows == 2
    assert table.append(writer, [5, 9], 9).already
    assert table.append(writer, [8], 8).already
    table.orders = [1, 3, 4, 5, 9]
    table.check()
    info, txn, add = commit_of(table.path, 2)
    assert txn["txn"]["appId"] == APP and txn["txn"]["version"] == 9
    assert json.loads(add["add"]["stats"])["minValues"] == {"v": "v5", ORDER: 5}
    about = info["commitInfo"]
    assert (about["operation"], about["isBlindAppend"], about["operationMetrics"]["numOutputRows"]) == (
        "WRITE", True, "2",
    )  # fmt: skip


def test_a_transaction_without_a_row_is_noted(table: Appended) -> None:
    writer = table.writer()
    table.append(writer, [1, 2], 7)
    assert table.append(writer, [], 8).rows == 0
    assert [list(action) for action in commit_of(table.path, 2)] == [["commitInfo"], ["txn"]]
    assert table.writer().newest_order(APP) == 0 and writer.newest_order(APP) == 8
    table.append(table.writer(), [8, 9], 9)
    table.orders = [1, 2, 9]
    table.check()


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("dies", [False, True], ids=["the same process goes on", "a new one goes on"])
def test_a_fault_at_any_step_loses_and_doubles_nothing(tmp_path: Path, late: bool, dies: bool) -> None:
    """Each call of storage fails once: before it does anything, or with its answer lost."""
    first = Appended(tmp_path / "0")
    counted = FaultyStorage(first.lake)
    writer = first.writer(counted)
    first.append(writer, [1, 2], 2)
    began = len(counted.calls)
    first.append(writer, [2, 3, 4], 4)
    calls = counted.calls[began:]
    assert [call.split()[0] for call in calls].count("create") == 2, "a file of rows, and the commit"
    for number in range(1, len(calls) + 1):
        table = Appended(tmp_path / f"{number}")
        faulty = FaultyStorage(table.lake, late=late)
        writer = table.writer(faulty)
        table.append(writer, [1, 2], 2)
        faulty.fail_at = len(faulty.calls) + number
        try:
            table.append(writer, [2, 3, 4], 4)
        except StagingUnavailable:
            table.append(table.writer() if dies else writer, [2, 3, 4], 4)
        table.check()
        assert newest(table.path) == 2, calls[number - 1]
        table.append(table.writer() if dies else writer, [5], 5)
        table.check()


def in_between(writer: AppendedTable, work: Callable[[], None]) -> None:
    """Has another do the work when the writer's file is written, once."""
    create = writer.files.root.storage.create
    done: list[str] = []

    def create_after_another(relative: str, data: Any) -> bool:
        if relative.endswith(".json") and not done:
            done.append(relative)
            work()
        return create(relative, data)

    writer.files.root.storage.create = create_after_another  # type: ignore[method-assign]


def test_rows_that_another_merge_has_brought_meanwhile_are_left_out(table: Appended) -> None:
    writer = table.writer()
    writer.refresh()
    in_between(writer, lambda: table.append(table.writer(), [1, 2], 2))
    assert writer.append(rows([1, 2, 3, 4]), APP, 4).rows == 2
    table.orders = [1, 2, 3, 4]
    table.check()


def test_parts_are_one_commit_with_a_file_for_each(table: Appended) -> None:
    writer = table.writer()
    writer.refresh()
    done = writer.append([rows([1, 7]), rows([]), rows([2, 3])], APP, 7)
    assert (done.version, done.rows) == (1, 4)
    info, txn, *adds = commit_of(table.path, 1)
    assert [json.loads(add["add"]["stats"])["numRecords"] for add in adds] == [2, 2]
    assert txn["txn"]["version"] == 7 and info["commitInfo"]["operationMetrics"]["numFiles"] == "2"
    table.orders = [1, 2, 3, 7]
    table.check()


def test_parts_that_another_merge_has_brought_meanwhile_are_left_out(table: Appended) -> None:
    writer = table.writer()
    writer.refresh()
    in_between(writer, lambda: table.append(table.writer(), [1, 2], 2))
    assert writer.append([rows([1, 3]), rows([2]), rows([4])], APP, 4).rows == 2
    table.orders = [1, 2, 3, 4]
    table.check()


def test_what_another_merge_has_brought_whole_is_not_appended(table: Appended) -> None:
    writer = table.writer()
    writer.refresh()
    in_between(writer, lambda: table.append(table.writer(), [1, 2, 3], 5))
    assert writer.append(rows([1, 2]), APP, 2).already
    table.check()


def test_commits_of_others_are_passed_and_the_file_is_written_once(table: Appended) -> None:
    writer = table.writer()
    table.append(writer, [1], 1)
    in_between(writer, lambda: write_deltalake(str(table.path), rows([100]), mode="append"))
    table.append(writer, [2], 2)
    table.orders.append(100)
    table.check()
    assert newest(table.path) == 3 and len(list(table.path.glob("part-*"))) == 3


def test_a_table_that_is_altered_meanwhile_is_left_to_spark(table: Appended) -> None:
    writer = table.writer()
    table.append(writer, [1], 1)
    wider = metadata(schema_string({"v": "string", ORDER: "long", "more": "string"}), **SETTINGS)
    in_between(writer, lambda: write_commit(table.path, 2, wider))
    with pytest.raises(BatchRefused, match="altered meanwhile"):
        writer.append(rows([2]), APP, 2)
    table.check()


def test_a_writer_that_was_shut_out_commits_nothing(table: Appended) -> None:
    """It is asked after the file is written, right before the commit."""
    asked: list[int] = []

    def refuse() -> None:
        asked.append(len(list(table.path.glob("part-*"))))
        raise LeaseLost("another merge has taken the lake over")

    writer = table.writer(check=refuse)
    with pytest.raises(LeaseLost):
        table.append(writer, [1], 1)
    assert asked == [1] and newest(table.path) == 0
    table.check()


def test_a_table_with_what_an_append_does_not_do_is_refused(table: Appended) -> None:
    protocol = {"protocol": {**OURS["protocol"], "writerFeatures": ["timestampNtz", "appendOnly", "icebergCompatV2"]}}
    write_commit(table.path, 1, protocol, metadata(schema_string({ORDER: "long"}), **SETTINGS))
    with pytest.raises(TableRefused):
        table.writer().refresh()


FIRST = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def test_a_table_of_the_first_protocol_takes_rows_unless_it_asks_for_more(table: Appended) -> None:
    write_commit(table.path, 1, FIRST)
    table.append(table.writer(), [1, 2], 2)
    table.check()
    fields = schema_string({"v": "string", ORDER: "long"})
    for settings in ({"delta.constraints.few": "v < 3"}, {"delta.columnMapping.mode": "name"}):
        write_commit(table.path, newest(table.path) + 1, metadata(fields, **settings))
        with pytest.raises(TableRefused):
            table.writer().refresh()


def test_a_table_is_as_it_was_left_while_it_has_that_commit(table: Appended) -> None:
    writer = table.writer()
    assert not writer.is_as_left(), "it was never read"
    table.append(writer, [1], 1)
    write_commit(table.path, 2, {"commitInfo": {"operation": "VACUUM END"}})
    assert writer.is_as_left(), "what follows makes the next commit fail"
    table.append(writer, [2], 2)
    path = table.path / "_delta_log" / f"{3:020d}.json"
    path.write_bytes(path.read_bytes() + b"\n")
    assert not writer.is_as_left()
    path.unlink()
    assert not writer.is_as_left()
