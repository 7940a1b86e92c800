"""A rewrite that is carried out in a thread of its own, while the table's thread commits merges."""

from __future__ import annotations

import threading

from dblog_core.delta_writer.rewriting.rewrite import FileRewrite, Rewritten


class _Stopped(Exception):
    """Nobody waits for the rewrite any longer."""


class BackgroundRewrite:
    """One rewrite, begun at once. What it writes are files that no version names: nothing is lost with the process."""

    def __init__(self, rewrite: FileRewrite) -> None:
        self.rewrite = rewrite
        self._rewritten: Rewritten | None = None
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rewrite", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._rewritten = self.rewrite.carry_out(self._check)
        except Exception as error:  # noqa: BLE001  # raised by `result`, in the thread that asks for it
            self._error = error

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def is_ready(self) -> bool:
        """Whether `result` does not wait."""
        return not self._thread.is_alive()

    def result(self) -> Rewritten | None:
        """What was written; waits for it. None: nothing was, because it is not worth it. Raises LakeError and
        StagingError where it has failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._rewritten

    def stop(self) -> None:
        """Ends it, and waits until it has ended."""
        self._stop.set()
        self._thread.join()
