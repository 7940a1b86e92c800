"""The seams: what the engine asks of a source, a state store, an output and a clock.

Real ones and fakes pass one contract. Everybody imports from here.
"""

from __future__ import annotations

from dblog_core.interfaces.clock import Clock, Running, Spawn
from dblog_core.interfaces.json import Json
from dblog_core.interfaces.output import Output, Probed
from dblog_core.interfaces.source import (
    VALUE_BYTES,
    Chunk,
    ChunkReader,
    ChunkTooLarge,
    Hashes,
    KeyOf,
    LogStream,
    Moment,
    Problem,
    RangeHash,
    ReadPlan,
    Source,
    Strain,
    WatermarkTable,
    WatermarkWriter,
    WrittenWitness,
)
from dblog_core.interfaces.state_store import Entry, Lease, LeaseInfo, Nodes, StateStore

__all__ = [
    "VALUE_BYTES",
    "Chunk",
    "ChunkReader",
    "ChunkTooLarge",
    "Clock",
    "Entry",
    "Hashes",
    "Json",
    "KeyOf",
    "Lease",
    "LeaseInfo",
    "LogStream",
    "Moment",
    "Nodes",
    "Output",
    "Probed",
    "Problem",
    "RangeHash",
    "ReadPlan",
    "Running",
    "Source",
    "Spawn",
    "StateStore",
    "Strain",
    "WatermarkTable",
    "WatermarkWriter",
    "WrittenWitness",
]
