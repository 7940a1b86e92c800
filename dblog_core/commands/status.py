"""`dblog status`: leader, lag, windows, dumps and the lake, once or until stopped."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dblog_core.commands.progress import progress
from dblog_core.commands.session import JsonFlag, session_of, stderr, stopping
from dblog_core.commands.tables import duration

EVERY = 1.0  # seconds


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until stopped.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show leader, lag, windows, dumps and the lake.

    \b
    Examples:
      dblog --config shop.toml status
      dblog --config shop.toml status --watch
      dblog --config shop.toml status --json | jq .lag_seconds
    """
    from dblog_core.status import status as read

    session = session_of(context, json)
    config = session.config()
    if not watch:
        found = read(config)
        session.result(found, text(found))
        return
    with stopping() as stop, progress() as display:
        while not stop.is_set():
            found = read(config)
            if stderr.is_terminal and not session.json:
                display.show(text(found))
            else:
                session.result(found, text(found))
            stop.wait(EVERY)


def text(found: dict[str, Any]) -> str:
    """The status for people."""
    leader, merge = found["leader"], found["merge"]
    lines = [
        f"source    {found['source']}",
        f"leader    {leader['id']}, epoch {leader['epoch']}" if leader else "leader    none: no capture is running",
        f"offset    {_known(found['offset'])}",
        f"position  {_known(found['position'])}",
        f"lag       {_seconds(found['lag_seconds'])}",
        f"lake      offset {_known(merge['offset'])}, {_seconds(merge['lag_seconds'])} behind",
    ]
    lines += [f"table     {t['table']}: {t['state']}{_because(t)}" for t in found["tables"]]
    lines += [f"window    {w['table']}, dump {w['dump']}, open for {w['age_seconds']:.1f} s" for w in found["windows"]]
    lines += [_dump(d) for d in found["dumps"]]
    return "\n".join(lines)


def _dump(dump: dict[str, Any]) -> str:
    counts = f"{dump['rows']:,} rows, {dump['chunks']:,} chunks, {dump['evicted']:,} evicted"
    left = f", {duration(dump['seconds_left'])} left" if dump["seconds_left"] else ""
    held = f"; held: {dump['held']}" if dump["held"] else ""
    return f"dump      {dump['id']}: {dump['state']}, {counts}{left}{held}{_because(dump)}"


def _because(record: dict[str, Any]) -> str:
    return f": {record['error']}" if record.get("error") else ""


def _known(value: object) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"
