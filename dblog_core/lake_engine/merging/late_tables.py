"""The tables of a merge, each in a thread; and those that a merge does not wait for any longer.

A merge waits for all of its tables, or for as long as others have nothing new. Then a table that is still at work is
*late*: the merge ends without it, and the next merges leave it out. Its share comes in later. It has then a place of
its own, and takes part again from there.

    merge 7   a, b: in      c: at work             c stands where merge 6 has left it
    merge 8   a, b: in      c: at work
              c: its share of merge 7 is in        the record of merge 9 says so
    merge 9   a, b, c       c: its shares of 8 and 9, in one commit

A table is in one thread at a time. Its commits carry the numbers of the merges in which its shares began, and these
grow. So after a crash a late table is like one that has stopped: it may have rows that are newer than its record says
(`TableStatus.begun`). By its last commit's number it is known which share that was. That share is brought to its end
first (`find_committed_share`), and the table follows from there. To begin before it would be wrong: a row that changes
its key keeps values of the old key's row, and a table that is ahead has another row there, or none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TypeAlias

from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import LakeStatus, TableStatus
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.merging.merge_records import Intent, Records
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.table_turn import TableTurn
from dblog_core.staging import Staging

_TOGETHER = 4
"""Tables merged at the same time: while some plan and commit, on one core each, others compute."""
_Outcome: TypeAlias = Future[Applied | None]
_LOOK_SECONDS = 0.1  # between two looks at whether others have something new


@dataclass(frozen=True, slots=True)
class Share:
    """A table's share of a merge while it is brought in. Its outcome is None for a table without a place there."""

    turn: TableTurn
    work: Work
    outcome: _Outcome


@dataclass(frozen=True, slots=True)
class Shares:
    """What became of the shares of a merge: those that are `done`, and the names of tables that are `late`."""

    done: list[Applied]
    late: list[str]


class ArrivedShares:
    """Shares that are in, and no record of a merge says so yet. `tables`: how these stand; None: the lake has none."""

    def __init__(self) -> None:
        self.tables: dict[str, TableStatus | None] = {}
        self.applied: list[Applied] = []

    def add(self, share: Share, applied: Applied | None, status: LakeStatus) -> LakeStatus:
        """Takes a share in; the lake's status with it."""
        turn = share.turn
        work = share.work
        tables = dict(status.tables)
        tables.pop(work.table, None)
        self.tables[work.table] = None
        if applied is not None:
            table = turn.states.after_share(turn.intent, work, applied)
            is_behind = table.segment < status.segment
            tables[work.table] = replace(table, begun=table.offset) if is_behind and table.error is None else table
            self.tables[work.table] = tables[work.table]
            self.applied.append(applied)
        return replace(status, tables=tables)

    def take_applied(self) -> list[Applied]:
        """What the shares did, once."""
        applied, self.applied = self.applied, []
        return applied


@dataclass(frozen=True, slots=True)
class CommittedShare:
    """A table's share of the merge `intent` behind segment `begins`."""

    table: str
    intent: Intent
    begins: int
    staging: Staging

    def plan_works(self) -> dict[str, Work]:
        """The share, by its table."""
        end = self.intent.span_of(self.table).last
        manifests = self.staging.manifests(after=self.begins, upto=self.intent.span.last)
        return merge_plan.plan_works(manifests, lambda name: self.begins if name == self.table else end, lambda _: end)


def find_committed_share(
    name: str, table: TableStatus, newest_commit: int | None, records: Records, staging: Staging
) -> CommittedShare | None:
    """The share of a late or stopped table that is committed though no record says so: its merge died before it could
    tell, or failed behind the commit. None where there is none. `newest_commit`: the number of its newest merge."""
    intent = None if newest_commit is None else records.intent(newest_commit)
    if intent is None:
        return None
    begins = intent.behind.get(name, intent.span.first - 1)
    # What began elsewhere is recorded, or a lake task has set the table to another place since.
    return CommittedShare(name, intent, begins, staging) if begins == table.segment else None


class LateTables:
    """The shares that merges have left behind in their threads."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}
        self._large = ThreadPoolExecutor(_TOGETHER, thread_name_prefix="large")

    @property
    def names(self) -> set[str]:
        """The tables that are at work."""
        return set(self._shares)

    def start(self, turn: TableTurn, work: Work) -> None:
        """Has a share brought in while merges continue; its table is at work until then."""
        self._shares[work.table] = Share(turn, work, self._large.submit(turn.merge, work))

    def have_arrived(self) -> bool:
        """Whether a share has come in since the last look."""
        return any(share.outcome.done() for share in self._shares.values())

    def take_arrived(self) -> Iterator[tuple[Share, Applied | None]]:
        """The shares that have come in, once. Raises what stops all tables."""
        for name, share in list(self._shares.items()):
            if share.outcome.done():
                del self._shares[name]
                yield share, share.outcome.result()

    def wait(self) -> None:
        """Until none is at work, however its work ends."""
        wait([share.outcome for share in self._shares.values()])

    def close(self) -> None:
        """Waits until none is at work, and ends the threads."""
        self.wait()
        self._large.shutdown()

    def run(
        self, turn: TableTurn, works: Mapping[str, Work], *, patience: float | None, has_news: Callable[[], bool]
    ) -> Shares:
        """Brings the shares of a merge in. `patience`: seconds after which it ends as soon as there is something new
        for other tables, as `has_news` says, or a late table has arrived; None: it waits for all.

        Raises what stops all tables.
        """
        ends = None if patience is None else time.monotonic() + patience
        large = set[_Outcome]()

        def is_over(missing: Iterable[_Outcome]) -> bool:
            # What waits for the threads of late tables may wait for as long as these are at work.
            waits_for_late = all(outcome in large and not outcome.running() for outcome in missing)
            is_late = ends is not None and (time.monotonic() >= ends or waits_for_late)
            return is_late and (has_news() or self.have_arrived())

        # A merge that waits for all begins with the largest, so that the last to end is a short one.
        order = sorted(works.values(), key=lambda work: -work.bytes if patience is None else work.bytes)
        small = ThreadPoolExecutor(_TOGETHER, thread_name_prefix="merge")
        shares = []
        try:
            for work in order:
                is_small = patience is None or turn.is_small(work)
                shares.append(Share(turn, work, (small if is_small else self._large).submit(turn.merge, work)))
                large |= set() if is_small else {shares[-1].outcome}
            _wait_for([share.outcome for share in shares], None if patience is None else is_over)
            # What has not begun comes in with a later merge, together with what follows it by then.
            at_work = {s.work.table: s for s in shares if not s.outcome.done() and not s.outcome.cancel()}
        except BaseException:
            for share in shares:
                share.outcome.cancel()
            wait([share.outcome for share in shares])
            raise
        finally:
            small.shutdown(wait=False)
        self._shares |= at_work
        done = [s.outcome.result() for s in shares if s.work.table not in at_work and not s.outcome.cancelled()]
        late = [s.work.table for s in shares if s.work.table in at_work or s.outcome.cancelled()]
        return Shares([applied for applied in done if applied is not None], late)


def _wait_for(outcomes: Sequence[_Outcome], is_over: Callable[[Iterable[_Outcome]], bool] | None) -> None:
    """Until all are there, or the merge `is_over` without those that are missing. Raises what stops all tables."""
    missing = set(outcomes)
    while missing:
        seconds = None if is_over is None else _LOOK_SECONDS
        ended, missing = wait(missing, timeout=seconds, return_when=FIRST_EXCEPTION)
        for outcome in ended:
            outcome.result()
        if is_over is not None and is_over(missing):
            return
