"""What maintenance says about the lake, read without Spark: LAKE/_dblog/maintained.json, and when it is due again.

Sizes are those of the tables as maintenance left them; looking at every file of a lake takes too long for `status`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from dblog_core.clock import SystemClock
from dblog_core.config.lake import LakeConfig
from dblog_core.errors import LakeError
from dblog_core.interfaces import Clock
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import own_directory
from dblog_core.lake.lake_tasks import LakeTask
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.model import durations
from dblog_core.storage.location import Location

_RETRY_SECONDS = 3600.0  # seconds after a maintenance that failed


@dataclass(frozen=True, slots=True)
class TableSize:
    """A Delta table: the files of its newest version, and all files of its directory (`disk_…`), old versions included.

    `deleted`: rows in its files that are marked as deleted; `rows`: those that are not; None: not counted. `marked_at`:
    a time (seconds UTC) before which no such row was marked since we began to look; None: no row is marked.
    """

    table: str
    files: int
    bytes: int
    rows: int | None
    deleted: int | None
    disk_files: int
    disk_bytes: int
    marked_at: float | None = None


@dataclass(frozen=True, slots=True)
class Maintained:
    """When the lake was maintained last (seconds UTC), and the sizes then; before the first time: when it began."""

    at: float
    sizes: tuple[TableSize, ...] = ()


def read_maintained(lake: Location) -> Maintained | None:
    """The last maintenance; None where none is recorded. Raises LakeError if the record is damaged."""
    path = _path(lake)
    if (data := path.read()) is None:
        return None
    try:
        record: dict[str, Any] = orjson.loads(data)
        return Maintained(record["at"], tuple(TableSize(**size) for size in record["sizes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(f"cannot be read: {error}", where=str(path), fix="remove it; it is written again") from error


def write_maintained(lake: Location, at: float, sizes: Sequence[TableSize]) -> None:
    """Records a maintenance."""
    _path(lake).replace(orjson.dumps(asdict(Maintained(at, tuple(sizes)))))


class Timetable:
    """When a continuous merge maintains the lake automatically. The first look at a lake starts its clock."""

    def __init__(self, lake: Location, config: LakeConfig) -> None:
        self._lake = lake
        self._every = durations.parse(config.maintain_every)
        self._look = -math.inf if math.isfinite(self._every) else math.inf

    def is_due(self, now: float) -> bool:
        """Whether it is due now (seconds UTC): once, and again in an hour if it then was not.

        What the command has done meanwhile counts too. Raises LakeError.
        """
        if now < self._look:
            return False
        # A new lake has nothing to maintain yet: its clock starts now.
        if (last := read_maintained(self._lake)) is None:
            last = Maintained(now)
            write_maintained(self._lake, now, ())
        due = last.at + self._every <= now
        # Due again in an hour only where that maintenance leaves no record of success.
        self._look = now + _RETRY_SECONDS if due else last.at + self._every
        return due


def ask_when_due(timetable: Timetable, lake: Location, *, clock: Clock | None = None) -> LakeTask | None:
    """Files the lake task when it is time, and returns it."""
    if not timetable.is_due((clock or SystemClock()).time()):
        return None
    return lake_tasks.file_task(lake, MaintainRequest(), clock=clock)


def _path(lake: Location) -> Location:
    return own_directory(lake) / "maintained.json"
