"""What became of a table's rows in a merge: what `merge` prints, and `status` keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import MergeCounts
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.tables.commit_metrics import Written


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a table's rows in a merge.

    `rows` were staged; of the keys that they are of, `applied` were written (`inserted` + `updated`), `unchanged` the
    lake had like that already, `deleted` went (ghosts and a TRUNCATE's rows too), `withheld` wait for a dump.
    `history`: lines of the history; `told`: it has all of this merge, and ends with version `told_version`, whose
    commit has the CRC-32 `told_commit`; `history_gap`: why the history begins again; None: it continues. Files and
    `bytes` (those written) are of the lake table.
    `awaits`: the full dump that was requested for the values of new columns, or for damaged rows. `commit`: the CRC-32
    of the commit of `version`. `damage`: what another program has done to rows of the table; a full dump brings them
    that begins at or after the offset `damaged_at`. `ignored`: the columns of its newest shape
    that the lake leaves out; None where it has taken that shape. `carrier`: who has carried the rows, and why.
    """

    table: str
    rows: int
    applied: int = 0
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    withheld: int = 0
    history: int = 0
    files_added: int = 0
    files_removed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    version: int | None = None
    told: bool = False
    awaits: str | None = None
    ignored: list[str] | None = None
    error: str | None = None
    commit: int | None = None
    damage: str | None = None
    damaged_at: int | None = None
    told_version: int | None = None
    told_commit: int | None = None
    history_gap: str | None = None
    carrier: str | None = None

    @classmethod
    def of(cls, work: Work, written: Written, *, withheld: int) -> Self:
        """The rows of a work, as its commits have counted them."""
        applied = written.inserted + written.updated
        return cls(
            table=work.table,
            rows=work.rows,
            applied=applied,
            inserted=written.inserted,
            updated=written.updated,
            unchanged=max(0, written.source - applied - written.deleted_by_merge - withheld),
            deleted=written.deleted,
            withheld=withheld,
            files_added=written.files_added,
            files_removed=written.files_removed,
            bytes=written.bytes,
        )

    def counts(self, merge: int) -> MergeCounts:
        """The numbers alone, of merge number `merge`, as `status` keeps them."""
        names = [count.name for count in fields(MergeCounts) if count.name != "merge"]
        return MergeCounts(merge, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of one merge."""

    number: int
    offset: int
    segment: int
    seconds: float
    tables: tuple[Applied, ...]
    task: str | None = None
    """The kind of the lake task that it was."""
    late: tuple[str, ...] = ()
    """Tables that lack some of it: their rows come in with later merges."""
    fault: LakeError | None = None
    """Why the task, or a part of it, has failed."""
