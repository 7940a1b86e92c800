"""A table stays in doubt until the log proves that no row has met another description, or is dumped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.capture.healing.doubts import Doubts
from dblog_core.capture.healing.logged_rows import LoggedRows
from dblog_core.interfaces import Moment
from dblog_core.model.events import Transaction
from dblog_core.model.table_stamp import TableStamp

MOODS = {"5": "sad", "6": "glad"}
LISTED = (("id", 23, -1), ("m", 20_000, -1), ("w", 25, -1))
BEGINS = 10
"""The last offset before the term."""


def stamp(
    *, id_written: str = "700", labels: dict[str, str] = MOODS, writes: dict[str, str] | None = None, **columns: Any
) -> TableStamp:
    mood = [2, labels, 20_000, -1, "700", 20_000, "f", writes or dict.fromkeys(labels, "690"), True]
    usual = {"id": [1, {}, 23, -1, id_written], "m": mood, "w": [3, {}, 25, -1, "700"]}
    return TableStamp.from_json({"table": 9, "columns": {**usual, **columns}, "files": {"9": 40}})


BASE = stamp()
NOT_NULL = stamp(id_written="801")
BACK_AGAIN = stamp(writes={"5": "690", "6": "801"})
LABEL_MORE = stamp(labels={**MOODS, "7": "mad"})
RENAMED = stamp(labels={**MOODS, "6": "mad"}, writes={"5": "690", "6": "801"})


class World:
    """A term's rows of one table, and the doubts of looks at its stamps."""

    def __init__(self) -> None:
        self.rows = LoggedRows(BEGINS)
        self.rows.know_earlier(set())
        self.doubts = Doubts(self.rows)
        self.doubts.add({}, {"t": BASE}, None)
        self.place = 0
        self.offset = BEGINS
        self.present = Moment("100:100:", "1")

    def log(self, *moods: str | None, listed: Any = LISTED, xid: int = 900) -> None:
        self.rows.add_list("t", listed, self.offset)
        self.offset += len(moods)
        values = pa.StructArray.from_arrays([pa.array(moods, pa.string())], ["m"])
        self.rows.add_rows("t", self.offset, values, [Transaction("", "", 0, xid)])

    def look(self, now: TableStamp, *, since: int | None = BEGINS, before: TableStamp = BASE) -> None:
        self.doubts.add({"t": before}, {"t": now}, since)
        self.doubts.look(lambda: self.present)

    def settle(self, place: int = 1) -> set[str]:
        self.place = place
        return self.doubts.settle(lambda end: self.place >= int(end))[0]

    @property
    def in_doubt(self) -> bool:
        return bool(self.doubts.stamps_before)


@pytest.mark.parametrize("now", [NOT_NULL, BACK_AGAIN, LABEL_MORE])
def test_a_table_without_rows_meanwhile_needs_no_dump(now: TableStamp) -> None:
    world = World()
    world.log("sad")
    world.look(now, since=world.offset)
    assert world.settle() == set() and not world.in_doubt


@pytest.mark.parametrize(
    ("listed", "is_dumped"),
    [
        (LISTED, False),
        ((LISTED[0], LISTED[2], LISTED[1]), True),  # the names had changed places
        ((("id", 26, -1), *LISTED[1:]), True),  # the type was another one
        (LISTED[:2], True),
        ((*LISTED, ("x", 25, -1)), True),
        (None, True),  # wal2json
    ],
)
def test_rows_prove_what_they_mean_by_the_columns_that_the_log_lists(listed: Any, is_dumped: bool) -> None:
    world = World()
    world.log("sad")
    world.log("sad", listed=listed)
    world.log("sad")
    world.look(NOT_NULL)
    assert world.settle(0) == set() and world.in_doubt, "the log is not read up to the look"
    assert world.settle() == ({"t"} if is_dumped else set()) and not world.in_doubt


def test_rows_under_the_former_type_mean_the_same() -> None:
    world = World()
    now = stamp(w=[3, {}, 1043, -1, "801"])
    world.log("sad")
    world.log("sad", listed=(*LISTED[:2], ("w", 1043, -1)))
    world.look(now)
    assert world.settle() == set()


def test_nothing_is_proven_where_a_column_was_dropped_as_another_was_written() -> None:
    world = World()
    columns = {name: column for name, column in NOT_NULL.columns.items() if name != "w"}
    world.log("sad", listed=LISTED[:2])
    world.look(replace(NOT_NULL, columns=columns))
    assert world.settle() == {"t"}


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_column_that_came_and_went_asks_for_a_dump_if_there_are_rows(has_rows: bool) -> None:
    world = World()
    before = replace(BASE, dropped=(4,))
    now = replace(stamp(x=[6, {}, 25, -1, "801"]), dropped=(4, 5))
    if has_rows:
        world.log("sad", listed=(*LISTED, ("x", 25, -1)))
    world.look(now, before=before)
    assert world.settle() == ({"t"} if has_rows else set()) and not world.in_doubt
    world.log("sad")
    world.look(now, before=replace(now, dropped=(4,)), since=world.offset - 1)
    assert world.settle() == set()
    world.look(now, before=replace(now, dropped=None), since=world.offset - 1)
    assert not world.in_doubt, "of a former version nobody knows"


def test_a_column_that_is_dropped_or_added_leaves_no_doubt() -> None:
    world = World()
    world.log("sad")
    world.look(replace(BASE, columns={name: BASE.columns[name] for name in ("id", "m")}))
    assert not world.in_doubt
    world.look(stamp(x=[4, {}, 25, -1, "801"]))
    assert not world.in_doubt


@pytest.mark.parametrize(("mood", "is_dumped"), [("sad", False), (None, False), ("mad", True), ("other", True)])
def test_a_new_label_asks_for_a_dump_if_rows_hold_one_that_was_not_there(mood: str | None, is_dumped: bool) -> None:
    world = World()
    world.log("glad", mood)
    world.look(LABEL_MORE)
    assert world.settle() == ({"t"} if is_dumped else set())
    world.log("mad")
    world.look(replace(LABEL_MORE, files={"9": 41}), before=LABEL_MORE, since=BEGINS)
    assert world.settle() == set()


def test_a_label_that_was_written_asks_for_a_dump_if_there_are_rows() -> None:
    world = World()
    world.log("sad")
    world.look(BACK_AGAIN)
    assert world.settle() == {"t"} and not world.in_doubt


@pytest.mark.parametrize(
    "disturb",
    [
        lambda world: world.rows.add_chunk("t", world.offset),
        lambda world: world.rows.know_earlier({"t"}),
        lambda world: world.rows.know_earlier(None),
    ],
)
@pytest.mark.parametrize("now", [NOT_NULL, BACK_AGAIN, LABEL_MORE])
def test_rows_of_a_dump_or_of_an_earlier_term_prove_nothing(now: TableStamp, disturb: Callable[[World], None]) -> None:
    world = World()
    world.log("sad")
    disturb(world)
    world.look(now, since=BEGINS - 1)
    assert world.settle() == {"t"}
    world.look(now, since=None)
    assert world.settle() == {"t"}, "nobody knows since when"


def test_a_transaction_that_was_open_while_a_label_was_renamed_asks_for_another_dump() -> None:
    world = World()
    world.present = Moment("90:100:90", "1")
    world.look(RENAMED)
    assert world.settle() == set() and world.in_doubt, "the stamps have asked for the first dump"
    world.log("glad", xid=95)
    assert world.settle() == {"t"}
    world.log("mad", xid=100)
    assert world.settle() == set()
    world.present = Moment("99:120:99", "2")
    world.doubts.look(lambda: world.present)
    assert world.settle(9) == set() and world.in_doubt
    world.log("glad", xid=(1 << 32) + 99 & 0xFFFFFFFF)
    assert world.settle(9) == {"t"}
    world.present = Moment("110:120:111", "12")
    world.doubts.look(lambda: world.present)
    assert world.settle(9) == set() and world.in_doubt
    assert world.settle(12) == set() and not world.in_doubt


def test_windows_that_were_open_in_the_log_before_the_dump_do_not_count() -> None:
    world = World()
    world.look(RENAMED)
    assert world.doubts.settle(lambda end: False) == (set(), set())
    assert world.doubts.settle(lambda end: True) == (set(), {"t"})
    assert world.doubts.settle(lambda end: True) == (set(), set())


def test_a_second_alteration_keeps_the_first_stamp_and_offset() -> None:
    world = World()
    world.log("sad", listed=(LISTED[0], LISTED[2], LISTED[1]))
    world.look(NOT_NULL)
    world.present = Moment("100:100:", "5")
    world.look(stamp(id_written="802"), before=NOT_NULL, since=world.offset)
    assert world.doubts.stamps_before == {"t": BASE} and world.doubts.earliest(99) == BEGINS
    assert world.settle(4) == set()
    assert world.settle(5) == {"t"}


def test_a_table_that_is_another_one_is_in_no_doubt() -> None:
    world = World()
    world.log("sad")
    world.look(NOT_NULL)
    world.look(replace(BASE, table=10), before=NOT_NULL)
    assert not world.in_doubt
    world.look(NOT_NULL)
    world.doubts.add({"t": NOT_NULL}, {}, BEGINS)
    assert not world.in_doubt
