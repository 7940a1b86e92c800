"""Work done beside the loop that orders it, one task after the other, in a thread that lives while there is any."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Task = Callable[[], None]


class Background:
    """Does tasks in the order in which they were handed in; a task that fails ends the rest. Nothing to close."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: deque[Task] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def do(self, task: Task) -> None:
        with self._lock:
            self._tasks.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Until all is done. Raises what a task has raised."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._tasks or self._error is not None:
                    self._thread = None
                    return
                task = self._tasks.popleft()
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - whoever waits for the work gets it
                self._error = error
