"""The lake's side: it reads ahead, a fault is raised to who asks, and what is compared is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.errors import LakeError
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.verify import lake_side
from dblog_core.verify.exchange import Answer, Ask, Desk, Task
from dblog_core.verify.lake_side import LakeSide
from tests.waiting import wait_until


def task_of(table: str, *files: str) -> Task:
    schema = TableSchema(TableName("shop", table), (Column("id", "bigint", pa.int64()),), ("id",))
    return Task(Ask.COMPARE, schema, files=files)


class Judge:
    """In place of the judge: table `broken` has a fault."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked: list[str] = []
        self.prepared: list[str] = []
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def prepare(self, task: Task) -> None:
        self.prepared.append(task.shape.table.name)
        self._find_fault(task)

    def answer(self, task: Task) -> Answer:
        self.asked.append(task.shape.table.name)
        self._find_fault(task)
        return Answer(rows=1)

    def _find_fault(self, task: Task) -> None:
        if task.shape.table.name == "broken":
            raise LakeError("a data file is missing", where="lake", fix="restore it")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def side(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(lake_side, "DirectJudge", Judge)
    for name in ("open_staging", "open_lake"):
        monkeypatch.setattr(wiring, name, lambda _: None)
    config: Any = None
    with LakeSide(config, desk, threading.Event()) as opened:
        yield opened
    assert opened._judge.is_closed, "nobody waits for what is read ahead"  # type: ignore[attr-defined]


def test_the_lake_is_read_ahead_and_a_fault_raised_where_it_is_asked(side: Any) -> None:
    for table in ("broken", "sound"):
        side.prepare(task_of(table))
    wait_until(lambda: side._judge.prepared == ["broken", "sound"], "both tables to be read")
    with pytest.raises(LakeError, match="data file is missing"):
        side.ask(task_of("broken"))
    assert side.ask(task_of("sound")).rows == 1 and side._judge.asked == ["broken", "sound"]


def test_answers_of_the_source_wait_on_the_disk_until_they_are_compared(side: Any, desk: Desk) -> None:
    batches = [pa.record_batch({"id": pa.array(range(10 * n, 10 * n + 10))}) for n in range(4)]
    files = [desk.put_rows("shop.sound", f"h{n}", batch) for n, batch in enumerate(batches)]
    other = desk.put_rows("shop.other", "other", batches[0])
    assert [desk.count(file) for file in files] == [10] * 4
    assert pa.concat_tables(list(desk.tables(files)))["id"].to_pylist() == list(range(40))
    side.ask(task_of("sound", *files))
    with pytest.raises(KeyError):
        next(desk.tables(files[:1]))
    assert set(desk._spools) == {"shop.other"}, "the file of a table is gone with its last answer"
    desk.drop([other, *files])
    assert not desk._spools


def test_answers_that_nobody_could_compare_are_forgotten_too(side: Any, desk: Desk) -> None:
    file = desk.put_rows("shop.broken", "h", pa.record_batch({"id": pa.array([1])}))
    with pytest.raises(LakeError):
        side.ask(task_of("broken", file))
    assert not desk._spools
