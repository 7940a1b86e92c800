"""The catalogue as it was at a place of the log: as it is now, if no statement since then has changed definitions."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceError
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog import events, scan
from dblog_core.sources.mysql.binlog.events import Event, Type
from dblog_core.sources.mysql.binlog.reach import reached_tables
from dblog_core.sources.mysql.binlog.reach.statement_reach import Place, Sight
from dblog_core.sources.mysql.binlog.scan import Scan
from dblog_core.sources.mysql.ddl.statements import changes_definitions, classify
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.sql import server

LOOK_AHEAD = 256 << 20
"""Bytes of log that are read ahead at most: a capture that is further behind does not read all of it twice."""


class _Definitions(Scan):
    """Looks for statements that may change definitions."""

    def __init__(self, begin: Position, *, own_table: TableName, mariadb: bool) -> None:
        super().__init__(begin, mariadb=mariadb)
        self._own_table = own_table
        self.bytes = 0
        self.has_changes = False

    def take(self, event: Event) -> None:
        self.bytes += event.size
        super().take(event)

    def _look(self, event: Event) -> None:
        super()._look(event)
        if event.type in (Type.QUERY, Type.QUERY_COMPRESSED):
            body = event.body if event.type == Type.QUERY else events.uncompressed_query(event.body)
            schema, sql = events.query(body)
            self.has_changes = self.has_changes or (changes_definitions(sql) and not self._makes_own_table(sql, schema))

    def _makes_own_table(self, sql: str, schema: str) -> bool:
        """Whether the statement is the one by which each start of a capture has its watermark table."""
        statement = classify(sql, schema)
        return statement.makes and statement.tables == (self._own_table,)


def look(
    connection: Connection[Any], config: SourceConfig, place: Place, *, any_case: bool, mariadb: bool
) -> Sight | None:
    """The catalogue as it was at `place`; None where that is not certain. Raises the driver's errors and
    SourceUnavailable."""
    catalogue = reached_tables.read_catalogue(connection, any_case=any_case)
    if catalogue is None:
        return None
    # After the answer: nothing that it may not have seen lies before this place.
    end = server.present_end(connection, config, mariadb=mariadb).with_changes(gtids=None)
    own_table = TableName.parse(config.watermark_table)
    stretch = _Definitions(Position(*place, None), own_table=own_table, mariadb=mariadb)

    def is_over(_: Event) -> bool:
        return stretch.has_changes or stretch.bytes > LOOK_AHEAD or stretch.place.has_reached(end)

    if not stretch.place.has_reached(end):
        try:
            scan.read(config, stretch, until=is_over, mariadb=mariadb)
        except SourceError as error:
            if error.transient:
                raise
            return None
    is_certain = stretch.place.has_reached(end) and not stretch.has_changes
    return Sight(catalogue, (end.file, end.offset)) if is_certain else None
