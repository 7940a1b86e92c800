"""The lake's side of a verification: in this process where that is exact and fits, else by Spark, once it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock
from dblog_core.verify.direct.judge import DirectJudge
from dblog_core.verify.direct.not_direct import NotDirect, TooManyStaged
from dblog_core.verify.exchange import TOGETHER, Answer, Ask, Desk, Task
from dblog_core.verify.spark_job import SparkJob
from dblog_core.verify.window_positions import Interrupted


class LakeSide:
    """A context. Spark is started for the first table that needs it, and then used for all of those. Of a table that
    needs it only because of its many staged rows, readings of chosen keys are compared here."""

    def __init__(
        self, config: Config, desk: Desk, clock: Clock, stop: threading.Event, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._desk = desk
        self._job = SparkJob(config, desk, clock, stop)
        self._judge = DirectJudge(wiring.open_staging(config), wiring.open_lake(config), desk, stop=stop)
        self._pool = ThreadPoolExecutor(TOGETHER, thread_name_prefix="lake")
        self._refused: set[str] = set()
        self._refused_whole: set[str] = set()
        self._opened = ExitStack()

    def __enter__(self) -> LakeSide:
        self._opened.enter_context(self._job)
        self._opened.callback(self._pool.shutdown, cancel_futures=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    def prepare(self, task: Task) -> None:
        """Begins to read the lake for a task that is going to be asked, and waits for nothing."""
        self._pool.submit(self._prepare, task)

    def ask(self, task: Task) -> Answer:
        """Waits for the answer, to which each file of the task counts once. Raises Interrupted, and LakeError where
        nobody can give one. Thread-safe."""
        answer = self._find_answer(task)
        self._desk.drop(task.files)
        return answer

    def _find_answer(self, task: Task) -> Answer:
        if task.ask is not Ask.HISTORY and not self._is_refused(task):
            try:
                return self._judge.answer(task)
            except NotDirect as reason:
                self._leave_to_spark(task, reason)
        return self._job.ask(task)

    def _prepare(self, task: Task) -> None:
        try:
            self._judge.prepare(task)
        except NotDirect as reason:
            self._leave_to_spark(task, reason)
            self._job.start()  # it starts beside the reading of the source
        except (DblogError, Interrupted):
            pass  # `ask` meets it again, and raises it

    def _is_refused(self, task: Task) -> bool:
        table = str(task.shape.table)
        return table in self._refused or (table in self._refused_whole and not task.for_chosen_keys)

    def _leave_to_spark(self, task: Task, reason: NotDirect) -> None:
        if self._is_refused(task):
            return
        is_whole = isinstance(reason, TooManyStaged) and not task.for_chosen_keys
        (self._refused_whole if is_whole else self._refused).add(str(task.shape.table))
        self._say(f"{task.shape.table}: compared by Spark, since {reason}")
