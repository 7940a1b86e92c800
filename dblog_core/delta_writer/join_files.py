"""Small files of a table become one, without their dead rows, like the runs of an LSM: each row is written again as
often as the logarithm of the rows says. No reader sees a change; the index learns the new places.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dblog_core.delta_writer.commit import Json, removal
from dblog_core.delta_writer.data_file import data_file
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import column_batches, stored_count

BELOW = 16 << 20
"""Bytes of live rows, compressed, of a file that counts as small."""
TOGETHER = 32 << 20
"""Bytes that are joined at once: decoded, they take some ten times as much memory."""
_ATTEMPTS = 3


def join_files(table: OpenTable, *, below: int = BELOW, together: int = TOGETHER, at_least: int = 2) -> int:
    """Joins the small files if there are `at_least` so many; how many it has joined. 0, too, where others commit all
    the time meanwhile. The new file is in the order of the key."""
    for _ in range(_ATTEMPTS):
        shape = table.refresh()
        small = _small(table, below=below, together=together)
        if len(small) < at_least:
            return 0
        if _commit_joined(table, shape, small):
            return len(small)
    return 0


def _small(table: OpenTable, *, below: int, together: int) -> list[LiveFile]:
    """Files by their live bytes, small ones first, as long as the next one is not larger than all before it."""
    sizes = sorted((_live_bytes(table, live), live.path, live) for live in table.snapshot.files.values())
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


def _commit_joined(table: OpenTable, shape: Shape, small: list[LiveFile]) -> bool:
    none = pa.table({column.name: pa.array([], column.type) for column in shape})  # a file may be without a row group
    parts = [part for live in small for part in _live_rows(table, shape, live)]
    # By key, so that a range of keys lies in few row groups.
    rows = pa.concat_tables([none, *parts]).sort_by([(name, "ascending") for name in table.keys])
    now = table.now_ms()
    # No data change: streams that read the table pass such a commit over.
    actions: list[Json] = [removal(live, now_ms=now, data_change=False) for live in small]
    added = None
    if len(rows):
        configuration = table.snapshot.metadata.get("configuration") or {}
        added = data_file(rows, shape, configuration, table.new_id(), where=str(table.files))
        table.create(added.name, added.data)
        actions.append({"add": added.addition(now_ms=now, data_change=False)})
    metrics = {"numAddedFiles": int(added is not None), "numRemovedFiles": len(small)}
    # If others were faster, no version names the new file, and VACUUM removes it.
    if not table.commit("OPTIMIZE", metrics, actions):
        return False
    if added is not None:
        table.index_file(added, shape)
    return True


def _live_rows(table: OpenTable, shape: Shape, live: LiveFile) -> list[pa.Table]:
    dead = table.dead_rows(live)
    parts = []
    for first, rows in column_batches(table.files, live, shape, shape.names):
        alive = ~dead.contains(np.arange(first, first + len(rows)))
        parts.append(rows.filter(pa.array(alive)))
    return parts
