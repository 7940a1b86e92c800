"""What the numbers of tables mean, by which row events name them: the last table map of each says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dblog_core.schema import TableName
from dblog_core.sources.mysql import tablemap
from dblog_core.sources.mysql.catalogue import TableFilter
from dblog_core.sources.mysql.charsets import Charsets
from dblog_core.sources.mysql.rowevents import Versions
from dblog_core.sources.mysql.tablemap import TableVersion


class TableNumbers:
    """Table versions by number; of tables that nobody wants the name alone.

    `usual`: numbers of captured tables whose rows need no further look, since one event of theirs had it and no shape
    has changed since; `unwanted`: numbers whose rows nobody wants.
    """

    def __init__(
        self, tables: TableFilter, keys: Mapping[str, Sequence[str]], charsets: Charsets, *, mariadb: bool
    ) -> None:
        self._tables = tables
        self._versions = Versions(keys, charsets, tables.columns, mariadb=mariadb)
        self._known: dict[int, TableVersion | TableName] = {}
        self.usual: dict[int, TableVersion] = {}
        self.unwanted: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def get(self, number: int) -> TableVersion | TableName | None:
        return self._known.get(number)

    def take(self, body: bytes) -> bool:
        """Takes a TABLE_MAP; whether its rows are wanted. Raises UnsupportedType."""
        head = tablemap.head(body)
        wanted = self._tables.ours(head.table) or self._tables.wants(head.table)
        described = self._versions.of(body, head.table) if wanted else head.table
        if self._known.get(head.table_id) != described:
            self._known[head.table_id] = described
            self.unwanted.discard(head.table_id)
            self.usual.clear()
        return wanted

    def forget(self) -> None:
        """From here on the server numbers its tables anew."""
        self._known.clear()
        self.usual.clear()
        self.unwanted.clear()
