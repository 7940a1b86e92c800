"""The chains of staged events: a row may keep values of the key that it had before, so all keys that changes of key
lead between are in one bucket."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.disk_spool import SpooledTables, spooled_array
from dblog_core.rows.key_spreading import Chains, Words, find_chains
from dblog_core.staging import Staging


@dataclass(frozen=True, slots=True)
class KeyHasher:
    """The hashes of events' keys. `kinds`: the types that the keys are hashed in: only so equal ones have equal hashes
    wherever they come from."""

    secret: bytes
    kinds: tuple[pa.DataType, ...]

    def columns(self, events: pa.Table, side: str = "k") -> list[pa.Array]:
        """The key of each event; with `side` m the old one, of a change of key."""
        return [join_chunks(events[f"{side}{i}"].cast(kind)) for i, kind in enumerate(self.kinds)]

    def hash(self, events: pa.Table, side: str = "k") -> Words:
        return hash_keys(self.columns(events, side), self.secret).first


def find_staged_chains(staging: Staging, work: Work, schema: TableSchema, hasher: KeyHasher) -> Chains:
    """The chains of the work: where a row keeps values over a change of its key."""
    changes = SpooledTables()
    changing = tuple(file for file in work.files if file.has_moves and file.has_unchanged)
    for events in read_events(staging, replace(work, files=changing, chunks=()), schema):
        moved = events.filter(pc.and_(events["moved"], events["unchanged"].is_valid()))
        if len(moved):
            changes.append(pa.table({"old": hasher.hash(moved, "m"), "new": hasher.hash(moved)}))
    old = spooled_array(len(changes), np.uint64)
    new = spooled_array(len(changes), np.uint64)
    end = 0
    for rows in changes:
        old[end : end + len(rows)] = np.asarray(rows["old"])
        new[end : end + len(rows)] = np.asarray(rows["new"])
        end += len(rows)
    return find_chains(old, new)
