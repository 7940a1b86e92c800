"""`dblog maintain`: a lake task, carried out by the merge that runs, or by one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dblog_core.commands.session import JsonFlag, note, session_of, stopping
from dblog_core.commands.terminal.text_tables import align
from dblog_core.config.secret_settings import LAKE
from dblog_core.model.sizes import text

if TYPE_CHECKING:
    from dblog_core.maintenance.maintain_result import MaintainResult


def maintain(
    context: typer.Context,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="T", help="Join, cluster and purge this table alone; may be repeated."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Join the lake's small files, and remove what is too old.

    Older than it is kept, in lake and staging.

    No row changes. Of each table, files that are small or mixed are written again, and those that only cuts older than
    `[lake] keep` need are removed; then segments of staging that are older than `[staging] keep` and that nobody needs.
    A continuous merge does this automatically every `[lake] maintain_every`.

    \b
    Examples:
      dblog --config shop.toml maintain
      dblog --config shop.toml maintain --table shop.orders --json
    """
    from dblog_core.lake import lake_tasks
    from dblog_core.lake.task_requests import MaintainRequest
    from dblog_core.maintenance.maintain_result import MaintainResult

    session = session_of(context, json)
    config = session.config(LAKE)
    with stopping() as stop:
        result = lake_tasks.carry_out(
            config,
            MaintainRequest(tuple(dict.fromkeys(table or ()))),
            MaintainResult,
            stop=stop,
            on_line=lambda line: note(session.redact(line)),
        )
    session.result(result.to_json(), as_text(result))
    result.check()


def as_text(result: MaintainResult) -> str:
    """The result for people."""
    rows = [
        [
            t.size.table,
            f"{t.size.rows:,}",
            f"{t.size.files:,}",
            text(t.size.bytes),
            text(t.size.disk_bytes),
            ", ".join(t.did),
        ]
        for t in result.tables
    ]
    cuts = result.cuts
    staging = result.staging
    lines = [align(["TABLE", "ROWS", "FILES", "SIZE", "ON DISK", "DONE"], rows)] if rows else []
    if cuts is not None:
        lines.append(f"cuts: {cuts.removed:,} removed, the oldest is {cuts.oldest or 'none yet'}")
    if staging is not None:
        lines.append(f"staging: {staging.removed_files:,} files removed, it begins at segment {staging.segment:,}")
        lines += [f"  held back from segment {need.segment:,} on: {need.why}" for need in staging.held]
    return "\n".join(lines)
