"""Other programs' commits to a lake table, answered before and behind ours: a merge disowns rows, and reports damage.

What they may do is a closed list (`dblog_core.lake.foreign_commits`). A damaged table is `incomplete` until a full dump
is merged that began later; who answers the commits requests it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblog_core.errors import LakeError
from dblog_core.lake import foreign_commits
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.model.table_names import quote_for_shell

_ATTEMPTS = 20  # at commits that follow each other


@dataclass(frozen=True, slots=True)
class AnsweredCommits:
    """The version up to which other programs' commits are answered, and the first that has damaged rows, in words."""

    version: int
    damage: str | None


def answer_commits(
    table: LakeTable, *, after: int, merged: int, commit: int | None = None, newest: int | None = None
) -> AnsweredCommits:
    """Judges what other programs wrote since version `after`, whose commit had the CRC-32 `commit` (None: not known),
    and answers it. `newest`: the table's newest version by a look right before; None: it is looked for.

    A row without an offset, or beyond `merged` (the highest that one of our rows can have here), counts as older than
    all our rows from now on. Raises LakeError where the table is gone, where it can not take the shape, and where
    another program commits all the time.
    """
    newest = table.version() if newest is None else newest
    if newest is None:
        raise _gone_error(table, after)
    damage: str | None = None
    for _ in range(_ATTEMPTS):
        judged = foreign_commits.judge(table.path, after=after, commit=commit, newest=newest, merged=merged)
        damage = damage or judged.damage
        if not judged.is_foreign:
            return AnsweredCommits(newest, damage)
        if judged.reshaped:
            table.prepare()
        if judged.has_rows:
            table.disown(merged, newest)
        after = newest
        commit = None
        newest = table.version()
        if newest is None:
            raise _gone_error(table, after)
    raise LakeError(
        f"another program has committed to the table {_ATTEMPTS} times while its commits were answered",
        where=str(table.path),
        fix="stop that program, which the table's Delta history names; the next merge tries again",
    )


def _gone_error(table: LakeTable, after: int) -> LakeError:
    return LakeError(
        f"the lake table is gone; a merge left version {after}",
        where=str(table.path),
        fix="mount the storage that has it; if it is removed for good, run "
        f"`dblog reset {quote_for_shell(table.name)}`: the table is built again",
    )
