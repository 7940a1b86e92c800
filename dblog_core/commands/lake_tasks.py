"""`dblog replay`, `rebuild`, `reset` and `lake adopt`: lake tasks, carried out by the merge that runs or
by one of their own."""

from __future__ import annotations

import datetime as dt
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dblog_core.commands.session import FAILED, JsonFlag, Session, note, session_of, stopping
from dblog_core.commands.terminal.text_tables import align
from dblog_core.config.secret_settings import LAKE
from dblog_core.errors import RequestError
from dblog_core.model import table_names

if TYPE_CHECKING:
    from dblog_core.config.settings import Config
    from dblog_core.lake.task_requests import TaskRequest
    from dblog_core.lake.task_results import TaskResult

R = TypeVar("R", bound="TaskResult")

lake = typer.Typer(no_args_is_help=True, help="What concerns the lake as a whole.")

_ADOPTION = (
    "the lake would continue with this staging from its beginning. The offsets of all rows and history lines of {} "
    "tables are set back, and a full dump of each table is requested: until it is merged, tables are incomplete"
)

_Table = Annotated[str, typer.Argument(metavar="TABLE", help="SCHEMA.TABLE, as `dblog status` names it.")]


def replay(
    context: typer.Context,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME|OFFSET", help="The interval's begin; default: an hour before its end."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME|OFFSET", help="The interval's end; default: now.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="T", help="This table alone; may be repeated.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Apply the last changes of an interval to the lake again.

    Of every key that changed in it, the last change.

    What somebody has damaged in the lake since then comes back as the source has it. Older rows never return, and
    deleted ones stay deleted: of each key that the interval's lines name, the last change up to what the lake has
    merged is what counts. Rows that are right are not written.

    Times are commit times (ISO 8601; UTC where they have no zone), offsets those of the super-changelog; both ends are
    included.

    \b
    Examples:
      dblog --config shop.toml replay
      dblog --config shop.toml replay --from 2026-11-21T14:00:00Z --to 2026-11-21T15:00:00Z
      dblog --config shop.toml replay --from 17500 --table shop.orders
    """
    from dblog_core.lake.replay_interval import IntervalEnd, interval
    from dblog_core.lake.task_requests import ReplayRequest
    from dblog_core.lake.task_results import ReplayCounts, ReplayResult

    session = session_of(context, json)
    low, high = interval(start, end, dt.datetime.now(dt.UTC))
    config = session.config(LAKE)
    tables = tuple(_find_table(config, name) for name in table or ())
    request = ReplayRequest(IntervalEnd.at(low), IntervalEnd.at(high), tables)
    result = _carry_out(session, config, request, ReplayResult)
    failed = [t for t in result.tables if t.error is not None]
    rows = [[t.table, *map(str, t.counts.to_json().values())] for t in result.tables if t.counts is not None]
    heads = ["TABLE", *(count.name.upper() for count in fields(ReplayCounts))]
    session.result(result.to_json(), align(heads, rows) if rows else "")
    for table_result in failed:
        note(f"{table_result.table}: {table_result.error}")
    if failed:
        raise typer.Exit(FAILED)


def rebuild(context: typer.Context, table: _Table, json: JsonFlag = False) -> None:
    """Make a table's lake copy again, from staging and history alone.

    In one commit.

    It begins with the newest full dump of the table that staging holds, or with the first segment if none was removed,
    or else with the table's history. The source is not read. Cuts from before stay readable. Where neither holds
    enough, nothing is changed, and `dblog reset` is the way.
    """
    from dblog_core.lake.task_requests import RebuildRequest
    from dblog_core.lake.task_results import RebuildResult

    session = session_of(context, json)
    config = session.config(LAKE)
    result = _carry_out(session, config, RebuildRequest(_find_table(config, table)), RebuildResult)
    withheld = f"; {result.withheld} rows wait for a dump" if result.withheld else ""
    text = f"{table}: {result.rows} rows, made again from {result.begins_with}{withheld}"
    session.result(result.to_json(), text)


def reset(context: typer.Context, table: _Table, json: JsonFlag = False) -> None:
    """Empty a table's lake copy, and have it dumped again.

    It gets the table's newest shape; no other table is touched.

    This also repairs a table that has stopped because its shape changed. Its log flows on meanwhile, and `dblog status`
    shows it as incomplete until the dump is merged. Cuts from before stay readable.
    """
    from dblog_core.lake.task_requests import ResetRequest
    from dblog_core.lake.task_results import ResetResult

    session = session_of(context, json)
    config = session.config(LAKE)
    result = _carry_out(session, config, ResetRequest(_find_table(config, table)), ResetResult)
    session.result(result.to_json(), f"{table}: emptied; dump {result.dump} brings its rows")


@lake.command()
def adopt(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonFlag = False,
) -> None:
    """Have the lake continue with the present staging, where the one that it was merged from is lost.

    All rows of the lake then count as older than any line of this staging. Tables are incomplete until a full dump of
    each is merged, which is requested here: a capture or `dblog work` carries it out.

    \b
    Example:
      dblog --config shop.toml lake adopt
    """
    from dblog_core.lake import continuity
    from dblog_core.lake.task_requests import AdoptRequest
    from dblog_core.lake.task_results import AdoptResult
    from dblog_core.wiring import open_lake, open_staging

    session = session_of(context, json)
    config = session.config(LAKE)
    status, verdict = continuity.judge_lake(open_staging(config), open_lake(config))
    if verdict.may_merge or status is None:
        name = config.source.name
        session.result({"staging": verdict.identity, "dumps": {}}, f"{name}: the lake continues its staging")
        return
    if verdict.continuity is continuity.Continuity.UNREADABLE:
        raise verdict.to_error()
    note(session.redact(f"{verdict.to_error().reason}\n{_ADOPTION.format(len(status.tables))}"))
    if not yes and not (sys.stdin.isatty() and typer.confirm("Continue?", err=True)):
        raise RequestError("nothing was done", where="lake adopt", fix="answer y, or give --yes")
    result = _carry_out(session, config, AdoptRequest(), AdoptResult)
    lines = [f"{table}: dump {dump} brings its rows" for table, dump in result.dumps.items()]
    session.result(result.to_json(), "\n".join([f"the lake continues with staging {result.staging}", *lines]))


def _find_table(config: Config, name: str) -> str:
    """The table's name, if the lake has merged it. Raises RequestError."""
    from dblog_core.lake.lake_status import read_status
    from dblog_core.wiring import open_lake

    status = read_status(open_lake(config))
    tables = status.tables if status else {}
    name = table_names.canonical(name)
    if name not in tables:
        what_it_has = f"it has {', '.join(sorted(tables))}" if tables else "it has none yet: run `dblog merge`"
        raise RequestError(f"the lake has no table {name}", fix=what_it_has)
    return name


def _carry_out(session: Session, config: Config, request: TaskRequest, result_type: type[R]) -> R:
    from dblog_core.lake import lake_tasks

    with stopping() as stop:
        return lake_tasks.carry_out(
            config, request, result_type, stop=stop, on_line=lambda line: note(session.redact(line))
        )
