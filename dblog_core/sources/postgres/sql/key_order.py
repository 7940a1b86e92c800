"""What the order of a key depends on: types, the labels of ENUM types in them, collations and the library's versions.

Of a collation both versions count: the one that the library has now decides how keys compare, and the recorded one
changes when somebody has rebuilt the indexes for it. Until then no key of it is read. Columns that only newer servers'
catalogues have are found by name in the row as JSON. Whose type is an array, domain, range or composite of an ENUM type
orders by its labels too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dblog_core.errors import RequestError
from dblog_core.model.key_order import has_one_order
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_stamp import BUILT_IN
from dblog_core.sources.postgres.sql import typed_names
from dblog_core.sources.postgres.sql.connection import Connection, rows
from dblog_core.sources.postgres.sql.where_clause import Operators

# Enough for a key of the server's own types without a collation: those have no labels, and nothing about them changes.
_SIMPLE = f"""
    SELECT a.attname, format_type(a.atttypid, a.atttypmod)
    FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE a.attname = ANY(%s) AND n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
      AND NOT a.attisdropped AND a.attcollation = 0 AND a.atttypid < {BUILT_IN}
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
# By the strategies of a btree: a type may give its order operators of any name.
_OPERATORS = """
    SELECT given.name, jsonb_object_agg((ARRAY['<', '<=', '=', '>=', '>'])[a.amopstrategy], ARRAY[n.nspname, o.oprname])
    FROM unnest(%s::text[]) AS given(name)
    JOIN pg_opclass c ON c.opcintype = to_regtype(regexp_replace(given.name, '\\(.*\\)$', '')) AND c.opcdefault
    JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
    JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amoppurpose = 's'
        AND a.amoplefttype = c.opcintype AND a.amoprighttype = c.opcintype
    JOIN pg_operator o ON o.oid = a.amopopr
    JOIN pg_namespace n ON n.oid = o.oprnamespace
    GROUP BY given.name
"""


def columns(connection: Connection, table: TableName, key: Sequence[str]) -> list[list[Any]]:
    """Of each column of the key: name, and what there is of type, labels, collation and the database's own one.

    Empty if there is no such table. Raises RequestError where an index may have been built in another order than its
    collation has now: what is read by it lacks rows.
    """
    parameters = (list(key), table.schema, table.name)
    simple = dict(rows(connection, _SIMPLE, parameters))
    if len(simple) == len(key) > 0:
        return [[name, simple[name]] for name in key]
    described = rows(connection, _COLUMNS, parameters)
    for name, _, _, collation, database in described:
        if collation and collation.get("collversion") not in (None, collation.get("actual")):
            refresh = f"ALTER COLLATION {typed_names.column(collation['collname'])} REFRESH VERSION"
            raise _other_version(table, name, collation["collversion"], collation.get("actual"), refresh)
        if database and database.get("datcollversion") not in (None, database.get("actual")):
            name_of_all = typed_names.column(rows(connection, "SELECT current_database()")[0][0])
            refresh = f"ALTER DATABASE {name_of_all} REFRESH COLLATION VERSION"
            raise _other_version(table, name, database["datcollversion"], database.get("actual"), refresh)
    return [[part for part in row if part] for row in described]


def _other_version(table: TableName, column: str, recorded: str, actual: str | None, refresh: str) -> RequestError:
    return RequestError(
        f"the collation of key column {column} has version {actual}, and was recorded with {recorded}: an index that "
        "was built with that one has another order, and rows would be skipped",
        where=str(table),
        fix=f"on the server whose library is the right one (a standby needs that of its primary): REINDEX TABLE "
        f"{typed_names.table(table)}, and the same for all others with that collation; then {refresh}",
    )


def operators(connection: Connection, types: Iterable[str]) -> dict[str, Operators]:
    """Those of the default order of each type that has one of its own, which ORDER BY goes by."""
    return dict(rows(connection, _OPERATORS, (sorted(types),)))


def is_plain(schema: TableSchema) -> bool:
    """Whether the keys compare here as on the server."""
    return all(has_one_order(c) or c.source_type == "uuid" for c in schema.key_columns)
