"""What a request would do, shown before it is filed: indexes, rows, ranges, chunks and time of every table.

Reads the catalogue, asks the server how it would read, and reads no rows. Times come from the newest dump of the same
table that has measured any, else from what the request's own limits allow, else from an assumption that is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, key_ranges
from dblog_core.dumps.dump_records import DumpOptions, Refusal
from dblog_core.dumps.filing import KEYS_PER_TASK, LOCK_SECONDS, listed_keys
from dblog_core.dumps.requests import DumpRequest, RequestedTable, first_options, look_at_each, resolve_and_look
from dblog_core.dumps.status import DumpStatus, rate
from dblog_core.interfaces import ChunkReader, Json, StateStore

ASSUMED_RATE = 20_000.0  # rows a second of one worker, where nothing is known
KEYS_PER_CHUNK = 1_000  # of a task that lists its keys


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How one table would be read. `rows`, `ranges`, `chunks` and `seconds` are estimates; `seconds`: with all workers.

    `index`: what serves the order of the key (None: the server would sort or scan for every chunk); `rate`: rows a
    second of one worker, and `rate_from`, where that number comes from.
    """

    table: str
    key: tuple[str, ...]
    index: str | None
    rows: int
    ranges: int
    chunks: int
    rate: float
    rate_from: str
    delay: float
    workers: int
    warnings: tuple[str, ...]

    @property
    def work(self) -> float:
        """Seconds that one worker alone would need."""
        return self.rows / self.rate + self.chunks * self.delay

    @property
    def seconds(self) -> float:
        return self.work / min(self.workers, self.ranges)

    def to_json(self) -> Json:
        return {
            "table": self.table,
            "key": list(self.key),
            "index": self.index,
            "rows": self.rows,
            "ranges": self.ranges,
            "chunks": self.chunks,
            "rows_per_second": round(self.rate, 1),
            "rate_from": self.rate_from,
            "seconds": round(self.seconds, 1),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What `submit` would file, and what it would leave out."""

    options: DumpOptions
    tables: tuple[TablePlan, ...]
    refused: tuple[Refusal, ...]

    @property
    def seconds(self) -> float:
        """The workers share all tables; the largest may keep one of them longest."""
        shared = sum(t.work for t in self.tables) / self.options.workers
        return max([shared, *(t.seconds for t in self.tables)])

    def to_json(self) -> Json:
        return {
            "options": self.options.to_json(),
            "tables": [t.to_json() for t in self.tables],
            "refused": [r.to_json() for r in self.refused],
            "rows": sum(t.rows for t in self.tables),
            "ranges": sum(t.ranges for t in self.tables),
            "chunks": sum(t.chunks for t in self.tables),
            "seconds": round(self.seconds, 1),
        }


def plan(config: Config, request: DumpRequest, *, state: StateStore | None = None) -> Plan:
    """The plan of a request; nothing is filed and no row is read. Raises RequestError as `submit` does."""
    options = first_options(config, request)
    if state is None:
        with closing(wiring.open_state(config)) as store:
            measured = _measured_rates(dump_store.list_dumps(store))
    else:
        measured = _measured_rates(dump_store.list_dumps(state))

    def look(
        requested: list[RequestedTable], is_last: bool
    ) -> tuple[list[tuple[RequestedTable, TablePlan]], list[Refusal]]:
        with closing(wiring.open_source(config.source).open_reader(lock_seconds=LOCK_SECONDS)) as reader:
            return look_at_each(
                request,
                requested,
                lambda table: _table(reader, request, table, options, measured),
                is_last=is_last,
            )

    _, refused, (tables, unreadable) = resolve_and_look(config, request, look)
    return Plan(options, tuple(table for _, table in tables), (*refused, *unreadable))


def _table(
    reader: ChunkReader,
    request: DumpRequest,
    table: RequestedTable,
    options: DumpOptions,
    measured: Mapping[str, tuple[str, float]],
) -> TablePlan:
    schema = table.schema
    name = str(schema.table)
    read = reader.explain(schema, filters=table.filters)
    if request.keys:
        rows = len(listed_keys(request, schema))
        number = -(-rows // KEYS_PER_TASK)
        chunks = -(-rows // KEYS_PER_CHUNK)
    else:
        rows = read.rows
        scanned = reader.estimated_rows(schema.table) if table.filters else rows
        number = 1 if read.index is None else key_ranges.count(scanned, options, request.ranges)
        chunks = max(number, -(-rows // options.chunk_size))
    speed, origin = _rate(measured.get(name), options)
    return TablePlan(
        table=name,
        key=schema.key,
        index=read.index,
        rows=rows,
        ranges=number,
        chunks=chunks,
        rate=speed,
        rate_from=origin,
        delay=float(options.delay),
        workers=options.workers,
        warnings=tuple(_warnings(request, table, read.index)),
    )


def _warnings(request: DumpRequest, table: RequestedTable, index: str | None) -> Iterable[str]:
    if index is None and table.filters:
        columns = ", ".join(dict.fromkeys(f.column for f in table.filters))
        yield f"no index serves the filter on {columns} in the order of the key: every chunk scans or sorts the table"
    elif index is None:
        yield "no index serves the order of the key: every chunk scans or sorts the table"
    if request.key_from is not None or request.key_to is not None:
        yield "rows, chunks and time are those of the whole table: the key range may hold fewer"


def _rate(measured: tuple[str, float] | None, options: DumpOptions) -> tuple[float, str]:
    """Rows a second of one worker, and where the number comes from."""
    limit = float(options.rate)
    if measured is not None:
        dump_id, speed = measured
        return (limit, "the rate that is asked for") if 0 < limit < speed else (speed, f"dump {dump_id}")
    if limit:
        return limit, "the rate that is asked for"
    return ASSUMED_RATE, f"assumed: {ASSUMED_RATE:,.0f} rows a second and worker; no dump of the table has measured it"


def _measured_rates(dumps: Sequence[DumpStatus]) -> dict[str, tuple[str, float]]:
    """By table, the newest dump of all or a range of its rows that has measured a rate, and that of one worker."""
    rates: dict[str, tuple[str, float]] = {}
    for dump in dumps:  # oldest first
        for table in dump.tables:
            tasks = [t for t in dump.tasks if t.table == table and t.record.keys is None and not t.record.filters]
            speed = rate(tasks)
            if speed:
                rates[table] = (dump.id, speed / min(dump.options.workers, len(tasks)))
    return rates
