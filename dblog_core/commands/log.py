"""`dblog log`: the super-changelog, one JSON object a line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from dblog_core.commands.session import FAILED, JsonFlag, session_of, stopping
from dblog_core.config.secret_settings import STORAGE
from dblog_core.errors import StagingError
from dblog_core.model.schema import TableName

if TYPE_CHECKING:
    from dblog_core.staging import Staging

LOOKS = (0.002, 0.02)  # seconds between two looks for a new segment: right after one, and when there was none for long


def log(
    context: typer.Context,
    start: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="The first offset to print.")] = 0,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="T", help="Lines of this table alone; may be repeated.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with what is sealed from now on.")] = False,
    json: JsonFlag = False,
) -> None:
    """Print the super-changelog as JSON lines.

        Offsets grow strictly; two runs over the same staging print the same lines.

    \b
    Examples:
      dblog --config shop.toml log | head
      dblog --config shop.toml log --from 1000 --table shop.orders
      dblog --config shop.toml log --follow | jq .op
    """
    from dblog_core.wiring import open_staging

    session = session_of(context, json)
    tables = {_table(name) for name in table} if table else None
    staging = open_staging(session.config(STORAGE))
    _check_start(staging, start)
    with stopping() as stop:
        for line in _lines(staging, start, tables, stop if follow else None):
            sys.stdout.write(orjson.dumps(line).decode() + "\n")
            if stop.is_set():
                break
        sys.stdout.flush()
        if stop.is_set() and not follow:
            raise typer.Exit(FAILED)


def _check_start(staging: Staging, start: int) -> None:
    """Nothing comes from an offset that nobody has given yet: a reader's place in another directory, or a slip."""
    head = staging.head()
    last = head.last_offset if head is not None else 0
    if start > last + 1:
        where_it_ends = f"the newest offset is {last}" if last else "the super-changelog has no line yet"
        raise StagingError(
            f"offset {start} is beyond the end: {where_it_ends}",
            where=staging.storage.url(""),
            fix=f"begin with at most --from {last + 1}, which prints what comes next",
        )


def _lines(
    staging: Staging, start: int, tables: set[str] | None, stop: threading.Event | None
) -> Iterator[dict[str, Any]]:
    """All lines from `start` on; with `stop`, also those that come until it is set."""
    from dblog_core.staging.reader import Follower

    follower = Follower(staging, from_offset=start, tables=tables)
    soonest, latest = LOOKS
    while True:
        yield from follower.lines()
        if stop is None:
            return
        sys.stdout.flush()
        pause = soonest
        while not stop.wait(pause):
            if follower.is_behind():
                break
            pause = min(latest, pause * 1.3)
        else:
            return


def _table(name: str) -> str:
    try:
        return str(TableName.parse(name))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--table") from error
