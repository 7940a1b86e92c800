"""Changes of a table become one Delta commit, exactly once: old rows are marked in vectors, new ones appended.

  newest version -> the index covers its files -> rows of the keys -> vectors grown -> one file of vectors, one of new
  rows -> `txn`, `remove` and `add` as the next version, created if absent

A commit of another writer in between makes ours fail: it is read, and all is planned again. Nothing is changed in
memory before the commit is made, so a fault at any step leaves files that no version names, for VACUUM, and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dblog_core.delta_writer import order_guard, snapshot
from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.changes import Changes, Upserted
from dblog_core.delta_writer.commit import Json, removal
from dblog_core.delta_writer.data_file import DataFile, data_file
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags, Hits
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.statistics import loosen_bounds
from dblog_core.delta_writer.stored_rows import stored_count
from dblog_core.delta_writer.unchanged_toast import fill_unchanged_toast
from dblog_core.delta_writer.vectors import unique_id, vector_file
from dblog_core.errors import LakeError

_ATTEMPTS = 20  # at a table that others write meanwhile


class Overtaken(LakeError):
    """Others commit to the table all the time."""

    transient = True


_Written = tuple[bytes, str, DataFile]
"""Which of the changes are in a file, for which metadata, and the file."""


@dataclass(frozen=True, slots=True)
class _MarkedFile:
    """A touched file: its rows, all those that are dead, and the descriptor of those; None where no row is left."""

    file: LiveFile
    rows: int
    dead: RowSet
    vector: Json | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """`rows`: those of the changes, with the values that they keep (`has_unchanged_toast`: some do); `hits`: the
    table's rows that go; `puts`: the rows that come; `unknown`: those that would, and keep a value that nobody has.
    """

    rows: pa.Table
    has_unchanged_toast: bool
    hits: list[Hits]
    puts: Flags
    unknown: Flags
    counts: Upserted


def upsert(
    table: OpenTable,
    changes: Changes,
    app: str,
    number: int,
    *,
    withhold: Callable[[Rows], None] = lambda rows: None,
    is_fresh: bool = False,
) -> Upserted:
    """Commits the changes as transaction `number` of `app`, whatever others commit meanwhile. `withhold` gets,
    before the commit, the numbers of the changes whose row has a value that nobody knows. `is_fresh`: the caller has
    refreshed the table a moment ago, which saves a look at its log; should another commit be there since, ours fails.

    Raises TableRefused where the table needs another writer, Overtaken where others leave no room, and StagingError
    with storage's own faults: then the same call later finds out what became of the commit.
    """
    new: _Written | None = None
    for attempt in range(_ATTEMPTS):
        shape = table.snapshot.shape(str(table.files)) if is_fresh and not attempt else table.refresh()
        # An earlier run of this merge has committed it: its answer was lost, or its process died after the commit.
        if table.snapshot.txns.get(app, -1) >= number:
            return Upserted(table.snapshot.version, already=True)
        try:
            plan = _plan_upsert(table, changes, shape)
            if plan.puts.any():
                new = _write_new_rows(table, plan, shape, new)
            vectors = _mark_old_rows(table, plan)
        except LakeError:
            if snapshot.newest(table.files, table.snapshot).version == table.snapshot.version:
                raise
            continue  # what could not be read may be gone from the table, and the shape another one
        # Before the commit: a crash in between has a dump requested too many, and never one too few.
        if plan.unknown.any():
            withhold(np.flatnonzero(plan.unknown))
        if _commit(table, plan, vectors, new[2] if new is not None and plan.puts.any() else None, app, number):
            return plan.counts
    raise Overtaken(
        f"others have committed {_ATTEMPTS} times while one commit was made",
        where=str(table.files),
        fix="see who writes this table: nobody but the merge should; it is tried again",
    )


def _plan_upsert(table: OpenTable, changes: Changes, shape: Shape) -> _Plan:
    keys = table.key_arrays(changes.rows, shape)
    hits = table.hits(keys, shape)
    is_in_table = np.zeros(len(changes.rows), np.bool_)
    for hit in hits:
        is_in_table[hit.change_numbers] = True
    older = unchanged = np.zeros(len(is_in_table), np.bool_)
    if (guarded := changes.guarded & is_in_table).any():
        order = changes.rows[table.order]
        older = order_guard.find_overtaken(table.files, shape, hits, guarded, order, table.order)
        if changes.same:
            compared = guarded & ~older & ~changes.deleted
            compared = compared if changes.born is None else compared & ~changes.born
            unchanged = order_guard.find_equal(
                table.files, shape, hits, compared, changes.rows, changes.same, unchanged_toast=changes.unchanged_toast
            )
    wins = ~(older | unchanged)
    rows, unknown = _fill_unchanged_toast(table, changes, hits, wins & ~changes.deleted, shape)
    # A row with a value that nobody knows leaves the table: a wrong value would be worse than a row that waits for a
    # dump.
    puts = wins & ~changes.deleted & ~unknown
    counts = Upserted(
        version=table.snapshot.version + 1,
        inserted=int((puts & ~is_in_table).sum()),
        updated=int((puts & is_in_table).sum()),
        deleted=int((wins & (changes.deleted | unknown) & is_in_table).sum()),
        older=int(older.sum()),
        unchanged=int(unchanged.sum()),
        absent=int((wins & changes.deleted & ~is_in_table).sum()),
        withheld=int(unknown.sum()),
    )
    return _Plan(rows, bool(changes.unchanged_toast), [hit.of(wins) for hit in hits], puts, unknown, counts)


def _fill_unchanged_toast(
    table: OpenTable, changes: Changes, hits: list[Hits], puts: Flags, shape: Shape
) -> tuple[pa.Table, Flags]:
    """The rows with the values that they keep, and those for which the table has none."""
    unchanged_toast = {name: mask & puts for name, mask in changes.unchanged_toast.items() if (mask & puts).any()}
    if not unchanged_toast:
        return changes.rows, np.zeros(len(puts), np.bool_)
    if changes.origins is not None:
        numbers = np.flatnonzero(np.logical_or.reduce(list(unchanged_toast.values())))
        keys = table.key_arrays(changes.origins.take(pa.array(numbers)), shape)
        origins = table.hits(keys, shape, distinct=False)
        hits = [Hits(hit.file, numbers[hit.change_numbers], hit.rows) for hit in origins]
    return fill_unchanged_toast(table.files, shape, hits, changes.rows, unchanged_toast, table.order)


def _write_new_rows(table: OpenTable, plan: _Plan, shape: Shape, before: _Written | None) -> _Written:
    """The file of the new rows; that of the plan `before`, where it has the same rows and is still there."""
    chosen = plan.puts.tobytes()
    about = str(table.snapshot.metadata)
    # Kept values come from the table: another version may have others.
    if plan.has_unchanged_toast:
        about = f"{table.snapshot.version} {about}"
    # Others' commits have us plan again; the same rows need no second file.
    if before is not None and before[:2] == (chosen, about) and table.files.exists(before[2].name):
        return before
    configuration = table.snapshot.metadata.get("configuration") or {}
    new_rows = plan.rows.filter(pa.array(plan.puts))
    file = data_file(new_rows, shape, configuration, table.new_id(), where=str(table.files))
    table.create(file.name, file.data)
    return chosen, about, file


def _mark_old_rows(table: OpenTable, plan: _Plan) -> list[_MarkedFile]:
    """Grows the vectors of the touched files, and writes them in one file."""
    grown = [(hit.file, table.dead_rows(hit.file).with_rows(hit.rows)) for hit in plan.hits if len(hit.rows)]
    touched = [_MarkedFile(live, stored_count(table.files, live, dead), dead) for live, dead in grown]
    # A file without a living row is only removed: it needs no vector.
    left = [marked_file.dead for marked_file in touched if len(marked_file.dead) < marked_file.rows]
    if not left:
        return touched
    vectors = vector_file(left, table.new_id())
    table.create(vectors.name, vectors.data)
    descriptors = iter(vectors.descriptors)
    return [
        replace(marked_file, vector=next(descriptors)) if len(marked_file.dead) < marked_file.rows else marked_file
        for marked_file in touched
    ]


def _commit(
    table: OpenTable, plan: _Plan, marked: list[_MarkedFile], new: DataFile | None, app: str, number: int
) -> bool:
    now = table.now_ms()
    counts = plan.counts
    # The merge's number stands in the commit itself: both take effect, or neither does.
    actions: list[Json] = [{"txn": {"appId": app, "version": number, "lastUpdated": now}}]
    actions += [removal(marked_file.file, now_ms=now, data_change=True) for marked_file in marked]
    left = [marked_file for marked_file in marked if marked_file.vector is not None]
    # To Delta a file with another vector is another file: it is removed as it was, and added with the grown vector. Its
    # minima and maxima may be those of dead rows now.
    for marked_file in left:
        addition = {**marked_file.file.add, "dataChange": True, "deletionVector": marked_file.vector}
        addition["stats"] = loosen_bounds(marked_file.file.add.get("stats"), marked_file.rows)
        actions.append({"add": addition})
    if new is not None:
        actions.append({"add": new.addition(now_ms=now, data_change=True)})
    metrics = {
        "numSourceRows": len(plan.rows),
        "numTargetRowsInserted": counts.inserted,
        "numTargetRowsUpdated": counts.updated,
        "numTargetRowsDeleted": counts.deleted,
        "numTargetFilesAdded": len(left) + (new is not None),
        "numTargetFilesRemoved": len(marked),
        "numTargetBytesAdded": new.data.size if new is not None else 0,
    }
    shape = table.snapshot.shape(str(table.files))
    if not table.commit("MERGE", metrics, actions):
        return False
    table.vectors.update(
        (marked_file.file.path, (unique_id(marked_file.vector), marked_file.dead)) for marked_file in left
    )
    if new is not None:
        table.index_file(new, shape)
    return True
