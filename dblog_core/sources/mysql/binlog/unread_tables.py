"""Tables whose rows the log does not hold as a capture needs them: each stops alone, reported once by an `Unreadable`.

    a column or a kind of table that has no exact form -> the source's catalogue refuses it too
    a row in part, as single sessions may log them     -> the catalogue knows nothing: a dump heals it
    types that the catalogue alone tells, not just now -> the log's next rows, once it tells: a dump heals it

MariaDB's log does not say which tables are system-versioned. Their statements do, their shape does where the definition
names no columns of its own for the versions (`table_ids`), and the catalogue does, at which a capture looks all the
time.
"""

from __future__ import annotations

from collections.abc import Sequence

from dblog_core.model.events import THEN_DUMPED, Transaction, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import exclude_entry
from dblog_core.sources.mysql.ddl.statements import Means, Statement
from dblog_core.sources.mysql.row_events.change_batch import BatchBuilder
from dblog_core.sources.mysql.row_events.table_map import Unread
from dblog_core.sources.mysql.values import types

FULL_IMAGES = "set binlog_row_image = FULL for every session"
IN_PARTS = "an update with parts of JSON documents alone"
WHOLE_DOCUMENTS = "set binlog_row_value_options = '' for every session"


def without_columns(table: TableName, names: Sequence[str], *, generated: bool) -> tuple[str, str]:
    """What is wrong with a row that lacks these columns (none: they are not known), and its fix. `generated`: whether
    they may be generated columns of a server that leaves them out of its log."""
    what = "a row without all its columns"
    if not names:
        return what, FULL_IMAGES
    lacking = f"{what}, it lacks {', '.join(names)}"
    if not generated:
        return lacking, FULL_IMAGES
    return lacking, (
        f"{FULL_IMAGES}; MariaDB 11.8 leaves generated columns out whatever that says: exclude them by "
        f"{exclude_entry(table, names)}"
    )


class UnreadTables:
    """Which tables were reported as unreadable, and which ones this log's statements have made system-versioned."""

    def __init__(self) -> None:
        self._told: set[TableName] = set()
        self._versioned: set[TableName] = set()  # named as statements name them

    def follow(self, statement: Statement) -> None:
        """A statement may make a table system-versioned, or end that. Of renamed tables any may be meant: where that is
        wrong, the catalogue says so soon, and the table is dumped."""
        named = set(statement.tables)
        if statement.means in (Means.EMPTIES, Means.SWAPS) and self._versioned & named:
            self._versioned -= named
            if statement.means is Means.SWAPS:
                self._versioned |= named - set(statement.renamed_away)
        if statement.versions is not None:
            self._versioned = self._versioned | named if statement.versions else self._versioned - named

    def why_unread(self, table: TableName, named: TableName) -> Unread | None:
        """Why a table that can be read otherwise cannot. `named`: as statements name it."""
        return Unread(table, types.VERSIONED, types.unversioned_fix(table)) if named in self._versioned else None

    def stop(self, unread: Unread, transaction: Transaction, batch: BatchBuilder) -> None:
        """Rows of the table are passed over from here on, up to its next shape that can be read."""
        fix = unread.fix if unread.catalogued or unread.passes else f"{unread.fix}; {THEN_DUMPED}"
        self._tell(unread, fix, transaction, batch)

    def stop_in_part(
        self, table: TableName, what: str, fix: str, transaction: Transaction, batch: BatchBuilder
    ) -> None:
        """The log has `what` of it. No setting of the server shows that: each session has one of its own."""
        self._tell(Unread(table, what, fix, catalogued=False), f"{fix}; {THEN_DUMPED}", transaction, batch)

    def resume(self, table: TableName) -> None:
        """The log has shown the table's shape: it is read from here on."""
        self._told.discard(table)

    def _tell(self, unread: Unread, fix: str, transaction: Transaction, batch: BatchBuilder) -> None:
        # Once: each event of the table would say it again.
        if unread.table in self._told:
            return
        self._told.add(unread.table)
        why = f"{unread.table} at {transaction.position} (transaction {transaction.id}): {unread.why}"
        index = batch.transaction(transaction)
        batch.signal(Unreadable(batch.next_sequence, index, unread.table, why, fix, unread.catalogued))
