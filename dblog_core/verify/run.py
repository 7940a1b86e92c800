"""A verification of some tables: compared, some at the same time, mended where that is wished, and certified."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dblog_core import wiring
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.dumps import requests
from dblog_core.dumps.key_ranges import Range
from dblog_core.dumps.read_only_windows import AnnouncedWindows
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import DblogError, RequestError
from dblog_core.interfaces import ChunkReader, Clock, Json, StateStore, WatermarkWriter
from dblog_core.model.schema import TableName
from dblog_core.state.leases import CAPTURE
from dblog_core.verify import certificate, last_results, repair
from dblog_core.verify.exchange import TOGETHER, Ask, Desk, Sum, Task
from dblog_core.verify.report import Report, TableReport
from dblog_core.verify.slices import Slice, Slices
from dblog_core.verify.source_reader import Announce, Readers
from dblog_core.verify.spark_job import LakeSide
from dblog_core.verify.table import TableCheck, Tools, Wish
from dblog_core.verify.window_positions import Interrupted, Patience, Places, no_capture


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What a user asks for. `tables`: names or patterns (None: all); `slice`: that of each table alone; `rate`: rows a
    second (0: no limit); `workers` None: the configuration's for dumps; `pass_over_refused`: tables that cannot be
    compared do not count."""

    tables: tuple[str, ...] | None
    mend: bool = False
    wish: Wish = field(default_factory=Wish)
    certificate: Path | None = None
    rate: int = 0
    workers: int | None = None
    slice: Slice | None = None
    pass_over_refused: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether the lake still gives what a certificate says of a table; `error`: why that cannot be told."""

    table: str
    version: int
    equal: bool
    error: str | None = None

    def to_json(self) -> Json:
        return {"table": self.table, "version": self.version, "equal": self.equal, "error": self.error}


def verify(
    config: Config,
    request: VerifyRequest,
    *,
    stop: threading.Event,
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> Report:
    """Compares the tables, and mends them where that is asked for.

    Raises RequestError for tables that are not captured or have no key, DblogError where no capture runs, Interrupted
    once `stop` is set. What keeps a single table from being compared stands in its record.
    """
    clock = clock or SystemClock()
    wanted, refused = requests.resolve(config, DumpRequest(tables=request.tables))
    for left_out in refused:
        say(f"left out: {left_out.reason}")
    with _tools(config, request, stop, say, clock) as tools:
        cut = _Cut(tools, request.slice)
        compared = _compared(tools, cut, request, [w.schema.table for w in wanted])
        report = Report(tuple(table.report for table in compared), tuple(refused), request.pass_over_refused)
        if request.certificate is not None:
            parts = [table.certified for table in compared if table.certified is not None]
            now = dt.datetime.fromtimestamp(clock.time(), dt.UTC).isoformat(timespec="seconds")
            certificate.write(request.certificate, certificate.certificate(config.source.name, now, parts))
        report = _mended(tools, cut, report, stop=stop, clock=clock) if request.mend else report
        for one in report.tables:
            if one.equal:
                cut.done(TableName.parse(one.table))
        _remember(config, request, report, clock)
        return report


@dataclass(frozen=True, slots=True)
class _Compared:
    """A table's record, and its part of the certificate where one is asked for."""

    report: TableReport
    certified: Json | None = None


def _compared(tools: Tools, cut: _Cut, request: VerifyRequest, tables: Sequence[TableName]) -> list[_Compared]:
    """The tables in their order, some at the same time; without those of which the slice has nothing."""
    with ThreadPoolExecutor(TOGETHER, thread_name_prefix="table") as pool:
        every = pool.map(lambda table: _compare(tools, cut, request, table), tables)
        return [compared for compared in every if compared is not None]


def _compare(tools: Tools, cut: _Cut, request: VerifyRequest, table: TableName) -> _Compared | None:
    try:
        ranges = cut.ranges(table)
    except DblogError as error:
        return _Compared(TableReport(str(table), error=str(error)))
    if ranges is None:
        tools.say(f"{table}: none of its keys are in this slice")
        return None
    check = TableCheck(tools, table, ranges)
    report = check.sampled(request.wish) if request.wish.sampled else check.whole()
    tools.say(f"{table}: {report.outcome}, {report.seconds:.0f} s")
    if request.certificate is None or check.evidence is None:
        return _Compared(report)
    return _Compared(report, _certified(tools, check, report))


def _remember(config: Config, request: VerifyRequest, report: Report, clock: Clock) -> None:
    whole = request.slice is None and not request.wish.sampled
    with closing(wiring.open_state(config)) as state:
        last_results.record(state, report.tables, whole=whole, now=clock.time())


def check(config: Config, file: Path, *, stop: threading.Event, clock: Clock | None = None) -> list[Checked]:
    """Looks whether the lake, at the certificate's versions, still gives its sums. Raises RequestError, Interrupted."""
    claims = certificate.claims(file, source=config.source.name)
    staging, clock = wiring.open_staging(config), clock or SystemClock()
    with _desk(Desk(staging.storage, _directory())) as desk, LakeSide(config, desk, clock, stop) as lake_side:
        return [_checked(lake_side, claim) for claim in claims]


def _checked(lake_side: LakeSide, claim: certificate.Claim) -> Checked:
    try:
        sums = lake_side.ask(Task(Ask.SUMS, claim.schema, claim.pin, bounds=claim.bounds)).sums
    except DblogError as error:
        return Checked(claim.table, claim.pin.version, equal=False, error=str(error))
    return Checked(claim.table, claim.pin.version, sums == claim.sums)


def _announce(state: StateStore, clock: Clock, stop: threading.Event) -> Announce:
    """Raises DblogError where no capture answers, nor any has led for as long as a standby takes."""

    def announced(reader: ChunkReader) -> WatermarkWriter:
        return AnnouncedWindows(state, reader, clock, stop, Patience(state, clock).waits)

    return announced


@contextmanager
def _tools(
    config: Config, request: VerifyRequest, stop: threading.Event, say: Callable[[str], None], clock: Clock
) -> Iterator[Tools]:
    if request.wish.sampled and request.certificate is not None:
        raise RequestError("a sample has no certificate", fix="leave out --sample or --certificate")
    if request.slice is not None and (request.wish.sampled or request.certificate is not None):
        raise RequestError("a slice is neither sampled nor certified", fix="leave out --slice, or the other")
    staging, source = wiring.open_staging(config), wiring.open_source(config.source)
    workers = request.workers or config.dump.workers
    with closing(wiring.open_state(config)) as state:
        if state.leader(CAPTURE) is None:
            raise no_capture()
        with _desk(Desk(staging.storage, _directory())) as desk, LakeSide(config, desk, clock, stop) as lake_side:
            yield Tools(
                config=config,
                source=source,
                staging=staging,
                lake=wiring.open_lake(config),
                readers=Readers(
                    source,
                    config.source.name,
                    desk,
                    workers=workers,
                    rate=request.rate,
                    clock=clock,
                    stop=stop,
                    announce=_announce(state, clock, stop) if config.source.read_only else None,
                ),
                places=Places(staging, state, clock, stop),
                lake_side=lake_side,
                workers=workers,
                say=say,
            )


@contextmanager
def _desk(desk: Desk) -> Iterator[Desk]:
    try:
        yield desk
    finally:
        desk.clear()


def _directory() -> str:
    return f"tmp/verify-{secrets.token_hex(8)}"


def _certified(tools: Tools, check: TableCheck, found: TableReport) -> Json:
    evidence = check.evidence
    assert evidence is not None
    sums: tuple[Sum, ...] = ()
    if evidence.pin is not None:
        sums = tools.lake_side.ask(Task(Ask.SUMS, evidence.schema, evidence.pin, bounds=evidence.bounds)).sums
    return certificate.table_json(found, evidence, sums)


class _Cut:
    """The ranges of each table that are compared."""

    def __init__(self, tools: Tools, wanted: Slice | None) -> None:
        self._tools, self._wanted = tools, wanted

    def ranges(self, table: TableName) -> list[Range] | None:
        """Those of the wanted slice, or none for the whole table; None where the slice has nothing of it."""
        if self._wanted is None:
            return []
        with closing(self._tools.source.open_reader()) as reader, self._slices(self._wanted) as slices:
            return slices.ranges(reader, reader.schema(table)) or None

    def done(self, table: TableName) -> None:
        """What was to be compared is equal, or mended."""
        if self._wanted is None:
            return
        with closing(self._tools.source.open_reader()) as reader, self._slices(self._wanted) as slices:
            slices.done(reader, reader.schema(table))

    @contextmanager
    def _slices(self, wanted: Slice) -> Iterator[Slices]:
        with closing(wiring.open_state(self._tools.config)) as state:
            yield Slices(state, wanted, smallest=self._tools.config.dump.chunk_size)


def _mended(tools: Tools, cut: _Cut, report: Report, *, stop: threading.Event, clock: Clock) -> Report:
    """Dumps what differs, has it merged, and compares it again; the report of that second comparison."""
    dumps: dict[str, str] = {}
    for table in (t for t in report.tables if t.found):
        tools.say(f"{table.table}: {table.found:,} keys are dumped")
        try:
            dumps[table.table] = repair.mend(tools.config, table, stop=stop, clock=clock)
        except DblogError as error:  # it keeps this table from being mended, not the others
            report = report.with_table(replace(table, error=str(error)))
    if dumps:
        tools.say("merging the dumps")
        repair.merge(tools.config, tools.lake, tools.staging, stop=stop, clock=clock, on_line=tools.say)
    for table in (t for t in report.tables if t.table in dumps):
        check = TableCheck(tools, TableName.parse(table.table), cut.ranges(TableName.parse(table.table)) or ())
        report = report.with_table(_compared_again(check, table, dumps[table.table]))
    return report


def _compared_again(check: TableCheck, table: TableReport, dump_id: str) -> TableReport:
    again = check.whole() if table.more else check.listed([*table.keys, *table.undecided])
    repaired = {"dump": dump_id, **table.differences()}
    return replace(again, rows=table.rows, lake_rows=table.lake_rows, sample=table.sample, repaired=repaired)


__all__ = ["Checked", "Interrupted", "VerifyRequest", "check", "verify"]
