"""The replay: keys that changed in an interval get their last change again, so that damage in the lake is undone.

A change of the interval is never applied itself: what counts is the last one of its key up to what the lake has
merged. So older rows never return, and deleted ones stay deleted. Rows that are as they should be are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import DblogError, LakeError, LeaseLost, SegmentReplaced
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.replay_interval import IntervalEnd, Unit
from dblog_core.lake.replay_reach import read_reach
from dblog_core.lake.task_plans import ReplayPlan
from dblog_core.lake.task_requests import ReplayRequest
from dblog_core.lake.task_results import ReplayCounts, ReplayedTable, ReplayResult
from dblog_core.lake_engine.events.dump_ends import key_columns
from dblog_core.lake_engine.events.fold import ONE_AT_A_TIME, FoldedRows, count_withheld, struct_of
from dblog_core.lake_engine.events.unchanged_values import number_keys
from dblog_core.lake_engine.merging import deleted_rows, upsert_rows
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.tasks import answered_table, refold
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.lake_engine.tasks.refold import TableEvents
from dblog_core.model.events import DELETE
from dblog_core.rows.disk_spool import SpooledTables
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark


def plan(tools: Tools, request: ReplayRequest) -> ReplayPlan:
    """The tables, and the segment to read after. Raises LakeError where staging does not reach back so far."""
    statuses = tools.status.tables
    names = request.tables or tuple(
        n for n, t in statuses.items() if t.version is not None and t.state is not State.STOPPED
    )
    for name in names:
        refold.table_of(tools, name)
    if not names:
        raise LakeError("the lake has no table yet", where=str(tools.lake.location), fix="run `dblog merge`")
    return ReplayPlan(request.start, request.end, names, _after(tools.staging, request.start))


def carry_out(tools: Tools, plan: ReplayPlan) -> Done:
    """Replays table after table. One that fails leaves the others as they are, and the task says so."""
    results: list[ReplayedTable] = []
    tables: dict[str, TableStatus] = {}
    for name in plan.tables:
        tools.check()
        try:
            counts, tables[name] = _replay(tools, name, plan)
            results.append(ReplayedTable(name, counts))
        except (LeaseLost, SegmentReplaced):
            raise
        except DblogError as error:
            results.append(ReplayedTable(name, None, str(error)))
        tools.step(f"replayed {name}")
    return Done(ReplayResult(plan.start, plan.end, tuple(results)), tables)


def _replay(tools: Tools, name: str, plan: ReplayPlan) -> tuple[ReplayCounts, TableStatus]:
    status = refold.table_of(tools, name)
    _truncate(tools, name, status, plan)
    fingerprint = status.schema
    assert fingerprint is not None  # `table_of` has looked
    source = tools.lake.shape_in_lake(tools.staging.schema(fingerprint))
    schema = tools.lake.with_kept_columns(source)
    events = refold.find_events(tools, name, after=plan.after, shape=schema)
    if events is None:
        return ReplayCounts(), status
    lake = tools.lake.table(schema)
    if lake.newest_merge() == tools.number:  # before a crash
        return ReplayCounts(), _status(tools, name, status, lake)
    status = answered_table.answer_others(tools, name, status, lake)
    with ONE_AT_A_TIME:
        rows = _fold_changed_rows(tools, events, plan)
    tools.step(f"read {name}")
    if not len(rows):
        return ReplayCounts(), _status(tools, name, status, lake)
    # Not those that the source has dropped: a merge that brought a row and the drop left its value out.
    columns = [column.name for column in source.columns]
    withhold = partial(tools.withheld.add, name)
    write = partial(upsert_rows.write, merged=status.offset, withhold=withhold, mends=columns)
    done = lake.commit(lambda table, app: write(table, rows, schema, app, tools.number))
    assert done is not None, "a replay of rows commits"
    counts = ReplayCounts(len(rows), done.inserted, done.updated, done.deleted, rows.withheld + done.withheld)
    return counts, _status(tools, name, status, lake)


def _truncate(tools: Tools, name: str, status: TableStatus, plan: ReplayPlan) -> None:
    """A TRUNCATE of the interval has changed every row that there was."""
    work = refold.work_of(tools.staging, name, status, after=plan.after)
    inside = [m.offset for m in (work.truncates if work else ()) if _holds(plan, m)]
    if work and inside:
        table = tools.lake.table(tools.staging.schema(work.schema))
        deleted_rows.remove(table, max(inside), below=max(inside))


def _holds(plan: ReplayPlan, mark: LogMark) -> bool:
    low, high = (
        end.value - (mark.offset if end.unit is Unit.OFFSET else mark.commit_time) for end in (plan.start, plan.end)
    )
    return low <= 0 <= high


def _status(tools: Tools, name: str, status: TableStatus, lake: LakeTable) -> TableStatus:
    return answered_table.at_newest_version(status, lake).with_applied_rows(tools.withheld.count(name))


def _fold_changed_rows(tools: Tools, events: TableEvents, plan: ReplayPlan) -> FoldedRows:
    """The last change of each key of the interval, as it should be in the lake; no change counts as a birth, so that
    what equals the lake's row is left alone."""
    parts = SpooledTables()
    withheld = 0
    # Else an event may need one of another key: what a row keeps from before a change of key.
    alone = not any(f.has_unchanged and f.has_moves for f in events.work.files)
    names = [f"k{i}" for i in range(len(events.schema.key))]
    for bucket in events.buckets():
        tools.check()
        keys = _distinct((part.filter(_are_inside(part, plan)) for part in bucket), names)
        if len(keys):
            chosen = (_of_keys(part, keys, names) if alone else part for part in bucket.portions())
            rows = _rows_of_keys(chosen, keys, names, events)
            withheld += count_withheld(rows)
            parts.append(rows)
    return FoldedRows(parts, len(parts), withheld)


def _distinct(parts: Iterable[pa.Table], names: Sequence[str]) -> pa.Table:
    """Their keys, each once in every part."""
    return pa.concat_tables(part.select(names).group_by(list(names), use_threads=False).aggregate([]) for part in parts)


def _of_keys(events: pa.Table, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    numbers, chosen = number_keys(*([table[name] for name in names] for table in (events, keys)))
    return events.filter(pa.array(np.isin(numbers, chosen)))


def _rows_of_keys(portions: Iterable[pa.Table], keys: pa.Table, names: Sequence[str], events: TableEvents) -> pa.Table:
    """The folded rows of these keys. Values that the log left out are to be the lake's, if its row is of the same life
    (`born_at`); a key without an event after what ended rows is deleted by that."""
    births: list[pa.Table] = []

    def with_births() -> Iterator[pa.Table]:
        for part in portions:
            born = events.living(part.filter(part["created"])).select([*names, "offset"])
            births.append(born.group_by(list(names), use_threads=False).aggregate([("offset", "max")]))
            yield part

    rows = events.fold(with_births())
    if rows is None:
        return _ended_rows(keys, names, events)
    born = pa.concat_tables(births)
    columns = (key_columns(rows), *([table[name] for name in names] for table in (keys, born)))
    numbers, chosen, born_keys = number_keys(*columns)
    born_at = np.zeros(1 + max(numbers.max(initial=0), born_keys.max(initial=0)), np.int64)
    np.maximum.at(born_at, born_keys, np.asarray(born["offset_max"]))
    rows = rows.drop_columns(["inserted", "origin_key"]).append_column("born_at", pa.array(born_at[numbers]))
    rows = rows.append_column("inserted", pa.repeat(False, len(rows))).filter(pa.array(np.isin(numbers, chosen)))
    ended = keys.filter(pa.array(~np.isin(chosen, numbers)))
    return pa.concat_tables([rows, _ended_rows(ended, names, events).select(rows.column_names)])


def _ended_rows(keys: pa.Table, names: Sequence[str], events: TableEvents) -> pa.Table:
    """Deletes of keys, each once, by what ended their rows."""
    (numbers,) = number_keys([keys[name] for name in names])
    ended = keys.take(pa.array(np.unique(numbers, return_index=True)[1])).combine_chunks()
    count = len(ended)
    return pa.table(
        {
            "key": struct_of(ended, names, events.schema.key),
            "op": pa.repeat(DELETE, count),
            "offset": pa.repeat(pa.scalar(events.lower, pa.int64()), count),
            "position": pa.nulls(count, pa.string()),
            "commit_time": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "origin": pa.repeat("log", count),
            "inserted": pa.repeat(False, count),
            "unchanged_toast": pa.nulls(count, pa.list_(pa.string())),
            "row": pa.nulls(count, pa.struct([pa.field(c.name, c.type) for c in events.schema.columns])),
            "born_at": pa.repeat(pa.scalar(0, pa.int64()), count),
        }
    )


def _are_inside(events: pa.Table, plan: ReplayPlan) -> pa.Array:
    """Events of the interval, both ends included: by offset, or by commit time."""
    conditions = []
    for end, beyond in ((plan.start, pc.greater_equal), (plan.end, pc.less_equal)):
        column = events["offset"] if end.unit is Unit.OFFSET else events["commit_time"].cast(pa.int64())
        conditions.append(pc.fill_null(beyond(column, end.value), False))
    return pc.and_(*conditions)


# From where on ------------------------------------------------------------------------------------------------------


def _after(staging: Staging, start: IntervalEnd) -> int:
    """The segment after which all of the interval lies. Raises LakeError where retention has removed some of it."""
    head = staging.head()
    if head is None:
        raise LakeError("nothing is staged", where=staging.storage.url(""), fix="run `dblog capture`")
    reach = read_reach(staging)
    if reach is not None:
        reach.check(start, staging.storage.url(""))
    if start.unit is Unit.OFFSET:
        return staging.segment_of(max(start.value, 1), head) - 1
    first = 1 if reach is None else reach.segment
    return max(first - 1, _segment_before(staging, start.value, first, head.segment))


def _segment_before(staging: Staging, time: int, low: int, high: int) -> int:
    """A segment before the first that ends at `time` or later, and one more: a clock may have been set back."""
    low -= 1
    while high - low > 1:
        middle = (low + high) // 2
        ends = staging.manifest(middle).cut(upto=middle).commit_time
        low, high = (middle, high) if ends is not None and ends < time else (low, middle)
    return low - 1
