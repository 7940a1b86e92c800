"""The watermark table: checked, made where it is missing, and shown by the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg2
from psycopg2 import sql

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceRefused
from dblog_core.interfaces import Problem, WatermarkTable
from dblog_core.sources.postgres.sql import catalogue, publication
from dblog_core.sources.postgres.sql.connection import Connection, execute, rows, value
from dblog_core.sources.postgres.sql.watermarks import creation, identifier

# A member of a publication has a row of its own, which is written again where it gets a filter.
_IDENTITY = """
    SELECT concat_ws(' ', c.oid, c.relpersistence,
        (SELECT string_agg(concat_ws(':', p.oid, r.oid, r.xmin, s.oid), ' ') FROM pg_publication p
         LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
         LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
         WHERE p.pubname = %s AND (p.puballtables OR r.oid IS NOT NULL OR s.oid IS NOT NULL)))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


def make(connection: Connection, config: SourceConfig) -> None:
    """Makes the table where it is missing, and the account may do so: `find_problems` says what is left."""
    table = catalogue.watermark_table(config)
    if catalogue.find_table(connection, table) is not None:
        return
    try:
        execute(connection, creation(table))
    except psycopg2.errors.UniqueViolation:
        return  # another process has made it in this moment
    except (psycopg2.errors.InsufficientPrivilege, psycopg2.errors.InvalidSchemaName):
        return


def keep(connection: Connection, config: SourceConfig) -> WatermarkTable:
    """As `Source.keep_watermark_table`."""
    make(connection, config)
    problems = [_with_publication(connection, config, problem) for problem in find_problems(connection, config)]
    if config.plugin == "pgoutput" and publication.exists(connection, config):
        try:
            publication.ensure_publication(connection, config, ())
        except SourceRefused as error:  # by filters
            problems.append(Problem(error.message, error.fix, of_dumps=True))
        problems += find_unshown(connection, config)
    table = catalogue.watermark_table(config)
    found = rows(connection, _IDENTITY, (config.publication, table.schema, table.name))
    return WatermarkTable(found[0][0] if found else None, tuple(problems))


def _with_publication(connection: Connection, config: SourceConfig, problem: Problem) -> Problem:
    """The problem, where the table is missing with what has the log show it once it is made."""
    table = catalogue.watermark_table(config)
    if config.plugin != "pgoutput" or catalogue.find_table(connection, table) is not None:
        return problem
    publications = publication.find_publication(connection, config, ())
    if not publications.exists or table not in publications.missing:
        return problem
    return replace(problem, fix=f"{problem.fix}; {publication.explain_unshown(connection, config, [table]).fix}")


def find_unshown(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    """What the publication lacks of the tables that are ours alone, where they exist."""
    lacking = publication.find_publication(connection, config, ()).missing
    unshown = [name for name in lacking if catalogue.find_table(connection, name) is not None]
    if unshown:
        yield publication.explain_unshown(connection, config, unshown)


def explain_fix(connection: Connection, config: SourceConfig) -> str:
    """The SQL for an administrator that makes the watermark table usable for us."""
    table = catalogue.watermark_table(config)
    return _sql(
        connection,
        "CREATE SCHEMA IF NOT EXISTS {}; {}; GRANT USAGE ON SCHEMA {} TO {}; GRANT SELECT, INSERT, UPDATE ON {} TO {}",
        sql.Identifier(table.schema), creation(table), sql.Identifier(table.schema), sql.Identifier(config.user),
        identifier(table), sql.Identifier(config.user),
    )  # fmt: skip


def find_problems(connection: Connection, config: SourceConfig) -> Iterator[Problem]:
    """Why no watermark can be written."""
    name = catalogue.watermark_table(config)
    table = catalogue.find_table(connection, name)
    fix = explain_fix(connection, config)
    if table is None:
        creatable = (
            "SELECT coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s), false)"
        )
        if not value(connection, creatable, (name.schema,)):
            what = f"the watermark table {name} is missing, and user {config.user} may not make it"
            yield Problem(what, fix, of_dumps=True)
        return
    if not value(
        connection,
        # ON CONFLICT … DO UPDATE takes all three.
        "SELECT bool_and(has_table_privilege(%s::oid, p)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS p",
        (table.oid,),
    ):
        yield Problem(f"user {config.user} may not write the watermark table {name}", fix, of_dumps=True)
    # Rows of an unlogged table are in no log: a watermark there would never come.
    shape = {c.name: c.source_type for c in table.columns}
    is_whole = shape.items() >= {"worker": "text", "payload": "text"}.items()
    if not is_whole or table.primary_key != ("worker",) or not table.logged:
        yield Problem(
            f"{name} is not a watermark table of dblog",
            _sql(connection, "set watermark_table to another name, or DROP TABLE {}", identifier(name)),
            of_dumps=True,
        )


def _sql(connection: Connection, template: str, *parts: sql.Composable) -> str:
    return sql.SQL(template).format(*parts).as_string(connection)
