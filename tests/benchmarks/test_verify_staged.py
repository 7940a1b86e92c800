"""What a comparison costs of which millions of rows are in the lake, and millions more are staged and not merged yet:
its first answer, those that follow for a few keys, and its memory, which has a bar."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dblog_core.staging import Staging
from dblog_core.staging.row_format import log_schema
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.verify_child import CHOSEN, Keys, T, image
from tests.spark.segments import SegmentBuilder
from tests.unit.delta_writer.tables import OFFSET, metadata, protocol, schema_string, write_commit

MIB = 1 << 20
SEGMENT = 100_000  # rows
FILE = 1_000_000  # rows
SIZES = {
    "quick": ((100_000, 300_000),),
    "usual": ((100_000, 6_000_000), (10_000_000, 3_000_000)),
    "full": ((100_000, 12_000_000), (10_000_000, 3_000_000), (30_000_000, 10_000_000)),
}
"""Rows of the lake, and staged ones, by the scale."""

MOST_MEMORY = 600 * MIB
DELTA = {"id": "long", "amount": "decimal(12,2)", "city": "string", "note": "string", "n": "integer", OFFSET: "long"}


def make_world(directory: Path, rows: int, staged: int, *, growing: bool) -> None:
    """A lake of so many rows, and changes of them on top (`growing`: rows of new keys)."""
    path = directory / "lake" / "shop" / "t"
    write_commit(path, 0, protocol(), metadata(schema_string(DELTA)))
    adds = []
    for start in range(0, rows, FILE):
        keys = np.arange(start, min(start + FILE, rows))
        columns = {**image(keys, np.zeros_like(keys)), OFFSET: pa.array(np.zeros_like(keys))}
        name = f"{start}.parquet"
        pq.write_table(pa.table(columns), path / name)
        size = (path / name).stat().st_size
        stats = json.dumps({"numRecords": len(keys)})
        add = {"path": name, "size": size, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
        adds.append({"add": {**add, "stats": stats}})
    write_commit(path, 1, *adds)
    versions = np.zeros(rows + (staged if growing else 0), np.int64)
    build = SegmentBuilder(Staging(str(directory / "staging"), source="shop"))
    dice = np.random.default_rng(1)
    for start in range(0, staged, SEGMENT):
        keys = np.arange(rows + start, rows + start + SEGMENT) if growing else dice.integers(0, rows, SEGMENT)
        first = build.next(SEGMENT)
        offsets = np.arange(first, first + SEGMENT)
        versions[keys] = offsets
        build.batch(T, lines(keys, offsets))
        build.seal()
    np.save(directory / "versions.npy", versions)
    (directory / "world.json").write_text(json.dumps({"staged": staged, "upto": build.offset}))


def lines(keys: Keys, offsets: Keys) -> pa.RecordBatch:
    """As the log stages them."""
    shape = log_schema(T)
    constants = {"op": "u", "origin": "log", "transaction": "t", "position": "p", "commit_time": 0, "key_only": False}
    after = pa.StructArray.from_arrays(list(image(keys, offsets).values()), fields=list(T.arrow))
    columns: dict[str, pa.Array] = {"offset": pa.array(offsets), "after": after}
    for field in shape:
        if field.name not in columns and field.name in constants:
            columns[field.name] = pa.repeat(pa.scalar(constants[field.name]), len(keys)).cast(field.type)
        elif field.name not in columns:
            columns[field.name] = pa.nulls(len(keys), field.type)
    return pa.RecordBatch.from_arrays([columns[field.name] for field in shape], schema=shape)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("growing", [False, True], ids=["changes", "growing"])
def test_verify_with_millions_of_staged_rows(growing: bool, tmp_path: Path, scale: Scale, results: Results) -> None:
    for rows, staged in SIZES[scale.name]:
        directory = tmp_path / f"{rows}-{staged}"
        directory.mkdir()
        make_world(directory, rows, staged, growing=growing)
        child = [sys.executable, "-m", "tests.benchmarks.verify_child", str(directory)]
        done = subprocess.run(child, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout.splitlines()[-1])
        what = "each of a new key" if growing else "of keys of the lake"
        title = f"verify, {rows:,} rows in the lake, {staged:,} staged, {what}"
        name = f"verify_staged_{'growing' if growing else 'hot'}_{rows // 1000}_{staged // 1_000_000}"
        results.add(Figure(name, "Verify", f"{title}: the first answer", "s", {OURS: [told["first"]]}))
        later = f"{title}: an answer for {CHOSEN:,} keys"
        results.add(Figure(f"{name}_keys", "Verify", later, "s", {OURS: told["later"]}))
        bars = (Bar(MOST_MEMORY / MIB, at_most=True),)
        memory = Figure(f"{name}_memory", "Verify", f"{title}: memory", "MiB", {OURS: [told["peak"] / MIB]}, bars=bars)
        results.add(memory)
        assert told["peak"] <= MOST_MEMORY, told
