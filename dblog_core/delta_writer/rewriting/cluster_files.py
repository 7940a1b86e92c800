"""A table whose files share their keys is put in the order of its key, a few files at a time.

  which files share keys, by the log -> those that share most -> new files, each with keys of its own

What is put in order at once has a bounded size. So the keys of a file become fewer with each time, like those of an LSM
of which each level is in order: a row is written again as often as the logarithm of the table's size says. No reader
sees a change; the index learns the new places. The order is that of the key's columns, one after the other: a look-up
of a row has values of all of them; or that of the columns by which the table's owner wants it clustered. Files of
another partition share no key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.key_overlap import KeyRange, Overlap, choose_files, ends_of
from dblog_core.delta_writer.rewriting.ordered_rewrite import MOST_ROWS, OrderedRewrite
from dblog_core.delta_writer.rewriting.purge_files import dead_share
from dblog_core.delta_writer.rewriting.rewrite import (
    FileRewrite,
    Rewrite,
    Source,
    by_partition,
    order_of,
    plan_rewrite,
    rewrite_files,
    sources_of,
)
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.statistics import columns_with_statistics, has_bounds

TARGET = 24 << 20
"""Bytes of a new file: it does not count as small before a third of its rows are dead."""
TOGETHER = 256 << 20
"""Bytes that are put in order at once."""
LARGEST = 512 << 20
"""Bytes of a file beyond which it becomes several before it is put in order together with others."""


def cluster_files(table: OpenTable, *, target: int = TARGET, together: int = TOGETHER) -> int:
    """Puts some files in order; how many bytes. 0 where all are, or it is not worth it, or others replace the files all
    the time meanwhile."""
    rewritten = rewrite_files(
        table, lambda without: plan_cluster(table, without=without, target=target, together=together)
    )
    return 0 if rewritten is None else source_bytes(rewritten.sources)


def source_bytes(sources: Sequence[Source]) -> int:
    """Those of files that are put in order."""
    return sum(source.live.size for source in sources)


def limit_of(table: OpenTable) -> int:
    """Bytes that are put in order for one maintenance: each row a few times, and no longer."""
    return max(4 * TOGETHER, 4 * sum(live.size for live in table.snapshot.files.values()))


def is_large(live: LiveFile) -> bool:
    """Whether a file is too large to be put in order together with another one of as many rows."""
    return live.size > LARGEST or (live.rows or 0) > MOST_ROWS // 2


def plan_cluster(
    table: OpenTable,
    *,
    times: float = 1.0,
    without: Collection[str] = (),
    target: int = TARGET,
    together: int = TOGETHER,
) -> FileRewrite | None:
    """The rewrite of the files that share most keys; None where files do not share more than they may. `times`: as many
    keys may be shared; `without`: files, by path, that were found not to be worth it. Where only a file is left that is
    too large, it becomes several first."""
    shape = table.shape()
    order = order_of(table)
    bounded = _bounded_columns(table, shape, order)
    plans = (
        _plan_files(table, files, shape, order, bounded, times=times, without=without, target=target, together=together)
        for files in by_partition(table.snapshot.files.values())
        if bounded and sum(live.size for live in files) >= 2 * target
    )
    return next((plan for plan in plans if plan is not None), None)


def _plan_files(
    table: OpenTable,
    live_files: Sequence[LiveFile],
    shape: Shape,
    order: Sequence[str],
    bounded: Sequence[str],
    *,
    times: float,
    without: Collection[str],
    target: int,
    together: int,
) -> FileRewrite | None:
    """As `plan_cluster`, for these files."""
    ranges = _ranges(table, live_files, [shape[name].physical for name in bounded])
    overlap = Overlap(list(ranges.values()))
    if not overlap.is_mixed(times):
        return None
    fits = np.array([not is_large(live) for live in live_files])
    not_first = {i for i, live in enumerate(live_files) if live.path in without}
    numbers = choose_files(overlap, fits, least=2 * target, together=together, without=not_first)
    if not numbers:
        return _plan_split(table, live_files, overlap)
    return OrderedRewrite(
        table.files,
        sources_of(table, [live_files[i] for i in numbers]),
        shape.with_tracking(),
        table.snapshot.metadata,
        table.keys,
        (*bounded, *(name for name in order if name not in bounded)),
        tuple(bounded),
        ranges,
        target,
        table.new_id,
    )


def _plan_split(table: OpenTable, live_files: Sequence[LiveFile], overlap: Overlap) -> Rewrite | None:
    """The rewrite of the large file that shares most keys with others as files that are not large; None: there is
    none. A row that is too large itself stays in its file."""
    large = [i for i, live in enumerate(live_files) if is_large(live) and live.rows != 1]
    sharing = [i for i in large if overlap.shared[i] > overlap.sizes[i]]
    if not sharing:
        return None
    live = live_files[max(sharing, key=lambda i: float(overlap.shared[i]))]
    return replace(plan_rewrite(table, sources_of(table, [live])), largest=LARGEST // 4, most_rows=MOST_ROWS // 4)


def _bounded_columns(table: OpenTable, shape: Shape, order: Sequence[str]) -> tuple[str, ...]:
    """The columns of the order of which files have statistics: only these tell a reader where a value is not."""
    configuration = table.snapshot.metadata.get("configuration") or {}
    names = {column.name for column in columns_with_statistics(shape, configuration) if has_bounds(column.type)}
    return tuple(name for name in order if name in names)


def _ranges(table: OpenTable, live_files: Sequence[LiveFile], bounded: Sequence[str]) -> dict[str, KeyRange]:
    """By path the keys of each file, and the bytes of its rows that live. `bounded`: physical names."""
    return {
        live.path: KeyRange(int(live.size * (1 - dead_share(table, live))), ends_of(live.add.get("stats"), bounded))
        for live in live_files
    }
