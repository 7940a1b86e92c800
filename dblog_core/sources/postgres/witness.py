"""Witnesses (`dblog_core.capture.healing.witness`): numbers in a row of the watermark table, each larger than the last.

A witness names the file of the table beside its number. A table that was dropped, emptied by TRUNCATE or rewritten
since has another file, and lacks the number for that reason.
"""

from __future__ import annotations

from psycopg2 import sql

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost
from dblog_core.interfaces import WrittenWitness
from dblog_core.model.watermark import encode_witness, parse_witness
from dblog_core.sources.postgres.sql import catalogue, standby
from dblog_core.sources.postgres.sql.catalogue import FRESH_START
from dblog_core.sources.postgres.sql.connection import Connection, rows
from dblog_core.sources.postgres.sql.watermarks import in_statement

_FILE = """
    SELECT pg_relation_filenode(c.oid)::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_READ = sql.SQL("SELECT payload FROM {} WHERE worker = %s")
_FIRST = sql.SQL("INSERT INTO {} (worker, payload) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING 1")
_NEXT = sql.SQL("UPDATE {} SET payload = %s WHERE worker = %s AND payload = %s RETURNING 1")


def write(connection: Connection, config: SourceConfig, after: str) -> WrittenWitness | None:
    """As `Source.write_witness`; each statement is a transaction of its own, flushed here."""
    table = in_statement(catalogue.watermark_table(config))
    file = _file(connection, config)
    payload = _read(connection, config)
    number = max(parse_witness(payload or ""), _split(after)[1]) + 1
    new = encode_witness(config.name, number)
    if payload is None:
        written = rows(connection, _FIRST.format(table), (_worker(config), new))
    else:
        written = rows(connection, _NEXT.format(table), (new, _worker(config), payload))
    if not written or _file(connection, config) != file:
        return None  # another process was faster, or the table was replaced
    return WrittenWitness(f"{file}:{number}", str(standby.end(connection)))


def require(connection: Connection, config: SourceConfig, text: str) -> None:
    """As `Source.require_witness`."""
    file, number = _split(text)
    if catalogue.find_table(connection, catalogue.watermark_table(config)) is None or _file(connection, config) != file:
        return
    present_number = parse_witness(_read(connection, config) or "")
    if present_number < number:
        table = config.watermark_table
        raise LogPositionLost(
            f"the server lacks a commit of dblog that its log had: table {table} has number {present_number}, and we"
            f" have read past {number}. It was put back to an older state, from a backup or a snapshot of its disk."
            " Lost: its changes since that state; and what we have read after it never happened there",
            where=f"source {config.name}",
            fix=f"{FRESH_START}; if only rows of {table} were deleted: TRUNCATE {table}",
        )


def _split(text: str) -> tuple[str, int]:
    file, _, number = text.partition(":")
    return file, int(number or 0)


def _file(connection: Connection, config: SourceConfig) -> str | None:
    table = catalogue.watermark_table(config)
    files = rows(connection, _FILE, (table.schema, table.name))
    return str(files[0][0]) if files else None


def _read(connection: Connection, config: SourceConfig) -> str | None:
    payloads = rows(connection, _READ.format(in_statement(catalogue.watermark_table(config))), (_worker(config),))
    return str(payloads[0][0]) if payloads else None


def _worker(config: SourceConfig) -> str:
    """The row's key: no dump worker has such a name."""
    return f"capture of {config.name}"
