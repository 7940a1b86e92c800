"""The lake's side of a verification: the judge, which reads ahead while the source is read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.errors import DblogError
from dblog_core.verify.direct.judge import DirectJudge
from dblog_core.verify.exchange import TOGETHER, Answer, Desk, Task
from dblog_core.verify.window_positions import Interrupted


class LakeSide:
    """A context."""

    def __init__(self, config: Config, desk: Desk, stop: threading.Event) -> None:
        self._desk = desk
        self._judge = DirectJudge(wiring.open_staging(config), wiring.open_lake(config), desk, stop=stop)
        self._pool = ThreadPoolExecutor(TOGETHER, thread_name_prefix="lake")

    def __enter__(self) -> LakeSide:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._judge.close()  # nobody waits for what is read ahead
        self._pool.shutdown(cancel_futures=True)

    def prepare(self, task: Task) -> None:
        """Begins to read the lake for a task that is going to be asked, and waits for nothing."""
        self._pool.submit(self._prepare, task)

    def ask(self, task: Task) -> Answer:
        """Waits for the answer, to which each file of the task counts once. Raises Interrupted, and LakeError where
        nobody can give one. Thread-safe."""
        try:
            return self._judge.answer(task)
        finally:
            self._desk.drop(task.files)

    def _prepare(self, task: Task) -> None:
        with suppress(DblogError, Interrupted):  # `ask` meets it again, and raises it
            self._judge.prepare(task)
