"""New rows of a table in data files that no version names yet: one for each partition, with the ids that rows keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dblog_core.delta_writer.data_file import StoredFile, store_rows
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags, Hits
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.stored_rows import row_ids_at

_NO_ID = -1


@dataclass(frozen=True, slots=True)
class NewFile:
    """A written file. `plan`: a digest of which rows of the changes are in it, and of the metadata that it was written
    for; `is_update`: which of its rows replace an older one."""

    plan: bytes
    file: StoredFile
    is_update: Flags


def row_ids(table: OpenTable, shape: Shape, hits: Sequence[Hits], puts: Flags) -> pa.Array:
    """By change the id of the row that it replaces; NULL for one that is new, whose place becomes its id. Rows are
    tracked."""
    assert shape.row_id is not None, "rows are tracked"
    ids = np.full(len(puts), _NO_ID, np.int64)
    for hit in (hit.of(puts) for hit in hits):
        if len(hit.rows):
            ids[hit.change_numbers] = row_ids_at(table.files, hit.file, shape, hit.rows)
    return pa.array(ids, mask=ids == _NO_ID)


def write_new_rows(
    table: OpenTable, rows: pa.Table, is_update: Flags, shape: Shape, plan: bytes, before: Sequence[NewFile]
) -> list[NewFile]:
    """The files of the rows, which the digest `plan` tells from others; the files `before`, of an earlier plan, where
    they have the same rows and are still there. `is_update`: which rows replace an older one."""
    # Others' commits have us plan again; the same rows need no other files.
    if before and all(new.plan == plan and table.files.exists(new.file.name) for new in before):
        return list(before)
    configuration = table.snapshot.configuration
    stored = store_rows(table.files, rows, shape.with_row_ids(), configuration, table.new_id, keys=table.keys)
    return [NewFile(plan, file, is_update[numbers]) for file, numbers in stored]
