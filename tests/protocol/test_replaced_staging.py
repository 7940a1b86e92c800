"""Each way in which a staging can be replaced under a lake, explored to the end; see `replaced_staging`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dblog_core.lake import continuity
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from tests.protocol import replaced_staging
from tests.protocol.checker import Found, explore
from tests.protocol.replaced_staging import Limits, World

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def asks_anew() -> Iterator[None]:
    replaced_staging.forget_answers()
    yield
    replaced_staging.forget_answers()


def search(limits: Limits | None = None) -> Found:
    return explore("a staging that is replaced", World.begin(limits or Limits()))


def search_without_times() -> Found:
    """Of a lake whose records do not say when segments were sealed, and without marks."""
    return search(Limits(marks=0))


def test_a_lake_that_continues_a_staging_has_exactly_its_lines(record_property: Callable[[str, object], None]) -> None:
    all_states = search()
    record_property("told", str(all_states))
    assert all_states.violation is None and all_states.states > 100_000


def test_records_without_times_tell_stagings_apart_that_have_no_marks(
    record_property: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _time_not_compared(monkeypatch)
    all_states = search_without_times()
    record_property("told", str(all_states))
    assert all_states.violation is None and all_states.states > 10_000


def _identity_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Staging, "identity", lambda self: "any")


def _position_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Manifest, "log_position_after", lambda self, segment: None)


def _time_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Manifest, "sealed_at_of", lambda self, segment: None)


def _segment_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(continuity, "_find_fault", lambda staging, place, head: None)


def _unfinished_merge_not_compared(patch: pytest.MonkeyPatch) -> None:
    judge = continuity.judge
    patch.setattr(continuity, "judge", lambda staging, lake, unfinished=None: judge(staging, lake))


@pytest.mark.one_of(2)
@pytest.mark.parametrize("mistake", [_time_not_compared, _segment_not_looked_for, _unfinished_merge_not_compared])
def test_a_mistake_in_the_comparison_is_found(mistake: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with_mistake = search()
    print(with_mistake)
    assert with_mistake.violation is not None


@pytest.mark.parametrize("mistake", [_identity_not_compared, _position_not_compared])
def test_records_without_times_need_identity_and_position(mistake: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    _time_not_compared(monkeypatch)
    mistake(monkeypatch)
    with_mistake = search_without_times()
    print(with_mistake)
    assert with_mistake.violation is not None
