"""Tables whose descriptions were written between two looks at the catalogue: whether a dump is due, the log says.

Names that change places and change back, a label that is renamed and gets its name back, or one that is renamed as soon
as it is added leave no other trace than a later writer of the description. Rows that were logged in between have other
names or labels. So a table stays in doubt until the log is read up to the look that found it, and is dumped unless
`LoggedRows` proves that no row has met another description.

A transaction takes no lock on the types that it writes values of. One that is open while a label is renamed may commit
long after the dump that this asks for, and its row is logged with the label of its own moment. So tables are watched
for rows of transactions that had begun, until all of these have ended, and are dumped once more for each such row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dblog_core.algorithm.visibility import Snapshot
from dblog_core.capture.healing.logged_rows import LoggedRows
from dblog_core.capture.healing.unlogged_rewrites import (
    find_other_labels,
    has_other_places,
    has_other_texts,
    has_passing_columns,
    mixed_up,
)
from dblog_core.interfaces import Moment
from dblog_core.model.table_stamp import TableStamp

HasPassed = Callable[[str], bool]
"""Whether the log was read up to the end of a moment."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One table. `since`: the offset up to which its rows are older than the stamp `before` (None: nobody knows).

    `is_dumped`: the stamps alone ask for a dump. `moment`: after the look that has found it. `is_read`: the log was
    read up to there; from then on only rows of transactions that had begun by then count, up to the place `ends`.
    """

    before: TableStamp
    now: TableStamp
    since: int | None
    is_dumped: bool
    moment: Moment | None = None
    is_read: bool = False
    ends: str | None = None


class Doubts:
    """Of one term."""

    def __init__(self, logged: LoggedRows) -> None:
        self._logged = logged
        self._doubts: dict[str, Doubt] = {}

    @property
    def stamps_before(self) -> Mapping[str, TableStamp]:
        """What a restart compares the catalogue with."""
        return {table: doubt.before for table, doubt in self._doubts.items()}

    def earliest(self, offset: int) -> int | None:
        """The offset up to which no row is in doubt, at most this one; None where nobody knows."""
        offsets = [doubt.since for doubt in self._doubts.values() if doubt.since is not None]
        return min([offset, *offsets]) if len(offsets) == len(self._doubts) else None

    def add(self, before: Mapping[str, TableStamp], now: Mapping[str, TableStamp], since: int | None) -> None:
        """Takes the stamps of two looks, by table; `since` is the last offset that was read as the earlier one
        began."""
        for table in self._doubts.keys() - now.keys():
            self._drop(table)
        for table, stamp in now.items():
            if (older := before.get(table)) == stamp:  # as nearly all are, at each look
                self._logged.know_labels(table, stamp, is_new=False)
                continue
            if older is None or older.table != stamp.table:
                self._drop(table)
            elif is_doubtful(older, stamp):
                doubt = Doubt(older, stamp, since, mixed_up(older, stamp))
                if (former := self._doubts.get(table)) is not None:
                    doubt = replace(doubt, before=former.before, since=former.since)
                self._doubts[table] = doubt
            waiting = self._doubts.get(table)
            self._logged.know_labels(table, waiting.before if waiting is not None and not waiting.is_read else stamp)

    def look(self, find_moment: Callable[[], Moment | None]) -> None:
        """Asks for the present moment, after a look at the catalogue, where that is of use."""
        waits = [doubt for doubt in self._doubts.values() if doubt.moment is None or (doubt.is_read and not doubt.ends)]
        if not waits or (present := find_moment()) is None:
            return
        oldest = Snapshot.parse(present.snapshot).xmin
        for table, doubt in self._doubts.items():
            if doubt.moment is None:
                self._begin(table, doubt, present)
            elif doubt.is_read and not doubt.ends and oldest >= Snapshot.parse(doubt.moment.snapshot).xmax:
                self._doubts[table] = replace(doubt, ends=present.end)

    def settle(self, has_passed: HasPassed) -> tuple[set[str], set[str]]:
        """Tables that are to be dumped now, and those of which no open window may count: it may be older than the dump
        that is requested already."""
        due = self._logged.take_early() & self._doubts.keys()
        stale = set()
        for table, doubt in list(self._doubts.items()):
            if doubt.moment is None:
                continue
            if not doubt.is_read and has_passed(doubt.moment.end):
                doubt = self._doubts[table] = replace(doubt, is_read=True)
                if doubt.is_dumped:
                    stale.add(table)
                elif not self._is_proven(table, doubt):
                    due.add(table)
                self._logged.know_labels(table, doubt.now)
            if doubt.is_read and doubt.ends and has_passed(doubt.ends):
                self._drop(table)
        return due, stale

    def _begin(self, table: str, doubt: Doubt, moment: Moment) -> None:
        snapshot = Snapshot.parse(moment.snapshot)
        waits = has_other_texts(doubt.before, doubt.now) and snapshot.xmin < snapshot.xmax
        if waits:
            self._logged.watch_early(table, snapshot.xmax)
        self._doubts[table] = replace(doubt, moment=moment, ends=None if waits else moment.end)

    def _is_proven(self, table: str, doubt: Doubt) -> bool:
        """Whether no row has met another description than those of the two looks."""
        before, now, since = doubt.before, doubt.now, doubt.since
        were_written, with_new = find_other_labels(before, now)
        if (were_written or has_passing_columns(before, now)) and not self._logged.has_none(table, since):
            return False
        are_enums = all(prints is not None and prints.is_enum for prints in (now.columns[c].prints for c in with_new))
        if with_new and not (
            self._logged.all_have_known_labels(table, since, with_new)
            if are_enums
            else self._logged.has_none(table, since)
        ):
            return False
        if not has_other_places(before, now):
            return True
        numbers = [{column.number for column in stamp.columns.values()} for stamp in (before, now)]
        allowed = {before.listed, now.listed} if numbers[0] == numbers[1] else set()
        return self._logged.all_are_listed(table, since, allowed)

    def _drop(self, table: str) -> None:
        self._doubts.pop(table, None)
        self._logged.end_watch(table)


def is_doubtful(before: TableStamp, now: TableStamp) -> bool:
    """Whether the stamps do not prove that every row in between was logged under the description of one of them."""
    facts = (has_other_places, has_passing_columns, has_other_texts, mixed_up)
    return any(is_so(before, now) for is_so in facts)
