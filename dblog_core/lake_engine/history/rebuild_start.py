"""A table's past as its history tells it: what a rebuild begins with where staging does not reach back so far.

A line says all of its row: values that the log left out were filled in when it was written, and what nobody knew then
is named. So the last line of each key is what the merges made of it, if the history tells every change since a moment
at which the table had no row: when it was new, after a reset, or after a TRUNCATE.
"""

from __future__ import annotations

from dblog_core.delta_writer import delta_types as t
from dblog_core.errors import LakeError
from dblog_core.lake import foreign_commits
from dblog_core.lake.lake_status import TableStatus
from dblog_core.lake.task_plans import Past
from dblog_core.lake_engine.history.history_table import History
from dblog_core.lake_engine.history.last_lines import HistoryLines
from dblog_core.lake_engine.tables import alter_table
from dblog_core.lake_engine.tables.column_types import (
    MOVED_FROM,
    row_shape,
)  # fmt: skip
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging


def find_past(history: History, schema: TableSchema, status: TableStatus) -> Past:
    """What the history says about the table, up to what the lake has. Raises LakeError where that is not all of it."""
    if history.version() is None:
        raise _unusable_history("there is none")
    if (gap := foreign_commits.find_history_gap(history.path, status)) is not None:
        raise _unusable_history(f"it may lack lines: {gap}")
    lines = HistoryLines(history.path)
    _check_shape(lines.columns, schema)
    if (begin := history.begin()) is None:
        raise _unusable_history("it does not say from where on it is without a gap")
    truncate, newest = lines.find_newest(status.offset)
    empty = [begin.after] if begin.whole or status.reset_at == begin.after else []
    empty += [offset for offset in (status.reset_at or 0, truncate) if offset > begin.after]
    if not empty:
        raise _unusable_history(f"it begins after offset {begin.after}, when the table had rows already")
    # Changes that the last merges made without history are not in it.
    told_upto = status.offset if status.told else max(begin.after, newest, history.newest_offset())
    return Past(max(empty), min(status.offset, told_upto))


def segment_before_rest(staging: Staging, table: str, past: Past, status: TableStatus) -> int:
    """The segment to read staging after, for what the history does not tell. Raises LakeError where it is not there."""
    start = max(past.lower, past.upto)
    head = staging.head()
    if start >= status.offset or head is None:
        return status.segment
    first = staging.first_number()
    if first > 1 and (begins := staging.manifest(first).cut(after=first - 1).first_offset) > start + 1:
        raise _unusable_history(f"it ends at offset {start}, and staging begins at {begins}")
    after = staging.segment_of(start + 1, head) - 1
    if past.upto > past.lower:
        _check_dumps(staging, table, past, after=after, upto=status.segment)
    return after


def _check_dumps(staging: Staging, table: str, past: Past, *, after: int, upto: int) -> None:
    """A dump that was under way when the history ended has rows in it only where they changed something."""
    for manifest in staging.manifests(after=after, upto=upto):
        for mark in manifest.marks:
            ended = mark.op == "f" and mark.table == table and mark.offset > past.upto
            if ended and (mark.since is None or mark.since < past.upto):
                raise _unusable_history(f"it ends at offset {past.upto}, in the midst of dump {mark.dump}")


def _check_shape(have: t.StructType, schema: TableSchema) -> None:
    """A reset may have given the table another shape, which its history has not taken yet; wider types do no harm."""
    types = {f.name: f.type for f in have}
    key = types.get(MOVED_FROM)
    if key is None or not t.is_struct(key) or t.StructType.of(key).names != list(schema.key):
        raise _unusable_history("it is of another key")
    shape = [f for f in row_shape(schema) if f.name in types]
    if changed := [f.name for f in shape if not alter_table.is_wider(types[f.name], f.type, or_equal=True)]:
        raise _unusable_history(f"another type has {', '.join(changed)}")


def _unusable_history(why: str) -> LakeError:
    return LakeError(why)
