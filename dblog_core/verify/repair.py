"""The repair of a table: a dump of exactly the keys that differ, merged into the lake.

A key that the source does not have becomes a delete. More keys than a dump takes are repaired by a dump of the table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from dblog_core.config.settings import Config
from dblog_core.dumps import filing, work_loop
from dblog_core.dumps.requests import MAX_KEYS, DumpRequest
from dblog_core.errors import DblogError, LakeError
from dblog_core.interfaces import Clock
from dblog_core.lake import spark_submit
from dblog_core.lake.lake_status import read_status
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.report import TableReport
from dblog_core.verify.window_positions import Interrupted
from dblog_core.wiring import open_state

_LOOK_SECONDS = 0.2  # between two looks at a merge that somebody else runs


def dump_differences(config: Config, report: TableReport, *, stop: threading.Event, clock: Clock) -> str:
    """Requests the dump, works on it, and waits until the super-changelog has it; its id.

    Raises Interrupted, and DblogError where the dump does not come about.
    """
    keys: tuple[Any, ...] = tuple(report.differing_keys)
    # `more`: the report names only some of the keys, so only a dump of the table repairs all.
    whole = report.more or len(keys) > MAX_KEYS
    request = DumpRequest(tables=(report.table,), keys=() if whole else keys)
    dump_id = filing.submit(config, request, clock=clock)
    work_loop.work(config, stop=stop, dump_id=dump_id)
    status = work_loop.wait(config, dump_id, stop=stop)
    if stop.is_set():
        raise Interrupted
    if status.state != "done":
        raise DblogError(
            f"dump {dump_id} is {status.state}: {status.error or 'it was ended'}",
            where=report.table,
            fix="remove its cause, and verify again",
        )
    return dump_id


def merge_staged(
    config: Config,
    lake: Location,
    staging: Staging,
    *,
    stop: threading.Event,
    clock: Clock,
    on_line: Callable[[str], None],
) -> None:
    """Has all that is staged merged: by the merge that runs, or by one of our own. Raises Interrupted or LakeError."""
    head = staging.head()
    target = 0 if head is None else head.last_offset
    with closing(open_state(config)) as state:
        # A merge holds its lake alone: a second one would only wait for it.
        while state.leader("merge") is not None:
            if _merged_offset(lake) >= target:
                return
            if clock.wait(stop, _LOOK_SECONDS):
                raise Interrupted
    if _merged_offset(lake) >= target:
        return
    # `--wait`: another merge may have begun since the look above.
    code = spark_submit.run_job("merge", config, arguments=["--once", "--wait", "60"], stop=stop, on_line=on_line)
    if stop.is_set():
        raise Interrupted
    # Another table's fault fails the merge too; what counts is whether ours is in.
    if code and _merged_offset(lake) < target:
        raise LakeError("the merge of the dump has failed", where=str(lake), fix="run `dblog merge`, then verify again")


def _merged_offset(lake: Location) -> int:
    status = read_status(lake)
    return 0 if status is None else status.common_offset
