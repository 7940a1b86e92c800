"""Changes of a table become one Delta commit, exactly once: old rows are marked in vectors, new ones appended.

  newest version -> the index covers its files -> rows of the keys -> vectors grown -> one file of vectors, one of new
  rows -> `txn`, `remove` and `add` as the next version, created if absent

Where the table takes no vectors, its touched files are written again instead (`rewriting.copy_on_write`).

The changes may follow a TRUNCATE: the table's rows below a number of the order column go in the same commit. To the
changes they are not there: none is updated, and none has a value for a row that keeps one. The same commit removes the
rows that a reader of the source has not seen, of those that the changes leave (`rewriting.unseen_rows`).

A commit of another writer in between makes ours fail: it is read, and all is planned again. Nothing is changed in
memory before the commit is made, so a fault at any step leaves files that no version names, for VACUUM, and nothing
else.

Changes that memory has no room for come in parts: each part is planned and gets files of its own, and only the places
of old rows stay in memory, as bitmaps where they are many. A part is split where the values that its rows keep have no
room. All are one commit.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dblog_core.delta_writer import order_guard, snapshot
from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.changes import Changes, Upserted
from dblog_core.delta_writer.features import ValuesTooLarge
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags, Hits
from dblog_core.delta_writer.rewriting.change_files import is_fed
from dblog_core.delta_writer.rewriting.copy_on_write import Copies
from dblog_core.delta_writer.rewriting.older_rows import GoneRows, find_older
from dblog_core.delta_writer.rewriting.unseen_rows import Reading
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.stored_rows import MOST_BYTES
from dblog_core.delta_writer.table_log import ATTEMPTS
from dblog_core.delta_writer.upserting.draft import Draft, Plan, commit_draft
from dblog_core.delta_writer.upserting.new_rows import NewFile, row_ids, write_new_rows
from dblog_core.delta_writer.upserting.unchanged_toast import take_unchanged_toast
from dblog_core.errors import LakeError

Place: TypeAlias = tuple[int, int]
"""The numbers of a part, and of a piece of it."""


def upsert(
    table: OpenTable,
    changes: Changes | Iterable[Changes],
    app: str,
    number: int,
    *,
    withhold: Callable[[Rows], None] = lambda rows: None,
    below: int | None = None,
    readings: Sequence[Reading] = (),
    is_fresh: bool = False,
    gives_up: bool = False,
) -> Upserted:
    """Commits the changes as transaction `number` of `app`, whatever others commit meanwhile. `changes` may be several
    parts, which can be gone through again, and of which no two have a key in common. `withhold` gets, before the
    commit, the numbers of the changes whose row has an unknown value. `below`: the table's rows whose order is
    below it go first, in the same commit; `readings`: remove rows, last. `is_fresh`: the caller has
    refreshed the table a moment ago, which saves a look at its log; should another commit be there since, ours fails.
    `gives_up`: then this raises Overtaken, for a caller that must look at the other commit first.

    Raises TableRefused where the table needs another writer, Overtaken where others leave no room, and StagingError
    with storage's own faults: then the same call later finds out what became of the commit.
    """
    parts = [changes] if isinstance(changes, Changes) else changes
    written: dict[Place, list[NewFile]] = {}
    copies: Copies = {}
    attempts = 1 if gives_up else ATTEMPTS
    for attempt in range(attempts):
        shape = table.shape() if is_fresh and not attempt else table.refresh()
        # An earlier run of this merge has committed it: its answer was lost, or its process died after the commit.
        if table.snapshot.txns.get(app, -1) >= number:
            return Upserted(table.snapshot.version, already=True)
        try:
            draft = plan_parts(table, parts, shape, written, below)
            draft.add_unseen(table, shape, readings)
            draft.write_old_files(table, copies)
        except LakeError:
            if snapshot.newest(table.files, table.snapshot).version == table.snapshot.version:
                raise
            continue  # what could not be read may be gone from the table, and the shape another one
        # Before the commit: a crash in between has a dump requested too many, and never one too few.
        if draft.unknown:
            withhold(np.concatenate(draft.unknown))
        if commit_draft(table, draft, app, number):
            return draft.counts
    raise table.overtaken_error(attempts)


def remove_rows(
    table: OpenTable, app: str, number: int, *, below: int | None = None, readings: Sequence[Reading] = ()
) -> Upserted | None:
    """As `upsert` without a change: rows are only removed; None where there are none. A transaction of the same number
    does not count: a second call finds no rows."""
    copies: Copies = {}
    for _ in range(ATTEMPTS):
        shape = table.refresh()
        draft = plan_parts(table, (), shape, {}, below)
        draft.add_unseen(table, shape, readings)
        if not draft.counts.deleted:
            return None
        draft.write_old_files(table, copies)
        if commit_draft(table, draft, app, number):
            return draft.counts
    raise table.overtaken_error()


def plan_parts(
    table: OpenTable,
    parts: Iterable[Changes],
    shape: Shape,
    written: dict[Place, list[NewFile]],
    below: int | None,
) -> Draft:
    """Plans each part and writes its new rows; `written` has the files of earlier plans, by their places; `below`: as
    for `upsert`."""
    draft = Draft(Upserted(table.snapshot.version + 1))
    older = GoneRows() if below is None else find_older(table, shape, below)
    draft.add_gone(older, table.snapshot.files.values())
    waiting: deque[tuple[Place, Future[list[NewFile]]]] = deque()

    def take_files() -> None:
        place, files = waiting.popleft()
        written[place] = [draft.add_file(file) for file in files.result()]

    # A file is encoded and written while the next part is read, folded and planned: two parts are in memory.
    with ThreadPoolExecutor(1, thread_name_prefix="data-file") as pool:
        for part_number, part in enumerate(parts):
            first = draft.rows
            for piece_number, (numbers, plan) in enumerate(_plan_pieces(table, part, shape, older)):
                place = part_number, piece_number
                draft.add(plan, first + numbers)
                while waiting:
                    take_files()
                if plan.puts.any():
                    write = pool.submit(_write_rows, table, plan, numbers, shape, written.get(place, ()))
                    waiting.append((place, write))
        while waiting:
            take_files()
    return draft


def _plan_pieces(table: OpenTable, changes: Changes, shape: Shape, older: GoneRows) -> Iterator[tuple[Rows, Plan]]:
    """The plan of all changes; or, where the values that they keep or are compared with have no room, plans of pieces,
    each with the numbers of its changes. `older`: the rows that go before the changes come."""
    pieces = deque([(np.arange(len(changes.rows)), changes)])
    is_split = False
    while pieces:
        numbers, piece = pieces.popleft()
        try:
            # The values of one change are what they are.
            most = MOST_BYTES if len(numbers) > 1 else sys.maxsize
            plan = _plan_upsert(table, piece, shape, older, most)
        except ValuesTooLarge:
            if not is_split:
                # Neighbours in the table's files stay together: otherwise each piece would read all of these files.
                numbers = _order_of_values(table, changes, shape)
            is_split = True
            middle = len(numbers) // 2
            halves = [numbers[:middle], numbers[middle:]]
            pieces.extendleft((half, changes.take(half)) for half in reversed(halves))
            continue
        yield numbers, plan


def _order_of_values(table: OpenTable, changes: Changes, shape: Shape) -> Rows:
    """The numbers of the changes in the order in which the rows that they take values from lie in the table's files."""
    keys = changes.rows if changes.origins is None else changes.origins
    places = np.full(len(changes.rows), -1, np.int64)
    for file_number, hit in enumerate(table.hits(table.key_arrays(keys, shape), shape, distinct=False)):
        places[hit.change_numbers] = (file_number << 32) + hit.rows
    return np.argsort(places, kind="stable")


def _plan_upsert(table: OpenTable, changes: Changes, shape: Shape, gone: GoneRows, most: int) -> Plan:
    """`most`: bytes of the values that changes keep, and of those that they are compared with in one file. Raises
    ValuesTooLarge where they have more."""
    keys = table.key_arrays(changes.rows, shape)
    hits, dead = table.find_rows(keys, shape)
    hits = gone.without(hits)
    is_in_table = np.zeros(len(changes.rows), np.bool_)
    for hit in hits:
        is_in_table[hit.change_numbers] = True
    older = unchanged = np.zeros(len(is_in_table), np.bool_)
    is_other_life = _find_other_lives(table, changes, shape, hits)
    if (guarded := changes.guarded & is_in_table).any():
        order = changes.rows[table.order]
        mends = changes.mends
        older = order_guard.find_overtaken(table.files, shape, hits, guarded, order, table.order, mends=mends)
        if changes.same:
            compared = guarded & ~older & ~changes.deleted & ~is_other_life
            compared = compared if changes.born is None else compared & ~changes.born
            unchanged = order_guard.find_equal(
                table.files,
                shape,
                hits,
                compared,
                changes.rows,
                changes.same,
                unchanged_toast=changes.unchanged_toast,
                most=most,
            )
    wins = ~(older | unchanged)
    same_lives = [hit.of(~is_other_life) for hit in hits]
    rows, unknown = take_unchanged_toast(table, changes, same_lives, wins & ~changes.deleted, shape, gone, most)
    # A row with an unknown value leaves the table: a wrong value would be worse than a row that waits for a
    # dump.
    puts = wins & ~changes.deleted & ~unknown
    counts = Upserted(
        version=table.snapshot.version + 1,
        inserted=int((puts & ~is_in_table).sum()),
        updated=int((puts & is_in_table).sum()),
        deleted=int((wins & (changes.deleted | unknown) & is_in_table).sum()),
        older=int(older.sum()),
        unchanged=int(unchanged.sum()),
        absent=int((wins & changes.deleted & ~is_in_table).sum()),
        withheld=int(unknown.sum()),
    )
    if shape.row_id is not None:
        rows = rows.append_column(shape.row_id, row_ids(table, shape, hits, puts))
    old = [hit.of(wins) for hit in hits]
    former = [hit.of(wins & ~puts) for hit in dead]
    return Plan(rows, bool(changes.unchanged_toast), old, former, puts, puts & is_in_table, unknown, counts)


def _find_other_lives(table: OpenTable, changes: Changes, shape: Shape, hits: Sequence[Hits]) -> Flags:
    """The changes that keep values, and whose row in the table is of another life (`Changes.born_at`)."""
    keeps = np.logical_or.reduce([np.zeros(len(changes.rows), np.bool_), *changes.unchanged_toast.values()])
    if changes.born_at is None or not keeps.any():
        return np.zeros(len(keeps), np.bool_)
    return order_guard.find_earlier_lives(table.files, shape, hits, keeps, changes.born_at, table.order)


def _write_rows(table: OpenTable, plan: Plan, numbers: Rows, shape: Shape, before: Sequence[NewFile]) -> list[NewFile]:
    """`numbers`: those of the plan's changes; `before`: as for `write_new_rows`."""
    # Kept values and ids come from the table: another version may have others.
    of_version = plan.has_unchanged_toast or shape.row_id is not None
    about = f"{table.snapshot.version if of_version else ''} {table.snapshot.metadata}"
    is_update = plan.updates[plan.puts]
    digest = hashlib.blake2b(numbers[plan.puts].tobytes() + about.encode(), digest_size=16)
    if is_fed(table):
        digest.update(is_update.tobytes())
    rows = plan.rows if plan.puts.all() else plan.rows.filter(pa.array(plan.puts))
    return write_new_rows(table, rows, is_update, shape, digest.digest(), before)
