"""The repair of a table: a dump of exactly the keys that differ, merged into the lake.

A key that the source does not have becomes a delete. More keys than a dump takes are repaired by a dump of the table.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.dump_records import OVER, DumpState
from dblog_core.dumps.requests import MAX_KEYS, DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import DblogError, LakeError
from dblog_core.interfaces import Clock
from dblog_core.lake.lake_status import LakeStatus, State, read_status
from dblog_core.lake.merge_options import MergeOptions
from dblog_core.model.durations import in_words
from dblog_core.model.values import has_null
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.report import TableReport
from dblog_core.verify.window_positions import Interrupted
from dblog_core.wiring import open_state, run_merge

_LOOK_SECONDS = 0.2  # between two reads of the state of another process's merge
_SAY_SECONDS = 10.0  # between two lines about it
_PATIENCE_SECONDS = 1800.0
"""For which such a merge may end no round: as long as a maintenance of large tables may keep it busy."""


@dataclass(frozen=True, slots=True)
class Dumped:
    """The dumps of tables that differ: their ids by table, and why those of other tables did not come about."""

    ids: Mapping[str, str]
    errors: Mapping[str, DblogError]


def dump_differences(
    config: Config, reports: Sequence[TableReport], *, workers: int, stop: threading.Event, clock: Clock
) -> Dumped:
    """Requests a dump of each table, works on all of them, and waits until the super-changelog has them.

    They are worked on together: a few keys are read at once, and what takes its time is that the log places them.
    Raises Interrupted.
    """
    name = f"verify:{secrets.token_hex(4)}"
    ids: dict[str, str] = {}
    errors: dict[str, DblogError] = {}
    for report in reports:
        try:
            ids[report.table] = filing.submit(config, _request(report), requested_by=name, clock=clock)
        except DblogError as error:  # it keeps this table from being mended, not the others
            errors[report.table] = error
    fault: DblogError | None = None
    if ids:
        try:
            work_loop.work(config, stop=stop, requested_by=(name,), workers=workers)
        except DblogError as error:  # of one dump, or of all that are not over
            fault = error
    if stop.is_set():
        raise Interrupted
    with closing(open_state(config)) as state:
        for table, dump_id in ids.items():
            status = dump_store.read_dump(state, dump_id)
            if status.state != DumpState.DONE:
                errors[table] = _error_of(status, table, fault)
    return Dumped({table: dump_id for table, dump_id in ids.items() if table not in errors}, errors)


def _request(report: TableReport) -> DumpRequest:
    keys: tuple[Any, ...] = tuple(report.differing_keys)
    # `more`: the report names only some of the keys, so only a dump of the table repairs all. No SELECT asks for a key
    # with NULL: the end of a dump of the table shows that the source has no such row.
    whole = report.more or len(keys) > MAX_KEYS or any(map(has_null, keys))
    return DumpRequest(tables=(report.table,), keys=() if whole else keys)


def _error_of(status: DumpStatus, table: str, fault: DblogError | None) -> DblogError:
    if status.state not in OVER and fault is not None:
        return fault
    return DblogError(
        f"dump {status.id} is {status.state}: {status.error or 'it was ended'}",
        where=table,
        fix="remove its cause, and verify again",
    )


def merge_staged(
    config: Config,
    lake: Location,
    staging: Staging,
    tables: Collection[str],
    *,
    stop: threading.Event,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Has all that is staged of these tables merged: by the merge that runs, or by one of our own.

    A table whose merge has stopped is not waited for. Raises Interrupted, and LakeError where a merge fails, or runs
    and ends no round for half an hour.
    """
    head = staging.head()
    wait = _Wait(lake, tables, 0 if head is None else head.last_offset, clock, say)
    with closing(open_state(config)) as state:
        # A merge holds its lake alone: a second one would only wait for it.
        while state.leader("merge") is not None:
            if wait.is_over():
                return
            if clock.wait(stop, _LOOK_SECONDS):
                raise Interrupted
    if wait.is_over():
        return
    # It waits: another merge may have begun since the look above.
    code = run_merge(config, MergeOptions(wait_seconds=60), stop=stop, on_line=say)
    if stop.is_set():
        raise Interrupted
    # Another table's fault fails the merge too; what counts is whether ours are in.
    if code and not wait.is_over():
        raise LakeError("the merge of the dump has failed", where=str(lake), fix="run `dblog merge`, then verify again")


class _Wait:
    """A wait for another process's merge, until it has brought tables to an offset."""

    def __init__(
        self, lake: Location, tables: Collection[str], target: int, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._target = target
        self._clock = clock
        self._say = say
        self._merge: int | None = None
        self._merge_ended_at = self._said_at = clock.monotonic()

    def is_over(self) -> bool:
        """Whether the tables are there. Raises LakeError once no merge has ended for too long."""
        status = read_status(self._lake) or LakeStatus()
        offset = min(self._offsets(status), default=self._target)
        if offset >= self._target:
            return True
        now = self._clock.monotonic()
        if status.merge != self._merge:
            self._merge = status.merge
            self._merge_ended_at = now
        elif now - self._merge_ended_at > _PATIENCE_SECONDS:
            raise LakeError(
                f"a merge runs, but has ended no round for {in_words(_PATIENCE_SECONDS)}: it stands at offset "
                f"{offset:,}, and the dump at {self._target:,}",
                where=str(self._lake),
                fix="see in its log what it is doing; the dump is staged and waits for it: verify again afterwards",
            )
        if now - self._said_at >= _SAY_SECONDS:
            self._said_at = now
            self._say(f"waiting for the merge that runs: it stands at offset {offset:,} of {self._target:,}")
        return False

    def _offsets(self, status: LakeStatus) -> Iterator[int]:
        for name in self._tables:
            table = status.tables.get(name)
            if table is None:  # the lake does not have it yet, or never will: the dump has found no row
                yield status.offset
            elif table.state is not State.STOPPED:
                yield table.offset
