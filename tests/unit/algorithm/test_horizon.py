"""PostgreSQL's horizon lies after every transaction that has begun, not only after those that have ended."""

from __future__ import annotations

import pytest

from dblog_core.algorithm.visibility import Snapshot, Snapshots
from dblog_core.sources.postgres.source import widen_snapshot


@pytest.mark.parametrize(
    ("snapshot", "begun", "wider"),
    [
        ("5:9:5,7", [], "5:9:5,7"),
        ("739:739:", [739], "739:740:739"),
        ("5:9:5,7", [5, 7, 8, 10], "5:11:5,7,9,10"),
        ("739:739:", [3], "739:739:"),
        ("4294967300:4294967300:", [4, 6], "4294967300:4294967303:4294967300,4294967301,4294967302"),
        ("4294967290:4294967290:", [1], "4294967290:4294967298:" + ",".join(map(str, range(4294967290, 4294967298)))),
    ],
)
def test_the_snapshot_ends_after_every_transaction_that_has_begun(snapshot: str, begun: list[int], wider: str) -> None:
    assert widen_snapshot(snapshot, begun) == wider
    narrow = Snapshot.parse(snapshot)
    wide = Snapshot.parse(wider)
    assert all(narrow.sees(x & 0xFFFFFFFF) == wide.sees(x & 0xFFFFFFFF) for x in range(narrow.xmax - 9, wide.xmax + 9))


def test_a_chunk_that_does_not_see_a_transaction_from_before_the_log_is_not_admitted() -> None:
    start = Snapshots(widen_snapshot("739:739:", [739]))
    assert not start.admits("739:750:739")
    assert start.admits("740:750:")
