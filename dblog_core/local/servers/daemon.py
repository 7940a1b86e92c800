"""One server process: started in a session of its own, known to other commands by its pid file, stopped for certain."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from dblog_core.errors import LocalError
from dblog_core.local.servers import guard

_PAUSE_SECONDS = 0.05
_PATIENCE_SECONDS = 180.0
"""To start and to stop: one of three that started at once on a busy machine took 43."""


class Daemon:
    """The process that runs in `directory` (files `pid` and `log`).

    `detached`: it outlives the command that started it, until somebody stops it through its pid file.
    """

    def __init__(self, name: str, directory: Path, *, detached: bool = False) -> None:
        self._name = name
        self._dir = directory
        self._detached = detached
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process number while it runs."""
        process = self._process()
        return process.pid if process else None

    def start(
        self,
        command: Sequence[str | Path],
        *,
        ready: Callable[[], bool],
        timeout: float = _PATIENCE_SECONDS,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        """Starts it and returns when `ready()`. Raises LocalError, with the end of its log, where it never is."""
        if self.pid:
            return
        with (self._dir / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [str(part) for part in command],
                cwd=self._dir,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal is for us: the servers are then stopped in their order.
                start_new_session=True,
                **as_user(user),
            )
        self._record(self._child.pid)
        self.wait(ready, timeout)

    def wait(self, ready: Callable[[], bool], timeout: float = _PATIENCE_SECONDS) -> None:
        """Returns when `ready()`. Raises LocalError when the process ends before, or at the deadline."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.pid:
                if self._child:
                    self._child.wait()  # it may have ended since it was asked
                raise LocalError(f"ended at start:\n{self.log_end()}", where=self._name, fix=f"see {self._dir / 'log'}")
            if time.monotonic() > deadline:
                self.kill()
                raise LocalError(
                    f"not ready after {timeout:.0f} s:\n{self.log_end()}",
                    where=self._name,
                    fix=f"see {self._dir / 'log'}",
                )
            time.sleep(_PAUSE_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGTERM, *, timeout: float = _PATIENCE_SECONDS) -> None:
        """Asks it to end and waits until it has. Raises LocalError when it had to be killed."""
        process = self._process()
        if process is None:
            return
        process.send_signal(how)
        deadline = time.monotonic() + timeout
        while self.pid:
            if time.monotonic() > deadline:
                self.kill()
                raise LocalError(
                    f"did not stop within {timeout:.0f} s, and was killed:\n{self.log_end()}",
                    where=self._name,
                    fix=f"see {self._dir / 'log'}",
                )
            time.sleep(_PAUSE_SECONDS)
        if self._child:
            self._child.wait()  # it may have ended after it was asked, and before it was looked for

    def kill(self) -> None:
        """`kill -9` of the process and its children, as a power cut would end them."""
        if process := self._process():
            guard.kill_tree(process)
        if self._child:
            self._child.wait()

    def log_end(self, lines: int = 15) -> str:
        """The last lines that it wrote."""
        text = (self._dir / "log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def log_size(self) -> int:
        """How many bytes it has written; 0 where it never ran."""
        file = self._dir / "log"
        return file.stat().st_size if file.exists() else 0

    def log_from(self, position: int) -> bytes:
        """What it has written since its log had `position` bytes."""
        with (self._dir / "log").open("rb") as log:
            log.seek(position)
            return log.read()

    def _record(self, pid: int) -> None:
        created = psutil.Process(pid).create_time()
        (self._dir / "pid").write_text(f"{pid} {created}\n")
        # A detached server outlives the command that starts it: `make up`.
        if not self._detached:
            guard.watch(pid, created)

    def _process(self) -> psutil.Process | None:
        if self._child and self._child.poll() is not None:  # takes its exit status: no zombie stays
            return None
        try:
            pid, created = (self._dir / "pid").read_text().split()
        except FileNotFoundError:
            return None
        return guard.find(int(pid), float(created))


def wait_until(condition: Callable[[], bool], *, timeout: float, what: str) -> None:
    """Returns when the condition holds. Raises LocalError at the deadline."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise LocalError(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(_PAUSE_SECONDS)


def as_user(user: str | None) -> dict[str, Any]:
    """What makes subprocess run a command as another user (only root can)."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
