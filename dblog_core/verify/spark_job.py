"""The Spark job that compares what this process cannot: started when it is first needed, then asked for several tables
at the same time."""

from __future__ import annotations

import threading
from types import TracebackType

from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.interfaces import Clock
from dblog_core.lake import spark_submit
from dblog_core.verify.exchange import Answer, Ask, Desk, Task
from dblog_core.verify.window_positions import Interrupted

_LOOK_SECONDS = 0.05  # between two looks for an answer


class SparkJob:
    """A context, with whose end the job ends."""

    def __init__(self, config: Config, desk: Desk, clock: Clock, stop: threading.Event) -> None:
        self._config = config
        self._desk = desk
        self._clock = clock
        self._stop = stop
        self._end = threading.Event()
        self._number = 0
        self._lock = threading.Lock()
        self._said: list[str] = []
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="verify-lake", daemon=True)

    def __enter__(self) -> SparkJob:
        return self

    def start(self) -> None:
        """Starts the job, unless it has been started: it takes some seconds until it answers. Thread-safe."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._thread.is_alive():
            self._ask(Task(Ask.END))
        else:
            self._end.set()
        if self._thread.ident is not None:
            self._thread.join()

    def ask(self, task: Task) -> Answer:
        """Waits for the answer. Raises Interrupted, and LakeError where the job cannot give one. Thread-safe."""
        self.start()
        self._desk.store(task.files)
        number = self._ask(task)
        while True:
            # Before the look for an answer: a job that answers and ends between the two is not taken for a dead one.
            running = self._thread.is_alive()
            if (answer := self._desk.read_answer(number)) is not None:
                return answer
            if not running:
                raise LakeError(
                    f"the comparison has ended without an answer: {' / '.join(self._said[-3:]) or self._fault}",
                    where=self._config.lake.path,
                    fix="see `dblog check`; run it with --debug for all that Spark says",
                ) from self._fault
            if self._clock.wait(self._stop, _LOOK_SECONDS):
                raise Interrupted

    def _ask(self, task: Task) -> int:
        with self._lock:
            self._number += 1
            self._desk.put_task(self._number, task)
            return self._number

    def _run(self) -> None:
        try:
            spark_submit.run_job(
                "verify",
                self._config,
                arguments=["--desk", self._desk.directory],
                stop=self._end,
                on_line=self._said.append,
                on_result=lambda _: None,
            )
        except Exception as error:  # noqa: BLE001 - it is told by whoever waits for an answer
            self._fault = error
