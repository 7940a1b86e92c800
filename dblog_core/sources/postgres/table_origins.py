"""What proves that a table, and each of its columns, are still what they were: numbers that stay when names change, and
which transactions have written the rows of the catalogue.

    made with this name     its row type was written by the transaction that made the table; RENAME, SET SCHEMA and
                            OWNER TO write it again. The schema has had its name since before
    made as a partition     its place in the tree was written by the transaction that made it; ATTACH writes another one
    never another's part    a column's description is of the transaction that made the table; DETACH writes all of them
    columns                 number, name, type, and the transaction that has written each description last
    beside hidden values    one that hides columns is in the same tree of partitions, or a root above the table has had
                            another name: rows of the same kind are logged under the name of each partition

The rows for a table's system columns are written once, by the transaction that makes it. Ids of transactions are only
compared for equality, or with others of one look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dblog_core.config.source import ColumnRules
from dblog_core.model.schema import TableName
from dblog_core.model.table_identity import Origin, digest
from dblog_core.rows import column_rule_faults
from dblog_core.sources.postgres.sql import catalogue
from dblog_core.sources.postgres.sql.connection import Connection, one_snapshot, rows

_TABLES = """
    SELECT n.nspname, c.relname, c.oid::bigint, c.relkind = 'p', t.xmin::text, made.xmin::text,
        age(n.xmin) >= age(made.xmin)
    FROM unnest(%s::text[], %s::text[]) AS given(schema, name)
    JOIN pg_namespace n ON n.nspname = given.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = given.name AND c.relkind IN ('r', 'p')
    JOIN pg_type t ON t.oid = c.reltype
    JOIN pg_attribute made ON made.attrelid = c.oid AND made.attnum = -1
"""
_COLUMNS = """
    SELECT a.attrelid::bigint, a.attname, a.attnum, a.atttypid::bigint, a.atttypmod,
        coalesce(a.attnum = ANY(i.indkey), false), a.xmin::text
    FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
    WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_PARTITIONS = f"""
    WITH RECURSIVE {catalogue.TREE}
    SELECT tree.root::bigint, tree.relid::bigint, i.xmin::text, made.xmin::text
    FROM tree JOIN pg_inherits i ON i.inhrelid = tree.relid
      JOIN pg_attribute made ON made.attrelid = tree.relid AND made.attnum = -1
    WHERE tree.relid <> tree.root ORDER BY tree.relid
"""
# Upwards: a tree may have thousands of partitions. One that is being detached still takes rows.
_ROOTS_ABOVE = """
    WITH RECURSIVE up(leaf, relid) AS (
        SELECT given.oid, given.oid FROM unnest(%s::oid[]) AS given(oid)
        UNION ALL
        SELECT up.leaf, i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.relid
        JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition)
    SELECT up.leaf::bigint, up.relid::bigint, t.xmin::text, t.xmin = made.xmin AND age(n.xmin) >= age(made.xmin)
    FROM up JOIN pg_class c ON c.oid = up.relid JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_type t ON t.oid = c.reltype JOIN pg_attribute made ON made.attrelid = c.oid AND made.attnum = -1
    WHERE up.relid <> up.leaf ORDER BY up.leaf, up.relid
"""
_OIDS = """
    SELECT c.oid::bigint FROM unnest(%s::text[], %s::text[]) AS given(schema, name)
    JOIN pg_namespace n ON n.nspname = given.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = given.name
"""


def find_origins(
    connection: Connection, tables: Collection[TableName], rules: Mapping[str, ColumnRules]
) -> dict[TableName, Origin]:
    """Of those of the tables that exist. `rules`: all of the source, by table."""
    if not tables:
        return {}
    with one_snapshot(connection):
        found = rows(connection, _TABLES, ([t.schema for t in tables], [t.name for t in tables]))
        oids = [oid for _, _, oid, *_ in found]
        columns = _group(rows(connection, _COLUMNS, (oids,)))
        partitions = _group(rows(connection, _PARTITIONS, (oids,)))
        without_entry = [oid for schema, name, oid, *_ in found if str(TableName(schema, name)) not in rules]
        trees = _find_trees(connection, without_entry, rules)
    origins = {}
    for schema, name, oid, is_partitioned, named_by, made_by, is_schema_older in found:
        its_columns = columns.get(oid, [])
        parts = partitions.get(oid, [])
        attached = [[part, placed_by] for part, placed_by, part_made_by in parts if placed_by != part_made_by]
        names = [] if named_by == made_by and is_schema_older else [named_by]
        places = [
            names,
            attached,
            *(["detached"] if _may_be_detached(its_columns, made_by) else []),
            *([tree] if (tree := trees.get(oid)) else []),
        ]
        described = "" if any(column[-1] == made_by for column in its_columns) else digest([c[-1] for c in its_columns])
        version = digest([named_by, *(column[-1] for column in its_columns)])
        origins[TableName(schema, name)] = Origin(
            oid=oid,
            brought=digest(places) if any(places) else "",
            attached=digest(attached) if attached else "",
            numbers=digest([column[:4] for column in its_columns]),
            columns=digest([[name, *type_] for name, _, *type_, _, _ in its_columns]),
            version=f"{version}:{described}" if described else version,
            is_as_made=not names and not attached and all(column[-1] == made_by for column in its_columns),
            parts=is_partitioned,
            described=described,
            is_beside_hidden=bool(trees.get(oid)),
            is_partition=oid in trees,
        )
    return origins


def _find_trees(
    connection: Connection, oids: Collection[int], rules: Mapping[str, ColumnRules]
) -> dict[int, list[Any]]:
    """Of those of the tables that are partitions, why they may be logged with values that another table of their tree
    hides; empty where they are not. It changes where that becomes so in another way."""
    hiding = [TableName.parse(table) for table in rules if column_rule_faults.hidden_columns(rules[table])]
    if not hiding or not oids:
        return {}
    hiding_oids = {oid for (oid,) in rows(connection, _OIDS, ([t.schema for t in hiding], [t.name for t in hiding]))}
    roots_above = _group(rows(connection, _ROOTS_ABOVE, ([*oids, *hiding_oids],)))
    in_tree = hiding_oids | {root for oid in hiding_oids for root, *_ in roots_above.get(oid, ())}
    reasons: dict[int, list[Any]] = {}
    for oid in oids:
        roots = roots_above.get(oid, [])
        # Not which table it is that hides: a partition that comes with an entry must not hold the accepted ones.
        hides = [root for root, *_ in roots] if any(root in in_tree for root, *_ in roots) else []
        renamed = [[root, named_by] for root, named_by, is_as_named in roots if not is_as_named]
        if roots:
            reasons[oid] = [hides, renamed] if hides or renamed else []
    return reasons


def _may_be_detached(columns: Collection[tuple[Any, ...]], made_by: str) -> bool:
    """Whether the table may have been a partition: all columns were described again since it was made. The key's are by
    ADD PRIMARY KEY too."""
    has_others = any(not is_in_key for *_, is_in_key, _ in columns)
    return has_others and all(written_by != made_by for *_, written_by in columns)


def _group(found: Iterable[tuple[int, ...]]) -> dict[int, list[tuple]]:  # type: ignore[type-arg]
    groups: dict[int, list[tuple]] = {}  # type: ignore[type-arg]
    for oid, *rest in found:
        groups.setdefault(oid, []).append(tuple(rest))
    return groups
