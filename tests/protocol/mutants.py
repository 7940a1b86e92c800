"""Deliberate mistakes, each in the real code or in the part of it that the checker plays; the checker must find all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from dblog_core.algorithm.visibility import LogOrder, Snapshots
from tests.protocol.capture import Rules
from tests.protocol.mistakes import (
    ByOffsetAlone,
    absent_ignored,
    absent_though_touched,
    after_key_alone,
    all_read_too_early,
    alter_ignored,
    always_certain,
    arrivals_before_the_low_ignored,
    arrivals_ignored,
    arrived_though_unseen,
    attempt_not_checked,
    end_at_own_row,
    every_look_meets_a_row,
    evicted_unseen,
    finished_at_first_part,
    forgotten_are_joined_blindly,
    forgotten_are_seen,
    found_where_it_was,
    horizon_forgets,
    horizon_ties,
    left_to_the_others,
    looked_for_again,
    no_look_meets_a_row,
    no_window,
    opens_before_it_is_seen,
    order_not_checked,
    settled_at_once,
    short_at_high,
    short_at_low,
    since_at_last_row,
    since_at_low,
    since_of_the_last_part,
    start_ignored,
    survives_under_old_key,
    truncate_ignored,
    whole_rows,
    window_not_required,
)
from tests.protocol.read_only import read_only
from tests.protocol.scenarios import (
    ALTER,
    ALTER_AND_PUT,
    BESIDE,
    BOTH,
    IN_TURN,
    MOVE,
    OPEN,
    OTHER,
    PART,
    PUT,
    THIRD,
    TRUNCATE,
    WHOLE,
    script,
)
from tests.protocol.source import Script, Visible
from tests.protocol.world_state import Scenario

Patch = Callable[[pytest.MonkeyPatch], None]


ATOMIC = Visible.ATOMIC


LOG_ORDER = Visible.LOG_ORDER


ANY_ORDER = Visible.ANY_ORDER


@dataclass(frozen=True)
class Mutant:
    """A mistake, and the small world that shows it."""

    name: str
    scenario: Scenario
    rules: Rules = field(default_factory=Rules)
    patch: Patch = lambda monkeypatch: None


def world(visible: Visible, *scripts: Script, **more: Any) -> Scenario:
    return Scenario("mutant", visible, scripts, **{"tasks": WHOLE, **more})


def read_only_scenario(visible: Visible, *scripts: Script, **more: Any) -> Scenario:
    return read_only(world(visible, *scripts, **more))


AWAY = script(("move", 3, 1))
"""Out of a range that is still to be read, into one that has been."""
BOTH_AWAY = script(("move", 3, 1), ("move", 4, 2))

GROWS = script(("put", 4))


MUTANTS = [
    Mutant("no window", world(ATOMIC, PUT), patch=no_window),
    Mutant("a window that begins late", world(ATOMIC, PUT), patch=short_at_low),
    Mutant("a window that ends early", world(ATOMIC, PUT), patch=short_at_high),
    Mutant("a SELECT before the low watermark", world(ATOMIC, PUT), Rules(select_before_low=True)),
    Mutant("a retry that reuses old rows", world(ATOMIC, PUT, worker_crashes=1), Rules(reuse_rows=True)),
    Mutant("eviction by the after-key alone", world(ATOMIC, MOVE, tasks=IN_TURN), patch=after_key_alone),
    Mutant("eviction of whole rows", world(ANY_ORDER, PART), patch=whole_rows),
    Mutant("survivors under their old key", world(ANY_ORDER, MOVE, tasks=IN_TURN), patch=survives_under_old_key),
    Mutant("survivors of a row that may be another", world(ATOMIC, MOVE, PUT, tasks=BESIDE), patch=always_certain),
    Mutant("TRUNCATE ignored", world(ATOMIC, TRUNCATE), patch=truncate_ignored),
    Mutant("attempts not checked", world(ATOMIC, PUT, tasks=IN_TURN, worker_crashes=1), patch=attempt_not_checked),
    Mutant("order of chunks not checked", world(ATOMIC, tasks=IN_TURN, worker_crashes=1), patch=order_not_checked),
    Mutant("window not required", world(ATOMIC, PUT, capture_crashes=1), patch=window_not_required),
    Mutant("a chunk placed after later events", world(ATOMIC, PUT), Rules(place_late=True)),
    Mutant("the paper's rule under any order", world(ANY_ORDER, PUT), Rules(log_order_always=True)),
    Mutant("memory lost at a restart", world(ANY_ORDER, PUT, capture_crashes=1), Rules(forget_at_restart=True)),
    Mutant(
        "what was before the log's start ignored", world(ANY_ORDER, PUT, OTHER, opened_late=True), patch=start_ignored
    ),
    Mutant(
        "settled while an older window is open",
        world(ANY_ORDER, PUT, OTHER, opened_late=True, horizons=1),
        patch=settled_at_once,
    ),
    Mutant(
        "rows that were passed over count as seen",
        world(ANY_ORDER, PUT, passed_over=True),
        Rules(forget_passed_over=True),
    ),
    Mutant(
        "a dump that begins before rows of before are seen",
        world(ANY_ORDER, THIRD, script(("delete", 3)), passed_over=True),
        patch=opens_before_it_is_seen,
    ),
    Mutant("a horizon that forgets too much", world(ANY_ORDER, PUT, horizons=1), patch=horizon_forgets),
    Mutant("a horizon at a window's own offset", world(ANY_ORDER, PUT, horizons=1), patch=horizon_ties),
    Mutant("ghosts by offset alone", world(ATOMIC), Rules(lake=ByOffsetAlone)),
    Mutant("ghosts forget evicted rows", world(ATOMIC, script(("same", 1))), patch=evicted_unseen),
    Mutant("ghosts forget inserts that no SELECT saw", world(ANY_ORDER, THIRD), patch=since_at_low),
    Mutant("an unseen insert counts from its last row", world(ANY_ORDER, BOTH, rows=(1,)), patch=since_at_last_row),
    Mutant(
        "ghosts since the last part began",
        world(ATOMIC, script(("move", 2, 1)), rows=(2,), tasks=BESIDE),
        patch=since_of_the_last_part,
    ),
    Mutant("ghosts after the first part", world(ATOMIC, tasks=BESIDE, merges=1), patch=finished_at_first_part),
    Mutant("arrivals ignored", world(ATOMIC, AWAY, tasks=IN_TURN, rows=(3,), stale=True), patch=arrivals_ignored),
    Mutant(
        "arrivals ignored that no SELECT has seen at the first low watermark",
        world(ANY_ORDER, AWAY, tasks=IN_TURN, rows=(3,), stale=True),
        patch=arrivals_before_the_low_ignored,
    ),
    Mutant(
        "an arrival that a SELECT has not seen",
        world(ATOMIC, AWAY, MOVE, AWAY, tasks=IN_TURN, rows=(3,), stale=True),
        patch=arrived_though_unseen,
    ),
    Mutant(
        "arrivals left to tasks that are done",
        world(ATOMIC, AWAY, tasks=BESIDE, rows=(3,), stale=True),
        patch=left_to_the_others,
    ),
    Mutant(
        "a row that was brought is looked for wherever it goes",
        world(ATOMIC, AWAY, script(("move", 2, 3)), tasks=IN_TURN, rows=(2, 3), stale=True),
        patch=looked_for_again,
    ),
    Mutant(
        "looks in vain that are not counted",
        world(
            ATOMIC,
            AWAY,
            script(("move", 1, 2)),
            script(("move", 2, 3)),
            tasks=IN_TURN,
            rows=(3,),
            stale=True,
            restless=True,
            looks=2,
        ),
        patch=every_look_meets_a_row,
    ),
    Mutant(
        "a look that meets a row and counts as one in vain",
        world(
            ATOMIC,
            BOTH_AWAY,
            script(("move", 1, 5)),
            tasks=(((1, 2, 5), (3, 4)),),
            rows=(3, 4),
            stale=True,
            restless=True,
            looks=1,
        ),
        patch=no_look_meets_a_row,
    ),
    Mutant(
        "a row that moves on inside its window is looked for again",
        world(ANY_ORDER, AWAY, script(("move", 1, 2)), tasks=IN_TURN, rows=(3,), stale=True, restless=True),
        patch=found_where_it_was,
    ),
    Mutant(
        "rows that move while ranges are left count as brought",
        world(ATOMIC, AWAY, tasks=IN_TURN, rows=(3,), stale=True),
        patch=all_read_too_early,
    ),
    Mutant(
        "events whose keys are forgotten count as seen, log order",
        world(ATOMIC, BOTH, memory=1),
        patch=partial(forgotten_are_seen, LogOrder),
    ),
    Mutant(
        "events whose keys are forgotten count as seen, snapshots",
        world(ANY_ORDER, PUT, memory=0),
        patch=partial(forgotten_are_seen, Snapshots),
    ),
    Mutant(
        "forgotten events are one, whatever a horizon sees of them",
        world(ANY_ORDER, PUT, OTHER, memory=0, horizons=1),
        patch=forgotten_are_joined_blindly,
    ),
    Mutant(
        "a range's end that is fixed before its first window",
        world(ATOMIC, GROWS, cursors=OPEN, rows=(1,), merges=1),
        Rules(end_before_select=True),
    ),
    Mutant("a range that ends with its first chunk", world(ATOMIC, cursors=OPEN), patch=end_at_own_row),
    Mutant(
        "an attempt that goes on where the last one has read",
        world(ATOMIC, cursors=OPEN, worker_crashes=1),
        Rules(resume_where_read=True),
    ),
    Mutant("DDL ignored", world(ATOMIC, ALTER_AND_PUT), patch=alter_ignored),
    Mutant("DDL that a chunk alone tells of ignored", world(ATOMIC, ALTER, tasks=BESIDE), Rules(ignore_alter=True)),
    Mutant(
        "a requested key deleted though it was born", world(ATOMIC, THIRD, listed=True), patch=absent_though_touched
    ),
    Mutant("a requested key that is gone stays", world(ATOMIC, listed=True, ghosts=(3,)), patch=absent_ignored),
    Mutant(
        "acknowledging before publishing",
        world(ATOMIC, PUT, publish=1, capture_crashes=1),
        Rules(acknowledge_early=True),
    ),
    Mutant("two leaders without fencing", world(ATOMIC, PUT, publish=2, takeovers=1), Rules(no_fencing=True)),
    Mutant("a SELECT before its window is open", read_only_scenario(ATOMIC, PUT), Rules(select_unopened=True)),
    Mutant(
        "a window opened again, late, after a restart",
        read_only_scenario(ATOMIC, PUT, capture_crashes=1),
        Rules(open_answered=True),
    ),
    Mutant("a SELECT that may not see what is read", read_only_scenario(LOG_ORDER, PUT), Rules(visible_unawaited=True)),
    Mutant(
        "a standby that has not replayed so far", world(ANY_ORDER, PUT, standby=True), Rules(visible_unawaited=True)
    ),
    Mutant(
        "a standby that has not replayed what is read",
        read_only_scenario(ANY_ORDER, PUT, standby=True),
        Rules(visible_unawaited=True),
    ),
    Mutant(
        "a standby's snapshot believed",
        world(ANY_ORDER, PUT, OTHER, standby=True),
        Rules(standbys_snapshot=True),
    ),
    Mutant("the second position not awaited", read_only_scenario(ATOMIC, PUT), Rules(end_unawaited=True)),
    Mutant("a second position before what was seen", read_only_scenario(LOG_ORDER, PUT), Rules(end_early=True)),
    Mutant("a window closed early, at its second position", read_only_scenario(ATOMIC, PUT), Rules(close_at_end=True)),
    Mutant("a chunk placed by the next event alone", read_only_scenario(ATOMIC), Rules(wait_for_event=True)),
    Mutant(
        "a chunk forgotten before it is published",
        read_only_scenario(ATOMIC, publish=2, capture_crashes=1),
        Rules(forget_unpublished=True),
    ),
]
