"""Works in which the log left columns out, folded on the driver some keys at a time (`event_buckets`).

the events of some buckets -> folded (`PortionFold`) -> to the local disk -> parts, no two of which share a key
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import LakeError
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import fold_in_parts
from dblog_core.lake_engine.events.event_buckets import Bucket, EventBuckets
from dblog_core.lake_engine.events.folded_rows import WITHHOLD
from dblog_core.lake_engine.events.portion_fold import PortionFold
from dblog_core.model import sizes
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.rows.table_spool import SpooledTables
from dblog_core.staging import Staging

PORTION = 32 << 20
"""Decoded bytes of events that are folded at a time."""
MOST_HELD_KEYS = 2_000_000
MOST_HELD_BYTES = 512 << 20
"""Of rows that changes of key lead between, all of which are in memory at once."""


class SpooledParts(SpooledTables):
    """Folded rows of a work in parts on the local disk; no two parts have a key in common."""

    withheld = 0
    """Rows with a value that nobody knows, whatever the table has."""


def fold_buckets(staging: Staging, work: Work, schema: TableSchema) -> SpooledParts:
    """The folded rows of the work.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError where the local
    disk has no room, or memory none for keys that changes of key lead between.
    """
    with fold_in_parts.ONE_AT_A_TIME:
        buckets = EventBuckets(staging, work, schema)
        parts = SpooledParts()
        for group in buckets.groups():
            rows = _fold_group(buckets, group, schema)
            parts.withheld += int(pc.sum(pc.equal(rows["op"], WITHHOLD)).as_py())
            count = max(1, len(rows) * fold_in_parts.PART_BYTES // max(rows.nbytes, 1))
            for first in range(0, len(rows), count):
                parts.append(rows.slice(first, count))
        return parts


def _fold_group(buckets: EventBuckets, group: Bucket, schema: TableSchema) -> pa.Table:
    """The folded rows of these events, in portions that follow one another."""
    fold = PortionFold(schema)
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for events in group:
        if waiting_bytes >= PORTION:
            # All of a portion is older than all that follows, which begins with these events.
            rows = pa.concat_tables(waiting)
            is_older = pc.less(rows["offset"], events.first)
            fold.add_portion(rows.filter(is_older))
            waiting = [rows.filter(pc.invert(is_older))]
            waiting_bytes = waiting[0].nbytes
            _check_room(fold, waiting_bytes, schema)
        waiting.append(buckets.read(events))
        waiting_bytes += events.spooled.nbytes
    fold.add_portion(pa.concat_tables(waiting))
    _check_room(fold, 0, schema)
    return fold.fold_rows()


def _check_room(fold: PortionFold, waiting_bytes: int, schema: TableSchema) -> None:
    if fold.keys > MOST_HELD_KEYS or fold.nbytes + waiting_bytes > MOST_HELD_BYTES:
        raise LakeError(
            f"changes of key lead between {fold.keys:,} rows of one work, which have no room in memory together: at "
            f"most {MOST_HELD_KEYS:,} rows and {sizes.text(MOST_HELD_BYTES)} have",
            where=str(schema.table),
            fix=f"run `dblog reset {quote_for_shell(schema.table)}`: the table is built again by a dump",
        )
