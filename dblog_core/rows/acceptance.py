"""Which shape of a table somebody has accepted, where a source has columns to hide.

Rules go by names, and names move: so a row passes only if the table that it is of, and each of its columns, are proven
to be what they were when the configuration's entry for the table, or that it has none, was accepted. What cannot be
proven is held: the table stops alone, until its entry changes or `dblog rules accept` names it.

The manifest keeps an `Acceptance` of each captured table, so that it is true of exactly the rows before its end. What
a table is now the log tells (MySQL, MariaDB), or the catalogue (PostgreSQL: `table_identity.Origin`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from dblog_core.model.schema import TableSchema
from dblog_core.model.table_identity import digest


class Held(StrEnum):
    """Why nothing of a table passes."""

    ARRIVED = "arrived"
    """It, or rows of it, were elsewhere before: it was renamed or swapped, or a partition was attached."""
    BESIDE = "beside"
    """Its root, or another partition of it, hides columns: rows of the same kind come under its name."""
    RESHAPED = "reshaped"
    """Its columns are not those that were accepted."""
    ALTERED = "altered"
    """A statement may have given its columns other names, though they look the same."""
    UNKNOWN = "unknown"
    """The log has a statement of which nobody knows what it did to which table."""
    UNWATCHED = "unwatched"
    """Nobody has read the log from where it was accepted, or made, up to here."""
    GONE = "gone"
    """The source has it no longer, so that nothing proves what its rows were of; one that is made again passes."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`entry`: digest of the table's entry in [source.columns]; `shape`: what was accepted, as `Origin.describe` says,
    or the digest of its columns; `columns` and `version`: as in `Origin`, or, where the log tells, how many statements
    have held the table so far; `since`: the place in the log from which on rows pass (empty: all); `why_held`: why none
    does."""

    entry: str = ""
    shape: str = ""
    columns: str = ""
    version: str = ""
    since: str = ""
    why_held: Held | None = None

    @property
    def is_by_catalogue(self) -> bool:
        """Whether it is an `Origin` that proves the table to be what was accepted."""
        return ":" in self.shape

    def with_next_version(self) -> Acceptance:
        """Where the log tells: a request of before, by a person who has seen another table, no longer counts."""
        return replace(self, version=str(int(self.version or 0) + 1))

    def to_json(self) -> list[str]:
        """Without what is empty at its end: there may be many tables."""
        values = [self.entry, self.shape, self.columns, self.version, self.since, self.why_held or ""]
        while values and not values[-1]:
            values.pop()
        return values

    @classmethod
    def from_json(cls, data: Iterable[str]) -> Acceptance:
        """Raises ValueError on a reason that this version does not know."""
        entry, shape, columns, version, since, why = [*data, *[""] * 6][:6]
        return cls(entry, shape, columns, version, since, Held(why) if why else None)


Acceptances = dict[str, Acceptance]
"""By table."""


def digest_columns(schema: TableSchema) -> str:
    """16 hex digits over names, types and order of columns, as the log shows them too."""
    return digest([[column.name, str(column.type)] for column in schema.columns])
