"""Which rows lack values of added columns, told from a merge's share of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dblog_core.lake import merge_plan
from dblog_core.lake.merge_plan import (
    KeptManifests,
    Work,
    lacks_before,
    last_unlogged_rewrite,
    next_sound_span,
    plan_works,
)
from dblog_core.staging import Staging, compaction_blocks
from dblog_core.staging.compaction import Compactor
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.manifest import DataFile, LogMark
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit.compaction_world import Clock
from tests.unit.staged import manifest

Shapes = Sequence[tuple[int, str]]


def file(first: int, shape: str) -> DataFile:
    return DataFile("shop.t", shape, "", 1, 1, "", first, first, has_unchanged=False, has_moves=False)


def work(
    files: Shapes, marks: Shapes = (), ended: Sequence[tuple[int, int | None]] = (), emptied: Sequence[int] = ()
) -> Work:
    """`ended`: the `since` of dumps that finish at 99, each with the first key of its range, or None for a full one;
    `emptied`: where a TRUNCATE lies."""
    newest = max([*files, *marks])[1]
    return Work(
        "shop.t",
        newest,
        tuple(file(*f) for f in files),
        truncates=tuple(LogMark(offset, "t", "shop.t", "", 0) for offset in emptied),
        finished=tuple(LogMark(99, "f", "shop.t", "", 0, since=since, key_from=key) for since, key in ended),
        reshaped=tuple(LogMark(offset, "s", "shop.t", "", 0, schema=shape) for offset, shape in marks),
    )


# A shape is written as the names of its columns, a letter each.
@pytest.mark.parametrize(
    ("planned_work", "known_shape", "lacks"),
    [
        (work([(5, "ab")]), "ab", None),
        (work([(5, "ab")]), None, None),
        (work([(5, "a")]), "ab", None),
        (work([(5, "ab")]), "a", 5),
        (work([(5, "a"), (8, "ab")], [(7, "ab")]), "a", 7),
        (work([(5, "a"), (8, "ab")]), None, 8),
        (work([(9, "ab")], [(3, "a"), (6, "ab")]), "ab", 6),  # it went and came back, as another column
        (work([], [(6, "ab")]), "a", 6),
        (work([(8, "ab")], [(7, "ab")], ended=[(6, None)]), "a", 7),
        (work([(8, "ab")], [(7, "ab")], ended=[(7, 1)]), "a", 7),
        (work([(8, "ab")], [(7, "ab")], ended=[(7, None)]), "a", None),
        # What a TRUNCATE takes lacks nothing any more; a column that is added behind it is lacked by rows between.
        (work([(8, "ab")], [(7, "ab")], emptied=[9]), "a", None),
        (work([(5, "a"), (8, "ab")], [(7, "ab")], emptied=[6]), "a", None),
        (work([(5, "a"), (8, "ab")], [(7, "ab")], emptied=[3]), "a", 7),
        (work([(5, "ab")], emptied=[2]), "a", None),
        (work([(3, "a"), (5, "ab"), (8, "abc")], [(4, "ab"), (7, "abc")], emptied=[2, 4]), "a", 7),
    ],
)
def test_rows_from_before_a_column_was_added_lack_it_until_a_dump_that_began_later(
    planned_work: Work, known_shape: str | None, lacks: int | None
) -> None:
    assert lacks_before(planned_work, known_shape, list) == lacks


def test_a_share_ends_within_segments_that_were_joined() -> None:
    """A late table stops at the end of an earlier merge, which may lie in the middle of a block."""
    files = tuple(replace(file(offset, "a"), last_offset=offset + 1) for offset in (1, 3, 5, 7))
    block = replace(manifest(4, 1, 8), files=files, first_segment=1, ends=(2, 4, 6, 8), schemas={"shop.t": "a"})
    share = plan_works([block], lambda name: 1, lambda name: 3)["shop.t"]
    assert [(f.first_offset, f.last_offset) for f in share.files] == [(3, 4), (5, 6)]
    assert plan_works([block], lambda name: 3, lambda name: 3) == {}
    assert plan_works([manifest(5, 9, 9)], lambda name: 1, lambda name: 3) == {}


def test_a_table_that_is_emptied_before_anything_of_it_is_staged_has_no_share() -> None:
    """DROP TABLE IF EXISTS of a name that was never in use: nobody knows a shape of it."""
    mark = LogMark(3, "t", "shop.orders", "", 0)
    assert plan_works([manifest(1, 1, 5, marks=(mark,))], lambda name: 0) == {}


@pytest.mark.parametrize(
    ("ended", "lacks"),
    [
        ([], 5),
        ([("another", 4, None)], 5),
        ([("another", 5, 1)], 5),
        ([("another", 5, None)], None),
        ([("healing", 2, None)], None),
    ],
)
def test_a_table_whose_rows_went_without_events_waits_for_the_dump_that_tells_what_is_left(
    ended: list[tuple[str, int, int | None]], lacks: int | None
) -> None:
    marks = [LogMark(2, "s", "shop.t", "", 0, schema="a"), LogMark(5, "s", "shop.t", "", 0, schema="a", dump="healing")]
    ends = [LogMark(99, "f", "shop.t", "", 0, dump=dump, since=since, key_from=key) for dump, since, key in ended]
    rewrite = last_unlogged_rewrite(Work("shop.t", "a", finished=tuple(ends), reshaped=tuple(marks)))
    assert (rewrite and rewrite.offset) == lacks
    for emptied, waits in ((4, lacks), (6, None)):
        truncate = LogMark(emptied, "t", "shop.t", "", 0)
        rewrite = last_unlogged_rewrite(
            Work("shop.t", "a", finished=tuple(ends), reshaped=tuple(marks), truncates=(truncate,))
        )
        assert (rewrite and rewrite.offset) == waits


def test_manifests_that_were_read_for_a_span_serve_its_plan_once_and_no_other() -> None:
    def kept() -> KeptManifests:
        manifests = KeptManifests()
        for number in (3, 4, 5):
            manifests.add(manifest(number, number, number))
        return manifests

    assert [m.segment for m in kept().take(2, 4) or ()] == [3, 4]
    for after, upto in ((1, 4), (3, 4), (2, 6), (2, 2)):
        assert kept().take(after, upto) is None
    manifests = kept()
    assert manifests.take(2, 5) is not None and manifests.take(2, 5) is None


def test_only_so_many_files_chunks_and_marks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_plan, "_MOST_KEPT", 2)
    manifests = KeptManifests()
    for number in (1, 2, 3, 4):
        mark = LogMark(number, "t", "shop.t", "p", 1)
        manifests.add(manifest(number, number, number, marks=(mark,)))
        assert (len(manifests._manifests) == number) if number < 3 else not manifests._manifests
    assert manifests.take(0, 2) is None


def test_a_transaction_that_goes_on_in_joined_segments_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment in which it begins has its own manifest, and is the last of its block."""
    monkeypatch.setattr(compaction_blocks, "FAN", 2)
    staging = Staging("/simulated", source="shop", storage=MemoryStorage(Disk()))
    for number in range(1, 6):
        staging.publish(replace(manifest(number, number, number), partial=int(number == 2)))
    clock: Any = Clock()
    for _ in range(2):
        for _ in Compactor(staging.handle(), clock, grace=0).steps():
            pass
    assert not staging.storage.exists(Block(3, 3).path) and staging.storage.exists(Block(2, 2).path)
    span = next_sound_span(staging.handle(), 1, None)
    assert span is not None and (span.first, span.last) in ((2, 4), (2, 5))
