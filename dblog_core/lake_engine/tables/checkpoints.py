"""Checkpoints of a table's log, from which readers begin: when one is due, and a thread that makes it.

No merge waits for one, and a process that ends before it is done leaves it to the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dblog_core.delta_writer.checkpoints.checkpoint_writer import write_checkpoint
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.table_log import TableLog
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake_engine.tables import log
from dblog_core.storage.location import Location

INTERVAL = "delta.checkpointInterval"
CLEANS = "delta.enableExpiredLogCleanup"
"""Whether Delta removes old log by its own clock beside a checkpoint. Cuts say what is still read: `log_cleanup`."""
COMMITS = 100
"""Between two checkpoints, where the table says nothing else. Delta's own 10 would have a busy table's state rewritten
every few seconds.
"""

_log = logging.getLogger(__name__)


def is_due(version: int, configuration: Mapping[str, str]) -> bool:
    """Whether the commit that made this version is followed by a checkpoint, by Delta's own rule."""
    return version > 0 and version % int(configuration.get(INTERVAL, COMMITS)) == 0


def follow_commit(table: TableLog, make: Callable[[Location], None] | None = None) -> None:
    """Notes our commit for the next look at the log, and has a checkpoint made where one is due. `make`: makes it;
    None: it is waited for."""
    path, committed = table.location, table.snapshot
    log.note_commit(path, committed.version, table.commit_info, committed.commit)
    if is_due(committed.version, committed.configuration):
        (make or write)(path)


class Checkpoints:
    """Makes checkpoints one after the other, beside the merges."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: dict[Location, Future[None]] = {}

    def ask(self, table: Location) -> None:
        """Has one made of the table's version that is the newest then; one that is not begun yet does as well."""
        asked = self._waiting.get(table)
        if asked is None or asked.running() or asked.done():
            self._waiting[table] = self._thread.submit(write, table)

    def wait(self) -> None:
        """Until all are made that were asked for."""
        wait(self._waiting.values())

    def close(self) -> None:
        """Waits for the one that is being made, and forgets the others."""
        self._thread.shutdown(cancel_futures=True)


def write(table: Location) -> None:
    """Makes one of the newest version. Where that fails nothing is lost: readers take longer until the next."""
    try:
        write_checkpoint(TableFiles.at(table), time.time_ns() // 1_000_000)
    except (LakeError, StagingError) as error:
        _log.warning("no checkpoint is made: %s", error.reason)
