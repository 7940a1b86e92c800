"""Pause, resume, cancel and retune dumps that run; from any machine, in force from the next chunk on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from dblog_core.dumps.dump_records import OVER, DumpRecord, DumpState, check_options
from dblog_core.dumps.dump_store import change_record, read_dump
from dblog_core.dumps.task_store import fail_task
from dblog_core.errors import RequestError
from dblog_core.interfaces import StateStore
from dblog_core.model.task_id import TaskId


def pause(state: StateStore, dump_id: str) -> None:
    """From the next chunk on the dump stands still. Raises RequestError."""
    _change(state, dump_id, lambda record: replace(record, state=DumpState.PAUSED))


def resume(state: StateStore, dump_id: str) -> None:
    """A paused dump continues; one that runs is left alone. Raises RequestError."""
    _change(state, dump_id, lambda record: replace(record, state=DumpState.REQUESTED))


def cancel(state: StateStore, dump_id: str) -> None:
    """The dump ends with what is placed. Raises RequestError."""
    _change(state, dump_id, lambda record: replace(record, state=DumpState.CANCELLED))


def stop_tables(state: StateStore, dump_id: str, tables: Collection[str], why: str) -> None:
    """Those tables of the dump end with what is placed, its others continue; it is cancelled where none is left.

    A dump that continues without some of its tables fails in the end, by `why`. Raises RequestError.
    """
    status = read_dump(state, dump_id)
    if status.state in OVER:
        raise _is_over(dump_id, status.state)
    if all(table in tables for table in status.open_tables):
        cancel(state, dump_id)
        return
    give_up_tables(state, dump_id, dict.fromkeys(tables, why))


def give_up_tables(state: StateStore, dump_id: str, tables: Mapping[str, str]) -> None:
    """Those tables of the dump fail, each for its reason, and its others continue. Raises RequestError."""
    given_up = [task for task in read_dump(state, dump_id).tasks if not task.over and task.table in tables]
    stopped = {task.table for task in given_up}
    # First for workers, who read this for every chunk; then for all who ask how the tasks have ended.
    _change(state, dump_id, lambda record: replace(record, stopped=tuple(sorted({*record.stopped, *stopped}))))
    for task in given_up:
        fail_task(state, TaskId(dump_id, task.number), tables[task.table])


def retune(state: StateStore, dump_id: str, **changes: Any) -> None:
    """Changes options (`DumpOptions`) from the next chunk on; None leaves one as it is. Raises RequestError.

    chunk_size (rows), chunk_bytes, workers, delay (seconds), rate (rows a second), adaptive (bool), max_retained
    (bytes).
    """
    check_options({name: value for name, value in changes.items() if value is not None})
    _change(state, dump_id, lambda record: replace(record, options=record.options.with_changes(changes)))


def _change(state: StateStore, dump_id: str, change: Callable[[DumpRecord], DumpRecord]) -> None:
    """Changes a dump's record. Raises RequestError if it is over, also if it ends in this very moment."""
    status = read_dump(state, dump_id)
    if status.state in OVER:
        raise _is_over(dump_id, status.state)

    def unless_over(record: DumpRecord) -> DumpRecord:
        if record.over:
            raise _is_over(dump_id, record.state)
        return change(record)

    change_record(state, dump_id, unless_over)


def _is_over(dump_id: str, state: DumpState) -> RequestError:
    return RequestError(f"dump {dump_id} is {state}", fix="request a new one")
