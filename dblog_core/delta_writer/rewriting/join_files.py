"""Small files of a table become one, without their dead rows, like the runs of an LSM: each row is written again as
often as the logarithm of the rows says. No reader sees a change; the index learns the new places.
"""

from __future__ import annotations

from collections.abc import Sequence

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.rewrite import (
    Rewrite,
    by_partition,
    order_of,
    plan_rewrite,
    rewrite_files,
    sources_of,
)
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import stored_count

BELOW = 16 << 20
"""Bytes of live rows, compressed, of a file that counts as small."""
TOGETHER = 32 << 20
"""Bytes that are joined at once: decoded, they take some ten times as much memory."""


def join_files(table: OpenTable, *, below: int = BELOW, together: int = TOGETHER, at_least: int = 2) -> int:
    """Joins the small files if there are `at_least` so many; how many it has joined. 0, too, where others replace
    them all the time meanwhile. The new file is in order (`order_of`)."""
    rewritten = rewrite_files(table, lambda _: plan_join(table, below=below, together=together, at_least=at_least))
    return 0 if rewritten is None else len(rewritten.sources)


def plan_join(table: OpenTable, *, below: int = BELOW, together: int = TOGETHER, at_least: int = 2) -> Rewrite | None:
    """The join of the small files of the table's snapshot; None where there are not `at_least` so many."""
    of_partitions = by_partition(table.snapshot.files.values())
    small = max((_small(table, files, below=below, together=together) for files in of_partitions), key=len, default=[])
    # So that a range of values lies in few row groups.
    return plan_rewrite(table, sources_of(table, small), order=order_of(table)) if len(small) >= at_least else None


def _small(table: OpenTable, files: Sequence[LiveFile], *, below: int, together: int) -> list[LiveFile]:
    """Those by their live bytes, small ones first, as long as the next one is not larger than all before it."""
    sizes = sorted((_live_bytes(table, live), live.path, live) for live in files)
    chosen: list[LiveFile] = []
    total = 0
    for size, _, live in sizes:
        if size >= below or total + size > together or (len(chosen) > 1 and size > total):
            break
        chosen.append(live)
        total += size
    return chosen


def _live_bytes(table: OpenTable, live: LiveFile) -> int:
    if live.vector is None:
        return live.size
    rows = stored_count(table.files, live, table.dead_rows(live))
    return live.size * (rows - int(live.vector["cardinality"])) // max(rows, 1)
