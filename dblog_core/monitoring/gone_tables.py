"""Captured tables that are gone where no log says so: PostgreSQL's has no DROP TABLE, no new name of a table, and no
table that becomes a partition. Everybody who follows the super-changelog keeps the rows that such a table had.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.interfaces import Problem, Source
from dblog_core.model import table_identity, table_patterns
from dblog_core.model.schema import TableName

GONE = "is no longer in the source as a table of its own, which its log does not say"


def find_gone(config: Config, source: Source) -> Iterator[Problem]:
    """A warning for each table that `tables` matches and the super-changelog has, and that the source no longer has."""
    # Before the catalogue is asked: a table that is made in between is no gone one.
    head = wiring.open_staging(config).head()
    if head is None or (entries := source.identities()) is None:
        return
    present = table_identity.find_names(entries)
    for table in sorted(head.schemas.keys() - present):
        if table_patterns.matches(TableName.parse(table), config.source.tables):
            yield Problem(
                f"{table} {GONE}: the lake keeps the rows that it had",
                "remove its lake table if nobody needs them, and name tables in `tables` so that none matches it",
                fatal=False,
                table=table,
            )
