"""A table with what dblog does not write stops alone, and continues without a word once it is removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import State, read_status, read_table
from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import table

ITEMS = table("items", id=pa.int64(), v=pa.string())
OTHER = table("other", id=pa.int64())
_FEATURE = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
REFUSED = {
    "constraint": ({"delta.constraints.few": "id < 1000"}, None, "DROP CONSTRAINT few"),
    "append only": ({"delta.appendOnly": "true"}, None, "UNSET TBLPROPERTIES ('delta.appendOnly')"),
    "codec": ({"delta.parquet.compression.codec": "lz4"}, None, "UNSET TBLPROPERTIES ('delta.parquet.compression"),
    "format": ({"delta.parquet.format.version": "2.9.0"}, None, "UNSET TBLPROPERTIES ('delta.parquet.format.version')"),
    "iceberg": (
        {"delta.enableIcebergCompatV2": "true"},
        {**_FEATURE, "writerFeatures": ["deletionVectors", "icebergCompatV2"]},
        "DROP FEATURE icebergCompatV2",
    ),
}


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    return TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")


def alter(lake: TestLake, change: Callable[[dict[str, str]], None], protocol: dict[str, object] | None) -> None:
    """A commit of somebody's that gives the table other properties, and another protocol."""
    log = lake.path / "shop" / "items" / "_delta_log"
    commits = sorted(log.glob("*.json"))
    actions = [orjson.loads(line) for commit in commits for line in commit.read_bytes().splitlines()]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    change(metadata["configuration"])
    protocol = protocol or next(action["protocol"] for action in actions if "protocol" in action)
    info = {"commitInfo": {"operation": "SET TBLPROPERTIES", "operationParameters": {}, "timestamp": 1}}
    lines = [info, {"metaData": metadata}, {"protocol": protocol}]
    (log / f"{len(commits):020d}.json").write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n")


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("is_one_process", [True, False])
def test_a_table_with_what_is_not_written_stops_alone_until_it_is_removed(
    lake: TestLake, what: str, is_one_process: bool
) -> None:
    properties, protocol, fix = REFUSED[what]
    for key in (1, 2):
        lake.build.create(ITEMS, {"id": key, "v": "a"})
    lake.build.seal()
    merger = lake.merger()
    merger.run_round(retry_stopped=False)
    alter(lake, lambda configuration: configuration.update(properties), protocol)
    for number in range(2):
        lake.build.update(ITEMS, {"id": 1, "v": f"b{number}"})
        lake.build.create(OTHER, {"id": number})
        lake.build.seal()
        merger = merger if is_one_process else lake.merger()
        merger.run_round(retry_stopped=True)
        status = read_status(lake.location)
        assert status is not None and status.tables[str(OTHER.table)].state is not State.STOPPED
        assert status.tables[str(ITEMS.table)].state is State.STOPPED
        error = str(status.tables[str(ITEMS.table)].error)
        assert fix in error and str(lake.table(ITEMS)) in error and "merges continue by themselves" in error
        assert [row["v"] for row in lake.rust_rows(ITEMS)] == ["a", "a"]

    def remove(configuration: dict[str, str]) -> None:
        for name in properties:
            del configuration[name]

    alter(lake, remove, None)
    merger = merger if is_one_process else lake.merger()
    merger.run_round(retry_stopped=True)
    status = read_status(lake.location)
    assert status is not None and status.tables[str(ITEMS.table)].state is not State.STOPPED
    assert [row["v"] for row in lake.rust_rows(ITEMS)] == ["b1", "a"]


def test_a_status_that_says_why_spark_wrote_a_table_is_still_read() -> None:
    status = read_table({"state": "ok", "error": None, "segment": 3, "offset": 9, "merge_because": "its feed is on"})
    assert (status.state, status.segment, status.offset) == (State.OK, 3, 9)
