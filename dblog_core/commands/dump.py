"""`dblog dump`: request a dump and work on it, or show by `--dry-run` what it would read."""

from __future__ import annotations

import json as json_text
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from dblog_core.commands.options import AllTablesOption, OnOff, Size, TablesOption, on_off, size
from dblog_core.commands.session import FAILED, JsonFlag, Session, note, session_of, stderr, stopping
from dblog_core.commands.spark_workers import SparkFlag
from dblog_core.commands.terminal.progress import progress
from dblog_core.commands.terminal.text_tables import align
from dblog_core.config.secret_settings import LAKE, SOURCE
from dblog_core.config.settings import DumpConfig
from dblog_core.dumps.dump_records import DumpState
from dblog_core.dumps.status import line
from dblog_core.errors import DblogError, RequestError
from dblog_core.model import sizes
from dblog_core.model.durations import in_words

if TYPE_CHECKING:
    from dblog_core.dumps.dry_run import Plan, TablePlan
    from dblog_core.dumps.requests import DumpRequest
    from dblog_core.dumps.status import DumpStatus


@dataclass(frozen=True, slots=True)
class Condition:
    """One --filter as typed."""

    column: str
    operator: str
    value: str


def _condition(words: Any) -> Condition:
    from dblog_core.model.filters import OPERATORS

    column, operator, value = words
    if operator not in OPERATORS:
        raise typer.BadParameter(f"{operator!r} is none of {' '.join(OPERATORS)}")
    return Condition(column, operator, value)


def _default(option: str) -> str:
    """What an option is unless it is given, here or in the file."""
    value = DumpConfig.model_fields[option].default
    text = ("off", "on")[value] if isinstance(value, bool) else f"{value:g}"
    if option == "chunk_bytes":
        text = sizes.text(value)
    return f"[default: [dump] {option}, or {text}]"


class DumpCommand(typer.core.TyperCommand):
    """`dump`, whose --filter takes three arguments each time: an annotation alone cannot say so."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if parameter.name == "filters":
                parameter.nargs = 3


_PkOption = Annotated[
    list[str] | None, typer.Option("--pk", metavar="JSON", help="A key to dump; may be repeated. One table only.")
]
_KeyFromOption = Annotated[str | None, typer.Option(metavar="JSON", help="First key of a range. One table only.")]
_KeyToOption = Annotated[str | None, typer.Option(metavar="JSON", help="Last key of a range. One table only.")]
_FiltersOption = Annotated[
    list[Condition] | None,
    typer.Option(
        "--filter",
        metavar="COLUMN OP VALUE",
        parser=_condition,
        help="Only rows that pass: = < <= > >= in; may be repeated, all must hold.",
    ),
]
_RangesOption = Annotated[
    int | None, typer.Option(min=1, max=64, metavar="N", help="Ranges to cut a table into; 1: do not.")
]
_ChunkSizeOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help=f"Rows of one SELECT. {_default('chunk_size')}")
]
_ChunkBytesOption = Annotated[
    Size | None,
    typer.Option(
        metavar="BYTES",
        parser=size,
        help=f"Bytes of one SELECT's rows at most, such as 32M. {_default('chunk_bytes')}",
    ),
]
_WorkersOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help=f"Tasks at the same time. {_default('workers')}")
]
_DelayOption = Annotated[
    float | None,
    typer.Option(min=0, metavar="S", help=f"Seconds between two chunks of a worker. {_default('delay')}"),
]
_RateOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="ROWS", help=f"Rows a second of one worker; 0: no limit. {_default('rate')}"),
]
_AdaptiveOption = Annotated[
    OnOff | None,
    typer.Option(metavar="on|off", parser=on_off, help=f"Slow down while the source suffers. {_default('adaptive')}"),
]
_MaxRetainedOption = Annotated[
    Size | None,
    typer.Option(
        metavar="BYTES",
        parser=size,
        help=f"Stand while the source retains more log; 10G; 0: no limit. {_default('max_retained')}",
    ),
]
_DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")]
_WaitOption = Annotated[bool, typer.Option("--wait", help="Until every chunk is in the super-changelog.")]


def dump(
    context: typer.Context,
    table: TablesOption = None,
    all_tables: AllTablesOption = False,
    pk: _PkOption = None,
    key_from: _KeyFromOption = None,
    key_to: _KeyToOption = None,
    filters: _FiltersOption = None,
    ranges: _RangesOption = None,
    chunk_size: _ChunkSizeOption = None,
    chunk_bytes: _ChunkBytesOption = None,
    workers: _WorkersOption = None,
    delay: _DelayOption = None,
    rate: _RateOption = None,
    adaptive: _AdaptiveOption = None,
    max_retained: _MaxRetainedOption = None,
    dry_run: _DryRunOption = False,
    wait: _WaitOption = False,
    spark: SparkFlag = False,
    json: JsonFlag = False,
) -> None:
    """Request a dump and work on it; prints its id.

    All rows of tables, those that pass filters, a range of keys, or listed keys.

    A key is a JSON value; a composite key is a JSON array in key order; binary is base64, dates and decimals are
    strings. A filter's value is JSON, or plain text where the column holds text or a date. The rows come in between the
    log's own changes, never older than what the log has said: a capture must be running to place them.

    \b
    Examples:
      dblog --config shop.toml dump --all --wait
      dblog --config shop.toml dump --all --dry-run
      dblog --config shop.toml dump --table 'shop.cust*' --chunk-size 5000 --rate 20000
      dblog --config shop.toml dump --table shop.orders --pk 17 --pk 18
      dblog --config shop.toml dump --table shop.lines --pk '[17, "A-3"]'
      dblog --config shop.toml dump --table shop.orders --key-from 1000 --key-to 1999
      dblog --config shop.toml dump --table shop.orders --filter state in '["new", "paid"]' --filter day '>=' 2026-11-01
      dblog --config shop.toml dump --table shop.orders --workers 8 --adaptive on --max-retained 20G
      dblog --config shop.toml dump --table shop.orders --workers 32 --spark --wait
    """
    session = session_of(context, json)
    needs_one = bool(pk or key_from is not None or key_to is not None)
    request = replace(
        _request_rows(_choose_tables(table, all_tables, needs_one=needs_one), pk, key_from, key_to, filters),
        ranges=ranges,
        chunk_size=chunk_size,
        chunk_bytes=chunk_bytes,
        workers=workers,
        delay=delay,
        rate=rate,
        adaptive=None if adaptive is None else adaptive.value,
        max_retained=max_retained,
    )
    if dry_run:
        _show_plan(session, request)
    else:
        _carry_out(session, request, wait=wait, spark=spark)


def _request_rows(
    tables: tuple[str, ...] | None,
    pk: list[str] | None,
    key_from: str | None,
    key_to: str | None,
    filters: list[Condition] | None,
) -> DumpRequest:
    """A request for the rows that are named, without settings of how to read them. Raises BadParameter."""
    from dblog_core.dumps.requests import DumpRequest
    from dblog_core.model.filters import Typed

    return DumpRequest(
        tables=tables,
        keys=tuple(_key(text, "--pk") for text in pk or ()),
        key_from=None if key_from is None else _key(key_from, "--key-from"),
        key_to=None if key_to is None else _key(key_to, "--key-to"),
        filters=tuple((c.column, c.operator, Typed(c.value)) for c in filters or ()),
    )


def _choose_tables(tables: list[str] | None, all_tables: bool, *, needs_one: bool) -> tuple[str, ...] | None:
    """The tables that are asked for; None for all. Raises BadParameter."""
    if bool(tables) == all_tables:
        raise typer.BadParameter("give either --table (it may be repeated) or --all")
    if needs_one and (all_tables or len(set(tables or ())) != 1):
        raise typer.BadParameter("--pk, --key-from and --key-to need exactly one --table")
    return None if all_tables else tuple(tables or ())


def _key(text: str, option: str) -> Any:
    try:
        return json_text.loads(text, parse_float=str, parse_constant=str)  # every digit counts in a decimal key
    except ValueError as error:
        message = f"{text!r} is not JSON ({error}); text needs quotes of its own: '\"A-3\"'"
        raise typer.BadParameter(message, param_hint=option) from error


# The dry run ----------------------------------------------------------------------------------------------------------


def _show_plan(session: Session, request: DumpRequest) -> None:
    from dblog_core.dumps.dry_run import plan

    dump_plan = plan(session.config(SOURCE), request)
    session.result(dump_plan.to_json(), plan_text(dump_plan))


def plan_text(plan: Plan) -> str:
    """The plan for people: a table, what would be left out, what to think of, and where the times come from."""
    header = ("TABLE", "INDEX", "ROWS", "RANGES", "CHUNKS", "TIME")
    total = ("in all", "", *_counts(plan.tables), in_words(plan.seconds))
    lines = [align(header, [*map(_row, plan.tables), total])]
    lines += [f"refused: {r.reason}\n  fix: {r.fix}" for r in plan.refused]
    lines += [f"warning: {t.table}: {warning}" for t in plan.tables for warning in t.warnings]
    origins: dict[str, list[str]] = {}
    for t in plan.tables:
        origins.setdefault(t.rate_from, []).append(t.table)
    lines += [f"time of {_some(tables)}: {origin}" for origin, tables in origins.items()]
    return "\n".join([*lines, "rows are the server's estimates; nothing is requested"])


def _row(table: TablePlan) -> tuple[str, ...]:
    return (table.table, table.index or "none", *_counts([table]), in_words(table.seconds))


def _counts(tables: Any) -> tuple[str, ...]:
    return tuple(f"{sum(getattr(t, name) for t in tables):,}" for name in ("rows", "ranges", "chunks"))


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"


# The dump itself ------------------------------------------------------------------------------------------------------


def _carry_out(session: Session, request: DumpRequest, *, wait: bool, spark: bool) -> None:
    """Files the dump and works on it until it is over or we are stopped. Exits with 1 if it is not done then."""
    dump_id = _file(session, request)
    if session.json:
        note(f"dump {dump_id}")
    else:
        session.result(None, dump_id)  # before the work: it can be continued if we are stopped
    status = _work(session, dump_id, wait=wait, spark=spark)
    if session.json:
        session.result(status.to_json(), "")
    if status.state != DumpState.DONE:
        raise typer.Exit(FAILED)


def _file(session: Session, request: DumpRequest) -> str:
    """Files the dump and returns its id; on a terminal it says which table's boundaries are read meanwhile."""
    from dblog_core.dumps import filing

    config = session.config(SOURCE)
    with _interruptible():
        if not stderr.is_terminal:
            return filing.submit(config, request)
        with progress() as display:
            return filing.submit(config, request, on_table=lambda name: display.show(f"reading boundaries of {name}"))


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends what has no stop flag as SIGINT does: exit code 1, and nothing is filed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _work(session: Session, dump_id: str, *, wait: bool, spark: bool) -> DumpStatus:
    from dblog_core.commands import spark_workers
    from dblog_core.dumps import dump_records, dump_store
    from dblog_core.dumps import work_loop as worker
    from dblog_core.wiring import open_state

    config = session.config(SOURCE | LAKE if spark else SOURCE)
    with closing(open_state(config)) as state:
        if state.leader("capture") is None:
            note("no capture is running; the dump waits until `dblog capture` places its chunks")
        for refused in dump_store.read_dump(state, dump_id).refused:
            note(f"left out: {refused.reason}\n  fix: {refused.fix}")
    try:
        with stopping() as stop, progress() as display:

            def tell(status: DumpStatus) -> None:
                display.show(line(status), kind=status.state)

            if spark:
                spark_workers.work(config, stop=stop, dump_id=dump_id, on_line=display.show)
            else:
                worker.work(config, stop=stop, once=True, dump_id=dump_id, on_progress=tell)
            if wait and not stop.is_set():
                worker.wait(config, dump_id, stop=stop, on_progress=tell)
        with closing(open_state(config)) as state:
            status = dump_store.read_dump(state, dump_id)
    except RequestError as error:  # found while working, and no fault of the command's arguments
        raise DblogError(error.message, where=error.where or f"dump {dump_id}", fix=error.fix) from error
    if status.error:
        note(f"dump {dump_id}: {status.error}")
    elif stderr.is_terminal:  # elsewhere the last line of progress said so
        note(line(status))
    if status.state not in dump_records.OVER:
        note(f"  stopped before its end; `dblog work --once` continues it, `dblog cancel {dump_id}` drops it")
    return status
