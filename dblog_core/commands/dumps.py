"""`dblog work`, `dumps`, `pause`, `resume`, `cancel`, `set`: work on dumps, watch and control them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog_core.commands import spark_workers
from dblog_core.commands.options import on_off, size
from dblog_core.commands.session import FAILED, JsonFlag, Session, note, session_of, stopping
from dblog_core.commands.spark_workers import SparkFlag
from dblog_core.commands.terminal.progress import progress
from dblog_core.commands.terminal.text_tables import align
from dblog_core.config.secret_settings import LAKE, SOURCE, STATE
from dblog_core.dumps.dump_records import DumpState
from dblog_core.dumps.status import line
from dblog_core.errors import DblogError, RequestError
from dblog_core.model import table_names
from dblog_core.model.durations import in_words

if TYPE_CHECKING:
    from dblog_core.dumps.status import DumpStatus
    from dblog_core.interfaces import StateStore

DumpId = Annotated[str, typer.Argument(metavar="ID", help="The dump's id, as `dblog dumps` shows it.")]
_HEADER = ("ID", "STATE", "ROWS", "OF", "CHUNKS", "LEFT", "TASKS")
_TABLES = 3  # names of a dump's tables in a list
_SETTINGS: dict[str, Callable[[str], Any]] = {
    "chunk_size": int,
    "chunk_bytes": lambda text: int(size(text)),
    "delay": float,
    "rate": int,
    "workers": int,
    "adaptive": lambda text: on_off(text).value,
    "max_retained": lambda text: int(size(text)),
}


def work(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="End when no unfinished dump is left.")] = False,
    spark: SparkFlag = False,
    json: JsonFlag = False,
) -> None:
    """Work on every unfinished dump.

    Also on those whose worker died.

    Any number of these can run, on any number of machines.

    \b
    Examples:
      dblog --config shop.toml work
      dblog --config shop.toml work --once
      dblog --config shop.toml work --once --spark
    """
    from dblog_core.dumps import work_loop as worker

    session = session_of(context, json)
    if spark:
        _work_on_spark(session, once)
        return
    config = session.config(SOURCE)
    seen: dict[str, DumpStatus] = {}
    try:
        with stopping() as stop, progress() as display:

            def tell(status: DumpStatus) -> None:
                seen[status.id] = status
                display.show(line(status), kind=f"{status.id} {status.state}")

            worker.work(config, stop=stop, once=once, on_progress=tell)
    except RequestError as error:
        raise DblogError(error.message, where=error.where, fix=error.fix) from error
    if session.json:
        session.result([status.to_json() for status in seen.values()], "")
    if once and stop.is_set():
        raise typer.Exit(FAILED)


def _work_on_spark(session: Session, once: bool) -> None:
    if not once:
        raise typer.BadParameter("--spark works on what is unfinished now: give --once with it")
    if session.json:
        raise typer.BadParameter("--json has nothing to say beside --spark: `dblog dumps --json` has")
    with stopping() as stop:
        code = spark_workers.work(session.config(SOURCE | LAKE), stop=stop, dump_id=None, on_line=note)
    if code:
        raise typer.Exit(FAILED)


def dumps(context: typer.Context, json: JsonFlag = False) -> None:
    """List all dumps, oldest first.

    \b
    Example:
      dblog --config shop.toml dumps --json
    """
    from dblog_core.dumps import dump_store

    session = session_of(context, json)
    with closing(_state(session)) as state:
        statuses = dump_store.list_dumps(state)
    session.result([d.to_json() for d in statuses], _list_text(statuses) if statuses else "no dump was requested yet")


def _list_text(statuses: Sequence[DumpStatus]) -> str:
    """A line for each that fits a terminal of 80 columns, and below it what may be longer."""
    header, *rows = align(_HEADER, [*map(_row, statuses)]).splitlines()
    lines = [header]
    for row, status in zip(rows, statuses, strict=True):
        lines += [row, f"  {_details(status)}"]
        lines += [f"  {word}: {text}" for word, text in (("held", status.held), ("error", status.error)) if text]
        if status.state == DumpState.FAILED and not status.tasks:  # refused before it had one
            lines += [f"  fix: {refusal.fix}" for refusal in status.refused if refusal.fix]
    return "\n".join(lines)


def _details(status: DumpStatus) -> str:
    """Which tables, and what else is known of it."""
    speed = status.rows_per_second
    dropped = status.tables_gone
    parts = [f"{status.evicted:,} evicted"] if status.evicted else []
    parts += [f"{speed:,.0f} rows/s"] if speed is not None else []
    parts += [f"{len(dropped):,} table(s) dropped meanwhile"] if dropped else []
    return "; ".join([table_names.some(status.tables, _TABLES), *parts])


def _row(status: DumpStatus) -> tuple[str, ...]:
    seconds_left = status.seconds_left
    rows = status.estimated_rows
    return (
        status.id,
        status.state,
        f"{status.rows:,}",
        "?" if rows is None else f"{rows:,}",
        f"{status.chunks:,}",
        "?" if seconds_left is None and status.state == "running" else in_words(seconds_left) if seconds_left else "",
        f"{status.tasks_done}/{len(status.tasks)}",
    )


def pause(context: typer.Context, dump_id: DumpId, json: JsonFlag = False) -> None:
    """Let a dump stand still."""
    from dblog_core.dumps import control

    _control(session_of(context, json), dump_id, control.pause)


def resume(context: typer.Context, dump_id: DumpId, json: JsonFlag = False) -> None:
    """Let a paused dump continue."""
    from dblog_core.dumps import control

    _control(session_of(context, json), dump_id, control.resume)


def cancel(context: typer.Context, dump_id: DumpId, json: JsonFlag = False) -> None:
    """End a dump as it stands."""
    from dblog_core.dumps import control

    _control(session_of(context, json), dump_id, control.cancel)


def set_options(
    context: typer.Context,
    dump_id: DumpId,
    settings: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE…", help=f"What to change: {', '.join(_SETTINGS)}.")
    ],
    json: JsonFlag = False,
) -> None:
    """Change options of a running dump.

    They are in force from its next chunk on: chunk_size=ROWS, chunk_bytes=BYTES (32M), delay=SECONDS, rate=ROWS a
    second of one worker (0: no limit), workers=N over all processes, adaptive=on|off, max_retained=BYTES (10G; 0: no
    limit).

    \b
    Examples:
      dblog --config shop.toml set 20261121T100000-a1b2c3 chunk_size=2000 delay=0.5
      dblog --config shop.toml set 20261121T100000-a1b2c3 adaptive=on max_retained=20G workers=8
    """
    from dblog_core.dumps import control

    changes = dict(map(_setting, settings))
    _control(session_of(context, json), dump_id, lambda state, name: control.retune(state, name, **changes))


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name not in _SETTINGS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(_SETTINGS)}", param_hint="set")
    try:
        return name, _SETTINGS[name](value)
    except ValueError as error:
        raise typer.BadParameter(f"{name}={value}: give a number", param_hint="set") from error
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{name}: {error.message}", param_hint="set") from error


def _control(session: Session, dump_id: str, change: Callable[[StateStore, str], None]) -> None:
    from dblog_core.dumps import dump_store

    with closing(_state(session)) as state:
        change(state, dump_id)
        status = dump_store.read_dump(state, dump_id)
    session.result(status.to_json(), line(status))


def _state(session: Session) -> StateStore:
    from dblog_core.wiring import open_state

    return open_state(session.config(STATE))
