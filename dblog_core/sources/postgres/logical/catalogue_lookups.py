"""What a log asks of the catalogue: over one connection, opened with the first question and closed with the log.

Five hundred tables are described within a second at a log's start; a connection for each would take many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import psycopg2

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import KeyOf
from dblog_core.model.schema import Column, TableName
from dblog_core.model.schema_changes import Layout
from dblog_core.model.table_identity import Origin
from dblog_core.sources.postgres.logical import column_layout
from dblog_core.sources.postgres.sql import catalogue, replica_identity, standby
from dblog_core.sources.postgres.sql.connection import Connection, connect, translate_errors, value
from dblog_core.sources.postgres.table_origins import find_origins

Answer = TypeVar("Answer")


class Lookups:
    """Answers come from the catalogue as it is when the question is asked."""

    def __init__(self, config: SourceConfig, staged_keys: KeyOf | None = None) -> None:
        """`staged_keys`: by table the key that its rows had so far."""
        self._config = config
        self._staged_keys = staged_keys
        self._connection: Connection | None = None

    def type_name(self, oid: int, typmod: int) -> str:
        """The base type's text of an oid and a typmod, also of a type that is dropped later."""
        return self._ask(lambda connection: catalogue.type_name(connection, oid, typmod))

    def base_name(self, name: str) -> str:
        """The base type's text of a type name of the log."""
        return self._ask(lambda connection: catalogue.base_name(connection, name))

    def describe(self, table: TableName) -> catalogue.CatalogueTable | None:
        """The table as the catalogue has it now; None if it is gone."""
        return self._ask(lambda connection: catalogue.find_table(connection, table))

    def key(self, table: TableName) -> tuple[str, ...]:
        """The table's key now: configured, or primary; of a table that is gone the configured one, or the one that its
        rows had so far."""
        key = self._ask(lambda connection: catalogue.find_key(connection, table, self._config))
        if key or self._staged_keys is None or not (staged_key := self._staged_keys(table)):
            return key
        return staged_key if self.describe(table) is None else ()

    def former_key(self, table: TableName, names: Sequence[str], key: tuple[str, ...]) -> tuple[str, ...]:
        """The key of rows with these columns, where columns of the table's `key` have other names since: as its rows
        had it so far, or by the places of columns that were renamed. Otherwise the same key."""
        staged = () if self._staged_keys is None else self._staged_keys(table)
        if staged and set(staged) <= set(names):
            return staged
        described = self.describe(table)
        present = [column.name for column in described.columns if not column.generated] if described else []
        if len(present) != len(names):
            return key
        former = dict(zip(present, names, strict=True))
        # Columns that have changed names with each other, or places, prove nothing.
        is_clear = all(name == old or old not in former for name, old in former.items())
        return tuple(former.get(name, name) for name in key) if is_clear else key

    def layout(self, oid: int, columns: Sequence[Column]) -> Layout | None:
        """The layout of a table that the log shows with these columns, see `column_layout`."""
        return self._ask(lambda connection: column_layout.layout(connection, oid, columns))

    def generated(self, oid: int) -> frozenset[str]:
        """The table's generated columns, if the server is one that may show them in its log."""
        return self._ask(lambda connection: replica_identity.find_generated(connection, oid))

    def origins(self, tables: Collection[TableName]) -> dict[TableName, Origin]:
        """As `Source.origins`."""
        return self._ask(lambda connection: find_origins(connection, tables, self._config.columns))

    def snapshot(self) -> str:
        """What the next question sees at least (`pg_current_snapshot()`)."""
        return self._ask(lambda connection: str(value(connection, "SELECT pg_current_snapshot()::text")))

    def recovering(self) -> bool:
        """Whether the server is a standby."""
        return self._ask(standby.recovering)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer:
        if self._connection is not None:
            try:
                return question(self._connection)
            except (psycopg2.OperationalError, psycopg2.InterfaceError):  # it was cut off while nothing was asked
                self.close()
        self._connection = connect(self._config)
        with translate_errors(self._config):
            return question(self._connection)
