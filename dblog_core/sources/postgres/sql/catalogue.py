"""What the server's catalogue says of the wanted tables: shapes, keys, and what the log identifies their rows by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg2.errors

from dblog_core.config.source import SourceConfig
from dblog_core.errors import TableGone
from dblog_core.model import table_patterns
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_stamp import BUILT_IN
from dblog_core.rows import source_key_faults
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.postgres.sql.connection import Connection, execute, one_snapshot, rows
from dblog_core.sources.postgres.values import types

# A domain may be over another domain: the innermost type decides how values look.
_BASE = """
    LATERAL (WITH RECURSIVE base(type, typmod, depth) AS (
        SELECT {type}, {typmod}, 0
        UNION ALL
        SELECT t.typbasetype, t.typtypmod, depth + 1
        FROM base JOIN pg_type t ON t.oid = base.type WHERE t.typtype = 'd')
    SELECT format_type(type, typmod) AS name FROM base ORDER BY depth DESC LIMIT 1) AS base
"""
# Temporary tables (persistence t) belong to one session, and no log has their rows.
_FROM_TABLES = """
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""
_TABLES = f"""
    SELECT c.oid::bigint, n.nspname, c.relname, c.relkind, c.relreplident, c.relpersistence,
           ARRAY(SELECT a.relid::oid::bigint FROM pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid)
    {_FROM_TABLES}
"""
# The server's own functions for trees of partitions wait for a partition that somebody has locked: an ALTER in an open
# transaction would keep the whole capture waiting. What is being detached is no longer among them there either.
TREE = """
    tree(root, relid) AS (
        SELECT given.oid, given.oid FROM unnest(%s::oid[]) AS given(oid)
        UNION ALL
        SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid
        JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition
        WHERE NOT i.inhdetachpending)
"""
"""For WITH RECURSIVE: the relations whose oids are given, each as a root, with all their partitions at any depth."""
# From version 18 on a column may be NOT NULL by a constraint that is NOT VALID: rows from before it are NULL there.
_IS_NEVER_NULL = """
    a.attnotnull AND NOT EXISTS (
        SELECT 1 FROM pg_constraint n WHERE n.conrelid = a.attrelid AND n.contype = 'n'
        AND n.conkey = ARRAY[a.attnum] AND NOT n.convalidated)
"""
# A dropped column keeps its row here: only attisdropped tells.
_COLUMNS = f"""
    SELECT a.attrelid::bigint, a.attname, a.atttypid::bigint, a.atttypmod, {_IS_NEVER_NULL}, a.attgenerated <> ''
    FROM pg_attribute a
    WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
"""
# A unique index may tell values apart that are equal to the column's own order, in which chunks are read: by another
# collation than one that takes different texts for equal, or by an operator class with another equality (strategy 3 of
# a btree) than the default one of the type (citext by text_ops, a row by record_image_ops).
_TELLS_NO_MORE = """
    i.indisprimary OR (
        (i.indcollation[k.place - 1] = a.attcollation OR coalesce(
            (SELECT l.collisdeterministic FROM pg_collation l WHERE l.oid = a.attcollation), true))
        AND coalesce(x.relam <> 403 OR (
            SELECT used.amopopr = usual.amopopr
            FROM pg_opclass c
            JOIN pg_amop used ON used.amopfamily = c.opcfamily AND used.amopstrategy = 3
                AND used.amoplefttype = c.opcintype AND used.amoprighttype = c.opcintype,
            LATERAL (WITH RECURSIVE base(type) AS (
                    SELECT a.atttypid
                    UNION ALL SELECT t.typbasetype FROM base JOIN pg_type t ON t.oid = base.type WHERE t.typtype = 'd')
                SELECT o.amopopr
                FROM pg_opclass d
                JOIN pg_amop o ON o.amopfamily = d.opcfamily AND o.amopstrategy = 3
                    AND o.amoplefttype = d.opcintype AND o.amoprighttype = d.opcintype
                WHERE d.opcmethod = 403 AND d.opcdefault
                    AND (d.opcintype = c.opcintype OR d.opcintype IN (SELECT type FROM base))
                ORDER BY d.opcintype IN (SELECT type FROM base) DESC LIMIT 1) usual
            WHERE c.oid = i.indclass[k.place - 1]), false))
"""
# Only an immediate index over whole columns and all rows says that they are unique at every moment. Columns behind
# indnkeyatts are merely stored in it (INCLUDE).
_INDEXES = f"""
    SELECT i.indrelid::bigint, x.relname, i.indisprimary, i.indisreplident,
           i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
               AND coalesce(k.tell_no_more, false),
           coalesce(k.are_in_every_row, false), coalesce(k.names, '{{}}'), coalesce(k.numbers, '{{}}')
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid, LATERAL (
        SELECT array_agg(a.attname::text ORDER BY k.place) AS names,
               array_agg(a.attnum::int ORDER BY a.attnum) AS numbers,
               bool_and({_IS_NEVER_NULL} AND a.attgenerated = '') AS are_in_every_row,
               bool_and({_TELLS_NO_MORE}) AS tell_no_more
        FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE k.place <= i.indnkeyatts) k
    WHERE i.indisvalid AND i.indrelid
"""
_INDEXES_OF_ALL = f"{_INDEXES} = ANY(%s::oid[])"
_INDEXES_OF_ONE = f"{_INDEXES} = (SELECT c.oid {_FROM_TABLES} AND n.nspname = %s AND c.relname = %s)"
_TYPE_NAMES = f"""
    SELECT t.oid::bigint, t.typmod, base.name
    FROM unnest(%s::oid[], %s::int[]) AS t(oid, typmod), {_BASE.format(type="t.oid", typmod="t.typmod")}
"""
Kind = tuple[int, int]
"""A column's type as the catalogue has it: oid and typmod."""


@dataclass(frozen=True, slots=True)
class CatalogueColumn:
    """A column as the catalogue has it; `source_type` is the base type where it is a domain."""

    name: str
    source_type: str
    not_null: bool
    generated: bool


@dataclass(frozen=True, slots=True)
class CatalogueTable:
    """A table as the catalogue has it now.

    `identity`: the columns by which the log identifies old rows, empty for none; `full`: old rows come whole.
    `primary_constraint`: the name of the primary key. `unique`: columns of which no two rows ever have the same values.
    `unique_key`: the columns that stand for a primary key where there is none; `unique_index`: the index over them.
    """

    oid: int
    name: TableName
    partitioned: bool
    logged: bool
    full: bool
    identity: frozenset[str]
    columns: tuple[CatalogueColumn, ...]
    primary_key: tuple[str, ...]
    primary_constraint: str
    unique: tuple[frozenset[str], ...]
    unique_key: tuple[str, ...]
    unique_index: str
    ancestors: tuple[int, ...]

    def key(self, config: SourceConfig) -> tuple[str, ...]:
        """The key that rows are known by: its primary key, or its entry in `[source.keys]`, or its unique key.

        An entry with the columns of the primary key keeps its order: tables that were captured with it have that key.
        """
        return _choose_key(self.name, self.primary_key, self.unique_key, config)

    def contradiction(self, config: SourceConfig) -> str:
        """That the entry names other columns than the primary key, in words; empty if it does not."""
        return source_key_faults.explain_contradiction(self.name, config.keys.get(str(self.name), ()), self.primary_key)

    def schema(self, config: SourceConfig) -> TableSchema:
        """The staged shape. Generated columns are not in it: the log does not carry them."""
        stored = tuple(types.column(c.name, c.source_type) for c in self.columns if not c.generated)
        return shape_to_read(TableSchema(self.name, stored, self.key(config)), config.columns)


def watermark_table(config: SourceConfig) -> TableName:
    """The table that workers write their watermarks into."""
    return TableName.parse(config.watermark_table)


def signal_table(config: SourceConfig) -> TableName | None:
    """The table that requests are written into; None: there is none."""
    return TableName.parse(config.signal_table) if config.signal_table else None


def is_wanted(name: TableName, config: SourceConfig) -> bool:
    """Whether a pattern of the configuration matches the table. No pattern matches our own tables."""
    own_tables = (watermark_table(config), signal_table(config))
    return name not in own_tables and table_patterns.matches(name, config.tables)


def wanted_tables(connection: Connection, config: SourceConfig) -> list[CatalogueTable]:
    """The tables that the configuration wants; of a wanted partitioned table the root alone, for all its partitions."""
    with one_snapshot(connection):
        every = rows(connection, _TABLES + "ORDER BY n.nspname, c.relname")
        matching = [row for row in every if is_wanted(TableName(row[1], row[2]), config)]
        oids = {row[0] for row in matching}
        # A partition of a wanted root is left out: the publication shows its rows under the root's name.
        return _describe(connection, [row for row in matching if not oids.intersection(row[6])])


def find_table(connection: Connection, name: TableName) -> CatalogueTable | None:
    """One table by its exact name; None if there is none."""
    query = _TABLES + "AND n.nspname = %s AND c.relname = %s"
    with one_snapshot(connection):
        return next(iter(_describe(connection, rows(connection, query, (name.schema, name.name)))), None)


def find_key(connection: Connection, name: TableName, config: SourceConfig) -> tuple[str, ...]:
    """The `key` of a table in one question; of a table that is gone its entry in `[source.keys]`."""
    indexes = [_Index(*index) for _, *index in rows(connection, _INDEXES_OF_ONE, (name.schema, name.name))]
    primary = next((index for index in indexes if index.primary), None)
    unique = _find_unique_key(indexes)
    return _choose_key(name, tuple(primary.columns) if primary else (), tuple(unique.columns) if unique else (), config)


def _choose_key(
    name: TableName, primary_key: tuple[str, ...], unique_key: tuple[str, ...], config: SourceConfig
) -> tuple[str, ...]:
    entry = tuple(config.keys.get(str(name), ()))
    return entry if primary_key and set(entry) == set(primary_key) else primary_key or entry or unique_key


def table(connection: Connection, name: TableName) -> CatalogueTable:
    """One table by its exact name. Raises TableGone if it does not exist."""
    described = find_table(connection, name)
    if described is None:
        raise missing(name)
    return described


def missing(name: TableName) -> TableGone:
    """The error for a table that is not there."""
    return TableGone(f"the source has no table {name}", fix="`dblog check` lists the tables of the configuration")


def leaves(connection: Connection, roots: Iterable[CatalogueTable]) -> dict[int, list[CatalogueTable]]:
    """The partitions of partitioned tables that hold rows, by their root's oid: for all tables at once."""
    oids = [root.oid for root in roots]
    if not oids:
        return {}
    query = f"WITH RECURSIVE {TREE}{_TABLES} AND c.relkind = 'r' AND c.oid IN (SELECT relid FROM tree)"
    with one_snapshot(connection):
        parts = _describe(connection, rows(connection, f"{query} ORDER BY n.nspname, c.relname", (oids,)))
        tree = rows(connection, f"WITH RECURSIVE {TREE} SELECT root::bigint, relid::bigint FROM tree", (oids,))
    trees: dict[int, list[CatalogueTable]] = {root: [] for root in oids}
    roots_of: dict[int, list[int]] = {}
    for root, oid in tree:
        roots_of.setdefault(oid, []).append(root)
    for part in parts:
        for root in roots_of.get(part.oid, ()):
            trees[root].append(part)
    return trees


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition at any depth below `root`; `has_joined`: it was made as a table of its own, and may have rows."""

    root: int
    oid: int
    has_joined: bool


_PARTITIONS = f"""
    WITH RECURSIVE {TREE}
    SELECT tree.root::bigint, tree.relid::bigint, t.xmin <> i.xmin
    FROM tree JOIN pg_class c ON c.oid = tree.relid JOIN pg_type t ON t.oid = c.reltype
      JOIN pg_inherits i ON i.inhrelid = tree.relid
    WHERE tree.relid <> tree.root
"""
_HOLDING_ROWS = f"""
    WITH RECURSIVE {TREE}
    SELECT root::bigint FROM tree GROUP BY root HAVING sum(pg_relation_size(relid)) > 0
"""
_SIZE_LOCK_TIMEOUT = "100ms"


def partitions(connection: Connection, roots: Sequence[int]) -> list[Partition]:
    """The partitions of these tables. The row type of one that was made as such is of the same transaction as its place
    in the tree (ATTACH writes its row of pg_class again, but not that); one that holds nothing has brought nothing."""
    if not roots:
        return []
    every = rows(connection, _PARTITIONS, (list(roots),))
    holding_rows = _find_holding_rows(connection, [oid for _, oid, has_joined in every if has_joined])
    return [Partition(root, oid, oid in holding_rows) for root, oid, _ in every]


def _find_holding_rows(connection: Connection, oids: Sequence[int]) -> set[int]:
    """Those of the relations that may hold rows. The server tells the size of none that somebody has locked: it may."""
    if not oids:
        return set()
    execute(connection, f"SET lock_timeout = '{_SIZE_LOCK_TIMEOUT}'")
    try:
        return {oid for (oid,) in rows(connection, _HOLDING_ROWS, (list(oids),))}
    except psycopg2.errors.LockNotAvailable:
        if len(oids) == 1:
            return set(oids)
        return {holder for oid in oids for holder in _find_holding_rows(connection, [oid])}
    finally:
        execute(connection, "RESET lock_timeout")


def type_name(connection: Connection, oid: int, typmod: int) -> str:
    """The base type's text of a type oid of the log. Of one that was dropped since, a name that no type has: its values
    are the text that the server prints, as it knew the type where it logged them."""
    name = type_names(connection, {(oid, typmod)})[oid, typmod]
    return f"dropped type {oid}" if name == "???" else name


def type_names(connection: Connection, kinds: Set[Kind]) -> dict[Kind, str]:
    """The base types' texts of pairs of oid and typmod. It is asked but once what the server's own types are called."""
    names = {kind: _built_in[kind] for kind in kinds if kind in _built_in}
    if unknown := sorted(kinds - names.keys()):
        questions = [oid for oid, _ in unknown], [typmod for _, typmod in unknown]
        answers = {(oid, typmod): str(name) for oid, typmod, name in rows(connection, _TYPE_NAMES, questions)}
        names.update(answers)
        # Types that users make may be dropped, and their numbers be given again: those are asked for each time.
        _built_in.update({kind: name for kind, name in answers.items() if kind[0] < BUILT_IN})
    return names


_built_in: dict[Kind, str] = {}


def base_name(connection: Connection, name: str) -> str:
    """The base type's text of a type name of the log (wal2json resolves a domain over a domain by one step only)."""
    query = f"SELECT base.name FROM (SELECT to_regtype(%s)::oid AS oid) t, {_BASE.format(type='t.oid', typmod='-1')}"
    base = rows(connection, query, (name,))[0][0]
    return name if base in (None, "-", "???") else str(base)


FRESH_START = (
    "drop the slot and run `dblog capture --fresh-start`: it continues at the present end and dumps all tables"
)


def _describe(connection: Connection, table_rows: Sequence[tuple[Any, ...]]) -> list[CatalogueTable]:
    oids = [row[0] for row in table_rows]
    listed = rows(connection, _COLUMNS, (oids,))
    names = type_names(connection, {(c[2], c[3]) for c in listed})
    columns: dict[int, list[CatalogueColumn]] = {}
    for oid, name, type_oid, typmod, *rest in listed:
        columns.setdefault(oid, []).append(CatalogueColumn(name, names[type_oid, typmod], *rest))
    indexes: dict[int, list[_Index]] = {}
    for oid, *index in rows(connection, _INDEXES_OF_ALL, (oids,)):
        indexes.setdefault(oid, []).append(_Index(*index))
    return [_table(row, columns.get(row[0], []), indexes.get(row[0], [])) for row in table_rows]


class _Index(NamedTuple):
    """`vouches`: at every moment no two rows have the same values in its columns, except for NULL; `in_every_row`: no
    column is ever NULL, and the log carries each; `numbers`: of the columns in their table, growing."""

    name: str
    primary: bool
    replica_identity: bool
    vouches: bool
    in_every_row: bool
    columns: list[str]
    numbers: list[int]


def _find_unique_key(indexes: Sequence[_Index]) -> _Index | None:
    """The index that stands for a primary key. Of several it is the one that the log identifies old rows by, or else
    the one whose columns come first in their table: a restore or a new index behind it does not change that."""
    usable = [index for index in indexes if index.vouches and index.in_every_row and not index.primary]
    return min(usable, key=lambda index: (not index.replica_identity, index.numbers), default=None)


def _table(row: tuple[Any, ...], columns: list[CatalogueColumn], indexes: list[_Index]) -> CatalogueTable:
    oid, schema, name, kind, replica_identity, persistence, ancestors = row
    primary = next((index for index in indexes if index.primary), None)
    chosen = next((frozenset(index.columns) for index in indexes if index.replica_identity), frozenset())
    # By a deferrable primary key the log identifies nothing.
    by_default = frozenset(primary.columns if primary and primary.vouches else ())
    # d: the primary key; i: a chosen unique index; f: the whole old row; n: nothing.
    identity = {"d": by_default, "i": chosen, "f": frozenset(c.name for c in columns)}.get(
        str(replica_identity), frozenset()
    )
    unique = _find_unique_key(indexes)
    return CatalogueTable(
        oid=int(oid),
        name=TableName(str(schema), str(name)),
        partitioned=kind == "p",
        logged=persistence == "p",
        full=replica_identity == "f",
        identity=identity,
        columns=tuple(columns),
        primary_key=tuple(primary.columns) if primary else (),
        primary_constraint=primary.name if primary else "",
        unique=tuple(frozenset(index.columns) for index in indexes if index.vouches),
        unique_key=tuple(unique.columns) if unique else (),
        unique_index=unique.name if unique else "",
        ancestors=tuple(ancestors),
    )
