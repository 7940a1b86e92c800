"""Where the super-changelog may be cut for an output: random lines, cut as small as possible."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dblog_core.interfaces import Json
from dblog_core.outputs.batching import Part, split_parts, split_singly


def _line(offset: int, op: str, transaction: str | None) -> Json:
    return {"offset": offset, "op": op, "transaction": transaction}


def _changelog(chance: random.Random) -> Iterator[Json]:
    """Transactions with new shapes inside them, chunks and ends of dumps between them."""
    offset = 0
    for number in range(30):
        if chance.random() < 0.3:
            for op in chance.choices("rf", k=chance.randrange(1, 6)):
                yield _line(offset := offset + chance.randrange(1, 4), op, None)
        for _ in range(chance.choice((1, 1, 2, 5, 12))):
            if chance.random() < 0.2:
                yield _line(offset := offset + 1, "s", None)
            yield _line(offset := offset + 1, chance.choice("cudt"), f"tx{number}")


def _ends_inside(before: tuple[Json, ...], after: tuple[Json, ...]) -> bool:
    transactions = [line["transaction"] for line in before if line["transaction"]]
    return bool(transactions) and transactions[-1] in {line["transaction"] for line in after}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_all_lines_come_and_a_part_that_ends_parts_no_transaction(seed: int, rows: int) -> None:
    lines = tuple(_changelog(random.Random(seed)))
    pieces = list(split_parts(lines, rows))
    assert tuple(line for part in pieces for line in part.lines) == lines
    assert pieces[-1].ends
    for number, part in enumerate(pieces):
        rest = tuple(line for later in pieces[number + 1 :] for line in later.lines)
        assert not (part.ends and _ends_inside(part.lines, rest))
        assert len(part.lines) <= 2 * rows or part.ends


def test_a_transaction_waits_for_room_only_up_to_twice_the_size() -> None:
    lines = [_line(n, "c", "tx1") for n in range(1, 8)] + [_line(8, "c", "tx2")]
    assert [(len(p.lines), p.ends) for p in split_parts(lines, 4)] == [(7, True), (1, True)]
    assert [(len(p.lines), p.ends) for p in split_parts(lines, 3)] == [(6, False), (2, True)]
    assert [(len(p.lines), p.ends) for p in split_parts(lines, 2)] == [(4, False), (3, True), (1, True)]


def test_a_part_ends_where_one_did_before() -> None:
    lines = [_line(n, "c", f"tx{n}") for n in range(1, 8)]
    assert [[line["offset"] for line in p.lines] for p in split_parts(lines, 5, until=2)] == [[1, 2], [3, 4, 5, 6, 7]]


def test_lines_one_by_one_end_where_their_part_did() -> None:
    lines = tuple(_line(n, "c", "tx1") for n in (1, 2))
    assert list(split_singly(Part(lines, True))) == [Part(lines[:1], False), Part(lines[1:], True)]
    assert not any(part.ends for part in split_singly(Part(lines, False)))
