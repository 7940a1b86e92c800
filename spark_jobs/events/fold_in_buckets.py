"""Works in which the log left columns out, folded on the driver some keys at a time (`event_buckets`).

the events of some buckets -> folded (`PortionFold`) -> to the local disk -> parts, no two of which share a key
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.lake.merge_plan import Work
from dblog_core.model.schema import TableSchema
from dblog_core.rows.table_spool import SpooledTables
from dblog_core.staging import Staging
from spark_jobs.events import fold_in_parts, fold_on_driver
from spark_jobs.events.event_buckets import EventBuckets, Events, TooManyChanges
from spark_jobs.events.fold import WITHHOLD
from spark_jobs.events.portion_fold import PortionFold

PORTION = 32 << 20
"""Decoded bytes of events that are folded at a time."""


class SpooledParts(SpooledTables):
    """Folded rows of a work in parts on the local disk; no two parts have a key in common."""

    withheld = 0
    """Rows with a value that nobody knows, whatever the table has."""


def fits_buckets(work: Work) -> bool:
    """Whether the work may be folded so."""
    return (
        fold_on_driver.has_unchanged_toast(work)
        and work.rows <= fold_in_parts.MOST_EVENTS
        and fold_in_parts.have_room(work)
    )


def fold_buckets(staging: Staging, work: Work, schema: TableSchema) -> SpooledParts | None:
    """The folded rows of the work; None where keys that belong together have no room in memory.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError where the local
    disk has no room.
    """
    with fold_in_parts.ONE_AT_A_TIME:
        try:
            buckets = EventBuckets(staging, work, schema)
        except TooManyChanges:
            return None
        parts = SpooledParts()
        for group in buckets.groups():
            rows = _fold_group(buckets, group, schema)
            if rows is None:
                return None
            parts.withheld += int(pc.sum(pc.equal(rows["op"], WITHHOLD)).as_py())
            parts.append(rows)
        return parts


def _fold_group(buckets: EventBuckets, group: Sequence[Events], schema: TableSchema) -> pa.Table | None:
    """The folded rows of these events, in portions that follow one another; None where they have no room."""
    fold = PortionFold(schema)
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    ends = accumulate(group, lambda last, events: max(last, events.last), initial=-1)
    for events, last_before in zip(group, ends, strict=False):
        # A portion may end only where all its events are older than all that follow.
        if waiting_bytes >= PORTION and last_before < events.first:
            fold.add_portion(pa.concat_tables(waiting))
            waiting = []
            waiting_bytes = 0
        waiting.append(buckets.read(events))
        waiting_bytes += events.spooled.nbytes
        if max(waiting_bytes, fold.nbytes) > fold_on_driver.MAX_DECODED or fold.keys > fold_on_driver.MAX_ROWS:
            return None
    fold.add_portion(pa.concat_tables(waiting))
    return fold.fold_rows()
