"""Stamps of tables (`healing.unlogged_rewrites` of the capture), by one query that locks the catalogue alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dblog_core.config.source import SourceConfig
from dblog_core.model.table_stamp import ColumnStamp, LargeValues, PublicationStamp, TableStamp
from dblog_core.sources.postgres.sql.catalogue import TREE, CatalogueTable
from dblog_core.sources.postgres.sql.connection import Connection, rows
from dblog_core.sources.postgres.sql.publication import find_publication, replacement, statement
from dblog_core.sources.postgres.sql.replica_identity import SHOWS_GENERATED
from dblog_core.sources.postgres.sql.stamps import printed_types

# xmin is the transaction that wrote the column's description last, as each ALTER of the column does.
_COLUMNS = """
    SELECT a.attrelid::bigint, a.attname, a.attnum, a.atttypid::bigint, a.atttypmod, a.xmin::text, a.attisdropped
    FROM pg_attribute a
    WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND (a.attgenerated = '' OR a.attisdropped)
"""
# Whatever rewrites a table (a changed type, TRUNCATE, CLUSTER, VACUUM FULL) gives its file another relfilenode.
_FILES = f"""
    WITH RECURSIVE {TREE}
    SELECT tree.root::bigint, f.oid::text, f.relfilenode::bigint
    FROM tree JOIN pg_class f ON f.oid = tree.relid AND f.relkind = 'r'
"""
"""Of a partitioned table those of its partitions."""
# VACUUM FULL, CLUSTER and TRUNCATE keep the TOAST table, an ALTER TABLE that writes the rows again makes another one.
# pg_repack gives the table one that an earlier transaction has made.
_LARGE_VALUES = """
    SELECT c.oid::bigint, t.oid::bigint, t.xmin = a.xmin
    FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = 1
    WHERE c.oid = ANY(%s::oid[])
"""
# xmin: as above. A publication's row is written by ALTER PUBLICATION SET (…), OWNER TO and RENAME TO.
_PUBLICATION = f"""
    SELECT current_setting('server_version_num')::int / 10000, p.oid::bigint,
           p.pubowner || ' ' || ({SHOWS_GENERATED}), p.xmin::text
    FROM pg_publication p WHERE p.pubname = %s
"""
_MEMBERS = """
    SELECT r.prrelid::bigint, r.oid || ' ' || r.xmin, r.prqual IS NOT NULL OR r.prattrs IS NOT NULL
    FROM pg_publication_rel r WHERE r.prpubid = %s
"""
_SCHEMAS = """
    SELECT n.nspname, 'schema ' || s.oid FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid
    WHERE s.pnpubid = %s
"""


def stamps(connection: Connection, tables: Sequence[CatalogueTable], config: SourceConfig) -> dict[str, TableStamp]:
    """The stamp of each table, by its name."""
    names = {table.oid: str(table.name) for table in tables}
    columns: dict[int, dict[str, ColumnStamp]] = {oid: {} for oid in names}
    dropped: dict[int, list[int]] = {oid: [] for oid in names}
    described = rows(connection, _COLUMNS, (list(names),))
    printed = printed_types.stamp_types(connection, {type_id for _, _, _, type_id, *_ in described})
    for oid, column, number, type_id, modifier, written, is_dropped in described:
        if is_dropped:
            dropped[oid].append(number)
            continue
        columns[oid][column] = ColumnStamp(number, type_id, modifier, written, printed[type_id])
    files: dict[int, dict[str, int]] = {oid: {} for oid in names}
    for oid, file, node in rows(connection, _FILES, (list(names),)):
        files[oid][file] = node
    large_values = {
        oid: LargeValues(relation, is_by_alter)
        for oid, relation, is_by_alter in rows(connection, _LARGE_VALUES, (list(names),))
    }
    shown = _stamp_publication(connection, tables, config) if config.plugin == "pgoutput" else {}
    return {
        name: TableStamp(
            oid, columns[oid], files[oid], large_values.get(oid), shown.get(oid), tuple(sorted(dropped[oid]))
        )
        for oid, name in names.items()
    }


def _stamp_publication(
    connection: Connection, tables: Sequence[CatalogueTable], config: SourceConfig
) -> dict[int, PublicationStamp]:
    """How the publication shows each table, by its oid; empty where there is no publication."""
    publications = rows(connection, _PUBLICATION, (config.publication,))
    if not publications:
        return {}
    server, number, options, written = publications[0]
    members = {oid: (member, is_narrowed) for oid, member, is_narrowed in rows(connection, _MEMBERS, (number,))}
    schemas = dict(rows(connection, _SCHEMAS, (number,)))
    publication = find_publication(connection, config, tables)
    all_missing = frozenset(publication.missing)

    def stamp(table: CatalogueTable) -> PublicationStamp:
        member, is_narrowed = members.get(table.oid, (schemas.get(table.name.schema, ""), False))
        lacks = fix = ""
        if is_narrowed:
            lacks = f"publication {config.publication} leaves out rows or columns of {table.name}"
            fix = replacement(connection, config)
        elif table.name in all_missing or not publication.suits:
            lacks = f"publication {config.publication} does not show all changes of {table.name}"
            missing = (table.name,) if table.name in all_missing else ()
            needed = statement(replace(publication, missing=missing), config)
            fix = "" if needed is None else needed.as_string(connection)
        return PublicationStamp(server, number, options, written, member, lacks, fix)

    return {table.oid: stamp(table) for table in tables}
