"""The adoption: a lake continues with another staging, whose offsets say nothing of the lake's rows.

All rows count as older than any line of that staging, which is merged from its beginning on. A full dump of each table
brings what its log lacks, and removes deleted rows. The lines of a history stay, in their order.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.altering.alterations import SetProperties
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.update_rows import RowUpdate, shift_orders, update_rows
from dblog_core.errors import LakeError
from dblog_core.lake import continuity
from dblog_core.lake.lake_status import State, TableStatus, history_location, table_location
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake.task_plans import AdoptPlan
from dblog_core.lake.task_requests import AdoptRequest
from dblog_core.lake.task_results import AdoptResult
from dblog_core.lake_engine.history.history_table import AFTER, APPEND_ONLY, WHOLE
from dblog_core.lake_engine.tables import alter_table, checkpoints, log
from dblog_core.lake_engine.tables.alter_table import RENAMED
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.model.schema import TableName
from dblog_core.storage.location import Location

_NOT_RENAMED = "0"
"""The offset up to which columns are renamed, before the first offset of a staging."""


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
    shaped = alter_table.open_altered(path, tools.check)
    gap = {AFTER: str(after), WHOLE: "false", RENAMED: _NOT_RENAMED}
    shaped.alter(lambda have: [SetProperties({**gap, APPEND_ONLY: "false"})])
    table = _open(tools, path)
    update_rows(table, shift_orders(table), f"{tools.lake.app}:{name}:history:adopted", tools.number)
    shaped.alter(lambda have: [SetProperties({APPEND_ONLY: "true"})])


def _age_rows(tools: Tools, name: str, path: Location) -> None:
    older = RowUpdate(
        {OFFSET: pa.scalar(0, pa.int64())},
        [OFFSET],
        lambda rows: pc.fill_null(pc.not_equal(rows[OFFSET], 0), True),
        lambda offsets: (offsets.lowest, offsets.highest, offsets.nulls) != (0, 0, 0),
    )
    update_rows(_open(tools, path), older, f"{tools.lake.app}:{name}:adopted", tools.number)
    forgets = [SetProperties({RENAMED: _NOT_RENAMED})]
    alter_table.open_altered(path, tools.check).alter(lambda have: forgets if RENAMED in have.properties else [])


def _open(tools: Tools, path: Location) -> OpenTable:
    # The key is not asked for: rows are chosen by their offsets.
    return OpenTable(
        path, [OFFSET], order=OFFSET, mark=COMMIT_MARK, check=tools.check, committed=checkpoints.follow_commit
    )
