"""What the commits of a table did to it, added up from the counts that Delta keeps in its log, without a job."""

from __future__ import annotations

from dataclasses import dataclass

from dblog_core.lake_engine.tables import log
from dblog_core.storage.location import Location


@dataclass(slots=True)
class Written:
    """Sums over commits. `source`: rows that were merged or appended; `bytes`: of the files that were added."""

    source: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    deleted_by_merge: int = 0
    """Those for which a row of the source said so; a TRUNCATE's rows are not among them."""
    files_added: int = 0
    files_removed: int = 0
    bytes: int = 0

    def add(self, operation: str, counts: dict[str, int]) -> None:
        """A commit that changed rows; what joins files or cleans up changes none."""
        if operation == "MERGE":
            self.source += counts.get("numSourceRows", 0)
            self.inserted += counts.get("numTargetRowsInserted", 0)
            self.updated += counts.get("numTargetRowsUpdated", 0)
            self.deleted += counts.get("numTargetRowsDeleted", 0)
            others = counts.get("numTargetRowsNotMatchedBySourceDeleted", 0)
            self.deleted_by_merge += counts.get("numTargetRowsDeleted", 0) - others
            self.files_added += counts.get("numTargetFilesAdded", 0)
            self.files_removed += counts.get("numTargetFilesRemoved", 0)
            self.bytes += counts.get("numTargetBytesAdded", 0)
        elif operation == "WRITE":
            self.source += counts.get("numOutputRows", 0)
            self.inserted += counts.get("numOutputRows", 0)
            self.files_added += counts.get("numFiles", 0)
            self.bytes += counts.get("numOutputBytes", 0)
        elif operation == "DELETE":
            self.deleted += counts.get("numDeletedRows", 0)
            self.files_added += counts.get("numAddedFiles", 0)
            self.files_removed += counts.get("numRemovedFiles", 0)
            self.bytes += counts.get("numAddedBytes", 0)


@dataclass(frozen=True, slots=True)
class Counted:
    """A table, and the version from which on its commits are counted (None: all)."""

    table: Location
    after: int | None

    def upto(self, version: int | None) -> Written:
        """What the commits up to `version` did."""
        written = Written()
        if version is not None:
            for number in range(-1 if self.after is None else self.after, version):
                written.add(*log.metrics(self.table, number + 1))
        return written
