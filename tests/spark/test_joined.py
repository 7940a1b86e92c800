"""Segments that the staging has joined: a merge that stands within them takes what it has not, and nothing twice."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.clock import SystemClock
from dblog_core.staging import segment
from dblog_core.staging.compaction import Compactor
from tests.spark.lakes import TestLake
from tests.spark.segments import table

T = table("t", id=pa.int64(), v=pa.string())
STOOD = 5  # the segment up to which the lake was merged before


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
    assert not (lake.staging.root / "manifests" / f"{STOOD + 1:020d}.json").exists()
    merged = lake.merge_well()
    assert sum(t.rows for m in merged for t in m.tables) == 2 * (18 - STOOD)
    assert sum(t.applied for m in merged for t in m.tables) == 18 - STOOD + 1
    assert lake.rows(T) == [{"id": 1, "v": "v18"}, *({"id": n, "v": "v"} for n in range(2, 19))]
    assert lake.merge_well() == []
