"""Stamps of tables (`healing.unlogged_rewrites` of the capture), by one query that locks the catalogue alone."""

from __future__ import annotations

from collections.abc import Sequence

from dblog_core.model.table_stamp import ColumnStamp, TableStamp
from dblog_core.sources.postgres.sql.catalogue import TREE, CatalogueTable
from dblog_core.sources.postgres.sql.connection import Connection, rows

# xmin is the transaction that wrote the column's description last, as each ALTER of the column does.
_COLUMNS = """
    SELECT a.attrelid::bigint, a.attname, a.attnum,
           (SELECT coalesce(json_object_agg(e.oid, e.enumlabel), '{}') FROM pg_enum e WHERE e.enumtypid = a.atttypid),
           a.atttypid::bigint, a.atttypmod, a.xmin::text
    FROM pg_attribute a
    WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
"""
# Whatever rewrites a table (a changed type, TRUNCATE, CLUSTER, VACUUM FULL) gives its file another relfilenode.
_FILES = f"""
    WITH RECURSIVE {TREE}
    SELECT tree.root::bigint, f.oid::text, f.relfilenode::bigint
    FROM tree JOIN pg_class f ON f.oid = tree.relid AND f.relkind = 'r'
"""
"""Of a partitioned table those of its partitions."""


def stamps(connection: Connection, tables: Sequence[CatalogueTable]) -> dict[str, TableStamp]:
    """The stamp of each table, by its name."""
    names = {table.oid: str(table.name) for table in tables}
    columns: dict[int, dict[str, ColumnStamp]] = {oid: {} for oid in names}
    for oid, column, number, labels, type_id, modifier, written in rows(connection, _COLUMNS, (list(names),)):
        columns[oid][column] = ColumnStamp(number, labels, type_id, modifier, written)
    files: dict[int, dict[str, int]] = {oid: {} for oid in names}
    for oid, file, node in rows(connection, _FILES, (list(names),)):
        files[oid][file] = node
    return {name: TableStamp(oid, columns[oid], files[oid]) for oid, name in names.items()}
