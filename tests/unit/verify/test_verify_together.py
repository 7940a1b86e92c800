"""Tables that are compared at the same time: each gets its own answers, and the source is read for one at a time."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dblog_core.clock import SystemClock
from dblog_core.model.schema import TableName
from dblog_core.storage.factory import open_storage
from dblog_core.verify import run
from dblog_core.verify.exchange import TOGETHER, Answer, Ask, Desk, Task
from dblog_core.verify.report import TableReport
from dblog_core.verify.run import VerifyRequest
from dblog_core.verify.source_reader import Prober, Readers
from dblog_core.verify.spark_job import SparkJob
from spark_jobs import verify as job

TABLES = [TableName("shop", f"t{number}") for number in range(6)]


def test_tables_are_compared_together_and_told_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(TOGETHER)

    class Check:
        evidence = None

        def __init__(self, _: Any, table: TableName, __: Any) -> None:
            self._table = table

        def compare_all_rows(self) -> TableReport:
            meeting.wait(timeout=30)  # broken unless TOGETHER tables come here at the same time
            return TableReport(str(self._table))

    monkeypatch.setattr(run, "TableCheck", Check)
    lines: list[str] = []
    tools: Any = SimpleNamespace(say=lines.append)
    cut: Any = SimpleNamespace(ranges=lambda table: None if table == TABLES[-1] else [])
    tables = TABLES[: 2 * TOGETHER] + TABLES[-1:]
    compared = run._compare_tables(tools, cut, VerifyRequest(None), tables)
    assert [table.report.table for table in compared] == [str(table) for table in tables[:-1]]
    assert f"{TABLES[-1]}: no key of it is in this slice" in lines


def test_the_source_is_read_for_one_table_at_a_time() -> None:
    inside: set[str] = set()
    most: list[int] = []
    source: Any = SimpleNamespace(
        open_reader=lambda: SimpleNamespace(close=lambda: None),
        open_watermarks=lambda _: SimpleNamespace(close=lambda: None),
    )
    desk: Any = None
    readers = Readers(source, "shop", desk, workers=2, rate=0, clock=SystemClock(), stop=threading.Event())

    def read_table(table: str) -> None:
        def read(_: Prober, part: int) -> int:
            inside.add(table)
            most.append(len(inside))
            return part

        with readers.turn:
            assert readers._each(range(50), read) == list(range(50))
            inside.discard(table)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read_table, ("a", "b", "c", "d")))
    assert len(most) == 200 and max(most) == 1


def test_every_thread_gets_the_answer_to_its_own_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(open_storage(str(tmp_path), "shop"), "tmp/verify-x")
    config: Any = SimpleNamespace(lake=SimpleNamespace(path="lake"))
    spark_job = SparkJob(config, desk, SystemClock(), threading.Event())
    monkeypatch.setattr(spark_job, "start", lambda: None)
    tasks = 40
    for number in range(1, tasks + 1):
        desk.put_answer(number, Answer(rows=number))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda seed: (seed, spark_job.ask(Task(Ask.SAMPLE, seed=seed)).rows), range(tasks)))
    for seed, number in answers:
        task = desk.read_task(number)
        assert task is not None and task.seed == seed
    assert len({number for _, number in answers}) == tasks


def test_what_breaks_a_comparison_ends_the_job() -> None:
    answer: Future[None] = Future()
    assert not job._is_over(answer)
    answer.set_exception(ValueError("a mistake of ours"))
    with pytest.raises(ValueError, match="a mistake of ours"):
        job._is_over(answer)
