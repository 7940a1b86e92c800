"""Cuts are forgotten by their age, and the one that the oldest kept moment is read at stays."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from dblog_core.errors import LakeError
from dblog_core.lake import cuts as lookup
from dblog_core.lake.cuts import cuts_location
from dblog_core.lake.lake_status import lake_at
from dblog_core.lake.merge_plan import Span
from dblog_core.lake_engine.merging import cuts
from dblog_core.lake_engine.merging.merge_records import Intent
from dblog_core.lake_engine.tasks import expired_cuts
from dblog_core.lake_engine.tasks.expired_cuts import Kept
from dblog_core.storage.location import Location

DAY = 86_400.0


@pytest.fixture
def lake(tmp_path: Path) -> Location:
    """A lake with five merges, one every hundred seconds, from 1000 on."""
    lake = lake_at(str(tmp_path))
    for number in range(1, 6):
        span = Span(number, number, 10 * number, 10 * number + 9, f"p{number}", number * 1_000_000)
        intent = Intent(number, span, {})
        cuts.append(
            cuts.open_cuts(cuts_location(lake)),
            intent,
            {"shop.a": number},
            behind={},
            incomplete={},
            app="dblog",
            now=900.0 + 100 * number,
        )
    return lake


def _numbers(lake: Location) -> list[int]:
    return sorted(DeltaTable(str(cuts_location(lake))).to_pyarrow_table()["cut"].to_pylist())


@pytest.mark.parametrize(
    ("before", "oldest", "left"),
    [(999.0, 1, 5), (1000.0, 1, 5), (1099.9, 1, 5), (1100.0, 2, 4), (1350.0, 4, 2), (9999.0, 5, 1), (-math.inf, 1, 5)],
)
def test_a_cut_stays_if_a_moment_that_is_kept_is_read_at_it(
    lake: Location, before: float, oldest: int, left: int
) -> None:
    assert expired_cuts.drop(cuts_location(lake), before=before, now=time.time()) == Kept(
        oldest, 900.0 + 100 * oldest, 5 - left
    )
    assert _numbers(lake) == list(range(oldest, 6))
    assert expired_cuts.drop(cuts_location(lake), before=before, now=time.time()) == Kept(
        oldest, 900.0 + 100 * oldest, 0
    )


def test_merges_and_lookups_go_on_afterwards(lake: Location) -> None:
    expired_cuts.drop(cuts_location(lake), before=1250.0, now=time.time())
    span = Span(6, 6, 60, 69, "p6", 6_000_000)
    table = cuts.open_cuts(cuts_location(lake))
    cuts.append(table, Intent(6, span, {}), {"shop.a": 6}, behind={}, incomplete={}, app="dblog", now=1500.0)
    assert lookup.find_cut(lake).cut.number == 6
    assert lookup.find_cut(lake, 55).cut.number == 4 and lookup.cut_of(lake, 3).tables == {"shop.a": 3}
    with pytest.raises(LakeError, match="39"):
        lookup.find_cut(lake, 30)
    with pytest.raises(LakeError, match="no cut 2"):
        lookup.cut_of(lake, 2)


def test_a_lake_without_merges_has_none(tmp_path: Path) -> None:
    assert expired_cuts.drop(cuts_location(lake_at(str(tmp_path))), before=5.0, now=time.time()) == Kept(0, math.inf, 0)


def test_a_damaged_table_of_cuts_is_named(lake: Location, tmp_path: Path) -> None:
    for file in (tmp_path / "_dblog/cuts").glob("*.parquet"):
        file.write_bytes(b"no parquet")
    with pytest.raises(LakeError, match="old cuts cannot be removed") as caught:
        expired_cuts.drop(cuts_location(lake), before=1350.0, now=time.time())
    assert "_dblog/cuts" in caught.value.where


def _versions(log: Path) -> list[int]:
    return sorted(int(file.stem) for file in log.glob("*.json"))


@pytest.mark.parametrize(("hours", "is_removed"), [(0.5, False), (2.0, True)])
def test_log_and_files_of_the_table_of_cuts_stay_for_its_readers(
    lake: Location, hours: float, is_removed: bool
) -> None:
    """A maintenance joins the files and makes a checkpoint; one that is an hour younger removes what was before."""
    place = Path(str(cuts_location(lake)))
    log = place / "_delta_log"
    now = time.time()
    expired_cuts.drop(cuts_location(lake), before=-math.inf, now=now)
    files = set(place.glob("*.parquet"))
    assert len(files) == 6 and 0 in _versions(log)
    expired_cuts.drop(cuts_location(lake), before=-math.inf, now=now + hours * 3600)
    assert (len(set(place.glob("*.parquet"))) == 1) == is_removed and (0 in _versions(log)) != is_removed
    assert _numbers(lake) == [1, 2, 3, 4, 5]
