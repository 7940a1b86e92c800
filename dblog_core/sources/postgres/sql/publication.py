"""The publication that pgoutput reads: all wanted tables and the watermark table, in step with the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg2.errors
from psycopg2 import sql

from dblog_core.config.source import SourceConfig
from dblog_core.errors import PublicationIncomplete, SourceRefused
from dblog_core.interfaces import Problem
from dblog_core.model.schema import TableName
from dblog_core.sources import minor_releases
from dblog_core.sources.postgres.sql import standby
from dblog_core.sources.postgres.sql.catalogue import CatalogueTable, find_table, signal_table, watermark_table
from dblog_core.sources.postgres.sql.connection import Connection, execute, rows
from dblog_core.sources.postgres.sql.replica_identity import SHOWS_GENERATED, WITHOUT_GENERATED, usable
from dblog_core.sources.postgres.sql.watermarks import identifier

_PUBLICATION = f"""
    SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
        {SHOWS_GENERATED}
    FROM pg_publication AS p WHERE pubname = %s
"""
# Not by `pg_publication_tables`: from PostgreSQL 16 on that view waits for each table that somebody has locked.
_MEMBERS = """
    SELECT n.nspname, c.relname, r.prqual IS NOT NULL
    FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pubname = %(name)s
    UNION ALL
    SELECT n.nspname, c.relname, false
    FROM pg_publication p JOIN pg_publication_namespace s ON s.pnpubid = p.oid
    JOIN pg_namespace n ON n.oid = s.pnnspid JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
    WHERE p.pubname = %(name)s
"""
_COLUMN_LISTS = """
    SELECT r.prrelid::regclass::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = %s AND r.prattrs IS NOT NULL
"""
_OUR_PUBLICATION = "SELECT 1 FROM pg_publication WHERE pubname = %s AND pg_has_role(pubowner, 'USAGE')"
_FOREIGN = """
    SELECT n.nspname, c.relname FROM unnest(%s::text[], %s::text[]) AS given(schema, name)
    JOIN pg_namespace n ON n.nspname = given.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = given.name
    WHERE NOT pg_has_role(c.relowner, 'USAGE')
"""
_LOCK_TIMEOUT = "500ms"
_MOST_AT_ONCE = 10_000
_FEWER = 8
"""Tables that one statement adds; one that meets a lock is tried again with so many times fewer."""
# Via the root: rows of partitions come under the name of the table that is captured.
_OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"


@dataclass(frozen=True, slots=True)
class Publication:
    """What there is under the configured name; `suits`: it shows all kinds of changes, and a wanted root for its
    partitions; `shows_generated`: generated columns too; `missing`: wanted tables that are not in it."""

    exists: bool
    suits: bool
    shows_generated: bool
    filtered: tuple[str, ...]
    missing: tuple[TableName, ...]

    @property
    def only_shows_generated(self) -> bool:
        """Whether that is all that is wrong: tables that have such columns are refused alone."""
        return self.exists and self.suits and self.shows_generated and not self.missing

    @property
    def only_lacks_tables(self) -> bool:
        """Whether that is all that is wrong: those tables alone are not shown."""
        return self.exists and self.suits and not self.shows_generated and not self.filtered and bool(self.missing)


def find_publication(connection: Connection, config: SourceConfig, tables: Sequence[CatalogueTable]) -> Publication:
    """The configured publication as it is now, and which wanted tables it lacks."""
    names = [table.name for table in tables] + ([] if config.read_only else [watermark_table(config)])
    signals = signal_table(config)
    if signals is not None and find_table(connection, signals) is not None:  # others make it, and may drop it
        names.append(signals)
    publications = rows(connection, _PUBLICATION, (config.publication,))
    if not publications:
        return Publication(False, False, False, (), tuple(names))
    everything, complete, via_root, shows_generated = publications[0]
    members = {TableName(*row[:2]): row[2] for row in rows(connection, _MEMBERS, {"name": config.publication})}
    # Rows that a filter keeps back are missing from the log, and nothing in it says so.
    filtered = [str(name) for name, some in members.items() if some]
    filtered += [name for (name,) in rows(connection, _COLUMN_LISTS, (config.publication,))]
    missing = () if everything else tuple(name for name in names if name not in members)
    suits = complete and (via_root or not any(table.partitioned for table in tables))
    return Publication(True, suits, shows_generated, tuple(filtered), missing)


def exists(connection: Connection, config: SourceConfig) -> bool:
    """Whether there is a publication of the configured name."""
    return bool(rows(connection, _PUBLICATION, (config.publication,)))


def find_captured_missing(publication: Publication, config: SourceConfig) -> list[str]:
    """The captured tables that it lacks: all but those that are ours alone."""
    own_tables = {watermark_table(config), signal_table(config)}
    return [str(name) for name in publication.missing if name not in own_tables]


def explain_unshown(connection: Connection, config: SourceConfig, tables: Sequence[TableName]) -> Problem:
    """Of tables that are ours alone: the publication lacks them, though it is ours to complete."""
    state = Publication(True, True, False, (), tuple(tables))
    needed = statement(state, config)
    assert needed is not None
    what = f"publication {config.publication} does not show {', '.join(map(str, tables))}"
    fix = with_lock(connection, state, needed, for_people=True).as_string(connection)
    return Problem(f"{what}, and user {config.user} may not change it", fix, of_dumps=True)


def of_all_tables(connection: Connection, config: SourceConfig) -> bool:
    """Whether the publication has every table from its beginning."""
    return any(everything for everything, *_ in rows(connection, _PUBLICATION, (config.publication,)))


def statement(publication: Publication, config: SourceConfig) -> sql.Composed | None:
    """What makes the publication right; None if it is. ONLY: children by inheritance are published as themselves."""
    name = sql.Identifier(config.publication)
    tables = sql.SQL(", ").join(sql.SQL("ONLY {}").format(identifier(table)) for table in publication.missing)
    if not publication.exists:
        shown = sql.SQL(" FOR TABLE {}").format(tables) if publication.missing else sql.SQL("")
        return sql.SQL("CREATE PUBLICATION {}{} WITH ({})").format(name, shown, sql.SQL(_OPTIONS))
    if publication.missing:
        return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, tables)
    if not publication.suits or publication.shows_generated:
        options = f"{_OPTIONS}, {WITHOUT_GENERATED}" if publication.shows_generated else _OPTIONS
        return sql.SQL("ALTER PUBLICATION {} SET ({})").format(name, sql.SQL(options))
    return None


def with_lock(
    connection: Connection, publication: Publication, needed: sql.Composed, *, for_people: bool = False
) -> sql.Composed:
    """The statement, on releases that need it behind a lock that waits for writers of the tables that it adds; both are
    one query, and so one transaction. `for_people`: who may run one after the other."""
    version = minor_releases.of_postgres(connection.server_version)
    if not publication.missing or not minor_releases.LATE_PUBLICATION.concerns("postgres", version):
        return needed
    # With their partitions: a writer of one holds no lock of the root.
    tables = sql.SQL(", ").join(map(identifier, publication.missing))
    locked = sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE; {}").format(tables, needed)
    return sql.SQL("BEGIN; {}; COMMIT").format(locked) if for_people else locked


def filter_problem(publication: Publication, config: SourceConfig) -> str:
    """What is wrong with a publication that has row filters or column lists."""
    return f"publication {config.publication} leaves out rows or columns of {', '.join(publication.filtered)}"


def replacement(connection: Connection, config: SourceConfig) -> str:
    """What to do with a publication that leaves out rows or columns: no ALTER takes filters off in one go."""
    drop = sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(config.publication)).as_string(connection)
    return f"{drop}, and run `dblog check` again: the capture makes it, or an administrator by the SQL that is printed"


def ensure_publication(
    connection: Connection, config: SourceConfig, tables: Sequence[CatalogueTable]
) -> frozenset[TableName]:
    """Makes or completes the publication; returns the tables that it still lacks, since somebody keeps them locked.

    Raises SourceRefused with the SQL for an administrator, and psycopg2's LockNotAvailable for the watermark table.
    """
    execute(connection, f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
    try:
        return _Completion(connection, config).run(tables)
    finally:
        execute(connection, "RESET lock_timeout")


class _Completion:
    """Adds what is missing around tables that cannot be added now: those that somebody has `locked`, those that are
    `foreign`, and a watermark table that is `absent`."""

    def __init__(self, connection: Connection, config: SourceConfig) -> None:
        self._connection = connection
        self._config = config
        self._locked: set[TableName] = set()
        self._foreign: set[TableName] = set()
        self._absent = self._find_absent()
        self._at_once = _MOST_AT_ONCE

    def run(self, tables: Sequence[CatalogueTable]) -> frozenset[TableName]:
        """As `ensure_publication`."""
        connection, config = self._connection, self._config
        while True:
            publication = find_publication(connection, config, tables)
            if publication.filtered:
                fix = replacement(connection, config)
                raise SourceRefused(filter_problem(publication, config), where=f"source {config.name}", fix=fix)
            left_out = self._locked | self._absent | self._foreign
            free = [name for name in publication.missing if name not in left_out]
            open_part = replace(publication, missing=tuple(free[: self._at_once]))
            needed = statement(open_part, config)
            if needed is None:
                self._refuse_foreign(publication)
                return frozenset(self._locked.intersection(publication.missing))
            # Without a write to the source: its administrator is given the statement.
            if config.read_only:
                _refuse_incomplete(connection, config, open_part, needed)
                return frozenset(self._locked.intersection(publication.missing))
            try:
                execute(connection, with_lock(connection, open_part, needed))
                self._at_once = min(self._at_once * _FEWER, _MOST_AT_ONCE)
            except psycopg2.errors.LockNotAvailable:
                if free[: self._at_once] == [watermark_table(config)]:
                    raise
                self._meet_lock(free[: self._at_once])
            except psycopg2.errors.DuplicateObject:
                continue  # a standby was faster: look again
            except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName):
                # One was dropped since we looked.
                tables = usable(connection, config) if tables else tables
                self._absent = self._find_absent()
            except psycopg2.errors.InsufficientPrivilege as error:
                if not self._leave_foreign(open_part.missing):
                    _refuse_incomplete(connection, config, open_part, needed, error)
                    return frozenset(self._locked.intersection(publication.missing))

    def _find_absent(self) -> set[TableName]:
        """The watermark table may be missing, and the account not allowed to make it."""
        watermarks = watermark_table(self._config)
        if self._config.read_only or find_table(self._connection, watermarks) is not None:
            return set()
        return {watermarks}

    def _meet_lock(self, tried: Sequence[TableName]) -> None:
        """Any of them may be locked: fewer at a time, down to the very one."""
        self._at_once = max(1, len(tried) // _FEWER)
        if len(tried) == 1:
            self._locked.update(tried)

    def _leave_foreign(self, tried: Sequence[TableName]) -> bool:
        """Leaves out those that others own; whether there are some, and ours are left."""
        others = _find_foreign(self._connection, self._config, tried)
        self._foreign |= others
        return bool(others) and others < set(tried)

    def _refuse_foreign(self, publication: Publication) -> None:
        state = replace(publication, missing=tuple(name for name in publication.missing if name in self._foreign))
        if state.missing and (needed := statement(state, self._config)) is not None:
            _refuse_incomplete(self._connection, self._config, state, needed)


def _find_foreign(connection: Connection, config: SourceConfig, tables: Sequence[TableName]) -> set[TableName]:
    """Those of the tables that others own, where the publication is ours: all others are added."""
    if not rows(connection, _OUR_PUBLICATION, (config.publication,)):
        return set()
    names = [[table.schema for table in tables], [table.name for table in tables]]
    return {TableName(*row) for row in rows(connection, _FOREIGN, names)}


def where_made(connection: Connection) -> str:
    """Of a standby: that the statement is for another server."""
    return ": on the primary, which the standby follows" if standby.recovering(connection) else ""


def _refuse_incomplete(
    connection: Connection,
    config: SourceConfig,
    publication: Publication,
    needed: sql.Composed,
    cause: Exception | None = None,
) -> None:
    """Raises SourceRefused for a publication that somebody else has to change, unless it concerns some tables alone."""
    unshown = find_captured_missing(publication, config)
    if publication.only_shows_generated or (publication.only_lacks_tables and not unshown):
        return  # of tables that are ours alone the capture says so, and goes on
    who = f"read_only is set{where_made(connection)}" if config.read_only else f"user {config.user} may not change it"
    what = f"publication {config.publication} is missing or incomplete, and {who}"
    statements = with_lock(connection, publication, needed, for_people=True).as_string(connection)
    fix = f"as the owner of the tables or a superuser: {statements}"
    where = f"source {config.name}"
    if publication.only_lacks_tables:
        raise PublicationIncomplete(what, frozenset(unshown), where=where, fix=fix) from cause
    raise SourceRefused(what, where=where, fix=fix) from cause
