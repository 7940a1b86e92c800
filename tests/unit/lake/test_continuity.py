"""Whether a lake continues a staging: by the identity, and by the lake's segment with its offset and position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dblog_core.lake.continuity import Continuity, UnfinishedMerge, Verdict, judge
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus
from dblog_core.lake.merge_plan import Span, next_span
from dblog_core.staging import Staging
from dblog_core.staging.compaction import Compactor
from dblog_core.staging.log_start import Beginning
from dblog_core.staging.manifest import Manifest, join_manifests
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit.compaction_world import Clock
from tests.unit.staged import MICROSECONDS, manifest

SEGMENTS = 40
"""Two blocks of 16, and some more; segment n ends at offset 10 n."""


@pytest.fixture
def staging() -> Staging:
    return make_staging()


def make_staging(segments: int = SEGMENTS, *, wide: int = 10) -> Staging:
    staging = Staging(source="shop", storage=MemoryStorage(Disk()))
    for number in range(1, segments + 1):
        new_manifest = manifest(number, wide * (number - 1) + 1, wide * number)
        staging.publish(replace(new_manifest, sealed_at=sealed_at(number)))
    return staging


def sealed_at(segment: int) -> int:
    return MICROSECONDS + segment


def lake_at_segment(segment: int, staging: Staging | None = None, **fields: Any) -> LakeStatus:
    identity = None if staging is None else staging.identity()
    status = LakeStatus(1, segment, 10 * segment, f"log{segment}", MICROSECONDS, 1.0, staging=identity)
    return replace(status, **fields)


def join_segments(staging: Staging) -> None:
    clock: Any = Clock()
    compactor = Compactor(staging.handle(), clock, grace=0.0)
    for _ in range(3):
        for _ in compactor.steps():
            pass
        clock.now += 100.0
    assert not staging.storage.exists("manifests/00000000000000000005.json")


def assert_refused(verdict: Verdict, continuity: Continuity, *words: str) -> None:
    assert verdict.continuity is continuity and not verdict.may_merge
    assert all(word in verdict.message for word in words), verdict.message
    assert verdict.where and "`dblog lake adopt`" in verdict.fix


def test_a_lake_continues_the_staging_that_it_was_merged_from(staging: Staging) -> None:
    identity = staging.create_identity()
    for segment in (1, 7, SEGMENTS):
        verdict = judge(staging, lake_at_segment(segment, staging))
        assert (verdict.continuity, verdict.identity) == (Continuity.CONTINUES, identity)


def test_a_new_lake_continues_any_staging(staging: Staging) -> None:
    for status in (None, LakeStatus()):
        assert judge(staging, status).continuity is Continuity.NOTHING_MERGED


def test_a_lake_of_before_there_were_identities_is_known_by_its_segment(staging: Staging) -> None:
    staging.create_identity()
    assert judge(staging, lake_at_segment(7)).may_merge
    assert not judge(staging, lake_at_segment(7, offset=71)).may_merge
    assert not judge(staging, lake_at_segment(7, position="log9")).may_merge


def test_another_staging_is_refused_whatever_its_segments_are(staging: Staging) -> None:
    staging.create_identity()
    other = make_staging()
    lake = lake_at_segment(7, staging)
    assert_refused(judge(other, lake), Continuity.OTHER_IDENTITY, str(lake.staging), "one without an identity")
    other.create_identity()
    assert_refused(judge(other, lake), Continuity.OTHER_IDENTITY, str(other.identity()))


def test_a_staging_that_ends_before_the_lake_is_refused() -> None:
    shorter = make_staging(5)
    assert_refused(judge(shorter, lake_at_segment(7)), Continuity.ENDS_BEFORE, "segment 7", "with segment 5")
    assert_refused(judge(make_staging(0), lake_at_segment(7)), Continuity.ENDS_BEFORE, "the staging is empty")


def test_a_copy_that_has_sealed_the_log_in_other_segments_is_refused() -> None:
    again = make_staging(wide=7)
    assert_refused(judge(again, lake_at_segment(7)), Continuity.OTHER_SEGMENT, "offset 70", "ends at offset 49")


def test_a_copy_whose_segment_has_other_lines_at_the_same_place_is_refused(staging: Staging) -> None:
    staging.create_identity()
    lake = lake_at_segment(7, staging, sealed_at=sealed_at(7))
    assert judge(staging, lake).may_merge
    later = replace(lake, sealed_at=sealed_at(7) + 1_000_000)
    whens = ("sealed at 2026-11-21T09:30:01.000007Z", "was sealed at 2026-11-21T09:30:00.000007Z")
    assert_refused(judge(staging, later), Continuity.OTHER_SEGMENT, *whens, "put back from a copy")
    span = Span(8, 9, 71, 90, "log9", None, sealed_at(9))
    assert judge(staging, lake, UnfinishedMerge(2, span, lake.staging)).may_merge
    elsewhere = UnfinishedMerge(2, replace(span, sealed_at=sealed_at(8)), lake.staging)
    assert_refused(judge(staging, lake, elsewhere), Continuity.OTHER_SEGMENT, "not finished", "was sealed at")


def test_joined_segments_keep_their_offsets_and_positions(staging: Staging) -> None:
    staging.create_identity()
    join_segments(staging)
    assert judge(staging, lake_at_segment(7, staging)).may_merge
    assert not judge(staging, lake_at_segment(7, staging, offset=71)).may_merge
    assert not judge(staging, lake_at_segment(7, staging, position="log16")).may_merge


def test_joined_segments_keep_the_times_at_which_they_were_sealed(staging: Staging) -> None:
    join_segments(staging)
    for segment in (1, 7, 16, 33):
        assert judge(staging, lake_at_segment(segment, sealed_at=sealed_at(segment))).may_merge
        assert not judge(staging, lake_at_segment(segment, sealed_at=sealed_at(segment) + 1)).may_merge
    joined = staging.manifest(7)
    assert Manifest.from_json(joined.to_json()).sealed_at_of(7) == sealed_at(7)
    span = next_span([joined.cut(after=3, upto=7)])
    assert span is not None and (span.last, span.sealed_at) == (7, sealed_at(7))


def test_segments_that_an_earlier_version_has_joined_have_no_times() -> None:
    joined = replace(join_manifests([manifest(1, 1, 10), manifest(2, 11, 20)], []), seal_times=())
    assert "seal_times" not in joined.to_json()
    assert (joined.sealed_at_of(1), joined.sealed_at_of(2)) == (None, MICROSECONDS)
    assert joined.cut(upto=1).sealed_at_of(1) is None
    later = join_manifests([joined, manifest(3, 21, 30)], [])
    assert later.seal_times == (None, MICROSECONDS, MICROSECONDS)


def test_a_merge_that_ends_within_joined_segments_records_the_position_there(staging: Staging) -> None:
    join_segments(staging)
    assert staging.manifest(7).cut(after=3, upto=7).log_position == "log7"
    assert staging.manifest(7).cut(after=3, upto=7).log_position_after(5) == "log5"


def test_segments_that_an_earlier_version_has_joined_are_known_by_their_offsets(staging: Staging) -> None:
    join_segments(staging)
    joined = replace(staging.manifest(7), log_positions=())
    assert "log_positions" not in joined.to_json() and joined.log_position_after(7) is None
    assert joined.log_position_after(16) == "log16"


def test_a_lake_right_before_what_retention_has_left_continues_it(staging: Staging) -> None:
    staging.begin_at(Beginning(segment=8, offset=71))
    assert judge(staging, lake_at_segment(7)).may_merge
    assert_refused(judge(staging, lake_at_segment(6)), Continuity.OTHER_SEGMENT, "begins with segment 8")
    assert_refused(judge(staging, lake_at_segment(7, offset=69)), Continuity.OTHER_SEGMENT)


@pytest.mark.parametrize(("segment", "offset", "continues"), [(9, 90, True), (9, 95, True), (9, 89, False),
                                                             (9, 100, False), (41, 410, False)])  # fmt: skip
def test_a_table_that_a_reset_has_set_ahead_must_fit_too(
    staging: Staging, segment: int, offset: int, continues: bool
) -> None:
    tables = {"shop.a": TableStatus(State.INCOMPLETE, None, segment, offset, reset_at=offset, awaits="d")}
    assert judge(staging, lake_at_segment(7, tables=tables)).may_merge is continues


def test_a_merge_that_was_begun_and_not_finished_must_be_of_the_staging(staging: Staging) -> None:
    identity = staging.create_identity()
    lake = lake_at_segment(7, staging)

    def begun(last: int, offset: int, of: str | None) -> UnfinishedMerge:
        return UnfinishedMerge(2, Span(8, last, 71, offset, f"log{last}", None), of)

    assert judge(staging, lake, begun(9, 90, identity)).may_merge
    assert_refused(judge(staging, lake, begun(9, 91, identity)), Continuity.OTHER_SEGMENT, "not finished")
    assert_refused(judge(staging, lake, begun(41, 410, identity)), Continuity.ENDS_BEFORE, "not finished")
    assert_refused(judge(staging, None, begun(9, 90, "another")), Continuity.OTHER_IDENTITY, "another")
    assert judge(staging, lake, begun(7, 70, identity)).may_merge, "a lake task applies no segment"


def test_a_damaged_staging_is_held_with_the_way_to_mend_it(staging: Staging) -> None:
    staging.storage.replace("manifests/00000000000000000007.json", b"{}\n")
    verdict = judge(staging, lake_at_segment(7))
    assert verdict.continuity is Continuity.UNREADABLE and "backup" in verdict.fix


def test_an_identity_is_given_once(staging: Staging) -> None:
    assert staging.identity() is None
    identity = staging.create_identity()
    assert staging.handle().create_identity() == identity == staging.identity()
    staging.storage.replace("identity.json", b"{}\n")
    assert judge(staging, lake_at_segment(7)).continuity is Continuity.UNREADABLE
