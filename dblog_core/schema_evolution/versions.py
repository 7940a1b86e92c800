"""The shapes that a table has had, as the super-changelog tells them, and what each change means for its lake copy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from dblog_core.model.events import SCHEMA
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark

ADDED = "added"
DROPPED = "dropped"
WIDENED = "widened"
RETYPED = "retyped"
REKEYED = "key"
RENAMED = "renamed"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference to the version before. `column`: None where it is the key; `lake`: what a merge makes of it. Of a
    column that was renamed, `before` and `after` are its names."""

    what: str
    column: str | None
    before: str | None
    after: str | None
    lake: str


@dataclass(frozen=True, slots=True)
class Version:
    """A shape. `mark`: its line in the super-changelog; None: that line was removed, the shape is older than what is
    left of staging."""

    number: int
    schema: TableSchema
    mark: LogMark | None
    changes: tuple[SchemaChange, ...] = ()


def read_versions(staging: Staging, table: str, *, drop_columns: bool) -> Iterator[Version]:
    """Every version of the table's shape that staging knows, oldest first; the same shape again is no new one.

    `drop_columns`: what the lake does with a column that is gone (`[lake] drop_columns`). Raises CorruptSegment.
    """
    newest: Version | None = None
    for schema, mark in _shapes(staging, table):
        if newest is None:
            newest = Version(1, schema, mark)
        elif schema.fingerprint != newest.schema.fingerprint or (mark is not None and mark.renamed):
            differences = tuple(_changes(newest.schema, schema, mark, drop_columns=drop_columns))
            newest = Version(newest.number + 1, schema, mark, differences)
        else:
            continue
        yield newest


def _shapes(staging: Staging, table: str) -> Iterator[tuple[TableSchema, LogMark | None]]:
    first = staging.first_number()
    # Retention has removed the segments with the older marks: the oldest manifest still names the shape in force.
    if first > 1:
        oldest = staging.manifest(first).cut(upto=first)
        marked = any(m.table == table and m.op == SCHEMA for m in oldest.marks)
        if not marked and (fingerprint := oldest.schemas.get(table)) is not None:
            yield staging.schema(fingerprint), None
    for manifest in staging.manifests(after=max(first, 1) - 1):
        for mark in manifest.marks:
            if mark.table == table and mark.op == SCHEMA and mark.schema is not None:
                yield staging.schema(mark.schema), mark


def _changes(
    before: TableSchema, after: TableSchema, mark: LogMark | None, *, drop_columns: bool
) -> Iterator[SchemaChange]:
    # A renamed column is one column: without this it would count as one dropped and one added.
    facts = Renames.of([mark] if mark is not None else [])
    for name, older in ((mark.renamed if mark else None) or {}).items():
        yield SchemaChange(
            RENAMED, name, older, name, "renamed by column mapping" if after.key else "renamed in the history"
        )
    before = facts.rename_columns(before)
    difference = compatibility.compare_schemas(before, after)
    old, new = ({c.name: c for c in schema.columns} for schema in (before, after))
    keyed = bool(after.key)
    for name in difference.added:
        lake = "added; a full dump that the merge requests brings what older rows hold"
        # The server filled older rows with a value that the log tells, so no dump is needed.
        if name in facts.columns_with_known_value:
            constant = facts.constants.get(name, (0, None))[1]
            older_rows = "it is NULL in older rows" if constant is None else f"older rows hold {json.dumps(constant)}"
            lake = f"added; {older_rows}"
        yield _column_change(ADDED, name, None, new[name], lake if keyed else "added to the history")
    for name in difference.dropped:
        lake = "dropped" if drop_columns else "kept: rows that are not written again keep its values"
        yield _column_change(DROPPED, name, old[name], None, lake if keyed else "kept in the history")
    for name in difference.widened:
        yield _column_change(WIDENED, name, old[name], new[name], "widened in place")
    stops = f"the table stops: run `dblog reset {quote_for_shell(after.table)}`"
    for was, now in difference.retyped:
        yield _column_change(RETYPED, was.name, was, now, stops)
    if difference.rekeyed:
        # Rows are found by their key, so a lake table cannot follow another one.
        yield SchemaChange(REKEYED, None, _key(before), _key(after), stops)


def _column_change(what: str, name: str, before: Column | None, after: Column | None, lake: str) -> SchemaChange:
    return SchemaChange(what, name, _describe_type(before), _describe_type(after), lake)


def _describe_type(column: Column | None) -> str | None:
    return None if column is None else compatibility.describe_type(column)


def _key(schema: TableSchema) -> str:
    return ", ".join(schema.key) or "none"
