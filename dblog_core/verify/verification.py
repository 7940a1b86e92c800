"""A verification of some tables: compared, some at the same time, repaired where that is asked for, and certified."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dblog_core import wiring
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.dumps import requests
from dblog_core.dumps.key_ranges import Range
from dblog_core.dumps.pace.locked_tables import explain_lock
from dblog_core.dumps.read_only_windows import AnnouncedWindows
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import DblogError, RequestError, TableLocked
from dblog_core.interfaces import ChunkReader, Clock, Json, StateStore, WatermarkWriter
from dblog_core.model.schema import TableName
from dblog_core.state.lease_holder import CAPTURE
from dblog_core.verify import certificate, last_results, repair, slice_times
from dblog_core.verify.certificate import UncertifiedTable
from dblog_core.verify.judge.judge import TABLES_TOGETHER, Judge
from dblog_core.verify.report import Repair, Report, TableReport
from dblog_core.verify.sample import SampleSize
from dblog_core.verify.slices import Slice, Slices
from dblog_core.verify.source_reader import Readers
from dblog_core.verify.table_comparison import TableComparison, Tools
from dblog_core.verify.window_positions import Interrupted, Patience, WindowPositions, no_capture_error

_LOCKED_SECONDS = 60.0
"""For which locked tables are tried again, once all others are compared."""
_LOCKED_PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What a user asks for. `tables`: names or patterns (None: all); `slice`: only that of each table; `rate`: rows a
    second (0: no limit); `workers` None: the configuration's for dumps; `pass_over_refused`: tables that cannot be
    compared do not count."""

    tables: tuple[str, ...] | None
    repair: bool = False
    sample: SampleSize = field(default_factory=SampleSize)
    certificate: Path | None = None
    rate: int = 0
    workers: int | None = None
    slice: Slice | None = None
    pass_over_refused: bool = False


def verify(
    config: Config,
    request: VerifyRequest,
    *,
    stop: threading.Event,
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> Report:
    """Compares the tables, and repairs them where that is asked for.

    Raises RequestError for tables that are not captured or have no key, DblogError where no capture runs, Interrupted
    once `stop` is set. What keeps a single table from being compared stands in its record.
    """
    clock = clock or SystemClock()
    began_at = clock.time()
    references, refused = requests.resolve(config, DumpRequest(tables=request.tables))
    for left_out in refused:
        say(f"left out: {left_out.reason}")
    with _open_tools(config, request, stop, say, clock) as tools:
        tables = [reference.schema.table for reference in references]
        compared = _compare_each(tools, tables, lambda table: _compare(tools, request, table))
        report = Report(tuple(table.report for table in compared), tuple(refused), request.pass_over_refused)
        if request.certificate is not None:
            now = dt.datetime.fromtimestamp(clock.time(), dt.UTC).isoformat(timespec="seconds")
            asked = [*map(str, tables), *(left_out.table for left_out in refused)]
            data = _certify(config.source.name, now, asked, compared, report)
            certificate.write(request.certificate, data)
        report = _repair_tables(tools, report) if request.repair else report
        for table in report.tables:
            if table.equal:
                _record_equal_table(tools, TableName.parse(table.table))
        _remember(tools.state, request, report, began_at=began_at, now=clock.time())
        return report


@dataclass(frozen=True, slots=True)
class _Compared:
    """A table's record, and its part of the certificate where one is asked for. `is_locked`: it was not compared, since
    another session keeps the table locked."""

    report: TableReport
    certified: Json | UncertifiedTable | None = None
    is_locked: bool = False


def _compare_each(
    tools: Tools, tables: Sequence[TableName], compare: Callable[[TableName], _Compared | None]
) -> list[_Compared]:
    """The tables in their order, some at the same time; without those of which there is nothing to compare. Locked
    tables are tried again once all others are compared. Raises Interrupted."""

    def compare_or_explain(table: TableName) -> _Compared | None:
        try:
            return compare(table)
        except TableLocked:
            error = DblogError(
                f"{explain_lock(tools.source, table)}, so that nobody could compare it",
                fix="verify the table again when it is free",
            )
            return _Compared(TableReport(str(table), error=str(error)), is_locked=True)

    def compare_together(names: Sequence[TableName]) -> dict[TableName, _Compared | None]:
        with ThreadPoolExecutor(TABLES_TOGETHER, thread_name_prefix="table") as pool:
            return dict(zip(names, pool.map(compare_or_explain, names), strict=True))

    compared = compare_together(tables)
    clock = tools.clock
    deadline = clock.monotonic() + _LOCKED_SECONDS
    while (locked := [t for t, result in compared.items() if result and result.is_locked]) and (
        (seconds_left := deadline - clock.monotonic()) > 0
    ):
        tools.say(f"waiting for locked tables, {seconds_left:.0f} s: {', '.join(map(str, locked))}")
        if clock.wait(tools.stop, _LOCKED_PAUSE_SECONDS):
            raise Interrupted
        compared |= compare_together(locked)
    return [result for result in compared.values() if result is not None]


def _compare(tools: Tools, request: VerifyRequest, table: TableName) -> _Compared | None:
    try:
        ranges = _find_ranges(tools, table)
    except TableLocked:
        raise
    except DblogError as error:
        return _Compared(TableReport(str(table), error=str(error)))
    if ranges is None:
        tools.say(f"{table}: no key of it is in this slice")
        return None
    comparison = TableComparison(tools, table, ranges)
    report = comparison.compare_sample(request.sample) if request.sample.is_sample else comparison.compare_all_rows()
    tools.say(f"{table}: {report.outcome}, {report.seconds:.0f} s")
    return _Compared(report, None if request.certificate is None else comparison.certify(report))


def _certify(source: str, at: str, asked: Sequence[str], compared: Sequence[_Compared], report: Report) -> bytes:
    """The certificate, also of the tables that have no evidence: without them it would pass for one of all tables."""
    parts = [table.certified for table in compared if isinstance(table.certified, dict)]
    uncertified = [
        table.certified or UncertifiedTable(table.report.table, table.report.error or table.report.outcome)
        for table in compared
        if not isinstance(table.certified, dict)
    ]
    uncertified += [UncertifiedTable(t.table, t.reason, t in report.missing_tables) for t in report.left_out]
    return certificate.certificate(source, at, asked, parts, uncertified)


def _find_ranges(tools: Tools, table: TableName) -> list[Range] | None:
    """Those of the slice, or none for the whole table; None where the slice has nothing of it."""
    if tools.slices is None:
        return []
    with tools.open_reader() as reader:
        return tools.slices.ranges(reader, reader.schema(table)) or None


def _record_equal_table(tools: Tools, table: TableName) -> None:
    """What was to be compared is equal, or repaired. A later run makes new cuts of a table that is locked now."""
    if tools.slices is None:
        return
    with suppress(TableLocked), tools.open_reader() as reader:
        tools.slices.record_compared_slice(reader, reader.schema(table))


def _remember(state: StateStore, request: VerifyRequest, report: Report, *, began_at: float, now: float) -> None:
    # A result of a part of the rows must not read as one of the table.
    whole = request.slice is None and not request.sample.is_sample
    last_results.record_results(state, report.tables, whole=whole, now_seconds=now)
    if request.slice is not None and request.tables is None and report.equal:
        slice_times.record_compared(state, request.slice, began_us=int(began_at * 1e6))


@contextmanager
def _open_tools(
    config: Config, request: VerifyRequest, stop: threading.Event, say: Callable[[str], None], clock: Clock
) -> Iterator[Tools]:
    if request.sample.is_sample and request.certificate is not None:
        raise RequestError(
            "a sample has no certificate, which needs a full comparison", fix="leave out --sample or --certificate"
        )
    if request.slice is not None and (request.sample.is_sample or request.certificate is not None):
        raise RequestError("a slice is neither sampled nor certified", fix="leave out --slice, or the other")
    staging = wiring.open_staging(config)
    source = wiring.open_source(config.source)
    workers = request.workers or config.dump.workers
    with closing(wiring.open_state(config)) as state:

        def announce(reader: ChunkReader) -> WatermarkWriter:
            """Raises DblogError where no capture answers, nor any has led for as long as a standby takes."""
            return AnnouncedWindows(state, reader, clock, stop, Patience(state, clock).expect_capture)

        # Without a capture no window is ever placed. Better said at once than after the source was read.
        if state.leader(CAPTURE) is None:
            raise no_capture_error()
        lake = wiring.open_lake(config)
        slices = None if request.slice is None else Slices(state, request.slice, smallest=config.dump.chunk_size)
        with Judge(staging, lake, stop=stop) as judge:
            yield Tools(
                config=config,
                source=source,
                staging=staging,
                lake=lake,
                state=state,
                slices=slices,
                readers=Readers(
                    source,
                    config.source.name,
                    workers=workers,
                    rate=request.rate,
                    clock=clock,
                    stop=stop,
                    announce=announce if config.source.read_only else None,
                ),
                positions=WindowPositions(staging, state, clock, stop),
                judge=judge,
                workers=workers,
                say=say,
                clock=clock,
                stop=stop,
            )


def _repair_tables(tools: Tools, report: Report) -> Report:
    """Dumps what differs, has it merged, and compares it again; the report of that second comparison."""
    differing = [table for table in report.tables if table.difference_count]
    if not differing:
        return report
    for table in differing:
        tools.say(f"{table.table}: {table.difference_count:,} keys are dumped")
    dumped = repair.dump_differences(tools.config, differing, workers=tools.workers, stop=tools.stop, clock=tools.clock)
    for table in differing:
        if (error := dumped.errors.get(table.table)) is not None:
            report = report.with_table(replace(table, error=str(error)))
    dumps = dumped.ids
    # One merge for all dumps: starting Spark costs more than merging them.
    if dumps:
        tools.say("merging the dumps")
        try:
            repair.merge_staged(
                tools.config, tools.lake, tools.staging, dumps, stop=tools.stop, clock=tools.clock, say=tools.say
            )
        except DblogError as error:  # what was found stays in the report
            for table in (t for t in report.tables if t.table in dumps):
                report = report.with_table(replace(table, error=str(error)))
            return report

    first_reports = {TableName.parse(table.table): table for table in report.tables if table.table in dumps}

    def compare_again(name: TableName) -> _Compared:
        first_report = first_reports[name]
        comparison = TableComparison(tools, name, _find_ranges(tools, name) or ())
        open_keys = [*first_report.differing_keys, *first_report.undecided]
        second_report = comparison.compare_all_rows() if first_report.more else comparison.compare_keys(open_keys)
        repaired = Repair(dumps[first_report.table], first_report.differences)
        counts = {item: getattr(first_report, item) for item in ("rows", "lake_rows", "sample")}
        return _Compared(replace(second_report, **counts, repaired=repaired))

    for compared in _compare_each(tools, list(first_reports), compare_again):
        report = report.with_table(compared.report)
    return report
