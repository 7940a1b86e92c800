"""The lines of a history, read file by file: by some columns, and a range of offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.features import check_rows_readable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import Shape, column_names, readable_shape_of
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.statistics import load_json
from dblog_core.delta_writer.stored_rows import row_stretches
from dblog_core.delta_writer.vectors import read_vector
from dblog_core.schema_evolution.renames import Renames
from spark_jobs.delta_tables import alter_table
from spark_jobs.delta_tables.column_types import OFFSET


def read_lines(
    files: TableFiles, names: Sequence[str], *, after: int, upto: int | None, renames: Renames | None
) -> Iterator[pa.Table]:
    """The lines after offset `after`, up to `upto`, some at a time and in no order, by these columns as they are called
    after `renames`; columns that the history does not have are left out.

    Raises LakeError where there is no history, or a file of it is missing; TableRefused where it is not read here.
    """
    newest = snapshot.newest(files)
    where = str(files)
    check_rows_readable(newest.protocol, newest.metadata, where)
    properties = newest.metadata.get("configuration") or {}
    later = renames.after(alter_table.renamed_upto(properties)) if renames else Renames()
    stored = {later.current_name(name): name for name in column_names(newest.metadata)}
    shape = readable_shape_of(newest.metadata, {OFFSET, *(stored[name] for name in names if name in stored)}, where)
    for live in newest.files.values():
        if not _may_have_lines(live, shape, after, upto):
            continue
        dead = read_vector(files, live.vector) if live.vector is not None else RowSet()
        for first, rows in row_stretches(files, live, shape, shape.names):
            offsets = rows[OFFSET]
            within = pc.greater(offsets, after)
            within = within if upto is None else pc.and_(within, pc.less_equal(offsets, upto))
            living = ~dead.contains(np.arange(first, first + len(rows)))
            lines = rows.filter(pc.and_(within, pa.array(living)))
            yield pa.table({name: lines[stored[name]] for name in names if name in stored})


def _may_have_lines(live: LiveFile, shape: Shape, after: int, upto: int | None) -> bool:
    """Whether a file may have lines of these offsets, by its statistics."""
    statistics = load_json(live.add.get("stats"))
    column = shape[OFFSET].physical
    low = statistics.get("minValues", {}).get(column)
    high = statistics.get("maxValues", {}).get(column)
    return not ((isinstance(high, int) and high <= after) or (upto is not None and isinstance(low, int) and low > upto))
