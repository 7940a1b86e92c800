"""The acceptance of a shape that the lake does not follow (`dblog_core.lake.accept_schema` says which way).

Each way may be begun again after any step: a dump too many harms nobody, and what gives the table its shape leaves out
what is done.
"""

from __future__ import annotations

from dataclasses import replace

from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.lake import accept_schema
from dblog_core.lake.accept_schema import Way
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.model.schema import TableName, TableSchema
from spark_jobs.delta_tables import alter_table, column_types
from spark_jobs.delta_tables.alter_table import DroppedColumns
from spark_jobs.lake_tasks import reset
from spark_jobs.lake_tasks.context import Done, Tools
from spark_jobs.merging.lake_table import LakeTable


def plan(tools: Tools, arguments: Json) -> Json:
    """The way, fixed before anything is changed. Raises LakeError where none helps."""
    name = arguments["table"]
    acceptance = accept_schema.plan_acceptance(
        tools.staging, name, tools.status.tables.get(name), tools.lake.changes(TableName.parse(name))
    )
    schema = tools.staging.schema(acceptance.schema)
    tools.lake.check_names(schema)
    planned = {"table": name, "way": acceptance.way.value, "schema": acceptance.schema, "offset": acceptance.offset}
    if acceptance.way in (Way.REPLACE, Way.RELOAD):
        _check_history(tools, schema)
        planned |= reset.plan(tools, arguments)
    return {**planned, "changes": list(acceptance.changes), "does": acceptance.does}


def _check_history(tools: Tools, schema: TableSchema) -> None:
    """Raises LakeError where the history keeps what the table can do without."""
    history = tools.lake.history_of(tools.session(str(schema.table)), schema)
    if history is None or history.version() is None:
        return
    if alter_table.widening_statements("history", history.lines().schema, column_types.history_shape(schema)) is None:
        raise LakeError(
            "its history has columns of the old type or key, and nothing is ever taken out of a history",
            where=str(history.path),
            fix="move that directory away, and accept the shape again: the next merge begins a new history",
        )


def carry_out(tools: Tools, planned: Json) -> Done:
    """Does it, and says what the next merges do."""
    name = planned["table"]
    way = Way(planned["way"])
    status = tools.status.tables[name]
    if way is Way.FOLLOW:
        now = replace(status, accepted=planned["offset"])
        dump = None
    elif way is Way.RELOAD:
        done = reset.carry_out(tools, planned)
        now = done.tables[name]
        dump = done.result["dump"]
    else:
        dump = _shape_table(tools, name, planned)
        version = _table(tools, planned).version()
        follow = _follow_from_stop if way is Way.TAKE else _follow_from_dump
        now = follow(replace(status, version=version, schema=planned["schema"], awaits=dump, ignored=None), planned)
    summary = {key: planned[key] for key in ("table", "way", "does", "changes")}
    return Done({**summary, "dump": dump}, {name: now})


def _shape_table(tools: Tools, name: str, planned: Json) -> str:
    """Requests the dump, then gives the table its shape; the dump's id."""
    assert tools.dumps is not None
    dump = tools.dumps.submit(name, [])
    tools.step(f"requested {name}")
    tools.check()
    table = _table(tools, planned)
    table.prepare()
    if (renamed := planned.get("renamed", 0)) > table.renamed_upto():  # its columns have the names of after that
        sql = f"delta.{column_types.quote(str(table.path))}"
        tools.session(name).sql(alter_table.set_properties(sql, {alter_table.RENAMED: str(renamed)}))
    tools.step(f"shaped {name}")
    return dump


def _table(tools: Tools, planned: Json) -> LakeTable:
    name = planned["table"]
    schema = tools.staging.schema(planned["schema"])
    fingerprint = tools.status.tables[name].schema
    before = tools.staging.schema(fingerprint) if fingerprint is not None else schema
    had = frozenset(c.name for shape in (before, schema) for c in shape.columns)
    replaced = frozenset(c.name for c in schema.columns if c.name not in schema.key)
    return tools.lake.table(
        tools.session(name), schema, DroppedColumns(had, drop=tools.lake.drop_columns, replaced=replaced)
    )


def _follow_from_stop(status: TableStatus, planned: Json) -> TableStatus:
    """What it has missed is merged still, into the new shape."""
    state = State.STOPPED if status.state is State.STOPPED else State.INCOMPLETE
    return replace(status, state=state, added_at=planned["offset"])


def _follow_from_dump(status: TableStatus, planned: Json) -> TableStatus:
    """What is staged at present is left to the dump, as after a reset: rows that it does not show go with its end."""
    return replace(
        status,
        state=State.INCOMPLETE,
        error=None,
        segment=planned["segment"],
        offset=planned["offset"],
        reset_at=planned["offset"],
        accepted=None,
        told=False,
    )
