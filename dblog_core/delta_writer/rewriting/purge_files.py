"""Files with dead rows are written again without them, one at a time: the one with the largest share of them first.

Which files: those with more than a share, or those of which a dead row may have been deleted, and not replaced by a
newer row of its key (`vectors`).
"""

from __future__ import annotations

from collections.abc import Collection

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.rewrite import Rewrite, plan_rewrite, rewrite_files, sources_of
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import stored_count


def purge_file(table: OpenTable, *, share: float = 0.0, only_deleted: bool = False) -> bool:
    """Writes one file again of whose rows more than the `share` are dead; False where there is none, or others replace
    it all the time meanwhile. `only_deleted`: one of which a row may have been deleted."""

    def plan(_: object) -> Rewrite | None:
        return plan_purge(table, share=share, among=with_deleted(table) if only_deleted else None)

    return rewrite_files(table, plan) is not None


def plan_purge(table: OpenTable, *, share: float = 0.0, among: Collection[str] | None = None) -> Rewrite | None:
    """The rewrite of the file with the largest share of dead rows; None where no file has more than `share`. `among`:
    the files to choose from, by path; None: all."""
    chosen = {
        live.path: marked_share
        for live in table.snapshot.files.values()
        if live.vector is not None and (among is None or live.path in among)
        if (marked_share := dead_share(table, live)) > share
    }
    worst = max(chosen, key=lambda path: chosen[path], default=None)
    return None if worst is None else plan_rewrite(table, sources_of(table, [table.snapshot.files[worst]]))


def with_deleted(table: OpenTable) -> frozenset[str]:
    """The paths of the files of which a dead row may have been deleted."""
    return frozenset(path for path, live in table.snapshot.files.items() if live.deleted_count)


def dead_share(table: OpenTable, live: LiveFile) -> float:
    """How many of the file's rows its vector marks, by the log alone where its statistics tell."""
    if live.vector is None:
        return 0.0
    rows = live.rows if live.rows is not None else stored_count(table.files, live, table.dead_rows(live))
    return int(live.vector["cardinality"]) / max(rows, 1)
