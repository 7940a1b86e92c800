"""Deliberate mistakes in the engine's commits: for each, the kind of commit and the death that show it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from deltalake import DeltaTable

from dblog_core.delta_writer import append
from dblog_core.delta_writer.checkpoints.checkpoint_reader import list_log
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.delta_writer.keys.key_index import KeyIndex
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Hits
from dblog_core.delta_writer.snapshot import path_of
from dblog_core.delta_writer.upserting import unchanged_toast
from dblog_core.delta_writer.upserting.draft import Draft
from dblog_core.delta_writer.upserting.upsert import remove_rows, upsert
from dblog_core.interfaces import Json
from dblog_core.lake_engine.events import fold
from dblog_core.lake_engine.events.dump_ends import delete_ghosts
from dblog_core.lake_engine.history.history_table import History
from dblog_core.lake_engine.merging import upsert_rows
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.tables import alter_table, log_cleanup, unneeded_files
from dblog_core.lake_engine.tasks import maintain
from dblog_core.model.values import Key
from dblog_core.staging.manifest import LogMark

Patch = AbstractContextManager[object]

VERSION = r"create shop/t/_delta_log/\d+\.json"
HISTORY = r"create shop/t__history/_delta_log/\d+\.json"
CUT = r"create _dblog/cuts/_delta_log/\d+\.json"
NEVER = 1 << 62


@dataclass(frozen=True)
class Mutant:
    """`dies_after`: the last write of the process, by a pattern (None: nothing befalls it): the first one of that name,
    or else the last (`is_first`)."""

    patched: Callable[[], Patch]
    kind: str
    dies_after: str | None = None
    is_first: bool = False

    @property
    def name(self) -> str:
        return f"{self.patched.__name__} ({self.kind})"


def a_line_of_a_history_has_no_transaction() -> Patch:
    """Who finishes a merge tells its lines again."""

    commit = append.AppendedTable.commit

    def commit_bare(self: append.AppendedTable, operation: str, metrics: Any, actions: list[Json], **more: Any) -> bool:
        return commit(self, operation, metrics, [action for action in actions if "txn" not in action], **more)

    return mock.patch.object(append.AppendedTable, "commit", commit_bare)


def a_history_does_not_look_what_it_has() -> Patch:
    """The transaction is there, and nobody asks for it."""
    append_lines = append.AppendedTable.append

    def append_anyway(self: append.AppendedTable, rows: Any, app: str, number: int) -> Any:
        kept = {name: at for name, at in self.snapshot.txns.items() if name != app}
        self.snapshot = replace(self.snapshot, txns=kept)
        return append_lines(self, rows, app, number)

    return _all(
        mock.patch.object(append.AppendedTable, "append", append_anyway),
        mock.patch.object(append.AppendedTable, "newest_order", return_value=0),
    )


@contextlib.contextmanager
def _all(*patches: Patch) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def lines_follow_their_rows() -> Patch:
    """The history is written when the table has the rows: who finishes the merge finds the table done."""
    tell, upsert = History.append_changes, upsert_rows.write
    waiting: list[Callable[[], None]] = []

    def wait(*arguments: Any, **more: Any) -> None:
        waiting.append(lambda: tell(*arguments, **more))

    def upsert_and_tell(*arguments: Any, **more: Any) -> Any:
        done = upsert(*arguments, **more)
        waiting.pop()()
        return done

    return _all(
        mock.patch.object(History, "append_changes", wait), mock.patch.object(upsert_rows, "write", upsert_and_tell)
    )


def the_tables_transaction_is_not_read_back() -> Patch:
    """Who finishes a merge takes no table for done."""
    return mock.patch.object(LakeTable, "newest_merge", return_value=None)


def a_truncate_takes_the_rows_behind_it() -> Patch:
    """It is applied after them."""

    def upsert_and_empty(table: OpenTable, changes: Any, app: str, number: int, **more: Any) -> Any:
        below = more.pop("below")
        done = upsert(table, changes, app, number, **more)
        if below is not None:
            remove_rows(table, f"{app}:gone", below, below=NEVER)
        return done

    return mock.patch.object(upsert_rows, "upsert", upsert_and_empty)


def a_truncate_is_a_commit_of_its_own() -> Patch:
    """Readers see an empty table until the rows behind it come."""

    def empty_and_upsert(table: OpenTable, changes: Any, app: str, number: int, **more: Any) -> Any:
        if (below := more.pop("below")) is not None:
            remove_rows(table, f"{app}:gone", below, below=below)
        return upsert(table, changes, app, number, **more)

    return mock.patch.object(upsert_rows, "upsert", empty_and_upsert)


def a_row_that_was_born_during_its_dump_is_a_ghost() -> Patch:
    """Whatever has touched it since."""

    def delete_all(rows: Any, ends: list[LogMark], schema: Any) -> Any:
        return delete_ghosts(rows, [replace(mark, since=mark.offset) for mark in ends], schema)

    return mock.patch.object(fold, "delete_ghosts", delete_all)


def ghosts_go_in_a_commit_of_their_own() -> Patch:
    """Readers see the batch, and rows that it shows to be gone."""

    def upsert_and_remove(table: OpenTable, changes: Any, app: str, number: int, **more: Any) -> Any:
        readings = more.pop("readings")
        done = upsert(table, changes, app, number, **more)
        remove_rows(table, f"{app}:gone", number, readings=readings)
        return done

    return mock.patch.object(upsert_rows, "upsert", upsert_and_remove)


def a_row_that_a_dump_of_its_batch_has_not_met_comes() -> Patch:
    """The table alone is searched for ghosts."""
    return mock.patch.object(fold, "dumps_within", return_value=[])


def a_row_that_its_batch_has_replaced_is_a_ghost() -> Patch:
    """Dumps are asked of the table as it was before the batch."""
    return mock.patch.object(Draft, "_dead_rows", lambda self, table, file: table.dead_rows(file))


def ghosts_go_before_the_history_tells_them() -> Patch:
    """Who finishes the merge finds none that it could tell of."""
    tell, upsert = History.append_ghosts, upsert_rows.write
    waiting: list[Callable[[], None]] = []

    def wait(*arguments: Any) -> None:
        waiting.append(lambda: tell(*arguments))

    def upsert_and_tell(*arguments: Any, **more: Any) -> Any:
        done = upsert(*arguments, **more)
        while waiting:
            waiting.pop(0)()
        return done

    return _all(
        mock.patch.object(History, "append_ghosts", wait), mock.patch.object(upsert_rows, "write", upsert_and_tell)
    )


def an_unchanged_value_is_that_of_another_row() -> Patch:
    """The values are read in the order of the file, and given to the changes in theirs."""
    fill = unchanged_toast.fill_unchanged_toast

    def fill_from_neighbours(files: Any, shape: Any, hits: list[Hits], *arguments: Any) -> Any:
        shifted = [Hits(hit.file, hit.change_numbers, np.roll(hit.rows, 1)) for hit in hits]
        return fill(files, shape, shifted, *arguments)

    return mock.patch.object(unchanged_toast, "fill_unchanged_toast", fill_from_neighbours)


def a_new_file_is_not_in_the_index() -> Patch:
    """The index counts it as covered, and has none of its rows."""
    add = KeyIndex.add

    def add_nothing(self: KeyIndex, path: str, size: int, columns: Iterable[tuple[int, Any]]) -> None:
        add(self, path, size, [(first, [column[:0] for column in arrays]) for first, arrays in columns])

    return mock.patch.object(KeyIndex, "add", add_nothing)


@contextlib.contextmanager
def keys_are_withheld_after_the_commit() -> Iterator[None]:
    """What dies in between has left the rows out, and nobody asks for them."""
    add, upsert = Withheld.add, upsert_rows.write
    waiting: list[Callable[[], None]] = []

    def later(self: Withheld, table: str, keys: Iterable[Key]) -> None:
        waiting.append(lambda: add(self, table, keys))

    def upsert_and_withhold(*arguments: Any, **more: Any) -> Any:
        done = upsert(*arguments, **more)
        while waiting:
            waiting.pop()()
        return done

    with mock.patch.object(Withheld, "add", later), mock.patch.object(upsert_rows, "write", upsert_and_withhold):
        yield


def a_cut_is_added_without_a_look() -> Patch:
    """Who finishes a merge adds its row again."""
    return _all(
        mock.patch.object(DeltaTable, "transaction_version", return_value=None),
        a_history_does_not_look_what_it_has(),
    )


def a_file_of_a_cut_that_is_kept_goes() -> Patch:
    """The newest version alone is asked what it needs."""
    return mock.patch.object(
        unneeded_files, "nearest_readable_version", lambda files, version: list_log(files.names(LOG)).newest
    )


def the_vectors_of_a_cut_that_is_kept_go() -> Patch:
    """Data files alone are needed."""

    def only_data(files: TableFiles, add: Json) -> Iterator[str]:
        yield path_of(add["path"], str(files))

    return mock.patch.object(unneeded_files, "_paths_of_add", only_data)


def a_file_goes_that_no_commit_names_yet() -> Patch:
    """However young it is: its writer is at work."""
    return mock.patch.object(maintain, "_UNCOMMITTED", -1.0)


def the_log_of_a_cut_that_is_kept_goes() -> Patch:
    """Up to the newest checkpoint."""
    clean = log_cleanup.clean
    return mock.patch.object(log_cleanup, "clean", lambda table, version: clean(table, NEVER))


def a_rename_is_made_again() -> Patch:
    """Two columns that have changed their names get the old ones back."""
    return mock.patch.object(alter_table, "renamed_upto", return_value=0)


MUTANTS = [
    Mutant(a_line_of_a_history_has_no_transaction, "rows with their history", HISTORY),
    Mutant(a_history_does_not_look_what_it_has, "rows with their history", HISTORY),
    Mutant(lines_follow_their_rows, "rows with their history", VERSION),
    Mutant(the_tables_transaction_is_not_read_back, "rows", VERSION),
    Mutant(the_tables_transaction_is_not_read_back, "rebuild", VERSION),
    Mutant(a_truncate_takes_the_rows_behind_it, "truncate with rows behind it"),
    Mutant(a_truncate_is_a_commit_of_its_own, "truncate with rows behind it", VERSION),
    Mutant(a_row_that_was_born_during_its_dump_is_a_ghost, "ghosts"),
    Mutant(ghosts_go_before_the_history_tells_them, "ghosts", VERSION),
    Mutant(ghosts_go_in_a_commit_of_their_own, "ghosts", VERSION, is_first=True),
    Mutant(a_row_that_a_dump_of_its_batch_has_not_met_comes, "ghosts"),
    Mutant(a_row_that_its_batch_has_replaced_is_a_ghost, "ghosts"),
    Mutant(an_unchanged_value_is_that_of_another_row, "rows"),
    Mutant(a_new_file_is_not_in_the_index, "rows"),
    Mutant(keys_are_withheld_after_the_commit, "withheld rows", VERSION),
    Mutant(a_cut_is_added_without_a_look, "rows", CUT),
    Mutant(a_file_of_a_cut_that_is_kept_goes, "unneeded files"),
    Mutant(the_vectors_of_a_cut_that_is_kept_go, "unneeded files"),
    Mutant(a_file_goes_that_no_commit_names_yet, "unneeded files"),
    Mutant(the_log_of_a_cut_that_is_kept_goes, "unneeded files"),
    Mutant(a_rename_is_made_again, "shape", VERSION, is_first=True),
]
