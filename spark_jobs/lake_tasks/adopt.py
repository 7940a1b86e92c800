"""The adoption: a lake continues with another staging, whose offsets say nothing of the lake's rows.

All rows count as older than any line of that staging, which is merged from its beginning on. A full dump of each table
brings what its log lacks, and removes deleted rows. The lines of a history stay, in their order.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import functions as F

from dblog_core.errors import LakeError
from dblog_core.lake import continuity
from dblog_core.lake.lake_status import State, TableStatus, history_location, table_location
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.task_plans import AdoptPlan
from dblog_core.lake.task_requests import AdoptRequest
from dblog_core.lake.task_results import AdoptResult
from dblog_core.model.schema import TableName
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import log
from spark_jobs.delta_tables.column_types import OFFSET, quote
from spark_jobs.delta_tables.session import transaction
from spark_jobs.history.history_table import AFTER, APPEND_ONLY, WHOLE
from spark_jobs.lake_tasks.context import Done, Tools


def plan(tools: Tools, _request: AdoptRequest) -> AdoptPlan:
    """Where the lake continues. Raises LakeError where it continues its staging already, or that is unreadable."""
    _, verdict = continuity.judge_lake(tools.staging, tools.lake.location)
    if verdict.may_merge:
        where = tools.staging.storage.url("")
        raise LakeError("the lake continues its staging: there is nothing to adopt", where=where)
    if verdict.continuity is continuity.Continuity.UNREADABLE:
        raise verdict.to_error()
    begins = tools.staging.beginning()
    return AdoptPlan(tools.staging.create_identity(), begins.segment - 1, begins.offset - 1)


def first_place(plan: AdoptPlan) -> Span:
    """The span of the merge that the adoption is: without a segment, where the lake continues."""
    return Span(plan.segment + 1, plan.segment, plan.offset + 1, plan.offset, "", None)


def carry_out(tools: Tools, plan: AdoptPlan) -> Done:
    """All tables that remain, each with the dump that brings its rows. Dumps are requested first: one too many does no
    harm."""
    tables: dict[str, TableStatus] = {}
    for name, status in sorted(tools.status.tables.items()):
        table = TableName.parse(name)
        path = table_location(tools.lake.location, table)
        history = history_location(tools.lake.location, table)
        if log.version(history) is not None:
            _age_lines(tools, name, history, after=plan.offset)
            tools.step(f"aged the history of {name}")
        tools.withheld.forget_all(name)
        if status.version is None or log.version(path) is None:
            continue  # it has no row, and begins again with its first line
        assert tools.dumps is not None
        dump = tools.dumps.submit(name, [])
        tools.step(f"requested {name}")
        _age_rows(tools, name, path)
        tools.step(f"aged {name}")
        is_known = status.schema is not None and tools.staging.holds(status.schema, None)
        tables[name] = TableStatus(
            State.INCOMPLETE,
            None,
            plan.segment,
            plan.offset,
            version=log.version(path),
            schema=status.schema if is_known else None,
            awaits=dump,
            added_at=plan.offset,
            ignored=status.ignored if is_known else None,
            lacks=0,
        )
    dumps = {name: status.awaits for name, status in tables.items() if status.awaits is not None}
    return Done(AdoptResult(plan.staging, dumps), tables)


def _age_lines(tools: Tools, name: str, path: Location, *, after: int) -> None:
    """A history's offsets end at 0, in the same order. Behind the offset `after`, which is the new staging's, it is
    without a gap again."""
    session = tools.session(name)
    table = f"delta.{quote(str(path))}"
    gap = f"'{AFTER}' = '{after}', '{WHOLE}' = 'false'"
    tools.check()
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false', {gap})")
    newest = session.read.format("delta").load(str(path)).agg(F.max(OFFSET)).collect()[0][0]
    if newest is not None:
        tools.check()
        with transaction(session, f"{tools.lake.app}:{name}:history:adopted", tools.number):
            DeltaTable.forPath(session, str(path)).update(set={OFFSET: F.col(OFFSET) - F.lit(newest)})
    tools.check()
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{APPEND_ONLY}' = 'true')")


def _age_rows(tools: Tools, name: str, path: Location) -> None:
    tools.check()
    session = tools.session(name)
    with transaction(session, f"{tools.lake.app}:{name}:adopted", tools.number):
        is_newer = F.col(OFFSET).isNull() | (F.col(OFFSET) != 0)
        DeltaTable.forPath(session, str(path)).update(is_newer, {OFFSET: F.lit(0).cast("long")})
