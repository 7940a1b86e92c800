"""Segments that the staging has joined: a merge that stands within them takes what it has not, and nothing twice."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.clock import SystemClock
from dblog_core.lake import merge_plan
from dblog_core.lake_engine.events.fold import fold_work
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.staging import segment
from dblog_core.staging.compaction import Compactor
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.unit.staged import root_of

T = table("t", id=pa.int64(), v=pa.string())
STOOD = 5  # the segment up to which the lake was merged before


@pytest.mark.in_turn("inline")
@pytest.mark.parametrize("inline", [1 << 17, 0], ids=["within manifests", "in files"])
def test_a_merge_within_joined_segments_takes_the_rest_of_them(
    lake: TestLake, inline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", inline)
    build = lake.build
    for n in range(1, 19):
        build.create(T, {"id": n, "v": "v"})
        build.update(T, {"id": 1, "v": f"v{n}"})
        build.seal()
        if n == STOOD:
            lake.merge_well()
    for grace in (600.0, 0.0):  # joined, and then removed
        for _ in Compactor(lake.staging.handle(), SystemClock(), grace=grace).steps():
            pass
    assert not (root_of(lake.staging) / "manifests" / f"{STOOD + 1:020d}.json").exists()
    work = merge_plan.plan_works(lake.staging.manifests(after=STOOD), lambda table: STOOD)[str(T.table)]
    read = [offset for events in read_events(lake.staging, work, T) for offset in events["offset"].to_pylist()]
    assert sorted(read) == list(range(2 * STOOD + 1, 37))
    folded = pa.concat_tables(fold_work(lake.staging, work, T))
    assert min(folded["offset"].to_pylist()) == 2 * STOOD + 1
    merged = lake.merge_well()
    assert sum(t.applied for m in merged for t in m.tables) == 18 - STOOD + 1
    rows = lake.rows(T)
    assert {r["id"]: r["v"] for r in rows} == {1: "v18", **dict.fromkeys(range(2, 19), "v")} and len(rows) == 18
    assert lake.merge_well() == []
