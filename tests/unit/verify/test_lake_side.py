"""Who answers: this process where it can, and else one Spark job, which is started when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.clock import SystemClock
from dblog_core.errors import LakeError
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.storage.factory import open_storage
from dblog_core.verify import exchange, lake_side
from dblog_core.verify.direct.not_direct import NotDirect, TooManyStaged
from dblog_core.verify.exchange import Answer, Ask, Desk, Task
from dblog_core.verify.lake_side import LakeSide
from tests.waiting import wait_until


def task_of(table: str, *files: str) -> Task:
    schema = TableSchema(TableName("shop", table), (Column("id", "bigint", pa.int64()),), ("id",))
    return Task(Ask.COMPARE, schema, files=files)


class Job:
    """In place of Spark."""

    def __init__(self, *_: Any) -> None:
        self.started = 0
        self.asked: list[str] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def start(self) -> None:
        self.started += 1

    def ask(self, task: Task) -> Answer:
        self.asked.append(task.shape.table.name)
        return Answer(rows=2)


class Direct:
    """In place of the judge: table `large` is Spark's, `busy` is as a whole, and `broken` has a fault."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked: list[str] = []

    def prepare(self, task: Task) -> None:
        self.answer(task)

    def answer(self, task: Task) -> Answer:
        name = task.shape.table.name
        self.asked.append(name)
        if name == "large":
            raise NotDirect("it is large")
        if name == "busy" and not task.for_chosen_keys:
            raise TooManyStaged("many of its staged rows are not merged")
        if name == "broken":
            raise LakeError("a data file is missing", where="lake", fix="restore it")
        return Answer(rows=1)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(open_storage(str(tmp_path), "shop"), "tmp/verify-x")


@pytest.fixture
def side(desk: Desk, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(lake_side, "SparkJob", Job)
    monkeypatch.setattr(lake_side, "DirectJudge", Direct)
    for name in ("open_staging", "open_lake"):
        monkeypatch.setattr(wiring, name, lambda _: None)
    config: Any = SimpleNamespace()
    with LakeSide(config, desk, SystemClock(), threading.Event(), lines.append) as opened:
        yield opened


def test_spark_is_not_started_where_this_process_answers(side: Any, lines: list[str]) -> None:
    side.prepare(task_of("small"))
    assert side.ask(task_of("small")).rows == 1
    assert (side._job.started, side._job.asked, lines) == (0, [], [])


def test_what_does_not_fit_starts_spark_beside_the_reading_and_is_asked_of_it_alone(
    side: Any, lines: list[str]
) -> None:
    side.prepare(task_of("large"))
    wait_until(lambda: side._job.started == 1, "the job to start")
    assert [side.ask(task_of("large")).rows for _ in range(3)] == [2, 2, 2]
    assert side.ask(task_of("small")).rows == 1
    assert side._job.asked == ["large"] * 3 and side._judge.asked.count("large") == 1
    assert lines == ["shop.large: compared by Spark, since it is large"]


def test_a_table_of_many_staged_rows_is_asked_of_spark_as_a_whole_alone(side: Any, lines: list[str]) -> None:
    chosen = replace(task_of("busy"), for_chosen_keys=True)
    assert [side.ask(task).rows for task in (task_of("busy"), chosen, task_of("busy"), chosen)] == [2, 1, 2, 1]
    assert side._judge.asked == ["busy"] * 3 and side._job.asked == ["busy"] * 2
    assert lines == ["shop.busy: compared by Spark, since many of its staged rows are not merged"]


def test_a_fault_of_the_lake_is_raised_where_it_is_asked(side: Any) -> None:
    side.prepare(task_of("broken"))
    with pytest.raises(LakeError, match="data file is missing"):
        side.ask(task_of("broken"))
    assert not side._job.asked


def test_answers_of_the_source_stay_in_memory_until_they_are_compared(side: Any, desk: Desk) -> None:
    rows = pa.record_batch({"id": pa.array([1, 2])})
    file = desk.put_rows("h", rows)
    assert desk.rows([file]).to_pylist() == rows.to_pylist() and not desk._storage.exists(file)
    side.ask(task_of("small", file))
    assert not desk._in_memory


def test_too_many_answers_of_the_source_are_stored(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_HELD", 100)
    batches = [pa.record_batch({"id": pa.array(range(10 * n, 10 * n + 10))}) for n in range(4)]
    files = [desk.put_rows(f"h{n}", batch) for n, batch in enumerate(batches)]
    assert sum(batch.nbytes for batch in desk._in_memory.values()) <= 100
    assert desk._storage.exists(files[-1])
    assert desk.rows(files)["id"].to_pylist() == list(range(40))


def test_the_spark_job_finds_all_files_of_its_task(desk: Desk) -> None:
    rows = pa.record_batch({"id": pa.array([1, 2])})
    file = desk.put_rows("h", rows)
    desk.store([file])
    desk.store([file])  # a task that is asked again
    assert desk._storage.exists(file) and not desk._in_memory
    assert desk.rows([file]).to_pylist() == rows.to_pylist()
