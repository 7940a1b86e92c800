"""What the order of a key depends on: types, the labels of ENUM types in them, collations and the library's versions.

Of a collation both versions count: the one that the library has now decides how keys compare, and the recorded one
changes when somebody has rebuilt the indexes for it. Columns that only newer servers' catalogues have are found by name
in the row as JSON. Whose type is an array, domain, range or composite of an ENUM type orders by its labels too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.sql import catalogue
from dblog_core.sources.postgres.sql.connection import Connection, rows

# Enough for a key of the server's own types without a collation: those have no labels, and nothing about them changes.
_SIMPLE = f"""
    SELECT a.attname, format_type(a.atttypid, a.atttypmod)
    FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE a.attname = ANY(%s) AND n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
      AND NOT a.attisdropped AND a.attcollation = 0 AND a.atttypid < {catalogue.BUILT_IN}
"""
_COLUMNS = """
    WITH RECURSIVE key AS (
        SELECT k.place, k.name, a.atttypid AS type, a.atttypmod AS typmod, a.attcollation AS collation
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN unnest(%s::text[]) WITH ORDINALITY k(name, place)
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = k.name AND NOT a.attisdropped
        WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
    ), part AS (
        SELECT place, type FROM key
        UNION
        SELECT part.place, inner_.type FROM part JOIN pg_type t ON t.oid = part.type CROSS JOIN LATERAL (
            SELECT unnest(ARRAY[t.typbasetype, t.typelem])
            UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
            UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS inner_(type)
        WHERE inner_.type <> 0
    )
    SELECT key.name, format_type(key.type, key.typmod),
           ARRAY(SELECT e.enumlabel::text FROM part JOIN pg_enum e ON e.enumtypid = part.type
                 WHERE part.place = key.place ORDER BY e.enumtypid, e.enumsortorder),
           jsonb_strip_nulls(to_jsonb(l) - ARRAY['oid', 'collnamespace', 'collowner', 'collencoding']
               || jsonb_build_object('actual', pg_collation_actual_version(l.oid))),
           CASE WHEN l.collprovider = 'd' THEN (
               SELECT jsonb_object_agg(f.key, f.value) || jsonb_build_object(
                   'actual', (SELECT pg_database_collation_actual_version(d.oid) FROM pg_database d
                              WHERE d.datname = current_database()))
               FROM pg_database d, jsonb_each(to_jsonb(d)) f
               WHERE d.datname = current_database() AND f.key IN ('datcollate', 'datctype', 'datlocprovider',
                   'daticulocale', 'datlocale', 'daticurules', 'datcollversion')) END
    FROM key LEFT JOIN pg_collation l ON l.oid = key.collation
    ORDER BY key.place
"""


def columns(connection: Connection, table: TableName, key: Sequence[str]) -> list[list[Any]]:
    """Of each column of the key: name, and what there is of type, labels, collation and the database's own one.

    Empty if there is no such table.
    """
    parameters = (list(key), table.schema, table.name)
    simple = dict(rows(connection, _SIMPLE, parameters))
    if len(simple) == len(key) > 0:
        return [[name, simple[name]] for name in key]
    described = rows(connection, _COLUMNS, parameters)
    return [[part for part in row if part] for row in described]
