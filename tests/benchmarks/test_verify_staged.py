"""What a verification costs of which millions of rows are staged and not merged yet: its first answer, which folds all
of them, and those that follow for a few keys."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from dblog_core.lake.lake_status import read_status
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.staging.row_format import log_schema
from dblog_core.verify.direct.judge import DirectJudge
from dblog_core.verify.direct.not_direct import NotDirect
from dblog_core.verify.exchange import Ask, Desk, Pin, Task
from spark_jobs.delta_tables import log
from spark_jobs.verify import answer_task
from spark_jobs.verifying.compare_hashes import Judge
from tests.benchmarks.results import OURS, Figure, Results
from tests.benchmarks.scale import Scale
from tests.spark.lakes import TestLake
from tests.spark.segments import table

T = table("t", id=pa.int64(), amount=pa.decimal128(12, 2), city=pa.string(), note=pa.string(), n=pa.int32())
SEGMENT = 100_000  # rows
IN_LAKE = 100_000  # rows
STAGED = {
    "quick": (1_000_000,),
    "usual": (3_000_000, 6_000_000),
    "full": (3_000_000, 6_000_000, 12_000_000),
}
"""Rows, by the scale."""

CHOSEN = 1_000  # keys
ANSWERS = 3
"""For the same chosen keys, each after some more rows."""

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Seconds:
    first: float
    later: list[float]
    peak: int


class Backlog:
    """A small lake, and staged rows on top: of its keys, or each of a new one (`growing`)."""

    def __init__(self, spark: SparkSession, path: Path, *, growing: bool) -> None:
        self.lake = TestLake(spark, Staging(str(path / "staging"), source="shop"), path / "lake")
        self.desk = Desk(self.lake.staging.storage, "tmp/verify-bench")
        self._growing = growing
        self._versions = np.zeros(0, np.int64)
        self._add(np.arange(IN_LAKE), "c")
        self.lake.merge_well()
        self._dice = np.random.default_rng(1)

    def stage(self, rows: int) -> None:
        """More changes, in segments."""
        for _ in range(max(1, rows // SEGMENT)):
            count = min(rows, SEGMENT)
            keys = len(self._versions)
            self._add(np.arange(keys, keys + count) if self._growing else self._dice.integers(0, keys, count), "u")

    def task(self, since: int, chosen: Keys | None = None) -> Task:
        """The source is as all that is staged says."""
        keys = np.arange(len(self._versions)) if chosen is None else chosen
        parts = [keys[start : start + SEGMENT] for start in range(0, len(keys), SEGMENT)]
        hashes = np.concatenate([hash_image(image(part, self._versions[part])) for part in parts])
        batch = pa.record_batch({"id": pa.array(keys), HASH: pa.array(hashes)})
        file = self.desk.put_rows(f"h{time.monotonic_ns()}", batch)
        self.desk.store([file])
        upto = self.lake.build.offset
        return Task(Ask.COMPARE, T, self.pin(), (file,), since, upto, for_chosen_keys=chosen is not None)

    def pin(self) -> Pin:
        status = read_status(self.lake.location)
        version = log.version(self.lake.table(T))
        assert status is not None and version is not None
        place = status.tables[str(T.table)]
        return Pin(version, place.offset, place.segment, self.lake.build.offset)

    def chosen(self) -> Keys:
        return self._dice.choice(len(self._versions), CHOSEN, replace=False)

    def _add(self, keys: Keys, op: str) -> None:
        build = self.lake.build
        first = build.next(len(keys))
        offsets = np.arange(first, first + len(keys))
        self._versions.resize(max(len(self._versions), int(keys.max()) + 1), refcheck=False)
        self._versions[keys] = offsets
        build.batch(T, lines(keys, offsets, op))
        build.seal()


def image(keys: Keys, versions: Keys) -> pa.StructArray:
    """Rows as they are after the events at these offsets."""
    text = pa.array(versions).cast(pa.string())
    columns = {
        "id": pa.array(keys),
        "amount": pa.array(versions % 1_000_000).cast(pa.decimal128(21, 2)),
        "city": pa.array(np.array(["Berlin", "Lagos", "Paris"])[versions % 3]),
        "note": pc.binary_join_element_wise("leave it with the neighbours if nobody opens", text, " "),
        "n": pa.array((versions % 1000).astype(np.int32)),
    }
    return pa.StructArray.from_arrays([columns[c.name].cast(c.type) for c in T.columns], fields=list(T.arrow))


def hash_image(rows: pa.StructArray) -> Keys:
    return hash_rows({name: rows.field(name) for name in T.arrow.names}, T)


def lines(keys: Keys, offsets: Keys, op: str) -> pa.RecordBatch:
    """As the log stages them."""
    shape = log_schema(T)
    constants = {"op": op, "origin": "log", "transaction": "t", "position": "p", "commit_time": 0, "key_only": False}
    columns: dict[str, pa.Array] = {"offset": pa.array(offsets), "after": image(keys, offsets)}
    for field in shape:
        if field.name not in columns and field.name in constants:
            columns[field.name] = pa.repeat(pa.scalar(constants[field.name]), len(keys)).cast(field.type)
        elif field.name not in columns:
            columns[field.name] = pa.nulls(len(keys), field.type)
    return pa.RecordBatch.from_arrays([columns[field.name] for field in shape], schema=shape)


class Side:
    """As `LakeSide`, with Spark in this process."""

    def __init__(self, backlog: Backlog, spark: SparkSession) -> None:
        lake = backlog.lake
        self._lake = lake.location
        self._direct = DirectJudge(lake.staging, lake.location, backlog.desk)
        self._spark = Judge(spark, lake.staging, backlog.desk)
        self.asked_spark = 0

    def ask(self, task: Task) -> float:
        began = time.monotonic()
        try:
            answer = self._direct.answer(task)
        except NotDirect:
            self.asked_spark += 1
            answer = answer_task(self._spark, task, self._lake)
        assert not (answer.missing or answer.extra or answer.different or answer.undecided), answer
        return time.monotonic() - began


def measure(backlog: Backlog, side: Side) -> Seconds:
    since = backlog.lake.build.offset
    backlog.stage(1_000)
    seconds = side.ask(backlog.task(since))
    later = []
    chosen = backlog.chosen()
    for _ in range(ANSWERS):
        since = backlog.lake.build.offset
        backlog.stage(1_000)
        later.append(side.ask(backlog.task(since, chosen)))
    return Seconds(seconds, later, psutil.Process().memory_info().rss)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("growing", [False, True], ids=["hot", "growing"])
def test_verify_with_millions_of_staged_rows(
    growing: bool, spark: SparkSession, tmp_path: Path, scale: Scale, results: Results
) -> None:
    backlog = Backlog(spark, tmp_path, growing=growing)
    staged = 0
    for rows in STAGED[scale.name]:
        backlog.stage(rows - staged)
        staged = rows
        side = Side(backlog, spark)
        seconds = measure(backlog, side)
        print(f"\n{rows:,} staged, {side.asked_spark} times Spark: {seconds}")
        what = "each of a new key" if growing else f"of {IN_LAKE:,} keys"
        title = f"verify, {rows:,} staged rows, {what}"
        name = f"verify_staged_{'growing' if growing else 'hot'}_{rows // 1_000_000}"
        results.add(Figure(name, "Verify", f"{title}: the first answer", "s", {OURS: [seconds.first]}))
        later = f"{title}: an answer for {CHOSEN:,} keys"
        results.add(Figure(f"{name}_keys", "Verify", later, "s", {OURS: seconds.later}))
