"""Windows: what is evicted, what survives, and when memory may go."""

from __future__ import annotations

import random

import pytest

from dblog_core.algorithm.eviction import Overlap, Survivor, Touch
from dblog_core.algorithm.visibility import LogOrder, Snapshot, Snapshots
from dblog_core.algorithm.window import TooManyKeys, UnknownWindow, Windows
from dblog_core.model.schema import TableName

T = TableName("shop", "orders")
OTHER = TableName("shop", "items")


def touch(key: int, *unchanged: str, to: int | None = None) -> Touch:
    return Touch((key,), frozenset(unchanged), None if to is None else (to,))


def windows() -> Windows:
    return Windows(LogOrder())


def test_only_events_between_low_and_high_evict() -> None:
    w = windows()
    w.open("outer", T, 0)
    w.record(T, (1, 1), None, [touch(1)])
    w.open("inner", T, 1)
    w.record(T, (2, 2), None, [touch(2)])
    assert set(w.close("inner", None).rows) == {(2,)}
    w.record(T, (3, 3), None, [touch(3)])
    assert set(w.close("outer", None).rows) == {(1,), (2,), (3,)}


def test_rows_arrive_where_a_key_changes_and_columns_are_left_out() -> None:
    w = Windows(Snapshots(None), limit=3)
    w.record(T, (1, 1), 700, [touch(1, "big", to=2)])
    w.record(T, (2, 3), 701, [touch(3, "big", to=4), touch(5, to=6)])
    w.record(OTHER, (4, 4), 702, [touch(7, "big", to=8)])
    assert list(w.moves_after(T, 0)) == [((1,), (2,)), ((3,), (4,))] and list(w.moves_after(T, 1)) == [((3,), (4,))]
    w.record(T, (5, 5), 703, [touch(9, "big", to=10)], arrives=False)
    assert list(w.moves_after(T, 0)) == [], "too many are remembered: a chunk that has not seen them is not placed"


def test_another_tables_events_evict_nothing() -> None:
    w = windows()
    w.open("w", T, 0)
    w.record(OTHER, (1, 1), None, [touch(1)])
    assert w.close("w", None) == Overlap()


def test_both_keys_of_a_key_change_are_evicted() -> None:
    w = windows()
    w.open("w", T, 0)
    w.record(T, (1, 1), None, [touch(1, to=2)])
    overlap = w.close("w", None)
    assert overlap.rows == {(1,): None, (2,): None}
    assert overlap.touched == {(1,), (2,)}


def test_a_truncate_evicts_everything() -> None:
    w = windows()
    w.open("w", T, 0)
    w.record(T, (1, 1), None, None)
    assert w.close("w", None).everything


def test_columns_that_no_event_set_survive_under_the_last_key() -> None:
    w = windows()
    w.open("w", T, 0)
    w.record(T, (1, 1), None, [touch(1, "big", "note")])
    w.record(T, (2, 2), None, [touch(1, "big", to=7)])
    w.record(T, (3, 3), None, [touch(7, "big", "name")])
    assert w.close("w", None).rows == {(1,): Survivor((7,), frozenset({"big"})), (7,): None}


@pytest.mark.parametrize("last", [touch(1), touch(1, "other")])
def test_a_full_image_or_disjoint_columns_leave_nothing(last: Touch) -> None:
    w = windows()
    w.open("w", T, 0)
    w.record(T, (1, 1), None, [touch(1, "big"), last])
    assert w.close("w", None).rows == {(1,): None}


def test_a_new_row_under_a_key_that_was_left_does_not_revive_the_old_one() -> None:
    w = postgres()
    w.open("w", T, 0)
    w.record(T, (1, 3), 100, [touch(1, "big", to=2), touch(1), touch(1, "big")])
    assert w.close("w", "100:101:100").rows == {(1,): Survivor((2,), frozenset({"big"})), (2,): None}


def test_nothing_survives_of_a_row_that_may_be_another_one_under_a_key_that_was_left() -> None:
    w = windows()
    w.open("w", T, 0)
    w.record(T, (1, 2), None, [touch(1, "big", to=2), touch(1)])  # the SELECT may have come after both
    assert w.close("w", None).rows == {(1,): None, (2,): None}


def test_a_window_that_was_never_opened_is_refused() -> None:
    w = windows()
    with pytest.raises(UnknownWindow):
        w.close("w", None)
    w.open("w", T, 0)
    w.discard("w")
    with pytest.raises(UnknownWindow):
        w.close("w", None)


def test_without_an_open_window_nothing_is_remembered() -> None:
    w = windows()
    assert not w.wants(T)
    w.open("w", T, 0)
    w.record(T, (1, 1), None, [touch(1)])
    w.discard("w")
    assert not w._memory


def test_a_snapshot_sees_what_it_says() -> None:
    s = Snapshot.parse("100:105:100,103")
    assert [x for x in range(98, 107) if s.sees(x)] == [98, 99, 101, 102, 104]


def test_a_32_bit_xid_is_widened_next_to_the_snapshot() -> None:
    s = Snapshot.parse(f"{(5 << 32) + 10}:{(5 << 32) + 12}:")
    assert s.sees(9) and not s.sees(13)
    assert s.sees(0xFFFFFFF0)  # of the epoch before


def postgres() -> Windows:
    return Windows(Snapshots("90:90:"))


def test_an_event_before_low_from_an_unseen_transaction_evicts() -> None:
    w = postgres()
    w.record(T, (1, 1), 100, [touch(1)])
    w.record(T, (2, 2), 101, [touch(2)])
    w.open("w", T, 2)
    assert set(w.close("w", "100:102:100").rows) == {(1,)}


def test_an_event_in_the_window_that_the_select_saw_does_not_evict() -> None:
    w = postgres()
    w.open("w", T, 0)
    w.record(T, (1, 1), 100, [touch(1)])
    assert w.close("w", "101:101:") == Overlap()


def test_a_horizon_forgets_what_every_later_select_sees_and_no_more() -> None:
    w = postgres()
    w.record(T, (1, 1), 100, [touch(1)])
    w.record(T, (2, 2), 101, [touch(2)])
    w.advance_horizon("101:102:101", 2)
    w.open("w", T, 2)
    assert set(w.close("w", "100:102:100,101").rows) == {(2,)}
    assert w.earliest_unseen(9) == 1


def test_a_chunk_of_a_standby_goes_by_the_logs_order_beside_those_that_have_a_snapshot() -> None:
    w = postgres()
    w.record(T, (1, 1), 100, [touch(1)])
    w.open("standby's", T, 1)
    w.open("primary's", T, 1)
    w.record(T, (2, 3), 101, [touch(2, "big", to=5), touch(2, "big")])
    w.advance_horizon("102:102:", 3)
    rows = w.close("standby's", None).rows
    assert rows == {(2,): None, (5,): None}, "its row may be the later one, of which nothing survives"
    assert w.close("primary's", "100:102:100").rows == {(1,): None}
    assert not w._memory


def test_a_window_opened_before_the_horizon_keeps_its_memory() -> None:
    w = postgres()
    w.record(T, (1, 1), 100, [touch(1)])
    w.open("early", T, 1)
    w.advance_horizon("102:102:", 5)
    w.open("late", T, 5)
    assert set(w.close("early", "100:101:100").rows) == {(1,)}
    assert w.close("late", "102:102:") == Overlap()
    assert not w._memory


def test_a_chunk_must_see_all_that_ran_when_the_log_was_opened() -> None:
    start = Snapshots("90:95:91")
    assert not start.admits("94:99:94")
    assert start.admits(None), "a standby has replayed what was logged before the window"
    assert start.admits("95:99:96")
    start.advance_horizon("94:99:94")
    assert start.start == "90:95:91"
    start.advance_horizon("95:99:96")
    assert start.start is None
    assert not start.admits("94:99:94"), "a window that was open before the horizon may be older than it"


def test_more_keys_than_are_remembered_refuse_the_chunks_that_did_not_see_them() -> None:
    w = Windows(Snapshots("90:90:"), limit=3)
    w.open("old", T, 0)
    w.record(T, (1, 2), 100, [touch(1), touch(2)])
    w.record(T, (3, 4), 101, [touch(3), touch(4)])
    w.record(OTHER, (5, 5), 101, [touch(5)])
    with pytest.raises(TooManyKeys):
        w.close("old", "100:102:100,101")
    with pytest.raises(UnknownWindow):
        w.close("old", "100:102:100,101")
    w.open("new", T, 5)
    w.record(T, (6, 6), 103, [touch(6)])
    assert set(w.close("new", "102:104:103").rows) == {(6,)}, "what this one did not see is remembered"
    assert w.earliest_unseen(9) == 0, "what is not remembered is not forgotten"


def test_a_window_that_stays_open_does_not_remember_each_transaction_that_is_lost() -> None:
    w = Windows(LogOrder(), limit=3)
    w.open("old", T, 0)
    for offset in range(1, 1_001):
        w.record(T, (offset, offset), None, [touch(offset)])
    assert len(w._memory[T]) <= 5, "those that are lost are one, beside those that are not"
    with pytest.raises(TooManyKeys):
        w.close("old", None)


def test_transactions_that_are_lost_on_both_sides_of_a_low_watermark_are_told_apart() -> None:
    w = Windows(LogOrder(), limit=3)
    w.open("old", T, 0)
    for offset in range(1, 9):
        if offset == 5:
            w.open("new", T, 4)
            w.open("probe", T, 4)
        w.record(T, (offset, offset), None, [touch(offset)])
    with pytest.raises(TooManyKeys):
        w.close("new", None)
    w.open("later", T, 8)
    w.record(T, (9, 9), None, [touch(9)])
    assert w.close_probe("probe", None) == 4
    assert set(w.close("later", None).rows) == {(9,)}, "it has seen all that is lost"
    assert w.close_probe("old", None) == 0


def test_a_window_that_stays_open_does_not_remember_each_transaction_that_postgres_has_shown_meanwhile() -> None:
    w = Windows(Snapshots(None), limit=3)
    w.open("old", T, 0)
    for n in range(1, 3_001):
        w.record(T, (n, n), 100 + n, [touch(n)])
        if n % 10 == 0:  # transaction 90 runs all the time, and each tenth is logged and not shown for a while
            w.advance_horizon(f"90:{101 + n}:90,{100 + n}", n)
    assert len(w._memory[T]) <= 40, "those that are lost are a few, beside those that are not"
    w.open("new", T, 3_000)
    w.record(T, (3_001, 3_001), 3_200, [touch(7)])
    assert set(w.close("new", "90:3201:90,3200").rows) == {(7,)}, "it has seen all that is lost"
    with pytest.raises(TooManyKeys):
        w.close("old", "90:500:90")


class Beside:
    """A memory that joins what is lost, beside a twin that does not; the same happens to both."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice = random.Random(seed)
        self.joining, self.twin = (Windows(Snapshots(None), limit=2) for _ in range(2))
        monkeypatch.setattr(self.twin, "_join_lost", lambda table, memory, join: memory)
        # hidden: committed, and logged, and not shown yet
        self.running = set[int]()
        self.hidden = set[int]()
        self.xid = 1000
        self.offset = 0
        self.step = 0
        self.horizon_at = 0
        self.windows: dict[str, tuple[int, str]] = {}  # when it was opened, and a snapshot of then
        self.joined = False

    def snapshot(self) -> str:
        still = sorted(self.running | self.hidden)
        return f"{still[0] if still else self.xid + 1}:{self.xid + 1}:{','.join(map(str, still))}"

    def go_on(self) -> None:
        self.step += 1
        self.dice.choice((self.begin, self.commit, self.commit, self.show, self.open, self.close, self.horizon))()
        self.joined |= len(self.joining._memory.get(T, ())) < len(self.twin._memory.get(T, ()))

    def begin(self) -> None:
        self.xid += 1
        self.running.add(self.xid)

    def commit(self) -> None:
        if self.running:
            ended = self.dice.choice(sorted(self.running))
            self.running.discard(ended)
            self.hidden.add(ended)
            self.offset += 1
            for w in (self.joining, self.twin):
                w.record(T, (self.offset, self.offset), ended, [touch(self.offset)])

    def show(self) -> None:
        if self.hidden:
            self.hidden.discard(self.dice.choice(sorted(self.hidden)))

    def open(self) -> None:
        if len(self.windows) < 3:
            self.windows[f"w{self.step}"] = self.step, self.snapshot()
            for w in (self.joining, self.twin):
                w.open(f"w{self.step}", T, self.offset)

    def horizon(self) -> None:
        at = self.snapshot()
        self.horizon_at = self.step
        for w in (self.joining, self.twin):
            w.advance_horizon(at, self.offset)

    def close(self) -> None:
        if self.windows:
            name = self.dice.choice(sorted(self.windows))
            opened, then = self.windows.pop(name)
            seen = self.dice.choice((self.snapshot(), then, None))
            judged_rows, expected = (close_window(w, name, seen) for w in (self.joining, self.twin))
            if judged_rows != "too many" or opened > self.horizon_at or seen != then:
                assert judged_rows == expected


@pytest.mark.parametrize("seed", range(40))
def test_what_is_lost_is_judged_joined_as_it_is_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that one takes the other takes too; but what was read before the last horizon may be read again."""
    beside = Beside(seed, monkeypatch)
    for _ in range(400):
        beside.go_on()
    assert beside.joined


def close_window(w: Windows, name: str, snapshot: str | None) -> object:
    try:
        return w.close(name, snapshot)
    except TooManyKeys:
        return "too many"
