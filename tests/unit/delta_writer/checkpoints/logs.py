"""Logs of tests that get checkpoints: how they are made, and what is read of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
from deltalake import DeltaTable

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.checkpoints.checkpoint_writer import write_checkpoint
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import Snapshot
from tests.duckdb_reader import read_delta
from tests.unit.delta_writer.tables import APP, Table, metadata, newest, protocol, schema_string

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS
SETTINGS: dict[str, dict[str, Any]] = {
    "no vectors": {"vectors": False},
    "vectors": {},
    "tracked rows, times in commits, a change data feed": {"tracked": True},
    "mapped columns": {"mapped": True},
    "partitions": {"partitions": ("note",)},
    "partitions of mapped columns": {"partitions": ("note",), "mapped": True},
    "v2 checkpoints": {"reader": ["v2Checkpoint"]},
    "wider types": {"reader": ["typeWidening"]},
    "a check before VACUUM": {"reader": ["vacuumProtocolCheck"]},
}
UNKNOWN_TO_RUST = {"typeWidening", "vacuumProtocolCheck"}
"""Features of tables whose rows delta-rs does not read."""
CLUSTERED = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[["id"]]}', "removed": False}


def files_of(table: Table) -> TableFiles:
    return TableFiles.at(table.location())


def log(table: Table) -> Path:
    return table.path / "_delta_log"


def write(table: Table, now_ms: int = NOW_MS) -> None:
    write_checkpoint(files_of(table), now_ms)


def checkpoint_file(table: Table, version: int | None = None) -> Path:
    return log(table) / f"{newest(table.path) if version is None else version:020d}.checkpoint.parquet"


def hint(table: Table) -> dict[str, Any]:
    return dict(json.loads((log(table) / "_last_checkpoint").read_text()))


def forget_before(table: Table, version: int) -> None:
    """Removes what a cleaning of the log removes once that version has a checkpoint."""
    for file in log(table).iterdir():
        if file.name[:20].isdecimal() and int(file.name[:20]) < version:
            file.unlink()


def content(file: Path) -> set[bytes]:
    """The actions of a checkpoint, without fields that PROTOCOL.md leaves out of checkpoints."""
    rows = [action for action in pq.read_table(file).to_pylist() if action.pop("checkpointMetadata", None) is None]
    for action in rows:
        (action["remove"] or {}).pop("tags", None)
    return {orjson.dumps(_bare(action), option=orjson.OPT_SORT_KEYS) for action in rows}


def _bare(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: _bare(v) for k, v in value.items() if v is not None and k != "dataChange"}


def actions(table: Table, kind: str, version: int | None = None) -> list[dict[str, Any]]:
    rows = pq.read_table(checkpoint_file(table, version)).to_pylist()
    return [row[kind] for row in rows if row[kind] is not None]


def state_of(table: Snapshot) -> tuple[Any, ...]:
    adds = {path: {k: v for k, v in live.add.items() if k != "dataChange"} for path, live in table.files.items()}
    domains = dict(table.domains)
    return table.version, adds, dict(table.txns), table.metadata["configuration"], table.protocol, domains


def check(table: Table) -> None:
    """All readers read what the model says, and the table's properties."""
    by_rust = DeltaTable(str(table.path))
    if not UNKNOWN_TO_RUST.intersection(by_rust.protocol().reader_features or ()):
        assert table.read() == table.model()
    if not (table.mapped and table.partitions):  # DuckDB reads NULL there, of Spark's tables too
        rows = sorted(read_delta(table.path).to_pylist(), key=lambda row: repr(table.key(row)))
        assert rows == table.model(), "as DuckDB reads it"
    assert by_rust.transaction_version(APP) == table.merges
    assert by_rust.metadata().configuration == snapshot.newest(files_of(table)).metadata["configuration"]


def addition(path: str, offset: int | None = None, **fields: Any) -> dict[str, Any]:
    return {"add": {**_file(path, offset), "modificationTime": 0, **fields}}


def removal(path: str, offset: int | None = None, *, days: float | None = None) -> dict[str, Any]:
    """`days`: how long ago it was."""
    when = {} if days is None else {"deletionTimestamp": NOW_MS - int(days * DAY_MS)}
    return {"remove": {**_file(path, offset), **when}}


def _file(path: str, offset: int | None) -> dict[str, Any]:
    """`offset`: that of its deletion vector."""
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 1, "cardinality": 1}
    about = {"path": path, "partitionValues": {}, "size": 1, "dataChange": True}
    return about if offset is None else {**about, "deletionVector": {**vector, "offset": offset}}


def files_in(table: Table, kind: str) -> set[tuple[str, int | None]]:
    """Path and offset of the vector, in the newest version's checkpoint."""
    named_files = [(a["path"], (a["deletionVector"] or {}).get("offset")) for a in actions(table, kind)]
    assert len(set(named_files)) == len(named_files)
    return set(named_files)


def random_log(dice: random.Random, commits: int, now_ms: int = NOW_MS) -> Iterator[list[dict[str, Any]]]:
    """Commits of a table whose files come, go, come back and get vectors."""
    properties = {"delta.deletedFileRetentionDuration": "interval 9 days"}
    yield [protocol("domainMetadata"), metadata(schema_string({"id": "long"}), **properties)]
    live: dict[str, int | None] = {}
    for number in range(1, commits):
        commit: list[dict[str, Any]] = [{"commitInfo": {"timestamp": number}}]
        for path in dice.sample([f"f{i}%20{i}" for i in range(6)] + [f"p=a/f{i}" for i in range(6)], 4):
            change = dice.choice(("another vector", "gone", "another tag"))
            if path in live and change != "another tag":
                commit.append(removal(path, live[path], days=dice.randrange(-40, 12)))
                if change == "gone":
                    del live[path]
                    continue
                live[path] = number if live[path] is None else dice.choice((None, number))
            elif path not in live:
                live[path] = None
            commit.append(addition(path, live[path], tags={"n": str(number)}, stats=f'{{"numRecords":{number}}}'))
        if dice.random() < 0.3:
            commit.append({"txn": {"appId": dice.choice("ab"), "version": number, "lastUpdated": now_ms}})
        if dice.random() < 0.3:
            domain = {"domain": dice.choice("xy"), "configuration": str(number), "removed": dice.random() < 0.4}
            commit.append({"domainMetadata": domain})
        if dice.random() < 0.1:
            commit.append(metadata(schema_string({"id": "long"}), **properties, version=str(number)))
        yield dice.sample(commit, len(commit))


V2_NAME = "checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
