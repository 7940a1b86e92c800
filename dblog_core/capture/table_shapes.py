"""The shape that each table has at the log's place: what was staged of it, and what its statements prove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.schema_changes import Facts, Layout, Step, match_layouts, match_names_in_another_case
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest

MOST_EMPTY = 5_000
"""Tables without a shape of which it is remembered that they have no row: each manifest names them. Of the oldest ones
beyond that it is forgotten, and they are incomplete until they are dumped."""


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """A table has another shape than before. `before`: the fingerprint of the last one (None: this is its first).
    `facts`: what is proven of the way between the two. `was_empty`: the table had no row up to here. `needs_dump`: a
    column has its name in another case, and it is not proven that its values are those of before."""

    before: str | None
    facts: Facts | None
    was_empty: bool
    needs_dump: bool = False


class TableShapes:
    """The newest shape of each table, as a manifest has them."""

    def __init__(self, staging: Staging, head: Manifest) -> None:
        self._staging = staging
        self._fingerprints = dict(head.schemas)
        self._altered = head.pending_statements()
        self._layouts = dict(head.layouts)
        self._empty = dict.fromkeys(head.born)  # in the order in which it was learned

    def __contains__(self, table: TableName) -> bool:
        return str(table) in self._fingerprints

    def __iter__(self) -> Iterator[TableName]:
        """Tables that have a shape."""
        return map(TableName.parse, self._fingerprints)

    @property
    def empty_tables(self) -> set[TableName]:
        """Tables of which it is remembered that they have no row."""
        return set(map(TableName.parse, self._empty))

    def fingerprint(self, table: TableName) -> str | None:
        """Of the table's newest shape; None: it has shown none."""
        return self._fingerprints.get(str(table))

    def alter(self, table: TableName, step: Step | None) -> bool:
        """A statement has altered the table (None: in a way that is not known).

        Whether a column that copies of the table know is another one under the same name from here on.
        """
        self._altered.add(table, step, self._fingerprints)
        fingerprint = self.fingerprint(table)
        if step is None or fingerprint is None:
            return False
        return any(step.takes(column.name) for column in self._staging.schema(fingerprint).columns)

    def store(self, schemas: Iterable[TableSchema]) -> None:
        """Stages shapes that are about to be `put`."""
        self._staging.put_schema(*schemas)

    def put(self, schema: TableSchema, layout: Layout | None, *, by_place: bool) -> ShapeChange | None:
        """From here on the table has this shape, which is staged by that; None: it had it before.

        `by_place`: whether the places of columns say which is which, since no rule goes by their names.
        """
        name = str(schema.table)
        before = self._fingerprints.get(name)
        facts = self._prove(before, schema, layout, by_place=by_place) if before is not None else None
        if layout is not None:
            self._layouts[name] = layout.token
        # Without a layout nothing is known of the places of this shape's columns.
        elif before != schema.fingerprint:
            self._layouts.pop(name, None)
        if before == schema.fingerprint and not (facts and facts.renamed):
            return None
        is_unproven = by_place and facts is None
        # Without a key no dump brings the values.
        matched = self._match_case(before, schema) if before is not None and is_unproven and schema.key else {}
        # The shape is durable before a manifest can refer to it.
        self._staging.put_schema(schema)
        self._fingerprints[name] = schema.fingerprint
        was_empty = before is None and name in self._empty
        if before is None:
            self._empty.pop(name, None)
        return ShapeChange(before, Facts(matched, {}) if matched else facts, was_empty, needs_dump=bool(matched))

    def has_key(self, fingerprint: str) -> bool:
        """Whether a shape has a key."""
        return bool(self._staging.schema(fingerprint).key)

    def note_empty(self, table: TableName) -> None:
        """The table has no row here; remembered until its first shape says so to readers."""
        name = str(table)
        if name in self._fingerprints:
            return
        self._empty.pop(name, None)
        self._empty[name] = None
        if len(self._empty) > MOST_EMPTY:
            del self._empty[next(iter(self._empty))]

    def forget_empty(self, table: TableName) -> None:
        """The table may have rows."""
        self._empty.pop(str(table), None)

    def add_to(self, manifest: Manifest) -> Manifest:
        """The manifest with these shapes."""
        return replace(
            manifest,
            schemas=dict(self._fingerprints),
            altered=self._altered.to_json(),
            layouts=dict(self._layouts),
            born=tuple(self._empty),
        )

    def _match_case(self, fingerprint: str, schema: TableSchema) -> dict[str, str]:
        return match_names_in_another_case(self._staging.schema(fingerprint), schema)

    def _prove(self, fingerprint: str, schema: TableSchema, layout: Layout | None, *, by_place: bool) -> Facts | None:
        """What is proven of the way from the table's last shape to this one. Rules go by the names of columns, so that
        nothing is where there are any."""
        before = self._staging.schema(fingerprint)
        facts = self._altered.settle(before, schema, plain=by_place)
        if facts or not by_place:
            return facts or None
        return match_layouts(before, schema, self._layouts.get(str(schema.table)), layout)
