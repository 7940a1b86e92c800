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


def test_a_table_that_the_log_shows_later_asks_more_of_its_own_chunks_alone() -> None:
    visibility = Snapshots("90:95:")
    visibility.advance_horizon("96:99:")
    assert visibility.start is None
    visibility.show_table("shop.late", "96:120:101")
    assert visibility.admits("100:110:101", "shop.old") and not visibility.admits("100:110:101", "shop.late")
    assert visibility.starts == {"shop.late": "96:120:101"}, "a restart asks the same"
    again = Snapshots(None, visibility.starts)
    assert not again.admits("119:130:119", "shop.late") and again.admits("120:130:", "shop.late")
    again.advance_horizon("110:130:110")
    assert again.starts == {"shop.late": "96:120:101"}
    again.advance_horizon("121:130:")
    assert again.starts == {} and not again.admits("119:130:119", "shop.late"), "an open window may be older"
    assert again.admits(None, "shop.late"), "a standby has replayed what was logged before the window"
