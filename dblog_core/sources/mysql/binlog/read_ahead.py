"""A thread that is one batch ahead: the log is read and decoded while the last batch is being staged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Protocol

from dblog_core.model.events import LogBatch


class Demand(Protocol):
    """What the thread knows about the reader."""

    @property
    def over(self) -> bool:
        """Whether the log is closed."""

    def patience(self, since: float, now: float) -> float | None:
        """Seconds for which a batch that began at `since` may still grow; None: nobody waits for it now."""

    def fileno(self) -> int:
        """A file that becomes readable when one of these changes; `clear_bell` makes it unreadable again."""

    def clear_bell(self) -> None:
        """Makes `fileno` unreadable until something changes again."""


class Ahead:
    """Runs `gather` in a thread, and hands its batches, and the error that ends it, to `read` in their order."""

    def __init__(self, gather: Callable[[Demand], LogBatch | None], name: str) -> None:
        self._gather = gather
        self._changed = threading.Condition()
        self._batch: LogBatch | None = None
        self._error: BaseException | None = None
        self._is_awaited = False
        self._linger = 0.0
        self._over = False
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._is_rung = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read(self, timeout: float, linger: float) -> LogBatch | None:
        """The next batch; None after `timeout` seconds without one. Raises what `gather` has raised after it."""
        with self._changed:
            self._is_awaited = True
            self._linger = linger
            if not self._is_ready():
                self._ring()
                self._changed.wait_for(self._is_ready, timeout)
            self._is_awaited = False
            # Batches from before the error come first: they are whole, and need not be read again.
            if self._batch is None and self._error is not None:
                raise self._error
            batch = self._batch
            self._batch = None
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        """Ends the thread; what it has gathered is dropped."""
        with self._changed:
            if self._over:
                return
            self._over = True
            self._ring()
            self._changed.notify_all()
        if self._thread.ident is not None:
            # Outside of the lock, which the thread needs to see that it is over.
            self._thread.join()
        self._bell.close()
        self._ear.close()

    # -- what the thread sees

    @property
    def over(self) -> bool:
        return self._over

    def patience(self, since: float, now: float) -> float | None:
        return since + self._linger - now if self._is_awaited else None

    def fileno(self) -> int:
        return self._ear.fileno()

    def clear_bell(self) -> None:
        with self._changed:
            if self._is_rung:
                self._ear.recv(1)
                self._is_rung = False

    # -- inside

    def _is_ready(self) -> bool:
        return self._batch is not None or self._error is not None

    def _ring(self) -> None:
        if not self._is_rung:
            self._bell.send(b"\0")
            self._is_rung = True

    def _run(self) -> None:
        try:
            while not self._over and (batch := self._gather(self)) is not None:
                with self._changed:
                    # At most one batch is ahead: memory stays bounded by two.
                    self._changed.wait_for(lambda: self._batch is None or self._over)
                    self._batch = batch
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is raised where the log is read
            with self._changed:
                self._error = error
                self._changed.notify_all()
