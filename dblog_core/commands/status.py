"""`dblog status`: leader, lag, windows, dumps and the lake, once or until stopped."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from dblog_core.commands.session import JsonFlag, session_of, stderr, stopping
from dblog_core.commands.terminal.progress import progress
from dblog_core.config.secrets import READER
from dblog_core.dumps.dump_records import OVER
from dblog_core.model import sizes
from dblog_core.model.durations import in_words

EVERY = 1.0  # seconds
ERRORS = 3600.0  # seconds for which an error is worth a line


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
    from dblog_core.monitoring.status import status as read
    from dblog_core.monitoring.storage_usage import Meter

    session = session_of(context, json)
    config = session.config(READER)
    meter = Meter(config)
    if not watch:
        current = read(config, meter)
        session.result(current, text(current))
        return
    with stopping() as stop, progress() as display:
        while not stop.is_set():
            current = read(config, meter)
            if stderr.is_terminal and not session.json:
                display.show(text(current))
            else:
                session.result(current, text(current))
            stop.wait(EVERY)


def text(status_json: dict[str, Any]) -> str:
    """The status for people."""
    leader = status_json["leader"]
    merge = status_json["merge"]
    lines = [
        f"source    {status_json['source']}",
        f"leader    {leader['id']}, epoch {leader['epoch']}" if leader else "leader    none: no capture is running",
        f"offset    {_text_or_unknown(status_json['offset'])}",
        f"position  {_text_or_unknown(status_json['position'])}",
        f"lag       {_seconds(status_json['lag_seconds'])}",
        f"lake      {_lake(merge)}",
    ]
    lines += [_table(table) for table in status_json["tables"]]
    lines += [_window(window) for window in status_json["windows"]]
    lines += _dumps(status_json["dumps"])
    lines += [_output(o) for o in status_json["outputs"]]
    lines += _storage(status_json["storage"])
    lines += [_error(e) for e in status_json["errors"] if _ago(e) < ERRORS]
    return "\n".join(lines)


def _table(table: dict[str, Any]) -> str:
    return f"table     {table['table']}: {table['state']}{_capture_text(table)}{_because(table) or _why(table)}"


def _window(window: dict[str, Any]) -> str:
    return f"window    {window['table']}, dump {window['dump']}, open for {window['age_seconds']:.1f} s"


def _lake(merge: dict[str, Any]) -> str:
    if merge["offset"] is None:
        return "nothing is merged yet"
    return f"offset {_text_or_unknown(merge['offset'])}, {_seconds(merge['lag_seconds'])} behind"


def _dumps(dumps: list[dict[str, Any]]) -> list[str]:
    """Those that are not over, and the newest of the others."""
    live, over = ([d for d in dumps if (d["state"] in OVER) == ended] for ended in (False, True))
    more = [f"dump      {len(over) - 1:,} more that are over: `dblog dumps`"] if len(over) > 1 else []
    return [*map(_dump, [*over[-1:], *live]), *more]


def _storage(storage: dict[str, Any]) -> list[str]:
    """Room, and where staging begins."""
    parts = [f"{name} {_room(room)}" for name, room in storage["staging"].items()]
    lines = [f"staging   {', '.join(parts)}{_begins(storage['retention'])}"]
    lines += [f"held      from segment {h['segment']:,} on: {h['why']}" for h in storage["retention"]["held"]]
    for size in storage["tables"]:
        rows = "" if size["rows"] is None else f"{size['rows']:,} rows, "
        live = f"{rows}{sizes.text(size['bytes'])} in {size['files']:,} files"
        lines.append(f"size      {size['table']}: {live}, {sizes.text(size['disk_bytes'])} on disk")
    return lines


def _room(room: dict[str, int] | None) -> str:
    return "unknown" if room is None else f"{sizes.text(room['bytes'])} in {room['files']:,} files"


def _begins(retention: dict[str, Any]) -> str:
    if retention["segment"] is None:
        return ""
    return f"; from segment {retention['segment']:,} on, sealed {retention['sealed_at']}"


def _dump(dump: dict[str, Any]) -> str:
    counts = f"{dump['rows']:,} rows, {dump['chunks']:,} chunks, {dump['evicted']:,} evicted"
    left = f", {in_words(dump['seconds_left'])} left" if dump["seconds_left"] else ""
    slowdown = f"; held: {dump['held']}" if dump["held"] else ""
    return f"dump      {dump['id']}: {dump['state']}, {counts}{left}{slowdown}{_because(dump)}"


def _output(output: dict[str, Any]) -> str:
    by = f"passed on by {output['holder']}" if output["holder"] else "no relay is running"
    dead = f", {output['dead_letters']:,} dead letters" if output["dead_letters"] else ""
    where = f"offset {_text_or_unknown(output['offset'])}, {_seconds(output['lag_seconds'])} behind"
    return f"output    {output['output']} ({output['kind']}): {where}{dead}; {by}"


def _error(error: dict[str, Any]) -> str:
    often = f"{error['times']:,} times, last " if error["times"] > 1 else ""
    fix = f"\n  fix: {error['fix']}" if error["fix"] else ""
    return f"error     {error['part']}, {often}{in_words(_ago(error))} ago: {error['error']}{fix}"


def _ago(error: dict[str, Any]) -> float:
    return max(0.0, time.time() - float(error["at"]) / 1e6)


def _because(record: dict[str, Any]) -> str:
    return f": {record['error']}" if record.get("error") else ""


def _why(table: dict[str, Any]) -> str:
    return f": {table['cause']}\n  fix: {table['fix']}" if table["cause"] else ""


def _capture_text(table: dict[str, Any]) -> str:
    return "" if table["captured"] else ", no longer captured"


def _text_or_unknown(value: object) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"
