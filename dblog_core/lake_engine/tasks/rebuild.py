"""The rebuild: a table's lake copy made again from staging and history alone, whatever stands in the lake.

It begins with the newest full dump that is staged whole, or with the first segment if none was ever removed, or else
with the table's history, and replaces the table's rows in one commit. Versions continue, so that cuts before it stay
readable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import TableStatus
from dblog_core.lake.task_plans import RebuildPlan
from dblog_core.lake.task_requests import RebuildRequest
from dblog_core.lake.task_results import RebuildResult
from dblog_core.lake_engine.events.fold import ONE_AT_A_TIME, PUT
from dblog_core.lake_engine.history import rebuild_start
from dblog_core.lake_engine.merging.upsert_rows import keys_of
from dblog_core.lake_engine.tasks import answered_table, refold
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.lake_engine.tasks.refold import TableEvents
from dblog_core.model.events import DELETE
from dblog_core.model.table_names import quote_for_shell
from dblog_core.rows.chunked_columns import join_up_to
from dblog_core.rows.disk_spool import SpooledTables
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark

_FILE_BYTES = 64 << 20
"""Decoded bytes of rows that one file is made of."""


def plan(tools: Tools, request: RebuildRequest) -> RebuildPlan:
    """The segment to begin after, and what the history says about the time before. Raises LakeError where both do not
    hold enough for the whole table.
    """
    name = request.table
    status = refold.table_of(tools, name)
    staging = tools.staging
    first = tools.staging.first_number()
    dump = _newest_dump(staging, name, status, first)
    if dump is not None and dump.since_segment is not None:
        return RebuildPlan(name, dump.since_segment - 1, f"dump {dump.dump}")
    if first == 1 and status.reset_at is None:
        return RebuildPlan(name, 0, "the first segment")
    try:
        return _plan_from_history(tools, name, status)
    except LakeError as why:
        raise LakeError(
            f"staging holds neither a full dump of it that has finished nor its whole life: it begins with segment "
            f"{first}; and its history does not help: {why.message}",
            where=name,
            fix=f"run `dblog reset {quote_for_shell(name)}`, which dumps it again; "
            f"or `dblog dump --table {quote_for_shell(name)} --wait`, and rebuild it",
        ) from why


def _plan_from_history(tools: Tools, name: str, status: TableStatus) -> RebuildPlan:
    assert status.schema is not None  # `table_of` has looked
    schema = tools.lake.with_kept_columns(tools.staging.schema(status.schema))
    past = rebuild_start.find_past(tools.lake.open_history(schema), schema, status)
    after = rebuild_start.segment_before_rest(tools.staging, name, past, status)
    staged = f" up to offset {past.upto}, and staging after it" if after < status.segment else ""
    return RebuildPlan(name, after, f"its history{staged}", past)


def _newest_dump(staging: Staging, name: str, status: TableStatus, first: int) -> LogMark | None:
    """The newest full dump of the table that the lake has merged and whose segments are all there."""
    newest = None
    for manifest in staging.manifests(after=max(0, first - 1), upto=status.segment):
        for mark in manifest.marks:
            full = mark.op == "f" and mark.table == name and mark.key_from is None and mark.key_to is None
            if full and mark.since is not None and mark.since_segment is not None:
                whole = mark.since_segment >= first and mark.since >= (status.reset_at or 0)
                newest = mark if whole else newest
    return newest


def carry_out(tools: Tools, plan: RebuildPlan) -> Done:
    """Replaces all rows in one commit."""
    name = plan.table
    status = refold.table_of(tools, name)
    fingerprint = status.schema
    assert fingerprint is not None  # `table_of` has looked
    schema = tools.lake.with_kept_columns(tools.staging.schema(fingerprint))
    lake = tools.lake.table(schema)
    if not lake.exists():
        lake.prepare()
    if lake.newest_merge() != tools.number:
        events = refold.find_events(tools, name, after=plan.after, before=plan.past, shape=schema)
        with ONE_AT_A_TIME:
            rows = SpooledTables() if events is None else _fold_whole_rows(tools, name, events)
            tools.step(f"read {name}")
            tools.check()
            lake.replace(rows, tools.number)
    tools.step(f"rebuilt {name}")
    now = replace(answered_table.at_newest_version(status, lake), damage=None, damaged_at=None)
    withheld = tools.withheld.count(name)
    result = RebuildResult(name, plan.begins_with, lake.count_rows(), withheld)
    return Done(result, {name: now.with_applied_rows(withheld)})


def _fold_whole_rows(tools: Tools, name: str, events: TableEvents) -> SpooledTables:
    """The rows that are known whole, in the parts that files are made of; the keys of others are withheld before they
    are left out."""
    parts = SpooledTables()
    # What is gone need not fit the lake's shape.
    lasting = replace(events.work, floor=max(events.lower, events.work.floor or 0))
    events = replace(events, work=lasting)

    def whole_rows() -> Iterator[pa.Table]:
        for bucket in events.buckets():
            tools.check()
            rows = events.fold(bucket.portions())
            if rows is None:
                continue
            living = rows.filter(pc.not_equal(rows["op"], DELETE))
            is_whole = pc.and_(pc.equal(living["op"], PUT), living["unchanged_toast"].is_null())
            if lost := keys_of(living.filter(pc.invert(is_whole)), events.schema):
                tools.withheld.add(name, lost)
            yield living.filter(is_whole)

    for part in join_up_to(_FILE_BYTES, whole_rows()):
        parts.append(part)
    return parts
