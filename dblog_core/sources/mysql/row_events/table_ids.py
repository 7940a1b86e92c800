"""What the numbers of tables mean, by which row events name them: the last table map of each says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dblog_core.model.schema import TableName
from dblog_core.rows import row_faults
from dblog_core.sources.mysql.ddl import known_forms
from dblog_core.sources.mysql.row_events import table_map
from dblog_core.sources.mysql.row_events.row_event_header import Versions
from dblog_core.sources.mysql.row_events.table_map import TableMapHead, TableVersion, Unread
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values import types
from dblog_core.sources.mysql.values.charsets import Charsets
from dblog_core.sources.mysql.values.types import UnsupportedType

_OF_VERSIONS = ("row_start", "row_end")
"""The columns that MariaDB puts behind those of a system-versioned table whose definition names none."""

_OF_SEQUENCE = (
    "next_not_cached_value",
    "minimum_value",
    "maximum_value",
    "start_value",
    "increment",
    "cache_size",
    "cycle_option",
    "cycle_count",
)
"""The columns of each of MariaDB's sequences, whose rows the log has too; a table may have the same."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """What is asked of the catalogue, which answers as it is when the question comes. `is_table`: whether it has a
    table of that name; `primary_key`: a table's primary key, no column where it has none or there is no table;
    `forms`: how tables are stored."""

    is_table: Callable[[TableName], bool]
    primary_key: Callable[[TableName], Sequence[str]]
    forms: known_forms.Ask = known_forms.ask_nobody


class TableNumbers:
    """Table versions by number; of tables that nobody wants the name alone, of those that cannot be read why.

    `usual`: numbers of captured tables whose rows need no further look, since one of their events had it and no shape
    has changed since; `unwanted`: numbers whose rows nobody wants.
    """

    def __init__(
        self,
        tables: TableFilter,
        keys: Mapping[str, Sequence[str]],
        charsets: Charsets,
        *,
        mariadb: bool,
        lookups: Lookups,
        native: Callable[[TableVersion], Mapping[str, str]],
    ) -> None:
        """`native`: as `NativeTypes.find`."""
        self._tables = tables
        self.mariadb = mariadb
        self._is_table = lookups.is_table  # asked of what may be a sequence
        self._versions = Versions(
            keys, charsets, tables.columns, mariadb=mariadb, primary_key=lookups.primary_key, native=native
        )
        self._known: dict[int, TableVersion | Unread | TableName] = {}
        self._undecided: dict[int, bytes] = {}  # maps that may be readable the next time
        self.usual: dict[int, TableVersion] = {}
        self.unwanted: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def get(self, number: int) -> TableVersion | Unread | TableName | None:
        """What the log's table number means now: the name alone of a table that nobody wants."""
        if (body := self._undecided.get(number)) is not None:
            self.take(body)
        return self._known.get(number)

    def take(self, body: bytes) -> bool:
        """Takes a TABLE_MAP; whether its rows are wanted. Raises ValueError or IndexError where it names no table, and
        what a look at the catalogue raises."""
        head = table_map.head(body)
        is_wanted = self._tables.ours(head.table) or self._tables.wants(head.table)
        described = self._describe(body, head) if is_wanted else head.table
        # The servers repeat the map before each statement's rows. The same bytes give the same version, so a repeated
        # map costs nothing; another shape sends the rows of all tables the long way once.
        if self._known.get(head.table_id) != described:
            self._known[head.table_id] = described
            self._undecided.pop(head.table_id, None)
            if isinstance(described, Unread) and described.passes:
                self._undecided[head.table_id] = body
            self.unwanted.discard(head.table_id)
            self.usual.clear()
        return not isinstance(described, TableName)

    def _describe(self, body: bytes, head: TableMapHead) -> TableVersion | Unread | TableName:
        table = head.table
        version = self._read_version(body, table)
        if isinstance(version, Unread):
            # An altered table that is ours alone ends dumps, or signals, and not the log.
            return table if self._tables.ours(table) else version
        versioned = self.mariadb and tuple(column.name for column in version.schema.columns[-2:]) == _OF_VERSIONS
        if versioned and not self._tables.ours(table):
            return Unread(table, types.VERSIONED, types.unversioned_fix(table))
        return self._tell_sequence(version, head) if self.mariadb else version

    def _read_version(self, body: bytes, table: TableName) -> TableVersion | Unread:
        try:
            return self._versions.of(body, table)
        except UnsupportedType as error:
            return Unread(table, str(error), error.fix, error.catalogued, error.passes)
        except Exception as error:  # noqa: BLE001 - `row_faults` says which errors are of the rows
            fault = row_faults.explain(error, table)
            return Unread(table, fault.message, fault.fix, catalogued=False)

    def _tell_sequence(self, version: TableVersion, head: TableMapHead) -> TableVersion | TableName:
        """Returns the name alone for a sequence of MariaDB. A number keeps its meaning, so it is looked up once."""
        # A dropped one has the columns of a sequence, and where a table becomes one, the statement says so.
        schema = version.schema
        if schema.key or tuple(column.name for column in schema.columns) != _OF_SEQUENCE:
            return version
        known = self._known.get(head.table_id)
        if known is version or known == head.table:
            return version if known is version else head.table
        return version if self._is_table(head.table) else head.table

    def forget(self) -> None:
        """From here on the server numbers its tables from the start."""
        # Numbers begin again with each start of the server, and may then mean other tables.
        self._known.clear()
        self._undecided.clear()
        self.usual.clear()
        self.unwanted.clear()
