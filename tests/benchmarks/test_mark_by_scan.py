"""Works that Spark folds: executors scan the keys and write the rows, beside a MERGE of the same work."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_merge import SHAPE, Filled, add_lines, make_changes

_MERGE = "MERGE by Spark"
_ROUNDS = 3


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", [1000, 10])
def test_changes_that_spark_folds(
    spark: SparkSession, tmp_path: Path, share: int, scale: Scale, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of so many changes, all over the table."""
    filled = Filled(spark, tmp_path, scale.lake_rows)
    dice = random.Random(share)
    count = scale.lake_rows // share
    series: dict[str, list[float]] = {OURS: [], _MERGE: []}
    filled.lake.let_scan(monkeypatch)
    for number in range(-1, _ROUNDS):  # round -1 warms both
        changed = make_changes(dice, count, scale.lake_rows)
        for who, seconds in series.items():
            filled.lake.marks = who == OURS
            filled.lake.scans = who == OURS
            took = _merge(filled, changed)
            if number >= 0:
                seconds.append(took)
    title = f"merge of {count:,} changed rows, folded by Spark, into a table of {scale.lake_rows:,}"
    results.add(Figure(f"mark_by_scan_{share}", "Lake", title, "s", series, (Bar(1, _MERGE, at_most=True),)))


def _merge(filled: Filled, changed: pa.RecordBatch) -> float:
    add_lines(filled.lake.build, SHAPE, "u", changed)
    filled.lake.build.seal()
    merger = filled.lake.merger()  # a new one for each way
    began = time.monotonic()
    merged = merger.run_round(retry_stopped=False)
    took = time.monotonic() - began
    assert merged is not None and merged.tables[0].error is None and merged.tables[0].applied == len(changed)
    return took
