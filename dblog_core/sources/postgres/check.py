"""The preflight: every problem of server, rights, tables, publication and slot at once, each with its fix in SQL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import psycopg2
import psycopg2.errors
from psycopg2 import sql

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceError
from dblog_core.interfaces import Problem
from dblog_core.model import server_messages, table_patterns
from dblog_core.model.table_names import quote_for_shell
from dblog_core.rows.source_key_faults import UNIQUE_KEY
from dblog_core.sources import minor_releases
from dblog_core.sources.postgres import watermark_table
from dblog_core.sources.postgres.sql import catalogue, publication, slots, standby
from dblog_core.sources.postgres.sql.catalogue import CatalogueTable
from dblog_core.sources.postgres.sql.connection import (
    Connection,
    connect,
    execute,
    one_snapshot,
    rows,
    session,
    value,
)
from dblog_core.sources.postgres.sql.replica_identity import missing, refusals, usable
from dblog_core.sources.postgres.sql.watermarks import creation, identifier

OLDEST = 150000
_SETTINGS = """
    SELECT current_setting('wal_level'), pg_is_in_recovery(), current_setting('max_replication_slots')::int,
           (SELECT count(*) FROM pg_replication_slots), current_setting('max_wal_senders')::int,
           (SELECT count(*) FROM pg_stat_replication), current_setting('max_slot_wal_keep_size'),
           pg_encoding_to_char(encoding), rolsuper, rolreplication
    FROM pg_database, pg_roles WHERE datname = current_database() AND rolname = current_user
"""
_FEEDBACK = "SELECT current_setting('hot_standby_feedback'), current_setting('primary_slot_name')"
_TABLE_RIGHTS = """
    SELECT oid::bigint, has_schema_privilege(relnamespace, 'USAGE'), has_table_privilege(oid, 'SELECT'),
           row_security_active(oid), pg_has_role(relowner, 'USAGE')
    FROM pg_class WHERE oid = ANY(%s::oid[])
"""
_NAN = ("real", "double precision", "numeric")
_OF_OBJECTS = ("reg", "aclitem")
"""How the names of types begin whose values are numbers of objects, and print the names that these have."""


def problems(config: SourceConfig) -> list[Problem]:
    """Everything that `check` reports. Raises nothing for what a user can repair."""
    try:
        with session(config) as connection:
            return list(_all(connection, config))
    except SourceError as error:
        return [Problem(f"{error.where}: {error.message}", error.fix)]


def _all(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    if connection.server_version < OLDEST:
        yield Problem(
            f"the server's version is {connection.server_version // 10000}", "PostgreSQL 15 or later is needed"
        )
        return
    yield from minor_releases.problems("postgres", minor_releases.of_postgres(connection.server_version))
    yield from _server(connection, config)
    with one_snapshot(connection):
        tables = catalogue.wanted_tables(connection, config)
        refused_tables = refusals(connection, tables, config)
    for pattern in config.tables:
        if not any(table_patterns.matches(table.name, [pattern]) for table in tables):
            yield Problem(
                f"no table matches {pattern}",
                "correct tables in [source]: SCHEMA.TABLE with * and ?, upper and lower case count",
                pattern=pattern,
            )
    yield from missing(tables, config)
    rights = _rights(connection, tables)
    for table, refused in zip(tables, refused_tables, strict=True):
        yield from refused
        yield from _table(connection, config, table, rights.get(table.oid))
    if not config.read_only:
        yield from watermark_table.find_problems(connection, config)
    yield from _signals(connection, config)
    if config.plugin == "pgoutput":
        yield from _publication(connection, config, usable(connection, config))
    yield from _slot(connection, config)
    if (replica := config.replica) is not None:  # dumps wait for it, the log does not
        yield from (
            dataclasses.replace(problem, fatal=False) for problem in _attempt(lambda: _check_replica(replica, config))
        )


def _check_replica(replica: SourceConfig, config: SourceConfig) -> None:
    with session(replica) as connection:
        standby.require_same_system(connection, replica, config)


def _server(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    level, recovering, max_slots, used_slots, max_senders, senders, keep, encoding, superuser, replication = rows(
        connection, _SETTINGS
    )[0]
    if level != "logical":
        yield Problem(f"wal_level is {level}", "ALTER SYSTEM SET wal_level = 'logical'; then restart the server")
    if recovering:
        yield from _standby(connection, config)
    # Our own slot may be one of those that are taken.
    if used_slots >= max_slots and slots.find_slot(connection, config.slot) is None:
        raised = f"ALTER SYSTEM SET max_replication_slots = {max_slots + 4}; then restart the server"
        fix = f"drop one that is not needed (SELECT slot_name, active FROM pg_replication_slots), or {raised}"
        yield Problem(f"all {max_slots} replication slots are taken", fix)
    if senders >= max_senders:
        yield Problem(
            f"all {max_senders} WAL senders are busy",
            f"ALTER SYSTEM SET max_wal_senders = {max_senders + 4}; then restart the server",
        )
    if keep != "-1":
        what = f"max_slot_wal_keep_size is {keep}: a capture that stands still for longer than that loses its slot"
        yield Problem(
            what, "ALTER SYSTEM SET max_slot_wal_keep_size = -1, or watch the lag in `dblog status`", fatal=False
        )
    if (idle := value(connection, "SELECT current_setting('idle_replication_slot_timeout', true)")) not in (None, "0"):
        what = (
            f"idle_replication_slot_timeout is {idle}: a capture that stands still for longer than that loses its slot"
        )
        fix = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()"
        yield Problem(what, fix, fatal=False)
    if encoding == "SQL_ASCII":
        yield Problem(
            "the database has no encoding (SQL_ASCII): text that is not UTF-8 stops the capture",
            "convert it to UTF8",
            fatal=False,
        )
    if not (superuser or replication):
        yield Problem(
            f"user {config.user} may not replicate",
            _sql(connection, "ALTER ROLE {} REPLICATION", sql.Identifier(config.user)),
        )
        return
    # The role's rights do not tell: pg_hba.conf has lines of its own for replication.
    yield from _attempt(lambda: connect(config, replication=True).close())


def _standby(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    """What a standby needs to decode, or why it cannot; each fix is for the standby, unless it names the primary."""
    if (refusal := standby.refusal(connection, config)) is not None:
        yield Problem(*refusal)
        return
    feedback, physical = rows(connection, _FEEDBACK)[0]
    if feedback != "on":
        yield Problem(
            "hot_standby_feedback is off on this standby: a VACUUM on the primary invalidates the slot, and the log"
            " that was not read by then is lost",
            "on the standby: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf()",
            fatal=False,
        )
    if not physical:
        yield Problem(
            "this standby has no physical slot at its primary: its feedback is forgotten whenever it is away, and a"
            " VACUUM then invalidates the slot",
            "SELECT pg_create_physical_replication_slot('standby') on the primary, and on the standby: ALTER SYSTEM SET"
            " primary_slot_name = 'standby'; SELECT pg_reload_conf()",
            fatal=False,
        )


Rights = tuple[bool, bool, bool, bool]
"""Whether we may look into the schema, and read the table; whether rows are hidden from us; whether it is ours."""


def _rights(connection: Connection, tables: Sequence[CatalogueTable]) -> dict[int, Rights]:
    """Our rights by the table's oid."""
    rights = rows(connection, _TABLE_RIGHTS, ([table.oid for table in tables],))
    return {oid: (usage, select, hidden, is_owner) for oid, usage, select, hidden, is_owner in rights}


def _table(
    connection: Connection, config: SourceConfig, table: CatalogueTable, rights: Rights | None
) -> Iterator[Problem]:
    if rights is None:
        return  # dropped a moment ago
    usage, select, hidden, _ = rights
    grant = (
        sql.Identifier(table.name.schema),
        sql.Identifier(config.user),
        identifier(table.name),
        sql.Identifier(config.user),
    )
    if not (usage and select):
        yield Problem(
            f"user {config.user} may not read {table.name}",
            _sql(connection, "GRANT USAGE ON SCHEMA {} TO {}; GRANT SELECT ON {} TO {}", *grant),
            table=str(table.name),
        )
    # Our sessions have row_security = off: a chunk of such a table fails instead of leaving rows out.
    if hidden:
        yield Problem(
            f"row security hides rows of {table.name} from user {config.user}",
            _sql(connection, "ALTER ROLE {} BYPASSRLS", grant[1]),
            table=str(table.name),
        )
    if not table.key(config):
        what = f"{table.name} has no key: its changes are logged, and it cannot have a lake table or be dumped"
        yield Problem(what, f"give it a primary key, or {UNIQUE_KEY}", fatal=False, table=str(table.name))
    if generated := [c.name for c in table.columns if c.generated]:
        what = f"{table.name}: generated columns ({', '.join(generated)}) are not in the log and are left out"
        yield Problem(what, "compute them in the lake from the other columns", fatal=False)
    if table.partitioned:
        what = f"{table.name} is partitioned: TRUNCATE, DETACH and DROP of one partition are not in its log"
        command = f"`dblog dump --table {quote_for_shell(table.name)}`"
        fix = f"DELETE the rows first, or dump the table afterwards: {command}"
        yield Problem(what, fix, fatal=False, table=str(table.name))
    floats = [
        c.name
        for c in table.columns
        if c.source_type.startswith(_NAN) and not c.generated and not c.source_type.endswith("]")
    ]
    if floats and config.plugin == "wal2json":
        what = f"{table.name}: wal2json sends NaN and infinities of ({', '.join(floats)}) as null"
        yield Problem(what, 'set plugin = "pgoutput" unless those columns never hold such values', fatal=False)
    if names := [c.name for c in table.columns if c.source_type.startswith(_OF_OBJECTS) and not c.generated]:
        what = f"{table.name}: ({', '.join(names)}) print names of objects, and the lake keeps each as it was when it"
        fix = "exclude the columns under [source.columns], or give them the type oid or text, if objects are renamed"
        yield Problem(f"{what} was logged or dumped", fix, fatal=False)


_TEXT = ("text", "character varying", "character", "json")


def _signals(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    """The signal table is made by an administrator: who may write it may request dumps."""
    if (name := catalogue.signal_table(config)) is None:
        return
    columns = "(id varchar(255) PRIMARY KEY, type varchar(64) NOT NULL, data text)"
    make = _sql(connection, f"CREATE TABLE {{}} {columns}", identifier(name))
    if (table := catalogue.find_table(connection, name)) is None:
        yield Problem(
            f"the signal table {name} is missing", f"{make}; GRANT INSERT ON it to those who may request dumps"
        )
        return
    kinds = [c.source_type.partition("(")[0] for c in table.columns]
    if len(kinds) < 3 or any(kind not in _TEXT for kind in kinds[:3]) or not table.logged or table.partitioned:
        yield Problem(f"{name} is no signal table: its first three columns are to be text", f"rename it, and {make}")


def _publication(connection: Connection, config: SourceConfig, tables: list[CatalogueTable]) -> Iterator[Problem]:
    state = publication.find_publication(connection, config, tables)
    if state.filtered:
        yield Problem(publication.filter_problem(state, config), publication.replacement(connection, config))
    needed = publication.statement(state, config)
    if needed is None or state.only_shows_generated:
        return
    statements = publication.with_lock(connection, state, needed, for_people=True).as_string(connection)
    who = f"user {config.user} may not change it"
    if config.read_only:
        who = f"read_only is set{publication.where_made(connection)}"
    elif _may_publish(connection, config, tables, exists=state.exists):
        return
    else:
        statements = f"{creation(catalogue.watermark_table(config)).as_string(connection)}; {statements}"
    what = f"publication {config.publication} is missing or incomplete, and {who}"
    unshown = publication.find_captured_missing(state, config) if state.only_lacks_tables else []
    yield Problem(what, statements, tables=tuple(unshown), of_dumps=state.only_lacks_tables and not unshown)


def _may_publish(connection: Connection, config: SourceConfig, tables: list[CatalogueTable], *, exists: bool) -> bool:
    owned = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s"
    creatable = "SELECT has_database_privilege(current_database(), 'CREATE')"
    # A table can only be published by its owner, whoever owns the publication.
    right = value(connection, owned, (config.publication,)) if exists else value(connection, creatable)
    return bool(right) and all(is_owner for *_, is_owner in _rights(connection, tables).values())


def _slot(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    slot = slots.find_slot(connection, config.slot)
    if slot is not None:
        yield from _attempt(lambda: slots.ensure_slot(connection, config))
    elif config.plugin == "wal2json" or _decodes(connection, config):
        yield from _plugin(connection, config)


def _decodes(connection: Connection, config: SourceConfig) -> bool:
    """Whether the server is a standby that may decode: whether its primary logs what that takes, an attempt tells."""
    return standby.recovering(connection) and standby.refusal(connection, config) is None


def _plugin(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    """A temporary slot tells whether the server can load the plugin; it goes with its session, and waits for nobody."""
    if not value(connection, "SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user"):
        return  # reported already
    try:
        # Making a slot waits for the end of transactions that run: whether the plugin loads shows before.
        execute(connection, "SET statement_timeout = '2s'")
        execute(
            connection,
            "SELECT pg_create_logical_replication_slot(%s, %s, true)",
            (f"{config.slot}_check"[:63], config.plugin),
        )
        execute(connection, "SELECT pg_drop_replication_slot(%s)", (f"{config.slot}_check"[:63],))
    except psycopg2.errors.UndefinedFile:
        yield Problem(f"the server has no output plugin {config.plugin}", slots.plugin_fix(connection))
    except psycopg2.errors.QueryCanceled:
        return  # it was loaded, and then waited for older transactions
    except psycopg2.errors.ObjectNotInPrerequisiteState as error:
        if "primary" in server_messages.by_postgres(error):  # of ours it is reported already
            yield Problem(
                f"the standby cannot decode: {server_messages.by_postgres(error)}",
                "on the primary: ALTER SYSTEM SET wal_level = 'logical'; then restart it",
            )
    except psycopg2.errors.ConfigurationLimitExceeded:
        return  # no free slot: reported already
    except psycopg2.Error as error:
        fix = "allow it on the server: output_plugin_libraries must name it where the server has that setting"
        yield Problem(f"output plugin {config.plugin}: {server_messages.by_postgres(error)}", fix)
    finally:
        execute(connection, "RESET statement_timeout")


def _attempt(step: Callable[[], object]) -> Iterator[Problem]:
    try:
        step()
    except SourceError as error:
        yield Problem(error.message, error.fix)


def _sql(connection: Connection, template: str, *parts: sql.Composable) -> str:
    return sql.SQL(template).format(*parts).as_string(connection)
