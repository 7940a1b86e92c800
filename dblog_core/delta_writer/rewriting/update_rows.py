"""Rows of a table get other values in some columns: the files that have such rows are written again, one at a time.

What is in memory does not grow with the table: one new file, compressed, and some of its rows. New files and the
transaction's number are one commit, so that an update that died anywhere is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.commit import removal
from dblog_core.delta_writer.data_file import StoredFile
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.change_files import AFTER, BEFORE, ChangeFiles, is_fed
from dblog_core.delta_writer.rewriting.rewrite import plan_rewrite, sources_of
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.statistics import Stated
from dblog_core.delta_writer.stored_rows import row_stretches
from dblog_core.delta_writer.table_log import ATTEMPTS
from dblog_core.delta_writer.vectors import unique_id
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.rows.variant_encoding import VARIANT, encode_texts

Values: TypeAlias = "pa.Scalar | Callable[[pa.Table], pa.ChunkedArray]"
"""What rows get in a column: one value, or what a stretch of rows gets."""


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """`values`: by column, what its rows get; `chooses`: of a stretch of rows, with their columns `reads`, which ones
    these are; `may_choose`: whether a file may have one, by what its statistics say of the order column."""

    values: Mapping[str, Values]
    reads: Sequence[str]
    chooses: Callable[[pa.Table], pa.ChunkedArray]
    may_choose: Callable[[Stated], bool] = lambda orders: True


def update_older(order: str, below: int, values: Mapping[str, pa.Scalar]) -> RowUpdate:
    """The update of the rows whose `order`, the table's order column, is below a number."""
    return RowUpdate(
        values,
        [order],
        lambda rows: pc.fill_null(pc.less(rows[order], below), False),
        lambda orders: orders.lowest is None or orders.lowest < below,
    )


def update_beyond(order: str, above: int, values: Mapping[str, pa.Scalar]) -> RowUpdate:
    """The update of the rows whose `order`, the table's order column, is above a number, or NULL."""
    return RowUpdate(
        values,
        [order],
        lambda rows: pc.fill_null(pc.greater(rows[order], above), True),
        lambda orders: orders.nulls != 0 or orders.highest is None or orders.highest > above,
    )


def fill_variants(pairs: Mapping[str, str]) -> RowUpdate:
    """The update of the rows that lack a VARIANT. `pairs`: its column, by that of its JSON text."""

    def lacking(rows: pa.Table, text: str, variant: str) -> pa.ChunkedArray:
        texts = pc.if_else(pc.is_null(rows[variant]), rows[text], pa.scalar(None, pa.string()))
        return pa.chunked_array([encode_texts(chunk) for chunk in texts.chunks], VARIANT)

    def chooses(rows: pa.Table) -> pa.ChunkedArray:
        return reduce(pc.or_, (lacking(rows, text, variant).is_valid() for text, variant in pairs.items()))

    def fill(rows: pa.Table, text: str, variant: str) -> pa.ChunkedArray:
        return pc.coalesce(rows[variant], lacking(rows, text, variant))

    values = {variant: partial(fill, text=text, variant=variant) for text, variant in pairs.items()}
    return RowUpdate(values, [*pairs, *pairs.values()], chooses)


def shift_orders(table: OpenTable) -> RowUpdate:
    """The update by which the orders of all rows of the table's newest version end at 0, in the same order."""
    shape = table.refresh()
    highest: int | None = None
    for live in table.snapshot.files.values():
        dead = table.dead_rows(live)
        for first, rows in row_stretches(table.files, live, shape, [table.order]):
            is_alive = ~dead.contains(np.arange(first, first + len(rows)))
            in_file = pc.max(rows.column(0).filter(pa.array(is_alive))).as_py()
            highest = max((order for order in (highest, in_file) if order is not None), default=None)
    by = highest or 0
    return RowUpdate(
        {table.order: lambda rows: pc.subtract(rows[table.order], by)},
        [table.order],
        lambda rows: pc.and_(rows[table.order].is_valid(), by != 0),
        lambda orders: by != 0,
    )


@dataclass(frozen=True, slots=True)
class _Updated:
    """What stands in place of a file. `files`: none where no row of it lives; `rows`: how many of them changed;
    `changes`: the actions of the change data feed."""

    files: Sequence[StoredFile]
    rows: int
    changes: Sequence[Json]


_Written = dict[tuple[str, str | None], _Updated]
"""By path and vector of the file in whose place they stand."""


def update_rows(table: OpenTable, update: RowUpdate, app: str | None = None, number: int = 0) -> Upserted:
    """Commits the update as transaction `number` of `app`, whatever others commit meanwhile; also where it changes no
    row, so that later rows are not changed by it. Without an `app` it may be made at any time, and where it changes no
    row there is no commit.

    Raises TableRefused where the table needs another writer, Overtaken where others leave no room, and StagingError
    with storage's own faults: then the same call later finds out what became of the commit.
    """
    written: _Written = {}
    metadata: Json = {}
    for _ in range(ATTEMPTS):
        shape = table.refresh()
        if app is not None and table.snapshot.txns.get(app, -1) >= number:
            return Upserted(table.snapshot.version, already=True)
        if table.snapshot.metadata != metadata:  # files of another shape are of no use
            written = {}
            metadata = table.snapshot.metadata
        try:
            replaced = _update_files(table, shape, update, written)
        except LakeError:
            if snapshot.newest(table.files, table.snapshot).version == table.snapshot.version:
                raise
            continue  # what could not be read may be gone from the table
        if app is None and not replaced:
            return Upserted(table.snapshot.version, already=True)
        if (done := _commit(table, replaced, app, number)) is not None:
            return done
    raise table.overtaken_error()


def _update_files(
    table: OpenTable, shape: Shape, update: RowUpdate, written: _Written
) -> list[tuple[LiveFile, _Updated]]:
    """The files of which rows change, with what stands in their places."""
    updated = ((live, _update_file(table, live, shape, update, written)) for live in table.snapshot.files.values())
    return [(live, new) for live, new in updated if new is not None]


def _update_file(
    table: OpenTable, live: LiveFile, shape: Shape, update: RowUpdate, written: _Written
) -> _Updated | None:
    """The new file, which may be `written` already; None where no living row of the file changes."""
    place = live.path, unique_id(live.vector)
    earlier = written.get(place)
    # A VACUUM of somebody else may have taken a file that no version names yet.
    if earlier is not None and all(map(table.files.exists, _names(earlier))):
        return earlier
    if not update.may_choose(live.stated_values(shape[table.order].physical)):
        return None
    if not (count := _count_chosen(table, live, shape, update)):
        return None
    change = partial(_change, shape=shape, update=update)
    plan = replace(plan_rewrite(table, sources_of(table, [live])), change=change, keeps_places=False)
    # The keys of many rows are read when a merge needs them.
    files = tuple(replace(file, keys=None) for file in plan.carry_out(table.check).files)
    table.rewritten_bytes += sum(file.size for file in files)
    written[place] = _Updated(files, count, _write_changes(table, live, shape, update))
    return written[place]


def _names(updated: _Updated) -> list[str]:
    return [*(file.name for file in updated.files), *(unquote(each["cdc"]["path"]) for each in updated.changes)]


def _write_changes(table: OpenTable, live: LiveFile, shape: Shape, update: RowUpdate) -> list[Json]:
    """The file's rows that change, before and after, for a reader of the change data feed."""
    if not is_fed(table):
        return []
    feed = ChangeFiles(table)
    dead = table.dead_rows(live)
    for first, rows in row_stretches(table.files, live, shape, shape.names):
        alive = pa.array(~dead.contains(np.arange(first, first + len(rows))))
        before = rows.filter(pc.and_(update.chooses(rows), alive))
        after = _change(before, replace(shape, tracking=()), update)
        for part, kind in ((before, BEFORE), (after, AFTER)):
            feed.add(part, pa.repeat(kind, len(part)))
    return feed.actions()


def _change(rows: pa.Table, shape: Shape, update: RowUpdate) -> pa.Table:
    """Rows as the update leaves them."""
    chosen = update.chooses(rows)
    # The version that last changed a row is that of the new file.
    untracked = {column.name: pa.scalar(None, column.type) for column in shape.tracking[1:]}
    changed = rows
    for name, value in {**update.values, **untracked}.items():
        new = value.cast(changed[name].type) if isinstance(value, pa.Scalar) else value(rows)
        column = pc.if_else(chosen, new, rows[name])
        changed = changed.set_column(changed.column_names.index(name), name, column)
    return changed


def _count_chosen(table: OpenTable, live: LiveFile, shape: Shape, update: RowUpdate) -> int:
    """How many of the file's living rows change."""
    dead = table.dead_rows(live)
    count = 0
    for first, rows in row_stretches(table.files, live, shape, update.reads):
        chosen = first + np.flatnonzero(np.asarray(update.chooses(rows)))
        count += int((~dead.contains(chosen)).sum())
    return count


def _commit(
    table: OpenTable, replaced: Sequence[tuple[LiveFile, _Updated]], app: str | None, number: int
) -> Upserted | None:
    """None if another's commit came first."""
    now = table.now_ms()
    files = [file for _, updated in replaced for file in updated.files]
    count = sum(updated.rows for _, updated in replaced)
    actions: list[Json] = [] if app is None else [{"txn": {"appId": app, "version": number, "lastUpdated": now}}]
    actions += [removal(live, now_ms=now, data_change=True) for live, _ in replaced]
    actions += [{"add": file.addition(now_ms=now, data_change=True)} for file in files]
    actions += [action for _, updated in replaced for action in updated.changes]
    metrics = {
        "numUpdatedRows": count,
        "numCopiedRows": sum(file.count for file in files) - count,
        "numAddedFiles": len(files),
        "numRemovedFiles": len(replaced),
    }
    if not table.commit("UPDATE", metrics, actions):
        return None
    return Upserted(table.snapshot.version, updated=count)
