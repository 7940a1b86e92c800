"""The acceptance of a shape that the lake does not follow (`dblog_core.lake.accept_schema` says which way).

Each way may be begun again after any step: a dump too many harms nobody, and what gives the table its shape leaves out
what is done.
"""

from __future__ import annotations

from dataclasses import replace

from dblog_core.errors import LakeError
from dblog_core.lake import accept_schema
from dblog_core.lake.accept_schema import BY_RESET, Way
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.task_plans import AcceptPlan, ResetPlan
from dblog_core.lake.task_requests import AcceptRequest
from dblog_core.lake.task_results import AcceptResult
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.tables import alter_table, column_types
from dblog_core.lake_engine.tables.alter_table import DroppedColumns
from dblog_core.lake_engine.tasks import answered_table, reset
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.model.schema import TableName, TableSchema


def plan(tools: Tools, request: AcceptRequest) -> AcceptPlan:
    """The way, fixed before anything is changed. Raises LakeError where none helps."""
    name = request.table
    acceptance = accept_schema.plan_acceptance(
        tools.staging, name, tools.status.tables.get(name), tools.lake.changes(TableName.parse(name))
    )
    schema = tools.staging.schema(acceptance.schema)
    tools.lake.check_names(schema)
    plan = AcceptPlan(name, acceptance.way, acceptance.schema, acceptance.offset, acceptance.changes, acceptance.does)
    if acceptance.way not in BY_RESET:
        return plan
    _check_history(tools, schema)
    begins = reset.plan_table(tools, name)
    return replace(plan, schema=begins.schema, offset=begins.offset, reset=begins)


def _check_history(tools: Tools, schema: TableSchema) -> None:
    """Raises LakeError where the history keeps what the table can do without."""
    history = tools.lake.history_of(schema)
    if history is None or history.version() is None:
        return
    have = history.columns()
    widening = alter_table.widen(have, column_types.history_shape(schema))
    if widening is None or alter_table.find_case_conflicts(have.names, schema):
        raise LakeError(
            "its history has columns of the old type, name or key, and nothing is ever taken out of a history",
            where=str(history.path),
            fix="move that directory away, and accept the shape again: the next merge begins a new history",
        )


def carry_out(tools: Tools, plan: AcceptPlan) -> Done:
    """Does it, and says what the next merges do."""
    status = tools.status.tables[plan.table]
    dump = None
    if plan.way is Way.FOLLOW:
        status = replace(status, accepted=plan.offset)
    elif plan.way in (Way.RELOAD, Way.BEGIN) and plan.reset is not None:
        status, dump = reset.empty_table(tools, plan.reset)
    else:
        dump = _shape_table(tools, plan)
        status = answered_table.at_newest_version(status, _table(tools, plan))
        status = replace(status, schema=plan.schema, awaits=dump, ignored=None)
        status = _follow_from_stop(status, plan) if plan.reset is None else _follow_from_dump(status, plan.reset)
    return Done(AcceptResult(plan.table, plan.way, plan.does, plan.changes, dump), {plan.table: status})


def _shape_table(tools: Tools, plan: AcceptPlan) -> str:
    """Requests the dump, then gives the table its shape; the dump's id."""
    name = plan.table
    assert tools.dumps is not None
    dump = tools.dumps.submit(name, [])
    tools.step(f"requested {name}")
    tools.dumps.await_plan(dump, tools.check)
    tools.check()
    table = _table(tools, plan)
    table.prepare()
    renamed = 0 if plan.reset is None else plan.reset.renamed
    if renamed > table.renamed_upto():  # its columns have the names of after that
        table.set_properties({alter_table.RENAMED: str(renamed)})
    tools.step(f"shaped {name}")
    return dump


def _table(tools: Tools, plan: AcceptPlan) -> LakeTable:
    name = plan.table
    schema = tools.staging.schema(plan.schema)
    fingerprint = tools.status.tables[name].schema
    before = tools.staging.schema(fingerprint) if fingerprint is not None else schema
    had = frozenset(c.name for shape in (before, schema) for c in shape.columns)
    replaced = frozenset(c.name for c in schema.columns if c.name not in schema.key)
    return tools.lake.table(schema, DroppedColumns(had, drop=tools.lake.drop_columns, replaced=replaced))


def _follow_from_stop(status: TableStatus, plan: AcceptPlan) -> TableStatus:
    """What it has missed is merged still, into the new shape."""
    state = State.STOPPED if status.state is State.STOPPED else State.INCOMPLETE
    return replace(status, state=state, added_at=plan.offset)


def _follow_from_dump(status: TableStatus, begins: ResetPlan) -> TableStatus:
    """What is staged at present is left to the dump, as after a reset: rows that it does not show go with its end."""
    return replace(
        status,
        state=State.INCOMPLETE,
        error=None,
        segment=begins.segment,
        offset=begins.offset,
        reset_at=begins.offset,
        accepted=None,
        told=False,
    )
