"""Faults of the engine, put in by hand: the simulation must find each of them within some seeds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from dblog_core.algorithm import arriving_rows
from dblog_core.algorithm.visibility import LogOrder, Snapshots
from dblog_core.capture import announced_windows, term_start
from dblog_core.capture.term import Term
from dblog_core.interfaces import Chunk, LogStream
from dblog_core.state.memory import MemoryState
from tests.simulation.reader import SimReader
from tests.simulation.source import SimSource
from tests.simulation.state import SimLease
from tests.simulation.storage import MemoryStorage

Mutant = Callable[[], contextlib.AbstractContextManager[object]]


def acknowledged_before_it_is_published() -> contextlib.AbstractContextManager[object]:
    """The source may drop log that only a draft has."""
    real = Term._publish

    def publish(self: Term, stream: LogStream) -> None:
        stream.acknowledge(self._sequencer.position)
        real(self, stream)

    return mock.patch.object(Term, "_publish", publish)


@contextlib.contextmanager
def no_fence() -> Iterator[None]:
    """Two leaders: a lease that never ends for its holder, and manifests that may be written over."""
    real = MemoryStorage.create

    def create(self: MemoryStorage, relative: str, data: Any) -> bool:
        if relative.startswith("manifests/") and relative in self.disk.files:
            self.disk.remove(relative)
        return real(self, relative, data)

    with (
        mock.patch.object(MemoryStorage, "create", create),
        mock.patch.object(SimLease, "valid", return_value=True),
    ):
        yield


@contextlib.contextmanager
def rows_of_an_earlier_try() -> Iterator[None]:
    """A chunk that is read again reuses the rows of the first time."""
    real = SimReader.read
    read: dict[Any, Chunk] = {}

    def reuse_rows(self: SimReader, schema: Any, **bounds: Any) -> Chunk:
        what = (id(self._database), schema.fingerprint, repr(bounds))
        if what not in read:
            read[what] = real(self, schema, **bounds)
        return read[what]

    with mock.patch.object(SimReader, "read", reuse_rows):
        yield


def the_logs_order_for_snapshots() -> contextlib.AbstractContextManager[object]:
    """The rule of the paper where commits become visible in any order: what lies before the low watermark was seen."""
    return mock.patch.object(Snapshots, "counts_as_unseen", LogOrder.counts_as_unseen)


def no_memory_after_a_restart() -> contextlib.AbstractContextManager[object]:
    """What the log said before a restart is not rebuilt."""
    return mock.patch("dblog_core.capture.unseen_events.read_events", return_value=())


def attempts_go_on_that_began_before_the_capture() -> contextlib.AbstractContextManager[object]:
    """Nothing tells a worker that its watermarks lie before the place where the log is read from."""
    return mock.patch.object(term_start, "break_attempts", side_effect=lambda state, tasks: tasks)


@contextlib.contextmanager
def rows_looked_for_wherever_they_go() -> Iterator[None]:
    """A row that a dump has brought is looked for at each key that it goes to: the dump ends when writers rest."""
    real = arriving_rows.follow_moves

    def follow_moves(trails: Any, moves: Any, whole_rows: Any, *, all_read: bool) -> Any:
        return real(trails, moves, set(), all_read=False)

    with mock.patch.object(arriving_rows, "follow_moves", follow_moves):
        yield


def the_second_position_not_awaited() -> contextlib.AbstractContextManager[object]:
    """A chunk is placed before events that its SELECT has seen."""
    return mock.patch.object(SimSource, "has_passed", return_value=True)


def the_first_position_not_awaited() -> contextlib.AbstractContextManager[object]:
    """A SELECT does not see what the capture has read before it opened the window."""
    return mock.patch.object(SimReader, "sees", return_value=True)


@contextlib.contextmanager
def windows_opened_again_after_a_restart() -> Iterator[None]:
    """A window that another term has answered is opened once more, behind its SELECT."""
    real = MemoryState.create

    def create(self: MemoryState, path: str, data: bytes) -> None:
        if not (path.startswith("windows/") and path.endswith("/open") and self.get(path) is not None):
            real(self, path, data)

    with (
        mock.patch.object(MemoryState, "create", create),
        mock.patch.object(announced_windows, "_went_by", return_value=True),
    ):
        yield


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        acknowledged_before_it_is_published,
        no_fence,
        rows_of_an_earlier_try,
        the_logs_order_for_snapshots,
        no_memory_after_a_restart,
        attempts_go_on_that_began_before_the_capture,
        rows_looked_for_wherever_they_go,
        the_second_position_not_awaited,
        the_first_position_not_awaited,
        windows_opened_again_after_a_restart,
    )
}

KINDS = {
    the_logs_order_for_snapshots.__name__: "postgres",
    no_memory_after_a_restart.__name__: "postgres",
    rows_looked_for_wherever_they_go.__name__: "postgres",
    the_first_position_not_awaited.__name__: "mysql",
}
"""Faults that show on one kind of source alone."""

READ_ONLY = {
    mutant.__name__
    for mutant in (
        the_second_position_not_awaited,
        the_first_position_not_awaited,
        windows_opened_again_after_a_restart,
    )
}
"""Faults that show where a source is never written."""
