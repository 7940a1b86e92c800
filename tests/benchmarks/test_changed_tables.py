"""A lake of many tables of which a few change: what a round costs is what has changed."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pyarrow as pa

from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at, own_directory, table_location
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.tables.column_types import lake_shape
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.spark.segments import SegmentBuilder, table

TABLES = 2_000
CHANGED = 100
FEATURES = ["deletionVectors", "timestampNtz"]


class ManyTables:
    """Empty lake tables, made without Spark, and their merger: no round of small batches has a job."""

    def __init__(self, path: Path) -> None:
        self._schemas = [table(f"t{n:04d}", id=pa.int64(), v=pa.string(), w=pa.int32()) for n in range(TABLES)]
        staging = Staging(str(path / "staging"), source="shop")
        location = lake_at(str(path / "lake"))
        self._build = SegmentBuilder(staging)
        self._build.create(self._schemas[0], {"id": 0, "v": "first", "w": 0})
        self._build.seal()
        places = {table_location(location, schema.table) for schema in self._schemas}
        offset = self._build.offset
        for schema in self._schemas:
            staging.put_schema(schema)
            _create(table_location(location, schema.table), schema)
        tables = {
            str(schema.table): TableStatus(State.OK, None, 1, offset, version=0, schema=schema.fingerprint)
            for schema in self._schemas
        }
        records = Records(own_directory(location))
        records.finish(LakeStatus(1, 1, offset, "p", 1, 1.0, tables))
        lake = Lake(location, "dblog:shop", open_tables=OpenTables(path / "index"), settled=places)
        self._merger = Merger(staging, lake, records, Withheld(records), compact_after=1_000)
        self._merger.load()

    def round(self, number: int) -> float:
        """Seconds of a round, and of the look for tables to compact after it."""
        for place in range(CHANGED):
            for row in range(3):
                key = {"id": 10 * number + row, "v": "value", "w": row}
                self._build.create(self._schemas[place * TABLES // CHANGED], key)
        self._build.seal()
        began = time.monotonic()
        merged = self._merger.run_round(retry_stopped=False)
        assert self._merger.compact() is None
        seconds = time.monotonic() - began
        assert merged is not None and len(merged.tables) == CHANGED and not any(t.error for t in merged.tables)
        return seconds


def _create(place: Location, schema: TableSchema) -> None:
    configuration = {"delta.enableDeletionVectors": "true", "delta.checkpointInterval": "100"}
    metadata = {
        "id": str(schema.table),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": orjson.dumps(lake_shape(schema).json_value()).decode(),
        "partitionColumns": [],
        "configuration": configuration,
    }
    features = {"readerFeatures": FEATURES, "writerFeatures": FEATURES}
    actions = (
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"metaData": metadata},
        {"commitInfo": {"operation": "CREATE TABLE", "userMetadata": COMMIT_MARK}},
    )
    (place / "_delta_log" / f"{0:020d}.json").create(b"\n".join(map(orjson.dumps, actions)))


def test_round_of_few_changed_tables(tmp_path: Path, scale: Scale, results: Results) -> None:
    lake = ManyTables(tmp_path)
    lake.round(0)  # reads each log for the first time
    seconds = [lake.round(number) for number in range(1, 1 + scale.rounds)]
    title = f"a round of the merge in which {CHANGED} of {TABLES:,} tables have changed"
    results.add(Figure("changed_tables", "Lake", title, "s", {OURS: seconds}, (Bar(6, at_most=True),)))
