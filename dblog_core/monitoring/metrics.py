"""What `dblog status` says about sources as metrics for Prometheus.

Read when somebody asks, by a process of its own: a scrape never holds a capture up, and reports a dead one too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dblog_core.config.settings import Config
from dblog_core.errors import DblogError
from dblog_core.lake.lake_status import State
from dblog_core.maintenance.disk_usage import Room
from dblog_core.maintenance.schedule import TableSize
from dblog_core.monitoring.source_status import OutputInStatus, SourceStatus
from dblog_core.monitoring.status import read_source_status
from dblog_core.monitoring.storage_usage import Meter
from dblog_core.verify.last_results import LastResult

log = logging.getLogger(__name__)

Samples = Iterator[tuple[tuple[str, ...], float | None]]
_AGAIN = 1.0  # seconds: those who ask more often get the same answer
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric `dblog_NAME`, labelled by source and by `labels`; `read` takes the values from a source's status."""

    name: str
    meaning: str
    read: Callable[[SourceStatus], Samples]
    labels: tuple[str, ...] = ()


def _read_value(value: Callable[[SourceStatus], float | None]) -> Callable[[SourceStatus], Samples]:
    def read(status: SourceStatus) -> Samples:
        yield (), value(status)

    return read


def _count_states(list_states: Callable[[SourceStatus], Iterable[str]]) -> Callable[[SourceStatus], Samples]:
    def read(status: SourceStatus) -> Samples:
        for state, count in sorted(Counter(list_states(status)).items()):
            yield (state,), count

    return read


def _read_staging(value: Callable[[Room], float]) -> Callable[[SourceStatus], Samples]:
    def read(status: SourceStatus) -> Samples:
        for part, room in status.storage.staging.items():
            yield (part,), None if room is None else value(room)

    return read


def _read_table_size(value: Callable[[TableSize], float | None]) -> Callable[[SourceStatus], Samples]:
    def read(status: SourceStatus) -> Samples:
        for table in status.storage.tables:
            yield (table.size.table,), value(table.size)

    return read


def _read_last_check(value: Callable[[LastResult], float]) -> Callable[[SourceStatus], Samples]:
    def read(status: SourceStatus) -> Samples:
        for table in status.tables:
            if table.verified is not None:
                yield (table.table,), value(table.verified)

    return read


def _read_output(value: Callable[[OutputInStatus], float | None]) -> Callable[[SourceStatus], Samples]:
    def read(status: SourceStatus) -> Samples:
        for output in status.outputs:
            yield (output.output,), value(output)

    return read


def _read_table_health(status: SourceStatus) -> Samples:
    for table in status.tables:
        yield (table.table,), table.state == State.OK


def _read_error_times(status: SourceStatus) -> Samples:
    newest: dict[str, float] = {}
    for error in status.errors:
        newest[error.part] = max(newest.get(error.part, 0.0), error.at_us / _MICROSECONDS)
    for part, at in sorted(newest.items()):
        yield (part,), at


GAUGES: Sequence[Gauge] = (
    Gauge("leader", "1 while a capture leads", _read_value(lambda s: s.leader is not None)),
    Gauge(
        "leader_epoch",
        "grows by one with each change of leader",
        _read_value(lambda s: s.leader.epoch if s.leader else None),
    ),
    Gauge("lag_seconds", "from the source's commit to its being staged", _read_value(lambda s: s.lag_seconds)),
    Gauge("rows_per_second", "rows that the leader stages", _read_value(lambda s: s.rows_per_second)),
    Gauge("staged_offset", "newest offset of the super-changelog", _read_value(lambda s: s.offset)),
    Gauge("merged_offset", "up to where the lake has the super-changelog", _read_value(lambda s: s.merge.offset)),
    Gauge(
        "merge_lag_seconds",
        "for which the oldest staged change that the lake lacks has been waiting",
        _read_value(lambda s: s.merge.lag_seconds),
    ),
    Gauge("windows", "chunks that are being read", _read_value(lambda s: len(s.windows))),
    Gauge("dumps", "dumps by state", _count_states(lambda s: (d.state for d in s.dumps)), ("state",)),
    Gauge("tables", "tables of the lake by state", _count_states(lambda s: (t.state for t in s.tables)), ("state",)),
    Gauge("table_ok", "0 where status shows a state other than ok", _read_table_health, ("table",)),
    Gauge(
        "table_verified_timestamp_seconds",
        "when the table was last compared with the source",
        _read_last_check(lambda v: v.at_us / _MICROSECONDS),
        ("table",),
    ),
    Gauge(
        "table_verified_equal",
        "0 where the last comparison found differences",
        _read_last_check(lambda v: v.equal),
        ("table",),
    ),
    Gauge(
        "slices_verified_timestamp_seconds",
        "when the slice of the full state that waited longest was compared with the source",
        _read_value(
            lambda s: None if s.slices is None or s.slices.oldest_at is None else s.slices.oldest_at / _MICROSECONDS
        ),
    ),
    Gauge(
        "output_offset", "up to where an output has the super-changelog", _read_output(lambda o: o.offset), ("output",)
    ),
    Gauge(
        "output_lag_seconds",
        "for which the oldest staged line that an output lacks has been waiting",
        _read_output(lambda o: o.lag_seconds),
        ("output",),
    ),
    Gauge(
        "output_dead_letters",
        "lines that its target refused, since it began",
        _read_output(lambda o: o.dead_letters),
        ("output",),
    ),
    Gauge("error_timestamp_seconds", "the newest error of capture, merge, verify …", _read_error_times, ("part",)),
    Gauge("staging_bytes", "room that staging takes", _read_staging(lambda room: room.bytes), ("part",)),
    Gauge("staging_files", "files in staging", _read_staging(lambda room: room.files), ("part",)),
    Gauge("table_bytes", "room of a table's newest version", _read_table_size(lambda size: size.bytes), ("table",)),
    Gauge("table_files", "files of a table's newest version", _read_table_size(lambda size: size.files), ("table",)),
    Gauge("table_rows", "rows by the last maintenance", _read_table_size(lambda size: size.rows), ("table",)),
)


@dataclass(slots=True)
class _Watched:
    config: Config
    meter: Meter
    fault: str = ""

    def look(self) -> SourceStatus | None:
        """None where state store or staging do not answer; said once for each reason."""
        try:
            current = read_source_status(self.config, self.meter)
        except DblogError as error:
            if self.fault != str(error):
                log.warning("%s: %s", self.config.source.name, error)
            self.fault = str(error)
            return None
        self.fault = ""
        return current


@dataclass(eq=False)
class Sources(Collector):
    """The metrics of some sources, read again by each scrape, once a second at most."""

    configs: Iterable[Config]
    _watched: list[_Watched] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _at: float = field(default=float("-inf"), init=False)
    _seen: Mapping[str, SourceStatus | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._watched = [_Watched(config, Meter(config)) for config in self.configs]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() - self._at >= _AGAIN:
                self._seen = {watched.config.source.name: watched.look() for watched in self._watched}
                self._at = time.monotonic()
            seen = self._seen
        up = GaugeMetricFamily("dblog_up", "1 where state store and staging answer", labels=["source"])
        for source, status in seen.items():
            up.add_metric([source], float(status is not None))
        yield up
        for gauge in GAUGES:
            yield _family(gauge, seen)

    def describe(self) -> Iterator[Metric]:
        """Names without a look at any source, for the registry."""
        for gauge in GAUGES:
            yield _family(gauge, {})


def _family(gauge: Gauge, seen: Mapping[str, SourceStatus | None]) -> Metric:
    family = GaugeMetricFamily(f"dblog_{gauge.name}", gauge.meaning, labels=["source", *gauge.labels])
    for source, status in seen.items():
        for labels, value in gauge.read(status) if status is not None else ():
            if value is not None:
                family.add_metric([source, *labels], float(value))
    return family
