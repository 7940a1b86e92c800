"""`dblog status`: leader, lag, windows, dumps and the lake, once or until stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dblog_core import early_signals
from dblog_core.commands.session import JsonFlag, session_of, stderr, stopping
from dblog_core.commands.terminal.progress import progress
from dblog_core.config.secret_settings import READER
from dblog_core.dumps.dump_records import OVER
from dblog_core.model import sizes
from dblog_core.model.durations import in_words

if TYPE_CHECKING:
    from dblog_core.dumps.status import DumpStatus
    from dblog_core.maintenance.disk_usage import Room
    from dblog_core.monitoring.source_status import (
        MergeProgress,
        OpenWindow,
        OutputInStatus,
        SlicesInStatus,
        SourceStatus,
        TableInStatus,
    )
    from dblog_core.monitoring.storage_usage import RetentionStatus, StorageStatus
    from dblog_core.state.recent_errors import RecentError

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
    from dblog_core.monitoring.status import read_source_status
    from dblog_core.monitoring.storage_usage import Meter

    session = session_of(context, json)
    config = session.config(READER)
    meter = Meter(config)
    if not watch:
        early_signals.release()
        current = read_source_status(config, meter)
        session.result(current.to_json(), text(current))
        return
    with stopping() as stop, progress() as display:
        while not stop.is_set():
            current = read_source_status(config, meter)
            if stderr.is_terminal and not session.json:
                display.show(text(current))
            else:
                session.result(current.to_json(), text(current))
            stop.wait(EVERY)


def text(status: SourceStatus) -> str:
    """The status for people."""
    leader = status.leader
    lines = [
        f"source    {status.source}",
        f"leader    {leader.holder}, epoch {leader.epoch}" if leader else "leader    none: no capture is running",
        f"offset    {_text_or_unknown(status.offset)}",
        f"position  {_text_or_unknown(status.position)}",
        f"lag       {_seconds(status.lag_seconds)}",
        f"lake      {_lake(status.merge)}",
    ]
    lines += [_table(table) for table in status.tables]
    lines += [_window(window) for window in status.windows]
    lines += _dumps(status.dumps)
    lines += [_output(output) for output in status.outputs]
    lines += _storage(status.storage)
    lines += _slices(status.slices)
    lines += [_error(error) for error in status.errors if _ago(error) < ERRORS]
    return "\n".join(lines)


def _table(table: TableInStatus) -> str:
    why = _because(table.error) or (f": {table.cause}\n  fix: {table.fix}" if table.cause else "")
    captured = "" if table.captured else ", no longer captured"
    unmaintained = f"\n  its maintenance has failed: {table.unmaintained}" if table.unmaintained else ""
    return f"table     {table.table}: {table.state}{captured}{why}{unmaintained}"


def _window(window: OpenWindow) -> str:
    return f"window    {window.table}, dump {window.dump}, open for {window.age_seconds:.1f} s"


def _lake(merge: MergeProgress) -> str:
    if merge.offset is None:
        return "nothing is merged yet"
    if merge.error is not None:
        return f"offset {_text_or_unknown(merge.offset)}, nothing is merged: {merge.error}\n  fix: {merge.fix}"
    return f"offset {_text_or_unknown(merge.offset)}, {_seconds(merge.lag_seconds)} behind"


def _dumps(dumps: Sequence[DumpStatus]) -> list[str]:
    """Those that are not over, and the newest of the others."""
    live = [dump for dump in dumps if dump.state not in OVER]
    over = [dump for dump in dumps if dump.state in OVER]
    more = [f"dump      {len(over) - 1:,} more that are over: `dblog dumps`"] if len(over) > 1 else []
    return [*map(_dump, [*over[-1:], *live]), *more]


def _storage(storage: StorageStatus) -> list[str]:
    """Room, and where staging begins."""
    parts = [f"{name} {_room(room)}" for name, room in storage.staging.items()]
    lines = [f"staging   {', '.join(parts)}{_begins(storage.retention)}"]
    lines += [f"held      from segment {need.segment:,} on: {need.why}" for need in storage.retention.held]
    for size in (table.size for table in storage.tables):
        rows = "" if size.rows is None else f"{size.rows:,} rows, "
        live = f"{rows}{sizes.text(size.bytes)} in {size.files:,} files"
        lines.append(f"size      {size.table}: {live}, {sizes.text(size.disk_bytes)} on disk")
    return lines


def _room(room: Room | None) -> str:
    return "unknown" if room is None else f"{sizes.text(room.bytes)} in {room.files:,} files"


def _begins(retention: RetentionStatus) -> str:
    if retention.segment is None:
        return ""
    return f"; from segment {retention.segment:,} on, sealed {retention.sealed_at}"


def _dump(dump: DumpStatus) -> str:
    counts = f"{dump.rows:,} rows in {dump.chunks:,} chunk(s), {dump.evicted:,} evicted"
    left = f", {in_words(dump.seconds_left)} left" if dump.seconds_left else ""
    slowdown = f"; held: {dump.held}" if dump.held else ""
    return f"dump      {dump.id}: {dump.state}, {counts}{left}{slowdown}{_because(dump.error)}"


def _output(output: OutputInStatus) -> str:
    by = f"passed on by {output.holder}" if output.holder else "no relay is running"
    dead = f", {output.dead_letters:,} dead letters" if output.dead_letters else ""
    where = f"offset {_text_or_unknown(output.offset)}, {_seconds(output.lag_seconds)} behind"
    return f"output    {output.output} ({output.kind}): {where}{dead}; {by}"


def _slices(slices: SlicesInStatus | None) -> list[str]:
    if slices is None:
        return []
    age = "" if slices.oldest_at is None else f", the oldest {in_words(time.time() - slices.oldest_at / 1e6)} ago"
    return [f"slices    {slices.compared} of {slices.of} compared with the source{age}"]


def _error(error: RecentError) -> str:
    often = f"{error.times:,} times, last " if error.times > 1 else ""
    fix = f"\n  fix: {error.fix}" if error.fix else ""
    return f"error     {error.part}, {often}{in_words(_ago(error))} ago: {error.error}{fix}"


def _ago(error: RecentError) -> float:
    return max(0.0, time.time() - error.at_us / 1e6)


def _because(error: str | None) -> str:
    return f": {error}" if error else ""


def _text_or_unknown(value: object) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"
