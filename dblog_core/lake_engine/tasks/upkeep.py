"""Small files and dead rows pile up with every merge, and files that share their keys: tables that have had enough of
them are put in order.

Files are written again beside the merges, one rewrite at a time: planned and committed between two rounds while nobody
is at work on the table, which takes a moment, and carried out in a thread meanwhile (`delta_writer.rewriting`). The
cost follows what was changed, not the table. A table whose features we do not write is left as it is: the log says
why. No row changes, and a crash leaves the table as it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.background import BackgroundRewrite
from dblog_core.delta_writer.rewriting.cluster_files import TOGETHER, limit_of, plan_cluster, source_bytes
from dblog_core.delta_writer.rewriting.join_files import plan_join
from dblog_core.delta_writer.rewriting.purge_files import dead_share, plan_purge, with_deleted
from dblog_core.delta_writer.rewriting.rewrite import FileRewrite, commit_rewritten
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake.lake_status import TableStatus, table_location
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tasks.file_upkeep import SHARE, open_table
from dblog_core.model.schema import TableName
from dblog_core.staging import Staging
from dblog_core.storage.location import Location

_log = logging.getLogger(__name__)

_MANY = 8
"""Small files that are joined in the same turn again: merges add a few while files are joined."""
_LOOKS = 20
"""Tables whose logs may be looked at in a step that may not wait: three requests each, and the next merge waits."""
_FAILED = 3
"""Rewrites of one turn that were overtaken, after which the turn ends."""
_TIMES = 2.0
"""As many keys may be shared before files are put in the order of their key, in a turn that no maintenance asks for."""
_ORDERED = 4 * TOGETHER
"""Bytes of files that are put in the order of their key in one turn: other tables have theirs."""


@dataclass(slots=True)
class _Turn:
    """A table's turn. `share`: of dead rows, with more of which a file is written again. In the turn of a maintenance
    `chosen` are the files that have so many, or a row that may have been deleted, when it begins, at the time `began`:
    merges mark more meanwhile.
    `ordered_bytes`: of files that were put in the order of their key, of at most `most_ordered`; `not_worth`: files
    for which that is not worth it; `is_ordering`: whether the rewrite that is under way does so."""

    table: str
    share: float = SHARE
    is_maintenance: bool = False
    chosen: frozenset[str] | None = None
    began: float = 0.0
    rewrites: int = 0
    failed: int = 0
    ordered_bytes: int = 0
    most_ordered: int = _ORDERED
    not_worth: set[str] = field(default_factory=set)
    is_ordering: bool = False


class Turns:
    """Whose turn it is: tables that have had `after` commits since they were made or compacted. 0: never."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._since: dict[Location, int] = {}

    def is_due(self, table: Location, left_at: int) -> bool:
        """`left_at`: the version that the last merge has left, by which most are known not to be due: no request."""
        if not self._after or 0 <= left_at - self._since.get(table, left_at + 1) < self._after:
            return False
        if (version := log.version(table)) is None:
            return False
        if self._since.get(table, version + 1) > version:  # not known yet, or another table by now
            self._since[table] = self._last_compaction(table, version)
        return version - self._since[table] >= self._after

    def _last_compaction(self, table: Location, version: int) -> int:
        """The last compaction's version as far as it matters: of what lies further back, the table is due anyway."""
        oldest = max(0, version - self._after)
        for number in range(version, oldest, -1):
            if log.operation(table, number) == "OPTIMIZE":
                return number
        return oldest

    def record_compaction(self, table: Location, version: int) -> None:
        """It has been compacted: this version, even if there was nothing to join."""
        self._since[table] = version


class Upkeep:
    """The upkeep of a lake's tables, by turns. Its steps are taken between two rounds."""

    def __init__(
        self,
        staging: Staging,
        after: int,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`after`: the commits of a table after which it has its turn; 0: never."""
        self._staging = staging
        self._now = now
        self._turns = Turns(after)
        self._not_looked_at: set[str] | None = None  # tables that may be due; None: all of them
        self._asked: dict[str, float] = {}
        self._turn: _Turn | None = None
        self._running: BackgroundRewrite | None = None
        self.purged: dict[str, float] = {}
        """Tables of which no file has a row that was marked before that time (seconds UTC)."""

    def record_merged(self, tables: Collection[str]) -> None:
        """These tables have had commits."""
        if self._not_looked_at is not None:
            self._not_looked_at.update(tables)

    def ask(self, shares: Mapping[str, float]) -> None:
        """Has these tables put in order for a maintenance; a file with more than the share of dead rows, or with one
        that may have been deleted, is written again. Of a table that we do not write the maintenance says why."""
        self._asked.update(shares)

    @property
    def has_asked(self) -> bool:
        """Whether some of what was asked is still to be done."""
        return bool(self._asked) or (self._turn is not None and self._turn.is_maintenance)

    def step(
        self, lake: Lake, tables: Mapping[str, TableStatus], *, at_work: Collection[str] = (), wait: bool
    ) -> str | None:
        """The table whose files were just written again; None where none is due, or what is under way is not ready yet
        (`wait`: then until it is). A table `at_work` is being merged in a thread of its own, and waits for later. A
        fault is LakeError or StagingError, and harms nothing."""
        self._forget_gone(lake, tables)
        while True:
            if self._turn is not None and self._turn.table in at_work:
                return None
            if self._running is None:
                most = None if wait else _LOOKS
                turn = self._turn = self._turn or self._next_turn(lake, tables, at_work, most=most)
                if turn is None:
                    return None
                try:
                    self._begin(lake, turn, tables[turn.table])
                except TableRefused as error:
                    _log.warning("%s: its files are not joined: %s", turn.table, error.feature)
                    self._end_turn(lake)
                    continue
                if self._running is None:
                    self._end_turn(lake)
                    continue
            if not wait and not self._running.is_ready():
                return None
            turn = self._turn
            if turn is not None and self._commit(lake, turn, tables[turn.table]):
                self._continue(lake, turn, tables[turn.table])
                return turn.table

    def _forget_gone(self, lake: Lake, tables: Mapping[str, TableStatus]) -> None:
        """A table whose turn it is may have left the lake."""
        if self._turn is None or (self._turn.table in tables and tables[self._turn.table].version is not None):
            return
        self.stop()
        self._end_turn(lake)

    def stop(self) -> None:
        """Ends what is under way."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _next_turn(
        self, lake: Lake, tables: Mapping[str, TableStatus], at_work: Collection[str], *, most: int | None
    ) -> _Turn | None:
        """`most`: so many tables' logs are looked at."""
        for name in [name for name in self._asked if name not in at_work]:
            share = self._asked.pop(name)
            if name in tables and tables[name].version is not None:
                return _Turn(name, share, is_maintenance=True)
        looked_at = self._not_looked_at if self._not_looked_at is not None else set(tables)
        self._not_looked_at = set(looked_at)
        for name in islice(sorted((looked_at & tables.keys()).difference(at_work)), most):
            version = tables[name].version
            if version is None:  # nothing is there, and its name may have no place in the lake
                continue
            if self._turns.is_due(_path(lake, name), version):
                return _Turn(name)
            self._not_looked_at.discard(name)
        return None

    def _begin(self, lake: Lake, turn: _Turn, status: TableStatus) -> None:
        """Begins the table's next rewrite, if one is worth it. Raises TableRefused for a table that we do not write."""
        lake.check()
        with self._ending_on_fault(lake):
            table = self._open(lake, turn.table, status)
            table.refresh()
            files = table.snapshot.files
            if turn.is_maintenance and turn.chosen is None:
                turn.began = self._now()
                many = {path for path, live in files.items() if dead_share(table, live) > turn.share}
                turn.chosen = with_deleted(table) | many
                turn.most_ordered = limit_of(table)
            rewrite = _plan(table, turn) if turn.failed < _FAILED else None
            if rewrite is not None:
                turn.rewrites += 1
                self._running = BackgroundRewrite(rewrite)
            elif turn.chosen is not None and turn.share == 0.0 and not turn.chosen & files.keys():
                self.purged[turn.table] = turn.began

    def _continue(self, lake: Lake, turn: _Turn, status: TableStatus) -> None:
        """Begins the next rewrite of the turn at once, or ends it: what merges mark from now on is of the next turn."""
        with suppress(TableRefused):  # since a moment ago; its next turn finds out
            self._begin(lake, turn, status)
        if self._running is None and self._turn is not None:
            self._end_turn(lake)

    def _commit(self, lake: Lake, turn: _Turn, status: TableStatus) -> bool:
        """Commits what was written; False where others have overtaken it."""
        running = self._running
        assert running is not None
        self._running = None
        with self._ending_on_fault(lake):
            rewritten = running.result()
            if rewritten is None:
                turn.not_worth.add(running.rewrite.sources[0].live.path)
                return False
            table = self._open(lake, turn.table, status)
            try:
                is_committed = commit_rewritten(table, rewritten)
            except TableRefused:  # since a moment ago; the next step finds out
                is_committed = False
        turn.failed += not is_committed
        if turn.is_ordering:
            turn.ordered_bytes += source_bytes(rewritten.sources)
            if is_committed:
                turn.not_worth.clear()  # among other files it may be
        return is_committed

    def _open(self, lake: Lake, name: str, status: TableStatus) -> OpenTable:
        assert status.schema is not None, "a table with a version has a shape"
        return open_table(lake, _path(lake, name), self._staging.schema(status.schema))

    @contextmanager
    def _ending_on_fault(self, lake: Lake) -> Iterator[None]:
        """A table that cannot be put in order waits for its next turn: the others have theirs."""
        try:
            yield
        except TableRefused:
            raise
        except (LakeError, StagingError):
            self._end_turn(lake)
            self._asked.clear()  # the maintenance itself does the rest, and says what is wrong
            raise

    def _end_turn(self, lake: Lake) -> None:
        assert self._turn is not None
        path = _path(lake, self._turn.table)
        self._turn = None  # first: where the log cannot be read, the others have their turns all the same
        if (version := log.version(path)) is not None:
            self._turns.record_compaction(path, version)


def _plan(table: OpenTable, turn: _Turn) -> FileRewrite | None:
    turn.is_ordering = False
    if (rewrite := plan_join(table, at_least=_MANY if turn.rewrites else 2)) is not None:
        return rewrite
    # Each change of a table without vectors replaces the files that it touches: who writes many is overtaken.
    may_order = table.snapshot.takes_vectors or turn.is_maintenance
    if may_order and turn.ordered_bytes < turn.most_ordered and len(turn.not_worth) < _FAILED:
        times = 1.0 if turn.is_maintenance else _TIMES
        if (ordered := plan_cluster(table, times=times, without=turn.not_worth)) is not None:
            turn.is_ordering = True
            return ordered
    return plan_purge(table, share=turn.share if turn.chosen is None else 0.0, among=turn.chosen)


def _path(lake: Lake, name: str) -> Location:
    return table_location(lake.location, TableName.parse(name))
