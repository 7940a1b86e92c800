"""`dblog dump`, `work`, `dumps`, `pause`, `resume`, `cancel`, `set`: request dumps, work on them, control them."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog_core.commands.progress import progress
from dblog_core.commands.session import FAILED, JsonFlag, Session, note, session_of, stderr, stopping
from dblog_core.commands.tables import aligned
from dblog_core.errors import DblogError, RequestError

if TYPE_CHECKING:
    from dblog_core.control import DumpStatus
    from dblog_core.interfaces import StateStore

DumpId = Annotated[str, typer.Argument(metavar="ID", help="The dump's id, as `dblog dumps` shows it.")]
_SETTINGS: dict[str, Callable[[str], int | float]] = {"chunk_size": int, "delay": float, "rate": int, "workers": int}


def dump(
    context: typer.Context,
    table: Annotated[list[str] | None, typer.Option("--table", metavar="T", help="SCHEMA.TABLE; repeatable.")] = None,
    all_tables: Annotated[bool, typer.Option("--all", help="Every captured table that has a key.")] = False,
    pk: Annotated[
        list[str] | None, typer.Option("--pk", metavar="JSON", help="A key to dump; may be repeated. One table only.")
    ] = None,
    key_from: Annotated[str | None, typer.Option(metavar="JSON", help="First key of a range. One table only.")] = None,
    key_to: Annotated[str | None, typer.Option(metavar="JSON", help="Last key of a range. One table only.")] = None,
    chunk_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Rows of one SELECT.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Tasks at the same time.")] = None,
    delay: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Seconds between two chunks of a worker.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=0, metavar="ROWS", help="Rows a second of one worker; 0: no limit.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until every chunk is in the super-changelog.")] = False,
    json: JsonFlag = False,
) -> None:
    """Request a dump and work on it; prints its id.

    All rows of tables, a range of keys, or listed keys.

    A key is a JSON value; a composite key is a JSON array in key order; binary is base64, dates and decimals are
    strings. The rows come in between the log's own changes, never older than what the log has said: a capture must be
    running to place them.

    \b
    Examples:
      dblog --config shop.toml dump --all --wait
      dblog --config shop.toml dump --table shop.orders --chunk-size 5000 --rate 20000
      dblog --config shop.toml dump --table shop.orders --pk 17 --pk 18
      dblog --config shop.toml dump --table shop.lines --pk '[17, "A-3"]'
      dblog --config shop.toml dump --table shop.orders --key-from 1000 --key-to 1999
    """
    from dblog_core import control

    session = session_of(context, json)
    tables = _chosen(table, all_tables, one=bool(pk or key_from is not None or key_to is not None))
    request = control.DumpRequest(
        tables=tables,
        keys=tuple(_key(text, "--pk") for text in pk or ()),
        key_from=None if key_from is None else _key(key_from, "--key-from"),
        key_to=None if key_to is None else _key(key_to, "--key-to"),
        chunk_size=chunk_size,
        workers=workers,
        delay=delay,
        rate=rate,
    )
    config = session.config()
    dump_id = control.submit(config, request)
    if session.json:
        note(f"dump {dump_id}")
    else:
        session.result(None, dump_id)  # before the work: whoever stops us can go on with it
    status = _carry_out(session, dump_id, wait)
    if session.json:
        session.result(status.to_json(), "")
    if status.state != "done":
        raise typer.Exit(FAILED)


def _chosen(tables: list[str] | None, all_tables: bool, *, one: bool) -> tuple[str, ...] | None:
    """The tables that are asked for; None for all. Raises BadParameter."""
    if bool(tables) == all_tables:
        raise typer.BadParameter("give either --table (it may be repeated) or --all")
    if one and (all_tables or len(set(tables or ())) != 1):
        raise typer.BadParameter("--pk, --key-from and --key-to need exactly one --table")
    return None if all_tables else tuple(tables or ())


def _key(text: str, option: str) -> Any:
    try:
        return json_text.loads(text, parse_float=str, parse_constant=str)  # every digit counts in a decimal key
    except ValueError as error:
        message = f"{text!r} is not JSON ({error}); text needs quotes of its own: '\"A-3\"'"
        raise typer.BadParameter(message, param_hint=option) from error


def _carry_out(session: Session, dump_id: str, wait: bool) -> DumpStatus:
    """Works on the dump until it is over or we are stopped; returns where it stands."""
    from dblog_core import control
    from dblog_core import dump as worker
    from dblog_core.wiring import open_state

    config = session.config()
    with closing(open_state(config)) as state:
        if state.leader("capture") is None:
            note("no capture is running; the dump waits until `dblog capture` places its chunks")
    try:
        with stopping() as stop, progress() as display:

            def tell(status: DumpStatus) -> None:
                display.show(line(status), kind=status.state)

            worker.work(config, stop=stop, once=True, dump_id=dump_id, on_progress=tell)
            if wait and not stop.is_set():
                worker.wait(config, dump_id, stop=stop, on_progress=tell)
        with closing(open_state(config)) as state:
            status = control.dump(state, dump_id)
    except RequestError as error:  # found while working, and no fault of the command's arguments
        raise DblogError(error.message, where=error.where or f"dump {dump_id}", fix=error.fix) from error
    if status.error:
        note(f"dump {dump_id}: {status.error}")
    elif stderr.is_terminal:  # elsewhere the last line of progress said so
        note(line(status))
    if status.state not in control.OVER:
        note(f"  stopped before its end; `dblog work --once` goes on with it, `dblog cancel {dump_id}` drops it")
    return status


def work(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="End when no unfinished dump is left.")] = False,
    json: JsonFlag = False,
) -> None:
    """Work on every unfinished dump.

    Also on those whose worker died.

    Any number of these can run, on any number of machines.

    \b
    Examples:
      dblog --config shop.toml work
      dblog --config shop.toml work --once
    """
    from dblog_core import dump as worker

    session = session_of(context, json)
    config = session.config()
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


def dumps(context: typer.Context, json: JsonFlag = False) -> None:
    """List all dumps, oldest first.

    \b
    Example:
      dblog --config shop.toml dumps --json
    """
    from dblog_core import control

    session = session_of(context, json)
    with closing(_state(session)) as state:
        found = control.dumps(state)
    rows = [(d.id, d.state, f"{d.rows:,}", f"{d.chunks:,}", f"{d.evicted:,}", ", ".join(d.tables)) for d in found]
    header = ("ID", "STATE", "ROWS", "CHUNKS", "EVICTED", "TABLES")
    text = aligned(header, rows) if rows else "no dump was requested yet"
    session.result([d.to_json() for d in found], text)


def pause(context: typer.Context, dump_id: DumpId, json: JsonFlag = False) -> None:
    """Let a dump stand still."""
    from dblog_core import control

    _control(session_of(context, json), dump_id, control.pause)


def resume(context: typer.Context, dump_id: DumpId, json: JsonFlag = False) -> None:
    """Let a paused dump go on."""
    from dblog_core import control

    _control(session_of(context, json), dump_id, control.resume)


def cancel(context: typer.Context, dump_id: DumpId, json: JsonFlag = False) -> None:
    """End a dump as it stands."""
    from dblog_core import control

    _control(session_of(context, json), dump_id, control.cancel)


def set_options(
    context: typer.Context,
    dump_id: DumpId,
    settings: Annotated[
        list[str], typer.Argument(metavar="chunk_size=… delay=… rate=… workers=…", help="What to change; one or more.")
    ],
    json: JsonFlag = False,
) -> None:
    """Change options of a running dump.

    They are in force from its next chunk on.

    \b
    Example:
      dblog --config shop.toml set 20261121T100000-a1b2c3 chunk_size=2000 delay=0.5
    """
    from dblog_core import control

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


def _control(session: Session, dump_id: str, change: Callable[[StateStore, str], None]) -> None:
    from dblog_core import control

    with closing(_state(session)) as state:
        change(state, dump_id)
        status = control.dump(state, dump_id)
    session.result(status.to_json(), line(status))


def _state(session: Session) -> StateStore:
    from dblog_core.wiring import open_state

    return open_state(session.config())


def line(status: DumpStatus) -> str:
    """A dump in one line."""
    done = sum(task.progress.done for task in status.tasks)
    counts = f"{status.rows:,} rows in {status.chunks:,} chunks, {status.evicted:,} evicted"
    return f"dump {status.id}: {status.state}; {counts}; {done} of {len(status.tasks)} task(s) done"
