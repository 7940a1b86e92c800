"""The small worlds that the checker explores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dblog_core.algorithm.range_cursor import RangeCursor
from tests.protocol.read_only import read_only
from tests.protocol.source import Op, Script, Visible
from tests.protocol.world_state import Scenario

WHOLE = (((1, 2, 3),),)
"""One chunk with all keys."""
IN_TURN = (((1,), (2, 3)),)
"""Two chunks, one after the other, by one worker."""
BESIDE = (((1,),), ((2, 3),))
"""Two chunks in two windows that may be open at once."""
OPEN = (RangeCursor(),)
"""All keys, read a few rows at a time, up to an end that the worker fixes."""
HALVES = (RangeCursor(None, 2), RangeCursor(2, None))
"""Two ranges, the upper one open, read beside each other."""


def script(*ops: tuple[str, int] | tuple[str, int, int] | str) -> Script:
    return tuple(Op(op) if isinstance(op, str) else Op(*op) for op in ops)


PART = script(("part", 1))
PUT = script(("put", 1))
OTHER = script(("put", 2))
BOTH = script(("put", 2), ("put", 1))
DELETE = script(("delete", 1))
MOVE = script(("move", 1, 3))
REBORN = script(("delete", 1), ("born", 1))
BORN = script(("born", 1))
THIRD = script(("put", 3), ("part", 3))
BACK = script(("move", 3, 1))
TRUNCATE = script("truncate")
ALTER = script("alter")
ALTER_AND_PUT = script("alter", ("put", 1))


def windows(visible: Visible) -> Iterator[Scenario]:
    """Three transactions, two chunks of one table in two windows."""
    for name, scripts in {
        "updates that leave a column out": (PART, PART, PUT),
        "delete and insert": (DELETE, PUT, BOTH),
        "a key change and what follows": (MOVE, PUT, OTHER),
        "a key change there and back": (MOVE, BACK, PART),
        "truncate": (TRUNCATE, PUT, PART),
    }.items():
        yield Scenario(f"{visible.value}, {name}", visible, scripts, tasks=BESIDE)


def faults(visible: Visible) -> Iterator[Scenario]:
    """A crash and restart of the capture, a worker that is taken for dead, a change of leader."""
    for name, scripts in {
        "updates": (PART, BOTH, PUT),
        "a key change": (MOVE, PUT, PART),
        "a truncate": (TRUNCATE, PUT, PART),
    }.items():
        yield Scenario(f"{visible.value}, crash, {name}", visible, scripts, tasks=WHOLE, capture_crashes=1)
        yield Scenario(f"{visible.value}, worker, {name}", visible, scripts[:2], tasks=WHOLE, worker_crashes=1)
    two = (PART, BOTH)
    yield Scenario(f"{visible.value}, crash, two chunks", visible, two, tasks=IN_TURN, capture_crashes=1)
    yield Scenario(f"{visible.value}, crash, two windows", visible, (BOTH,), tasks=BESIDE, capture_crashes=1)
    yield Scenario(f"{visible.value}, takeover", visible, two, tasks=WHOLE, publish=2, takeovers=1)
    yield Scenario(
        f"{visible.value}, unpublished crash", visible, (PUT,), tasks=WHOLE, publish=2, capture_crashes=1, merges=1
    )


def changes_of_shape(visible: Visible) -> Iterator[Scenario]:
    yield Scenario(f"{visible.value}, alter", visible, (ALTER, PUT, OTHER), tasks=WHOLE)
    yield Scenario(f"{visible.value}, alter with a row", visible, (ALTER_AND_PUT, OTHER), tasks=IN_TURN)
    yield Scenario(f"{visible.value}, alter beside", visible, (ALTER_AND_PUT,), tasks=BESIDE)


def keys(visible: Visible) -> Iterator[Scenario]:
    """Requested keys: one that is not there becomes a delete, but not where the log brings it."""
    listed = (((1, 3), (2,)),)
    yield Scenario(f"{visible.value}, listed, born", visible, (THIRD, DELETE), tasks=listed, listed=True)
    yield Scenario(f"{visible.value}, listed, moved", visible, (MOVE, THIRD), tasks=listed, listed=True)
    yield Scenario(f"{visible.value}, listed, lost delete", visible, (PUT,), tasks=listed, listed=True, ghosts=(3,))
    yield Scenario(f"{visible.value}, listed, truncate", visible, (TRUNCATE, THIRD), tasks=listed, listed=True)


def ghosts(visible: Visible) -> Iterator[Scenario]:
    """A merge at any time; key 9 is in the lake alone, since its delete was lost."""
    lost = (9,)
    yield Scenario(f"{visible.value}, ghosts, reborn", visible, (REBORN, THIRD), tasks=BESIDE, merges=1, ghosts=lost)
    yield Scenario(
        f"{visible.value}, ghosts, unchanged", visible, (script(("same", 1)), BOTH), tasks=WHOLE, merges=1, ghosts=lost
    )
    yield Scenario(f"{visible.value}, ghosts, born late", visible, (DELETE, BORN), tasks=WHOLE, merges=1, ghosts=lost)
    yield Scenario(
        f"{visible.value}, ghosts, crash", visible, (THIRD,), tasks=BESIDE, merges=1, ghosts=lost, capture_crashes=1
    )


def arrivals(visible: Visible) -> Iterator[Scenario]:
    """Rows that change their key between two SELECTs, columns left out, over a lake that is wrong in every value."""
    away = script(("move", 3, 1))
    on = script(("move", 1, 2))
    back = script(("move", 2, 3))
    for name, world in {
        "back": Scenario("", visible, (away, PART), tasks=IN_TURN, rows=(2, 3)),
        "back, beside": Scenario("", visible, (away,), tasks=BESIDE, rows=(2, 3)),
        "there and back": Scenario("", visible, (away, MOVE), tasks=IN_TURN, rows=(3,)),
        "onto another's key": Scenario("", visible, (DELETE, away), tasks=IN_TURN, rows=(1, 3)),
        "and truncate": Scenario("", visible, (away, TRUNCATE), tasks=IN_TURN, rows=(3,)),
        "and a crash": Scenario("", visible, (away,), tasks=IN_TURN, rows=(3,), capture_crashes=1),
        "and a dead worker": Scenario("", visible, (away,), tasks=IN_TURN, rows=(3,), worker_crashes=1),
        "and a merge": Scenario("", visible, (away,), tasks=IN_TURN, rows=(2, 3), merges=1),
    }.items():
        named = replace(world, name=f"{visible.value}, arrived, {name}", stale=True)
        yield from (named, read_only(named))
    for name, world in {
        "restless": Scenario("", visible, (away, on, back), tasks=IN_TURN, rows=(3,), restless=True),
        "restless, beside": Scenario("", visible, (away, MOVE), tasks=BESIDE, rows=(3,), restless=True),
        "restless, and a crash": Scenario(
            "", visible, (away, on), tasks=IN_TURN, rows=(3,), restless=True, capture_crashes=1
        ),
        "restless, a larger table": Scenario(
            "", visible, (away, on, back), tasks=IN_TURN, rows=(3,), restless=True, looks=2
        ),
        "restless, a larger table, and a crash": Scenario(
            "", visible, (away, on), tasks=IN_TURN, rows=(3,), restless=True, looks=1, capture_crashes=1
        ),
        "onto a key that was left": Scenario("", visible, (away, back, on), tasks=IN_TURN, rows=(2, 3)),
    }.items():
        yield replace(world, name=f"{visible.value}, arrived, {name}", stale=True)


def snapshots() -> Iterator[Scenario]:
    """What PostgreSQL's rule adds: horizons, memory over a restart, and what was logged before the log was opened."""
    any_order = Visible.ANY_ORDER
    for name, scripts in {
        "updates": (PUT, PART, OTHER),
        "a key change": (MOVE, PUT),
        "truncate": (TRUNCATE, PUT),
    }.items():
        yield Scenario(f"horizon, {name}", any_order, scripts, tasks=WHOLE, horizons=1)
    yield Scenario("horizon and crash", any_order, (PUT, THIRD), tasks=WHOLE, horizons=1, capture_crashes=1)
    yield Scenario("two horizons", any_order, (PUT, OTHER), tasks=IN_TURN, horizons=2)
    yield Scenario("opened late", any_order, (PUT, PART), tasks=WHOLE, opened_late=True)
    yield Scenario("opened late, horizon", any_order, (PUT,), tasks=IN_TURN, opened_late=True, horizons=1)
    yield Scenario(
        "opened late, horizon and crash",
        any_order,
        (PUT,),
        tasks=WHOLE,
        opened_late=True,
        horizons=1,
        capture_crashes=1,
    )
    yield Scenario("ghosts over a crash", any_order, (BOTH,), tasks=WHOLE, merges=1, ghosts=(9,), capture_crashes=1)


def passed_over(visible: Visible) -> Iterator[Scenario]:
    """Rows that are left out for a while, and a dump after that: it brings what was logged meanwhile, and what was
    staged before and deleted meanwhile does not stay."""
    gone = script(("delete", 3))
    for name, world in {
        "an update": Scenario("", visible, (PUT, OTHER), tasks=WHOLE),
        "a delete": Scenario("", visible, (THIRD, gone), tasks=WHOLE),
        "a key change": Scenario("", visible, (MOVE, PUT), tasks=IN_TURN),
        "there and back": Scenario("", visible, (MOVE, BACK), tasks=IN_TURN),
        "a truncate": Scenario("", visible, (TRUNCATE, PUT), tasks=WHOLE),
        "a crash": Scenario("", visible, (THIRD, gone), tasks=WHOLE, capture_crashes=1),
        "a takeover": Scenario("", visible, (PUT,), tasks=WHOLE, publish=2, takeovers=1),
    }.items():
        yield replace(world, name=f"{visible.value}, passed over, {name}", passed_over=True)


def passed_over_of_snapshots() -> Iterator[Scenario]:
    any_order = Visible.ANY_ORDER
    gone = script(("delete", 3))
    for name, world in {
        "a horizon": Scenario("", any_order, (THIRD, gone), tasks=WHOLE, horizons=1),
        "horizon and crash": Scenario("", any_order, (PUT,), tasks=WHOLE, horizons=1, capture_crashes=1),
        "a standby": Scenario("", any_order, (THIRD, gone), tasks=WHOLE, standby=True),
        "two chunks": Scenario("", any_order, (BOTH, THIRD), tasks=IN_TURN, horizons=1),
    }.items():
        yield replace(world, name=f"{any_order.value}, passed over, {name}", passed_over=True)


def arrivals_of_snapshots() -> Iterator[Scenario]:
    """The same where commits become visible in any order, with all that this brings."""
    any_order = Visible.ANY_ORDER
    away = script(("move", 3, 1))
    three = (((1,),), ((2,),), ((3,),))
    for name, world in {
        "and a horizon": Scenario("", any_order, (away, PART), tasks=IN_TURN, rows=(2, 3), horizons=1),
        "horizon and crash": Scenario("", any_order, (away,), tasks=IN_TURN, rows=(3,), horizons=1, capture_crashes=1),
        "opened late": Scenario("", any_order, (away,), tasks=IN_TURN, rows=(2, 3), opened_late=True),
        "a standby": Scenario("", any_order, (away, PART), tasks=IN_TURN, rows=(2, 3), standby=True),
        "takeover": Scenario("", any_order, (away,), tasks=IN_TURN, rows=(3,), publish=2, takeovers=1),
        "three tasks": Scenario("", any_order, (away,), tasks=three, rows=(3,)),
    }.items():
        yield replace(world, name=f"{any_order.value}, arrived, {name}", stale=True)


def forgotten_keys(visible: Visible) -> Iterator[Scenario]:
    """More row events than the capture remembers the keys of: who may not have seen them is read again."""
    for name, world in {
        "one transaction": Scenario("", visible, (BOTH, PART), tasks=WHOLE, memory=1),
        "several": Scenario("", visible, (PART, PUT, OTHER), tasks=WHOLE, memory=1),
        "a key change": Scenario("", visible, (MOVE, PUT), tasks=IN_TURN, memory=1),
        "and a crash": Scenario("", visible, (PUT, OTHER), tasks=WHOLE, memory=1, capture_crashes=1),
        "and a row that moves": Scenario(
            "", visible, (script(("move", 3, 1)), PUT), tasks=IN_TURN, rows=(2, 3), stale=True, memory=1
        ),
    }.items():
        yield replace(world, name=f"{visible.value}, forgotten, {name}")
    if visible is not Visible.ANY_ORDER:  # there, two windows and their attempts make too many states
        yield Scenario(f"{visible.value}, forgotten, beside", visible, (PART, PUT), tasks=BESIDE, memory=1)
    yield read_only(Scenario(f"{visible.value}, forgotten", visible, (BOTH,), tasks=IN_TURN, memory=1))


def forgotten_keys_of_snapshots() -> Iterator[Scenario]:
    """Horizons join what is forgotten, and drop it."""
    any_order = Visible.ANY_ORDER
    yield Scenario("forgotten, horizon", any_order, (PUT, OTHER), tasks=WHOLE, memory=0, horizons=1)
    yield Scenario("forgotten, a standby", any_order, (BOTH, PUT), tasks=WHOLE, memory=1, standby=True)
    yield Scenario("forgotten, opened late", any_order, (BOTH, PUT), tasks=WHOLE, memory=1, opened_late=True)


def ranges(visible: Visible) -> Iterator[Scenario]:
    """Workers that go through a range by a cursor: what the table holds at each SELECT decides what a chunk has, where
    the next one begins, and where an open range ends."""
    grows = script(("put", 4))
    shrinks = script(("delete", 3))
    ahead = script(("move", 1, 4))
    back = script(("move", 3, 1))
    for name, world in {
        "grows at its end": Scenario("", visible, (grows, script(("put", 5))), cursors=OPEN),
        "grows before it is read": Scenario("", visible, (grows, OTHER), cursors=OPEN, merges=1),
        "loses its last row": Scenario("", visible, (shrinks, DELETE), cursors=OPEN, rows=(1, 3)),
        "loses all rows": Scenario("", visible, (TRUNCATE, PUT), cursors=OPEN, rows=(1, 3)),
        "a row moves ahead": Scenario("", visible, (ahead, PUT), cursors=OPEN, rows=(1, 2), stale=True),
        "a row moves back": Scenario("", visible, (back, PART), cursors=OPEN, rows=(2, 3), stale=True),
        "a row moves between two": Scenario("", visible, (ahead,), cursors=HALVES, rows=(1, 3), stale=True),
        "two rows a chunk": Scenario("", visible, (grows, back), cursors=OPEN, rows=(2, 3), chunk_rows=2, stale=True),
        "a ghost above the end": Scenario("", visible, (grows,), cursors=OPEN, ghosts=(9,), merges=1),
        "a crash": Scenario("", visible, (grows,), cursors=OPEN, capture_crashes=1),
        "a dead worker": Scenario("", visible, (grows,), cursors=OPEN, rows=(1,), worker_crashes=1),
        "alter": Scenario("", visible, (ALTER_AND_PUT,), cursors=OPEN),
    }.items():
        yield replace(world, name=f"{visible.value}, range, {name}")
    yield read_only(Scenario(f"{visible.value}, range", visible, (grows, PART), cursors=OPEN, rows=(1,)))


def ranges_of_snapshots() -> Iterator[Scenario]:
    """An end that a SELECT fixes which does not see yet what the log has told, or what came before the log."""
    any_order = Visible.ANY_ORDER
    grows = script(("put", 4))
    for name, world in {
        "opened late": Scenario("", any_order, (grows,), cursors=OPEN, opened_late=True),
        "opened late, horizon": Scenario(
            "", any_order, (grows,), cursors=OPEN, rows=(1,), opened_late=True, horizons=1
        ),
        "horizon": Scenario("", any_order, (grows,), cursors=OPEN, horizons=1),
        "a standby": Scenario("", any_order, (grows, PART), cursors=OPEN, standby=True),
    }.items():
        yield replace(world, name=f"range, {name}")


def announced_windows(visible: Visible) -> Iterator[Scenario]:
    """Sources that are never written: the capture's place in the log counts, so there is more to explore, and less of
    all else."""
    for name, world in {
        "no writer": Scenario("", visible, (), tasks=IN_TURN),
        "two transactions": Scenario("", visible, (PART, BOTH), tasks=WHOLE),
        "two chunks": Scenario("", visible, (PART, BOTH), tasks=IN_TURN),
        "two windows": Scenario("", visible, (BOTH,), tasks=BESIDE),
        "a key change": Scenario("", visible, (MOVE, PUT), tasks=WHOLE),
        "truncate": Scenario("", visible, (TRUNCATE, PUT), tasks=WHOLE),
        "alter": Scenario("", visible, (ALTER_AND_PUT, OTHER), tasks=WHOLE),
        "crash": Scenario("", visible, (PUT, OTHER), tasks=WHOLE, capture_crashes=1),
        "crash, two chunks": Scenario("", visible, (BOTH,), tasks=IN_TURN, capture_crashes=1),
        "unpublished crash": Scenario("", visible, (PUT,), tasks=WHOLE, publish=2, capture_crashes=1),
        "takeover": Scenario("", visible, (PUT,), tasks=WHOLE, publish=2, takeovers=1),
        "worker": Scenario("", visible, (BOTH,), tasks=WHOLE, worker_crashes=1),
        "listed, born": Scenario("", visible, (THIRD,), tasks=(((1, 3), (2,)),), listed=True),
        "ghosts": Scenario("", visible, (REBORN,), tasks=WHOLE, merges=1, ghosts=(9,)),
    }.items():
        yield read_only(replace(world, name=f"{visible.value}, {name}"))


def announced_snapshots() -> Iterator[Scenario]:
    any_order = Visible.ANY_ORDER
    yield read_only(Scenario("horizon", any_order, (PUT,), tasks=IN_TURN, horizons=1))
    yield read_only(Scenario("horizon and crash", any_order, (PUT,), tasks=WHOLE, horizons=1, capture_crashes=1))
    yield read_only(Scenario("opened late", any_order, (PUT,), tasks=WHOLE, opened_late=True))


def standbys() -> Iterator[Scenario]:
    """The log from a primary, where commits become visible in any order, and chunks from its standby, with watermarks
    and with windows that are announced. A standby that decodes for itself is a world of log order."""
    any_order = Visible.ANY_ORDER
    for name, world in {
        "updates": Scenario("", any_order, (PART, BOTH), tasks=WHOLE),
        "two chunks": Scenario("", any_order, (BOTH,), tasks=IN_TURN),
        "a key change": Scenario("", any_order, (MOVE, PUT), tasks=WHOLE),
        "truncate": Scenario("", any_order, (TRUNCATE, PUT), tasks=WHOLE),
        "alter": Scenario("", any_order, (ALTER_AND_PUT,), tasks=WHOLE),
        "horizon": Scenario("", any_order, (PUT, OTHER), tasks=WHOLE, horizons=1),
        "crash": Scenario("", any_order, (PUT,), tasks=WHOLE, capture_crashes=1),
        "opened late": Scenario("", any_order, (PUT,), tasks=WHOLE, opened_late=True),
        "ghosts": Scenario("", any_order, (REBORN,), tasks=WHOLE, merges=1, ghosts=(9,)),
    }.items():
        named = replace(world, name=f"chunks of a standby, {name}", standby=True)
        yield from (named, read_only(named))


def scenarios() -> list[Scenario]:
    of_each = (
        windows,
        faults,
        changes_of_shape,
        keys,
        ghosts,
        arrivals,
        forgotten_keys,
        ranges,
        announced_windows,
        passed_over,
    )
    return [
        *(s for visible in Visible for of in of_each for s in of(visible)),
        *snapshots(),
        *passed_over_of_snapshots(),
        *arrivals_of_snapshots(),
        *forgotten_keys_of_snapshots(),
        *ranges_of_snapshots(),
        *announced_snapshots(),
        *standbys(),
    ]
