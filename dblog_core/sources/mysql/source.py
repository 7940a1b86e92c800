"""MySQL and MariaDB as a Source."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceRefused
from dblog_core.interfaces import ChunkReader, KeyOf, LogStream, Problem, Strain, WatermarkTable, WatermarkWriter
from dblog_core.model.events import Transaction
from dblog_core.model.position_spec import Place
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.rows import column_rule_faults
from dblog_core.sources.mysql import check, stored_forms, watermark_table
from dblog_core.sources.mysql.binlog import continuity, log
from dblog_core.sources.mysql.binlog import start_position as starts
from dblog_core.sources.mysql.binlog.log_state import LogState
from dblog_core.sources.mysql.binlog.reach import catalogue_sight
from dblog_core.sources.mysql.binlog.reach.statement_reach import Place as LogPlace
from dblog_core.sources.mysql.binlog.reach.statement_reach import Sight
from dblog_core.sources.mysql.binlog.xa import prepared_at_start
from dblog_core.sources.mysql.ddl.known_forms import Answer
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.row_events.table_ids import Lookups
from dblog_core.sources.mysql.sql import catalogue, chunks, log_end, server, watermarks
from dblog_core.sources.mysql.sql import source_load as load
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.sql.connection import connect, is_mariadb, translate_errors, where
from dblog_core.sources.mysql.values import charsets, multibyte
from dblog_core.sources.mysql.values.multibyte import Multibyte


class MysqlSource:
    """A Source for MySQL 8 and later, and MariaDB 10.5 and later. Every method opens its own connection."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._tables = TableFilter(config)
        self.kind: str = config.kind
        self._mariadb = config.kind == "mariadb"
        self._read_from = ""  # the server whose log was opened last

    def check(self) -> list[Problem]:
        return check.problems(self._config, self._tables)

    def prepare(self) -> frozenset[str]:
        connection = self._connect()
        # Nothing is ever written there: announced windows stand for the watermark table (`capture/announced_windows`).
        if self._config.read_only:
            connection.close()
            return frozenset()
        with translate_errors(self._config, "creating the watermark table"), connection:
            watermark_table.make(connection, self._tables)
        return frozenset()

    def keep_watermark_table(self) -> WatermarkTable:
        connection = self._connect()
        with translate_errors(self._config, "looking at the watermark table"), connection:
            return watermark_table.keep(connection, self._config, self._tables)

    def write_witness(self, after: str) -> None:
        """None is needed: where the log is opened, its newest transactions are compared with what was read."""

    def require_witness(self, text: str) -> None:
        """As `write_witness`."""

    def tables(self) -> tuple[TableSchema, ...]:
        connection = self._connect()
        with translate_errors(self._config, "reading the catalogue"), connection:
            names = catalogue.list_wanted(connection, self._tables)
            descriptions = catalogue.describe_all(connection, names, self._config.keys, self._config.columns)
        return tuple(described.schema for described in descriptions if described.schema)

    def list_refusals(self) -> tuple[Problem, ...]:
        """Tables with a column that has no exact form here, system-versioned ones, and those whose entry in
        [source.keys] or [source.columns] does not fit them, or not any longer, or is missing."""
        connection = self._connect()
        rules = self._config.columns

        def may_be_misconfigured(name: str) -> bool:
            return name in self._config.keys or name in rules or bool(column_rule_faults.originals(name, rules))

        with translate_errors(self._config, "reading the catalogue"), connection:
            names = catalogue.list_wanted(connection, self._tables)
            suspects = catalogue.suspects(connection, names)
            # Only those: to describe 10,000 tables at each look would keep the server's catalogue busy.
            asked_about = [name for name in names if name in suspects or may_be_misconfigured(str(name))]
            descriptions = catalogue.describe_all(connection, asked_about, self._config.keys, self._config.columns)
        problems = [problem for described in descriptions for problem in check.table_problems(described)]
        return (*problems, *column_rule_faults.of_missing(set(map(str, names)), self._config.columns))

    def shows_whole_logs(self) -> bool:
        return True

    def identities(self) -> None:
        """The log shows every table, and what takes its name."""

    def origins(self, tables: Collection[TableName]) -> None:
        """The log's statements tell what becomes of a table."""

    def current_position(self) -> str:
        connection = self._connect()
        with translate_errors(self._config, "reading the log's position"), connection:
            return server.present_end(connection, self._config, mariadb=self._mariadb).encode()

    def start_position(self) -> str:
        """With XA transactions that are prepared now, whose rows are in the log before this place."""
        connection = self._connect()
        with translate_errors(self._config, "looking for prepared XA transactions"), connection:
            return prepared_at_start.start(connection, self._config, mariadb=self._mariadb).encode()

    def begin(self, place: Place) -> str:
        connection = self._connect()
        with translate_errors(self._config, "looking for where to begin"), connection:
            return starts.begin(connection, self._config, place, mariadb=self._mariadb).encode()

    def find_target(self, place: Place) -> str:
        connection = self._connect()
        with translate_errors(self._config, "looking for where to end"), connection:
            return starts.find_target(connection, self._config, place, mariadb=self._mariadb).encode()

    def time(self) -> int:
        connection = self._connect()
        with translate_errors(self._config, "asking for the time"), connection:
            return starts.time(connection)

    def has_reached(self, position: str, target: str) -> bool:
        return self._decode(position).has_reached(self._decode(target))

    def lies_before(self, transaction: Transaction, position: str) -> bool:
        return self._decode(position).is_after(transaction.id, transaction.position)

    def place(self, position: str) -> str:
        return log_end.encode(position, self._read_from)

    def has_passed(self, position: str, end: str) -> bool:
        return log_end.has_passed(self._decode(position), end, self._read_from)

    def show(self, position: str) -> str:
        return str(self._decode(position))

    def succeed(self, name: str, before: frozenset[str]) -> None:
        """There is nothing to do: the server itself ends the connection of a replica that comes again."""

    def open_log(self, position: str, *, skip: int = 0, keys: KeyOf | None = None) -> LogStream:
        """Raises LogPositionLost where the server's log is not, or no longer, the one that `position` belongs to."""
        start = self._decode(position)
        connection = self._connect()
        with translate_errors(self._config, "comparing the log with our position"), connection:
            identity = server.identity(connection, mariadb=self._mariadb)
            # Before a byte is read: a server with another history would send its own log from our place on.
            has_file = continuity.compare(connection, self._config, start, identity)
            loses_commits = bool(server.list_undurable(connection))
            self._read_from = log_end.server(connection, self._config)
            sets = charsets.load(connection, self._charset)
            any_case = server.any_case(connection)
        state = LogState(
            tables=self._tables,
            keys=self._config.keys,
            charsets=sets,
            zero_dates=self._config.zero_dates,
            any_case=any_case,
            mariadb=self._mariadb,
            server=identity,
            position=start,
            rows_to_skip=skip,
            lookups=Lookups(self._is_table, self._primary_key, self._read_forms),
            look_ahead=partial(self._look_ahead, any_case=any_case),
            loses_commits=loses_commits,
            is_file_cut=loses_commits
            and has_file
            and continuity.is_file_cut(self._config, start, mariadb=self._mariadb),
        )
        return log.open_log(self._config, start, state, mariadb=self._mariadb, identity=self._config.replica_id)

    def _charset(self, name: str) -> Multibyte:
        connection = self._connect()
        with translate_errors(self._config, f"asking for character set {name}"), connection:
            return multibyte.ask(connection, name)

    def _look_ahead(self, place: LogPlace, *, any_case: bool) -> Sight | None:
        # Not by `_connect`: there MariaDB would leave out tables that somebody alters, and here it may wait for them.
        connection = connect(self._config)
        with translate_errors(self._config, "asking what a statement reaches"), connection:
            return catalogue_sight.look(connection, self._config, place, any_case=any_case, mariadb=self._mariadb)

    def _is_table(self, table: TableName) -> bool:
        connection = self._connect()
        with translate_errors(self._config, f"asking what {table} is"), connection:
            return catalogue.is_table(connection, table)

    def _primary_key(self, table: TableName) -> tuple[str, ...]:
        connection = self._connect()
        with translate_errors(self._config, f"asking for the primary key of {table}"), connection:
            return catalogue.primary_key(connection, table)

    def _read_forms(self, tables: Collection[TableName] | None) -> Answer:
        connection = self._connect()
        with translate_errors(self._config, "asking how tables are stored"), connection:
            forms = stored_forms.read_forms(connection, tables, self._tables.wants)
            # What the catalogue shows of a table, the log has had before.
            return Answer(forms, server.present_end(connection, self._config, mariadb=self._mariadb))

    def open_reader(self, *, lock_seconds: float | None = None) -> ChunkReader:
        return chunks.open_reader(self._config, lock_seconds=lock_seconds)

    def open_watermarks(self, worker: str) -> WatermarkWriter:
        return watermarks.open_watermarks(self._config, worker)

    def strain(self) -> Strain:
        return load.strain(self._config)

    def find_lock_holder(self, table: TableName) -> str | None:
        return load.find_lock_holder(self._config, table)

    def stamps(self) -> None:
        """The log has the statements."""

    def moment(self) -> None:
        """As with `stamps`."""

    def horizon(self) -> str | None:
        """None: with `binlog_order_commits` (MariaDB: always) visibility follows the log's order."""
        return None

    def _decode(self, position: str) -> Position:
        return Position.decode(position, mariadb=self._mariadb)

    def _connect(self) -> Connection[Any]:
        connection = connect(self._config)
        # The two speak one protocol, so that a wrong kind would show in the log alone, as nonsense.
        if is_mariadb(connection) != self._mariadb:
            connection.close()
            other = "mysql" if self._mariadb else "mariadb"
            raise SourceRefused(f"the server is {other}", where=where(self._config), fix=f'set source.kind = "{other}"')
        with translate_errors(self._config, "preparing to read the catalogue"):
            catalogue.wait_for_no_table(connection)
        return connection
