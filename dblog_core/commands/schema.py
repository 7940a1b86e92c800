"""`dblog schema`: the shapes that a table has had, since when, what the lake made of them, and how it accepts one."""

from __future__ import annotations

import datetime as dt
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog_core.commands.session import JsonFlag, Session, note, session_of, stopping
from dblog_core.commands.terminal.text_tables import moment
from dblog_core.config.secret_settings import LAKE, READER
from dblog_core.errors import RequestError
from dblog_core.lake.json_variants import json_columns, variant_name
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import quote_for_shell

if TYPE_CHECKING:
    from dblog_core.config.lake import JsonAs, SchemaChanges
    from dblog_core.lake.lake_status import TableStatus
    from dblog_core.lake.task_results import AcceptResult
    from dblog_core.schema_evolution.versions import SchemaChange, Version


_ACCEPT = "accept"
_IGNORED = {
    "added": "left out: the lake keeps its columns",
    "renamed": "kept under its old name, NULL in rows that are written; the new name is left out",
    "dropped": "kept: rows that are not written again keep its values",
    "widened": "kept as it is: a value that does not fit stops the table",
    "retyped": "kept as it is: a value that does not fit stops the table",
}


def schema(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="[accept] TABLE", help="SCHEMA.TABLE, after accept or alone.")],
    yes: Annotated[bool, typer.Option("--yes", help="With accept: do it without asking.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show the shapes of a table; or accept the newest one.

    Since when it has had each, what changed, and what the lake makes of it.

    It comes from staging and the lake's status alone: neither the source nor a capture is asked.

    accept: a table whose shape changed in a way that the lake does not follow (it has stopped, or
    `schema_changes` is ignore or fail) continues under its newest shape. It says first what it will do, and asks; what
    the log cannot tell comes by a full dump that is requested automatically. The merge that runs carries it out, or one
    that this command starts.

    \b
    Examples:
      dblog --config shop.toml schema shop.orders
      dblog --config shop.toml schema shop.orders --json | jq .versions[-1].columns
      dblog --config shop.toml schema accept shop.orders
    """
    session = session_of(context, json)
    if words[0] == _ACCEPT and len(words) == 2:
        return _accept(session, _table(words[1]), yes=yes)
    if len(words) != 1 or yes:
        raise RequestError("takes one table", where="schema", fix="dblog schema TABLE, or dblog schema accept TABLE")
    return _show(session, _table(words[0]))


def _show(session: Session, name: str) -> None:
    from dblog_core.lake.lake_status import read_status
    from dblog_core.schema_evolution.versions import read_versions
    from dblog_core.wiring import open_lake, open_staging

    config = session.config(READER)
    table = TableName.parse(name)
    policy = config.lake.schema_changes_of(table)
    json_as = config.lake.json_as_of(table)
    versions = [
        _by_policy(version, policy)
        for version in read_versions(open_staging(config), name, drop_columns=config.lake.drop_columns)
    ]
    if not versions:
        raise RequestError(
            "the super-changelog says nothing of this table",
            where=name,
            fix="`dblog check` lists the tables that are captured; a table appears here with its first change or dump",
        )
    status = read_status(open_lake(config))
    lake = None if status is None else status.tables.get(name)
    session.result(as_json(name, versions, lake, policy, json_as), text(versions, lake, policy, json_as))


def _by_policy(version: Version, policy: SchemaChanges) -> Version:
    """With what the lake makes of the changes where it does not follow them."""

    def with_effect(change: SchemaChange) -> SchemaChange:
        if policy == "fail":
            return replace(
                change, lake=f"the table stops: run `dblog schema accept {quote_for_shell(version.schema.table)}`"
            )
        return replace(change, lake=_IGNORED.get(change.what, change.lake))

    keyless = not version.schema.key  # there is a history alone
    if policy == "evolve" or keyless:
        return version
    return replace(version, changes=tuple(map(with_effect, version.changes)))


# Acceptance -----------------------------------------------------------------------------------------------------------


def _accept(session: Session, name: str, *, yes: bool) -> None:
    from dblog_core.lake import accept_schema, lake_tasks
    from dblog_core.lake.lake_status import read_status
    from dblog_core.lake.task_requests import AcceptRequest
    from dblog_core.lake.task_results import AcceptResult
    from dblog_core.wiring import open_lake, open_staging

    config = session.config(LAKE)
    status = read_status(open_lake(config))
    lake_table = None if status is None else status.tables.get(name)
    policy = config.lake.schema_changes_of(TableName.parse(name))
    plan = accept_schema.plan_acceptance(open_staging(config), name, lake_table, policy)
    note("\n".join([f"{name}:", *(f"  {change}" for change in plan.changes), f"  accepted: {plan.does}"]))
    if not yes and not _is_confirmed():
        raise RequestError("nothing was done", where=name, fix="answer y, or give --yes")
    with stopping() as stop:
        result = lake_tasks.carry_out(
            config, AcceptRequest(name), AcceptResult, stop=stop, on_line=lambda line: note(session.redact(line))
        )
    session.result(result.to_json(), _result_text(result))


def _is_confirmed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Continue?", err=True)


def _result_text(result: AcceptResult) -> str:
    dump = f"; dump {result.dump} brings what is missing" if result.dump else "; `dblog merge` continues"
    return f"{result.table}: accepted{dump}"


# What is shown --------------------------------------------------------------------------------------------------------


def as_json(
    table: str,
    versions: list[Version],
    lake: TableStatus | None,
    policy: SchemaChanges = "evolve",
    json_as: JsonAs = "text",
) -> dict[str, Any]:
    """The object of `schema --json`."""
    return {
        "table": table,
        "schema_changes": policy,
        "json_as": json_as,
        "versions": [
            {
                "version": version.number,
                "fingerprint": version.schema.fingerprint,
                "offset": version.mark.offset if version.mark else None,
                "position": version.mark.position if version.mark else None,
                "commit_time": _moment(version.mark.commit_time) if version.mark else None,
                "columns": [
                    {"name": c.name, "type": str(c.type), "source_type": c.source_type} for c in version.schema.columns
                ],
                "key_columns": list(version.schema.key),
                "changes": [
                    {"what": c.what, "column": c.column, "before": c.before, "after": c.after, "lake": c.lake}
                    for c in version.changes
                ],
            }
            for version in versions
        ],
        "lake": None
        if lake is None
        else {
            "version": _version_in_lake(versions, lake),
            "state": lake.state.value,
            "offset": lake.offset,
            "error": lake.error,
            "ignored": lake.ignored,
        },
    }


def text(
    versions: list[Version], lake: TableStatus | None, policy: SchemaChanges = "evolve", json_as: JsonAs = "text"
) -> str:
    """The versions for people, oldest first."""
    lines: list[str] = []
    for version in versions:
        mark = version.mark
        since = "from before staging begins" if mark is None else _since(mark.offset, mark.position, mark.commit_time)
        lines.append(f"version {version.number}  {since}")
        if version.number == 1:
            key = ", ".join(version.schema.key) or "none"
            lines += [f"  {c.name}  {_type(c.source_type, str(c.type))}" for c in version.schema.columns]
            lines.append(f"  key: {key}")
        lines += [f"  {_change_text(c.what, c.column, c.before, c.after)}  ->  {c.lake}" for c in version.changes]
    if policy != "evolve":
        lines.append(f'schema_changes = "{policy}"')
    if json_as == "variant" and (columns := json_columns(versions[-1].schema)) and versions[-1].schema.key:
        lines.append(f'json_as = "variant": {", ".join(f"{variant_name(c)} beside {c}" for c in columns)}')
    return "\n".join([*lines, f"lake: {_lake(versions, lake)}"])


def _change_text(what: str, column: str | None, before: str | None, after: str | None) -> str:
    if column is None:
        return f"key: {before} is now {after}"
    if before is None or after is None:
        return f"{column} {what}: {after or before}"
    return f"{column} {what}: {before} is now {after}"


def _lake(versions: list[Version], lake: TableStatus | None) -> str:
    if lake is None:
        return "nothing of it is merged yet"
    version = _version_in_lake(versions, lake)
    shape = "a shape that staging no longer holds" if version is None else f"version {version}"
    error = f": {lake.error}" if lake.error else ""
    if lake.ignored:
        shape += f" without {', '.join(lake.ignored)}"
    return f"{shape}, merged to offset {lake.offset:,}, {lake.state.value}{error}"


def _version_in_lake(versions: list[Version], lake: TableStatus) -> int | None:
    """The version whose shape the lake has; the newest of those that were alike."""
    return next((v.number for v in reversed(versions) if v.schema.fingerprint == lake.schema), None)


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
