"""A task answered twice: in this process, and by Spark; both must give the same answer."""

from __future__ import annotations

from dataclasses import replace

from dblog_core.storage.location import Location
from dblog_core.verify.direct.judge import DirectJudge
from dblog_core.verify.direct.not_direct import NotDirect
from dblog_core.verify.exchange import Answer, Ask, Desk, Task
from spark_jobs.verify import answer_task
from spark_jobs.verifying.compare_hashes import Judge


class BothJudges:
    """`refusals`: why tasks were Spark's alone."""

    def __init__(self, spark_judge: Judge, direct: DirectJudge, desk: Desk) -> None:
        self._spark_judge = spark_judge
        self._direct = direct
        self._desk = desk
        self.refusals: list[str] = []

    def answer(self, task: Task, lake: Location) -> Answer:
        """Raises AssertionError where the answers differ."""
        if task.ask is Ask.HISTORY:
            return answer_task(self._spark_judge, task, lake)
        try:
            here = self._direct.answer(task)
        except NotDirect as reason:
            self.refusals.append(str(reason))
            here = None
        self._desk.store(task.files)
        by_spark = answer_task(self._spark_judge, task, lake)
        if here is None:
            return by_spark
        assert _comparable(here, task) == _comparable(by_spark, task)
        return here


def _comparable(answer: Answer, task: Task) -> Answer:
    """`staged` is about what Spark has read, and exact here; samples are drawn, and keys come in any order."""
    keys = () if task.ask is Ask.SAMPLE else answer.keys
    lists = {name: _in_order(getattr(answer, name)) for name in ("missing", "extra", "different", "undecided", "twice")}
    return replace(answer, staged=0, keys=keys, **lists)


def _in_order(keys: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(sorted(keys, key=repr))
