"""Verifications in this process: the warm Spark session answers in place of a job of its own, and Arrow beside it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from dblog_core.verify import certificate_check, repair, run
from dblog_core.verify import table as table_module
from dblog_core.verify.direct.judge import DirectJudge
from dblog_core.verify.exchange import Answer, Desk, Task
from dblog_core.verify.report import Report
from dblog_core.verify.run import VerifyRequest
from dblog_core.verify.table import Wish
from dblog_core.wiring import open_lake, open_staging
from spark_jobs.verifying.compare_hashes import Judge
from tests.both_judges import BothJudges
from tests.plain_judge import PlainLake

Verify = Callable[..., Report]


@pytest.fixture
def verify_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, merge_here: Callable[[Config], None]) -> Verify:
    """`verify(config, *tables, **wishes)`; what a repair dumps is merged here too."""

    class LakeHere:
        def __init__(self, config: Config, desk: Desk, *_: Any) -> None:
            staging = open_staging(config)
            self._desk = desk
            self._lake = open_lake(config)
            direct = DirectJudge(staging, self._lake, desk)
            self._judges = BothJudges(Judge(spark, staging, desk), direct, desk)
            self._numbers = itertools.count(1)

        def __enter__(self) -> LakeHere:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def prepare(self, task: Task) -> None:
            """Nothing: `ask` reads all there is."""

        def ask(self, task: Task) -> Answer:
            """In both ways; through the files, as the job is asked, by several threads."""
            number = next(self._numbers)
            self._desk.put_task(number, task)
            read = self._desk.read_task(number)
            assert read is not None
            self._desk.put_answer(number, self._judges.answer(read, self._lake))
            answer = self._desk.read_answer(number)
            assert answer is not None
            return answer

    monkeypatch.setattr(run, "LakeSide", LakeHere)
    monkeypatch.setattr(certificate_check, "LakeSide", LakeHere)
    monkeypatch.setattr(repair, "merge_staged", lambda config, *_, **__: merge_here(config))
    return _verify


@pytest.fixture
def verify_plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Config], tuple[Verify, PlainLake]]:
    """The same over a lake that is the replayed log: no Spark."""

    def over(config: Config) -> tuple[Verify, PlainLake]:
        lake = PlainLake(config)
        monkeypatch.setattr(run, "LakeSide", lake.open)
        monkeypatch.setattr(table_module, "pin", lake.pin)
        monkeypatch.setattr(table_module, "read_lake_columns", lambda *_: [])
        monkeypatch.setattr(repair, "merge_staged", lambda *_, **__: None)
        return _verify, lake

    return over


def _verify(config: Config, *tables: str, **wishes: Any) -> Report:
    wish = Wish(**wishes.pop("sample", {}))
    say = wishes.pop("say", lambda _: None)
    request = VerifyRequest(tables=tables or None, wish=wish, **wishes)
    return run.verify(config, request, stop=threading.Event(), say=say)
