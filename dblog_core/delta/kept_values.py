"""Values that a change left out, taken from the table's own row: PostgreSQL does not log a large value that stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta.files import TableFiles
from dblog_core.delta.order_guard import Flags, Hits
from dblog_core.delta.shape import Shape
from dblog_core.delta.stored_rows import MOST_BYTES, rows_at


def with_kept(
    files: TableFiles, shape: Shape, hits: Sequence[Hits], rows: pa.Table, kept: Mapping[str, Flags], order: str
) -> tuple[pa.Table, Flags]:
    """The changes' rows with the values that they keep, and which of them keep one that the table does not have.

    `hits`: the live rows to take them from, by the changes' numbers; of several for one change the newest by `order`.
    Raises BatchRefused where the values take more than `MOST_BYTES`.
    """
    count = len(rows)
    wanted = np.logical_or.reduce(list(kept.values()))
    names = list(dict.fromkeys([*kept, order]))
    chosen = [hit for hit in (hit.of(wanted) for hit in hits) if len(hit.rows)]
    parts: list[pa.Table] = []
    for hit in chosen:
        room = MOST_BYTES - sum(part.nbytes for part in parts)
        parts.append(rows_at(files, hit.file, shape, names, hit.rows, most=room))
    place = np.full(count, -1, np.int64)
    if parts:
        stored, asked = pa.concat_tables(parts), np.concatenate([hit.asked for hit in chosen])
        ages = np.asarray(pc.fill_null(stored[order], np.iinfo(np.int64).min))
        oldest_first = np.argsort(ages, kind="stable")
        place[asked[oldest_first]] = oldest_first  # of several for one number the last one stays
        for name, mask in kept.items():
            taken = np.where(mask & (place >= 0), count + place, np.arange(count))
            own = rows[name].cast(shape[name].type)
            both = pa.chunked_array([*own.chunks, *stored[name].chunks], own.type)
            rows = rows.set_column(rows.column_names.index(name), name, both.take(pa.array(taken)))
    return rows, wanted & (place < 0)
