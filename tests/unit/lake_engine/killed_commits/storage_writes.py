"""Every write of a process to staging, to the lake and to the table of cuts, counted; and faults at one of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

from dblog_core.errors import StagingUnavailable
from dblog_core.storage.local import LocalStorage
from tests.spark.lakes import Crash

Moment = Literal["before", "after", "unanswered"]

_WRITES = ("create", "create_missing", "replace", "write_directory", "remove")


@dataclass(frozen=True)
class Fault:
    """What befalls a process at write number `at`, of those that a pattern names: it dies before or after it, or gets
    no answer to it."""

    at: int
    moment: Moment
    of: str = ".*"

    def __str__(self) -> str:
        return f"{self.moment} write {self.at}" + (f" of {self.of}" if self.of != ".*" else "")


class Writes:
    """The writes of a process, and the fault that befalls it."""

    def __init__(self, fault: Fault | None = None, *, die: Callable[[], None] | None = None) -> None:
        """`die`: ends the process; without it, its threads raise Crash at this write and at all later ones."""
        self.names: list[str] = []
        self.happened = False
        self._fault = fault
        self._die = die or self._crash
        self._is_dead = False
        self._lock = threading.Lock()

    def _crash(self) -> None:
        self._is_dead = True
        raise Crash

    def check_alive(self) -> None:
        """Raises Crash in a thread of a process that is dead, and that writes nothing."""
        if self._is_dead:
            raise Crash

    def count(self, pattern: str) -> int:
        """The writes so far that it names."""
        return sum(re.fullmatch(pattern, name) is not None for name in self.names)

    def _fault_of(self, name: str) -> Fault | None:
        """The fault if it is at this write, the newest."""
        fault = self._fault
        is_here = fault is not None and re.fullmatch(fault.of, name) and self.count(fault.of) == fault.at
        return fault if is_here else None

    def around(self, name: str, write: Callable[[], Any]) -> Any:
        """Carries out the write, unless the fault comes before it."""
        with self._lock:
            if self._is_dead:
                raise Crash
            self.names.append(name)
            fault = self._fault_of(name)
            self.happened |= fault is not None
        if fault is not None and fault.moment == "before":
            self._die()
        done = write()
        if fault is not None and fault.moment == "after":
            self._die()
        if fault is not None and fault.moment == "unanswered":
            raise StagingUnavailable("the answer was lost", where=name)
        return done

    @contextmanager
    def count_writes(self) -> Iterator[None]:
        """All writes of this process pass by within."""
        with ExitStack() as stack:
            for name in _WRITES:
                stack.enter_context(self._patch(name))
            stack.enter_context(mock.patch.object(threading, "excepthook", _Quiet(threading.excepthook)))
            yield

    def _patch(self, name: str) -> Any:
        real = getattr(LocalStorage, name)

        def write(*arguments: Any, **more: Any) -> Any:
            path = arguments[1] if isinstance(arguments[1], str) else ""
            return self.around(f"{name} {path}".strip(), lambda: real(*arguments, **more))

        return mock.patch.object(LocalStorage, name, write)


@dataclass(frozen=True)
class _Quiet:
    """A thread that dies with its process says nothing."""

    hook: Callable[[threading.ExceptHookArgs], Any]

    def __call__(self, arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not Crash:
            self.hook(arguments)
