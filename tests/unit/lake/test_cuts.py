"""Which cut a question means, found in the Delta log; and a row of a merge is there once."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.errors import LakeError, LeaseLost, RequestError
from dblog_core.lake import cuts
from dblog_core.lake.cuts import At, Cut
from dblog_core.lake.lake_status import lake_at
from dblog_core.lake.merge_plan import Span
from dblog_core.lake_engine.merging import cuts as written
from dblog_core.lake_engine.merging.merge_records import Intent
from dblog_core.lake_engine.tables import checkpoints
from dblog_core.storage.location import Location

APP = "dblog:shop:cuts"
TIME = pa.timestamp("us", tz="UTC")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass
class Lake:
    """A lake that has nothing but cuts."""

    location: Location
    incomplete: Mapping[str, str] = field(default_factory=dict)
    table: AppendedTable = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self, check: Callable[[], None] = lambda: None) -> None:
        self.table = written.open_cuts(cuts.cuts_location(self.location), check)

    def cut(self, number: int, offset: int, micros: int | None, **behind: int) -> None:
        span = Span(number, number, offset, offset, f"p{offset}", micros)
        versions = {"shop.one": number}
        intent = Intent(number, span, {})
        written.append(self.table, intent, versions, behind=behind, incomplete=self.incomplete, app=APP, now=number / 7)

    @property
    def path(self) -> str:
        return str(cuts.cuts_location(self.location))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(lake_at(str(tmp_path)))


def time(micros: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


def test_a_cut_comes_back_as_it_was_written(lake: Lake) -> None:
    lake.incomplete = {"shop.three": "it waits for dump d1"}
    lake.cut(1, 10, 1_700_000_000_123_456, **{"shop.two": 4})
    newest = cuts.find_cut(lake.location)
    assert newest.next_cut is None
    assert newest.cut == Cut(
        number=1,
        offset=10,
        position="p10",
        commit_time=time(1_700_000_000_123_456),
        merged_at=time(142857),
        tables={"shop.one": 1},
        behind={"shop.two": 4},
        incomplete={"shop.three": "it waits for dump d1"},
    )
    assert cuts.cut_of(lake.location, 1) == newest.cut


def test_a_merge_has_one_row_however_often_it_is_finished(lake: Lake) -> None:
    for number in (1, 1, 2, 2):
        lake.cut(number, number * 10, number)
    assert DeltaTable(lake.path).to_pyarrow_table()["cut"].to_pylist() in ([1, 2], [2, 1])


@pytest.mark.parametrize("is_shut_out", [True, False])
def test_the_open_table_takes_no_second_row_of_a_merge(lake: Lake, is_shut_out: bool) -> None:
    """It is paused before its commit, and another one adds the row: whoever has lost the lake for it is stopped."""
    other = Lake(lake.location)
    lake.cut(1, 10, 1)

    def check() -> None:
        other.cut(2, 20, 2)
        if is_shut_out:
            raise LeaseLost("another merge has taken the lake over")

    lake.open(check)
    with pytest.raises(LeaseLost) if is_shut_out else nullcontext():
        lake.cut(2, 20, 2)
    assert sorted(DeltaTable(lake.path).to_pyarrow_table()["cut"].to_pylist()) == [1, 2]


def test_a_merge_of_an_older_record_is_told(lake: Lake) -> None:
    lake.cut(5, 50, 5)
    with pytest.raises(LakeError, match="merge 4 left no commit"):
        lake.cut(4, 40, 4)


def test_what_an_older_dblog_did_to_the_table_stays(lake: Lake) -> None:
    """It maintained the table by delta-rs."""
    for number in range(1, 9):
        lake.cut(number, 10 * number, number)
        if number == 5:
            DeltaTable(lake.path).delete("cut < 3")
            DeltaTable(lake.path).optimize.compact()
    numbers = [cuts.cut_of(lake.location, number).offset for number in range(3, 9)]
    assert numbers == [30, 40, 50, 60, 70, 80]


def test_a_table_of_cuts_that_was_removed_or_replaced_is_made_or_read_again(tmp_path: Path) -> None:
    lake = Lake(lake_at(str(tmp_path)))
    for number in (1, 2, 3):
        lake.cut(number, 10 * number, number)
    shutil.rmtree(lake.path)
    lake.cut(4, 40, 4)
    assert cuts.find_cut(lake.location).cut.number == 4
    DeltaTable(lake.path).delete()  # in a version that the open table does not know
    lake.cut(5, 50, 5)
    assert cuts.find_cut(lake.location).cut.number == 5


def test_who_was_shut_out_adds_no_cut(lake: Lake) -> None:
    def refuse() -> None:
        raise LeaseLost("another merge has taken the lake over")

    lake.cut(1, 10, 1)
    lake.open(refuse)
    with pytest.raises(LeaseLost):
        lake.cut(2, 20, 2)
    assert cuts.find_cut(lake.location).cut.number == 1


def test_the_log_of_cuts_gets_checkpoints(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "COMMITS", 4)
    for number in range(1, 7):
        lake.cut(number, 10 * number, number)
    assert (Path(lake.path) / "_delta_log" / f"{4:020d}.checkpoint.parquet").exists()
    lake.open()  # begins with it
    lake.cut(7, 70, 7)
    assert [cuts.cut_of(lake.location, number).offset for number in (1, 7)] == [10, 70]


def test_cuts_of_before_keep_their_table(lake: Lake) -> None:
    """Tables that Spark has made had no column `behind`, and those of an older dblog no `incomplete`."""
    names = {"cut": pa.int64(), "offset": pa.int64(), "position": pa.string(), "commit_time": TIME}
    shape = pa.schema({**names, "tables": pa.map_(pa.string(), pa.int64()), "merged_at": TIME})
    DeltaTable.create(lake.path, shape)
    row = {
        "cut": 1,
        "offset": 10,
        "position": "p",
        "commit_time": None,
        "tables": [("shop.one", 1)],
        "merged_at": EPOCH,
    }
    properties = CommitProperties(app_transactions=[Transaction(APP, 1)])
    write_deltalake(lake.path, pa.Table.from_pylist([row], shape), mode="append", commit_properties=properties)
    lake.cut(2, 20, 2)
    assert cuts.cut_of(lake.location, 1).behind == {} and cuts.find_cut(lake.location).cut.number == 2


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.thorough
def test_the_newest_cut_at_or_before_a_moment_is_found(lake: Lake, seed: int) -> None:
    """Beside a plain search; several cuts a file, clocks that go back, merges that bring no new offset."""
    chance = random.Random(seed)
    plain: list[tuple[int, int, int | None]] = []
    offset = 10
    micros = 1_700_000_000_000_000
    for number in range(1, 25):
        plain.append((number, offset, None if number == 1 else micros))
        lake.cut(*plain[-1])
        offset += chance.choice((0, 1, 7))
        micros += chance.choice((-700, 0, 300, 999, 5_000))
        if number == 15:
            DeltaTable(lake.path).optimize.compact()

    def expected_number(at: At) -> int | None:
        place = (lambda c: c[1]) if isinstance(at, int) else (lambda c: None if c[2] is None else time(c[2]))
        early = [c[0] for c in plain if (value := place(c)) is not None and value <= at]
        return max(early, default=None)

    moments: list[At] = [c[1] + d for c in plain for d in (-1, 0, 1)]
    moments += [time(c[2] + d) for c in plain if c[2] is not None for d in (-1, 0, 1)]
    for at in moments:
        if (number := expected_number(at)) is None:
            with pytest.raises(LakeError, match="no cut ends at or before"):
                cuts.find_cut(lake.location, at)
            continue
        answer = cuts.find_cut(lake.location, at)
        assert (at, answer.cut.number) == (at, number)
        assert (answer.next_cut.number if answer.next_cut else None) == (number + 1 if number < 24 else None)


def test_a_lake_without_a_merge_has_no_cut(lake: Lake) -> None:
    with pytest.raises(LakeError, match="nothing is merged yet"):
        cuts.find_cut(lake.location)
    lake.cut(1, 10, 1)
    with pytest.raises(LakeError, match="no cut 7"):
        cuts.cut_of(lake.location, 7)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("17", 17),
        ("2026-11-21T14:30:00Z", dt.datetime(2026, 11, 21, 14, 30, tzinfo=dt.UTC)),
        ("2026-11-21T16:30:00+02:00", dt.datetime(2026, 11, 21, 14, 30, tzinfo=dt.UTC)),
        ("2026-11-21 14:30", dt.datetime(2026, 11, 21, 14, 30, tzinfo=dt.UTC)),
    ],
)
def test_a_moment_is_an_offset_or_a_time(text: str, at: At) -> None:
    assert cuts.parse_at(text) == at


def test_what_is_no_moment_is_refused() -> None:
    for text in ("yesterday", "-1", "1.5", ""):
        with pytest.raises(RequestError, match="neither an offset nor a time"):
            cuts.parse_at(text)
