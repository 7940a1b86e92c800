"""What `status` says about room and retention: bytes and files of staging and lake, and what keeps old segments.

Counting stops after half a second, and is done once a minute at most: of tables that it has not come to, the sizes of
the last maintenance are shown, with their time; rows are counted by maintenance alone. What nobody knows is null.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Json
from dblog_core.lake.lake_status import OWN, LakeStatus, history_location, table_location
from dblog_core.maintenance import retention_needs, schedule
from dblog_core.maintenance.disk_usage import Patience, Room, of_staging, of_table
from dblog_core.maintenance.schedule import TableSize
from dblog_core.model import durations
from dblog_core.model.schema import TableName
from dblog_core.monitoring.lag_history import Waiting
from dblog_core.staging import Staging
from dblog_core.staging.log_start import Need
from dblog_core.staging.manifest import Manifest
from dblog_core.state.settings_in_force import LiveSettings
from dblog_core.storage.location import Location

SECONDS = 0.5
_AGAIN = 60.0  # seconds between two counts


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """The size of a Delta table, and when it was measured: ISO 8601, UTC."""

    size: TableSize
    measured_at: str

    def to_json(self) -> Json:
        return {**asdict(self.size), "measured_at": self.measured_at}


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """From which segment and offset on staging is kept, and why no later (`held`); times are ISO 8601, UTC.

    None: nothing is staged; retention has never looked.
    """

    segment: int | None = None
    offset: int | None = None
    sealed_at: str | None = None
    looked_at: str | None = None
    held: tuple[Need, ...] = ()

    def to_json(self) -> Json:
        return {**asdict(self), "held": [asdict(need) for need in self.held]}


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Room of the parts of staging (None: not counted), sizes of the lake's tables, and what is kept."""

    staging: Mapping[str, Room | None]
    tables: tuple[MeasuredTable, ...]
    retention: RetentionStatus

    def to_json(self) -> Json:
        return {
            "staging": {name: None if room is None else asdict(room) for name, room in self.staging.items()},
            "tables": [table.to_json() for table in self.tables],
            "retention": self.retention.to_json(),
        }


class Meter:
    """Room and retention of one source, and how long what is staged waits. `now`: seconds UTC."""

    def __init__(self, config: Config, *, seconds: float = SECONDS, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._seconds = seconds
        self._now = now
        self._counted_at = float("-inf")
        self._rooms: dict[str, Room | None] = {}
        self._tables: tuple[MeasuredTable, ...] = ()
        self._waiting = Waiting()

    def lag(self, staging: Staging, head: Manifest | None, offset: int | None) -> float | None:
        """Seconds that the oldest line has been waiting which a lake, or an output, at `offset` does not have; None
        while it has nothing, or nothing is staged."""
        if head is None or offset is None:
            return None
        return round(self._waiting.seconds(staging, head, offset, self._now()), 3)

    def read(
        self, staging: Staging, lake: LakeStatus, dumps: Iterable[DumpStatus], in_force: LiveSettings | None
    ) -> StorageStatus:
        """Room as it was counted within the last minute, and what is kept now under the settings in force."""
        now = self._now()
        if now - self._counted_at >= _AGAIN:
            self._count(staging, lake, now)
            self._counted_at = now
        retention = self._find_retention(staging, lake, dumps, in_force, now)
        return StorageStatus(self._rooms, self._tables, retention)

    def _count(self, staging: Staging, lake: LakeStatus, now: float) -> None:
        patience = Patience(self._seconds)
        place = wiring.open_lake(self._config)
        self._rooms = of_staging(staging.storage, patience)
        maintenance = schedule.read_maintained(place)
        before = {size.table: size for size in maintenance.sizes} if maintenance else {}
        tables = list[MeasuredTable]()
        for name, path in _places(place, lake):
            size = of_table(path, name, patience)
            last = before.get(name)
            if size is not None:
                counted = (last.rows, last.deleted) if last else (None, None)
                size = replace(size, rows=counted[0], deleted=counted[1])
                tables.append(MeasuredTable(size, _text(now)))
            elif last is not None and maintenance is not None:
                tables.append(MeasuredTable(last, _text(maintenance.at)))
        self._tables = tuple(tables)

    def _find_retention(
        self,
        staging: Staging,
        lake: LakeStatus,
        dumps: Iterable[DumpStatus],
        in_force: LiveSettings | None,
        now: float,
    ) -> RetentionStatus:
        """From where on staging is kept, and why no later: what is known without reading more than two manifests."""
        begins = staging.beginning()
        number = staging.first_number()
        looked = None if begins.looked_at is None else begins.looked_at / 1e6
        if not number or (head := staging.head()) is None:
            return RetentionStatus()
        first = staging.manifest(number)
        old = first.segment < head.segment and first.sealed_at / 1e6 < now - durations.parse(self._config.staging.keep)
        needs = [
            *retention_needs.of_lake(lake, in_force),
            *retention_needs.of_dumps(head, (d for d in dumps if d.state not in OVER)),
        ]
        needs_by_reason = {n.why: n.segment for n in (*needs, *begins.held) if old and n.segment <= first.segment}
        return RetentionStatus(
            segment=number,
            offset=first.cut(after=number - 1).first_offset,
            sealed_at=_text(first.sealed_at / 1e6),
            looked_at=None if looked is None else _text(looked),
            held=tuple(Need(segment, why) for why, segment in needs_by_reason.items()),
        )


def _places(place: Location, lake: LakeStatus) -> Iterator[tuple[str, Location]]:
    """The Delta tables that may be there, by name."""
    for name, status in sorted(lake.tables.items()):
        table = TableName.parse(name)
        if status.version is None and table.schema.casefold() == OWN:  # it is stopped: it has no place
            continue
        yield name, table_location(place, table)
        yield f"{name}__history", history_location(place, table)


def _text(seconds: float) -> str:
    return dt.datetime.fromtimestamp(round(seconds), dt.UTC).isoformat().replace("+00:00", "Z")
