"""Trails of rows that change their key while a dump reads."""

from __future__ import annotations

import random

from dblog_core.algorithm.arriving_rows import ARRIVED, Look, apply_look, follow_moves, shorten


def test_a_trail_keeps_the_keys_that_a_row_left_until_a_select_has_seen_it_go() -> None:
    trails = follow_moves((), [("1", "2"), ("2", "3"), ("3", "4")], set(), all_read=False)
    assert trails == (("4", "3", "2", "1"),)
    missed = Look(keys={"4", "3", "2", "1"}, touched={"5"}, missed={"4": "2"})
    assert apply_look(trails, missed, set()) == (("4", "3", "2"),)
    nobody_knows = Look(keys={"1"}, touched=set(), missed={"4": None})
    assert apply_look(trails, nobody_knows, set()) == trails


def test_a_row_that_went_on_before_the_select_is_looked_for_where_that_saw_it() -> None:
    assert apply_look([("4", "3")], Look(keys={"3"}, touched=set(), missed={}), set()) == (("4",),)


def test_a_row_that_went_on_inside_the_window_of_its_chunk_is_brought() -> None:
    keys_brought = set[str]()
    assert apply_look([("4", "3")], Look(keys={"3"}, touched={"3", "4"}, missed={}), keys_brought) == ()
    assert keys_brought == {"4"}


def test_a_chunk_of_the_whole_table_leaves_no_trail_but_those_that_it_cannot_judge() -> None:
    look = Look(keys={"1"}, touched=set(), missed={"9": None}, whole=True)
    assert apply_look([("1",), ("4", "3"), ("9",)], look, set()) == (("9",),)


def test_too_many_bytes_are_the_keys_of_fewer_rows() -> None:
    wide = "k" * (ARRIVED // 3)
    assert shorten(((wide + "1", wide + "2"), ("3",))) == ((wide + "1", wide + "2"), ("3",))
    assert shorten(((wide + "1", wide + "2", wide + "3", wide + "4"), ("3",))) == ((wide + "1",), ("3",))
    assert shorten(tuple((f"{wide}{n}",) for n in range(4))) is None


def test_rows_that_never_rest_are_each_brought_by_one_look_that_finds_them() -> None:
    """Many rows over few free keys, each moving between looks, before their SELECTs and inside their windows."""
    dice = random.Random(5)
    rows = {key: key for key in range(40)}  # by key
    keys_brought = set[str]()
    done = set[int]()
    finds = dict.fromkeys(range(40), 0)
    trails: tuple[tuple[str, ...], ...] = ()

    def move(count: int, *, all_read: bool) -> list[tuple[str, str]]:
        nonlocal trails
        moves = []
        for _ in range(count):
            key = dice.choice(list(rows))
            to = dice.choice([k for k in range(60) if k not in rows])
            rows[to] = rows.pop(key)
            moves.append((str(key), str(to)))
        trails = follow_moves(trails, moves, keys_brought, all_read=all_read)
        return moves

    move(200, all_read=False)
    looks = 0
    while trails:
        looks += 1
        keys_looked_for = {key for trail in trails for key in trail}
        move(dice.randrange(3), all_read=True)
        rows_there = {str(key): row for key, row in rows.items() if str(key) in keys_looked_for}
        unseen = move(dice.randrange(3), all_read=True)
        first = {str(key): str(key) for key in rows}  # where each row was for the SELECT
        for key, to in reversed(unseen):
            for now, before in first.items():
                first[now] = key if before == to else before
        touched = {key for pair in unseen for key in pair}
        missed = {now: before for now, before in first.items() if now in touched and before not in rows_there}
        for row in rows_there.values():
            finds[row] += row not in done
        trails = apply_look(trails, Look(keys_looked_for, touched, missed), keys_brought)
        heads = {int(trail[0]) for trail in trails}
        done = {row for key, row in rows.items() if key not in heads}
        assert looks < 60
    assert max(finds.values()) == 1
