"""`dblog schema`: the shapes that a table has had, since when, and what the lake made of them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog_core.commands.session import JsonFlag, session_of
from dblog_core.commands.tables import moment
from dblog_core.errors import RequestError
from dblog_core.schema import TableName

if TYPE_CHECKING:
    from dblog_core.lake import TableStatus
    from dblog_core.schema_versions import Version


def schema(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="SCHEMA.TABLE.")],
    json: JsonFlag = False,
) -> None:
    """Show the shapes that a table has had, since when, what changed, and what the lake makes of it.

    It is told from staging and the lake's status alone: neither the source nor a capture is asked.

    \b
    Examples:
      dblog --config shop.toml schema shop.orders
      dblog --config shop.toml schema shop.orders --json | jq .versions[-1].columns
    """
    from dblog_core import schema_versions
    from dblog_core.lake import read_status
    from dblog_core.wiring import open_lake, open_staging

    session = session_of(context, json)
    name = _table(table)
    config = session.config()
    found = list(schema_versions.versions(open_staging(config), name, drop_columns=config.lake.drop_columns))
    if not found:
        raise RequestError(
            "the super-changelog says nothing of this table",
            where=name,
            fix="`dblog check` lists the tables that are captured; a table is told of from its first change or dump on",
        )
    status = read_status(open_lake(config))
    lake = None if status is None else status.tables.get(name)
    session.result(as_json(name, found, lake), text(found, lake))


def as_json(table: str, found: list[Version], lake: TableStatus | None) -> dict[str, Any]:
    """The object of `schema --json`."""
    return {
        "table": table,
        "versions": [
            {
                "version": one.number,
                "fingerprint": one.schema.fingerprint,
                "offset": one.mark.offset if one.mark else None,
                "position": one.mark.position if one.mark else None,
                "commit_time": _moment(one.mark.commit_time) if one.mark else None,
                "columns": [
                    {"name": c.name, "type": str(c.type), "source_type": c.source_type} for c in one.schema.columns
                ],
                "key_columns": list(one.schema.key),
                "changes": [
                    {"what": c.what, "column": c.column, "before": c.before, "after": c.after, "lake": c.lake}
                    for c in one.changes
                ],
            }
            for one in found
        ],
        "lake": None
        if lake is None
        else {"version": _merged(found, lake), "state": lake.state.value, "offset": lake.offset, "error": lake.error},
    }


def text(found: list[Version], lake: TableStatus | None) -> str:
    """The versions for people, oldest first."""
    lines: list[str] = []
    for one in found:
        mark = one.mark
        since = "from before staging begins" if mark is None else _since(mark.offset, mark.position, mark.commit_time)
        lines.append(f"version {one.number}  {since}")
        if one.number == 1:
            key = ", ".join(one.schema.key) or "none"
            lines += [f"  {c.name}  {_type(c.source_type, str(c.type))}" for c in one.schema.columns]
            lines.append(f"  key: {key}")
        lines += [f"  {_said(c.what, c.column, c.before, c.after)}  ->  {c.lake}" for c in one.changes]
    return "\n".join([*lines, f"lake: {_lake(found, lake)}"])


def _said(what: str, column: str | None, before: str | None, after: str | None) -> str:
    if column is None:
        return f"key: {before} is now {after}"
    if before is None or after is None:
        return f"{column} {what}: {after or before}"
    return f"{column} {what}: {before} is now {after}"


def _lake(found: list[Version], lake: TableStatus | None) -> str:
    if lake is None:
        return "nothing of it is merged yet"
    version = _merged(found, lake)
    shape = "a shape that staging does not hold any more" if version is None else f"version {version}"
    error = f": {lake.error}" if lake.error else ""
    return f"{shape}, merged to offset {lake.offset:,}, {lake.state.value}{error}"


def _merged(found: list[Version], lake: TableStatus) -> int | None:
    """The version whose shape the lake has; the newest of those that were alike."""
    return next((v.number for v in reversed(found) if v.schema.fingerprint == lake.schema), None)


def _since(offset: int, position: str, commit_time: int) -> str:
    return f"since offset {offset:,}, {_moment(commit_time)}, at {position}"


def _type(source_type: str, staged: str) -> str:
    return staged if source_type == staged else f"{source_type} ({staged})"


def _moment(microseconds: int) -> str | None:
    return moment(dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=microseconds))


def _table(name: str) -> str:
    try:
        return str(TableName.parse(name))
    except ValueError as error:
        raise RequestError(str(error), where="TABLE", fix="for example shop.orders") from error
