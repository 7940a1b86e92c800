"""The reset: a table emptied, in its newest shape, and dumped again, without touching the others.

Log lines that are staged at present no longer count, except for those that the dump's SELECTs may not see: a row that
such a line has touched is left out of the dump, since the log has it.
"""

from __future__ import annotations

from dataclasses import replace

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.task_plans import ResetPlan
from dblog_core.lake.task_requests import ResetRequest
from dblog_core.lake.task_results import ResetResult
from dblog_core.lake_engine.tables import column_types
from dblog_core.lake_engine.tasks import answered_table
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging


def plan(tools: Tools, request: ResetRequest) -> ResetPlan:
    """As `plan_table`."""
    return plan_table(tools, request.table)


def plan_table(tools: Tools, name: str) -> ResetPlan:
    """Where the table's log begins to count again, fixed before the dump is requested, and its shape there.

    Raises LakeError for a table that the lake cannot have.
    """
    head = tools.staging.head()
    fingerprint = head.schemas.get(name) if head is not None else None
    if head is None or fingerprint is None or name not in tools.status.tables:
        raise LakeError(
            "the lake has no such table, or staging does not know its shape",
            where=name,
            fix="`dblog status` names the tables; one that is new is dumped with `dblog dump` and merged",
        )
    schema = tools.staging.schema(fingerprint)
    tools.lake.check_names(schema)
    if not schema.key:
        raise LakeError("a table without a key has no place in the lake", where=name, fix="name it in [source.keys]")
    segment = head.segment
    offset = head.last_offset
    if head.unseen_after is not None and head.unseen_after < head.last_offset:
        segment = tools.staging.segment_of(head.unseen_after + 1, head) - 1
        offset = head.unseen_after
    _check_shapes(tools.staging, schema, after=segment, upto=head.segment)
    renamed = _last_rename(tools.staging, name, after=segment, upto=head.segment)
    return ResetPlan(name, fingerprint, segment, offset, renamed)


def _last_rename(staging: Staging, table: str, *, after: int, upto: int) -> int:
    """The last rename that the next merge meets, and that the newest shape has already; 0: none."""
    manifests = staging.manifests(after=after, upto=upto)
    return Renames.of(m for manifest in manifests for m in manifest.marks if m.table == table).last_offset


def _check_shapes(staging: Staging, schema: TableSchema, *, after: int, upto: int) -> None:
    """Lines that still count must fit the shape: those of a moment ago, so that waiting helps."""
    for manifest in staging.manifests(after=after, upto=upto):
        for file in manifest.files:
            if file.table == str(schema.table):
                try:
                    column_types.check_follows(staging.schema(file.schema), schema)
                except LakeError as error:
                    raise LakeError(
                        "its shape has changed this very moment, and lines before that count still",
                        where=file.table,
                        fix="reset it again in a few seconds, when the capture has gone on",
                    ) from error


def carry_out(tools: Tools, plan: ResetPlan) -> Done:
    """Empties the table, and says which dump brings its rows."""
    status, dump = empty_table(tools, plan)
    return Done(ResetResult(plan.table, dump, plan.offset), {plan.table: status})


def empty_table(tools: Tools, plan: ResetPlan) -> tuple[TableStatus, str]:
    """Requests the dump, then empties the table in one commit: a dump too many harms nobody, one too few would. So the
    table stays as it is until a process with the source has planned the dump.

    Returns the table's status, and the dump's id.
    """
    name = plan.table
    status = tools.status.tables[name]
    schema = tools.staging.schema(plan.schema)
    assert tools.dumps is not None
    dump = tools.dumps.submit(name, [])
    tools.step(f"requested {name}")
    tools.dumps.await_plan(dump, tools.check)
    tools.check()
    lake = tools.lake.table(schema)
    if not lake.exists():
        lake.prepare()
    if lake.newest_merge() != tools.number:
        lake.replace([], tools.number, renamed=plan.renamed)
    tools.withheld.forget_all(name)
    tools.step(f"emptied {name}")
    emptied_status = replace(
        answered_table.at_newest_version(status, lake),
        state=State.INCOMPLETE,
        error=None,
        segment=plan.segment,
        offset=plan.offset,
        schema=plan.schema,
        reset_at=plan.offset,
        awaits=dump,
        ignored=None,
        accepted=None,
        withheld=0,
        damage=None,
        damaged_at=None,
    )
    return emptied_status, dump
