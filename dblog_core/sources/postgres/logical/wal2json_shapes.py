"""wal2json's rows held against the catalogue: which version of its table a row is of, and the columns of its images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.config.source import SourceConfig
from dblog_core.errors import ValueOutOfRange
from dblog_core.interfaces import Json
from dblog_core.model.events import TableChanges, changes_schema, image_type
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows import row_faults
from dblog_core.rows.row_faults import REFUSALS, Refusal
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.postgres.sql.catalogue import FRESH_START, CatalogueTable
from dblog_core.sources.postgres.values import types

Signature = tuple[tuple[str, str], ...]
_OPS = {"I": "c", "U": "u", "D": "d"}


def _values(columns: Any) -> Json:
    return {c["name"]: c["value"] for c in columns}


def _toastable(kind: pa.DataType) -> bool:
    """Whether a value may lie outside its row, so that an update can leave it out."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind))


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row with a value that has no exact form: its place in the batch, and why."""

    sequence: int
    transaction: int
    error: Refusal


class Version:
    """The rows of one table version, column by column, until the batch ends."""

    def __init__(
        self,
        schema: TableSchema,
        *,
        ignored: frozenset[str],
        never_null: frozenset[str],
        base: Callable[[str], str],
        contradiction: str = "",
    ) -> None:
        """`contradiction`: of the table's key with its entry in [source.keys], in words."""
        self.schema = schema
        self.contradiction = contradiction
        self._ignored = ignored  # generated columns, which wal2json sends and pgoutput does not
        self._never_null = never_null
        self._base = base
        self._types = {c.name: c.type for c in schema.columns}
        self._known: dict[tuple[str, Signature], bool] = {}
        self._clear()

    @property
    def empty(self) -> bool:
        """Whether it holds no row of this batch yet."""
        return not self._sequences

    def fits(self, record: Json) -> bool:
        """Whether the row can be of this version: no other column or type, and only what TOAST explains is missing."""
        action = record["action"]
        columns = record["identity" if action == "D" else "columns"]
        # Judged once for each list of columns and types: wal2json repeats it with every row.
        signature = tuple([(c["name"], c["type"]) for c in columns])
        fits = self._known.get((action, signature))
        if fits is None:
            fits = self._known[action, signature] = self._compare(action, signature)
        return fits

    def fault(self, record: Json) -> str:
        """Why the old row of a row that fits can be found neither by the key nor as a whole; empty if it can."""
        if record["action"] == "I":
            return ""
        names = {c["name"] for c in record.get("identity", ())} - self._ignored
        if names == self._types.keys() or (self.schema.key and names == set(self.schema.key)):
            return ""
        identity = ", ".join(sorted(names)) or "nothing"
        key = ", ".join(self.schema.key) or "none"
        return f"the log identifies old rows by ({identity}), and the key is ({key})"

    def add(self, record: Json, sequence: int, transaction: int) -> None:
        """Takes a row that fits and has no fault."""
        action = record["action"]
        new = None if action == "D" else _values(record["columns"])
        old = None if action == "I" else _values(record.get("identity", ()))
        key_only = old is not None and self._by_key(old)
        unchanged = None
        if new is not None and old is not None:
            unchanged = self._fill(new, old)
            if key_only and all(new[name] == old[name] for name in self.schema.key):
                # wal2json always sends the old key; it says something only where it changed.
                old = None
                key_only = False
        self._sequences.append(sequence)
        self._transactions.append(transaction)
        self._ops.append(_OPS[action])
        self._key_only.append(key_only)
        self._unchanged.append(unchanged)
        self._old.append(old)
        self._new.append(new)

    def _fill(self, new: Json, old: Json) -> list[str] | None:
        """Completes a new row from what its old one holds; the names of the columns that stay unknown."""
        missing = self._types.keys() - new.keys()
        if not missing:
            return None
        new.update({name: old[name] for name in missing & old.keys()})
        return [c.name for c in self.schema.columns if c.name not in new] or None

    def take(self) -> tuple[TableChanges, RowFault | None]:
        """The rows before the first one with a value that has no exact form, and where that one stands."""
        end = len(self._sequences)
        fault = None
        try:
            change_rows = self._changes(0, end)
        except REFUSALS as error:
            end, refused = self._first_refused(error)
            if end and self._refusal(0, end):  # the rows do not fit each other
                end = 0
            fault = RowFault(self._sequences[end], self._transactions[end], refused)
            change_rows = self._changes(0, end)
        self._clear()
        return TableChanges(self.schema, change_rows), fault

    def _first_refused(self, error: Refusal) -> tuple[int, Refusal]:
        """The first row that is refused, and why. Columns are converted as wholes, so it is looked for by halves."""
        low = 0
        high = len(self._sequences)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._refusal(low, middle) else (middle, high)
        return low, self._refusal(low, high) or error

    def _refusal(self, start: int, end: int) -> Refusal | None:
        try:
            self._changes(start, end)
        except REFUSALS as error:
            return error
        return None

    def _changes(self, start: int, end: int) -> pa.RecordBatch:
        """The change batch of these rows. Raises ValueOutOfRange or UnknownLogEvent."""
        try:
            return self._build(start, end)
        except Exception as error:
            raise row_faults.explain(error, self.schema.table) from error

    def _build(self, start: int, end: int) -> pa.RecordBatch:
        columns = [
            pa.array(self._sequences[start:end], pa.int64()),
            pa.array(self._transactions[start:end], pa.int32()),
            pa.array(self._ops[start:end], pa.string()),
            pa.array(self._key_only[start:end], pa.bool_()),
            pa.array(self._unchanged[start:end], pa.list_(pa.string())),
            self._struct(self._old[start:end], complete=False),
            self._struct(self._new[start:end], complete=True),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=changes_schema(self.schema))

    def _clear(self) -> None:
        self._sequences: list[int] = []
        self._transactions: list[int] = []
        self._ops: list[str] = []
        self._key_only: list[bool] = []
        self._unchanged: list[list[str] | None] = []
        self._old: list[Json | None] = []
        self._new: list[Json | None] = []

    def _compare(self, action: str, signature: Signature) -> bool:
        names = {name for name, _ in signature}
        for name, text in signature:
            if name not in self._ignored and self._types.get(name) != types.arrow_type(self._base(text)):
                return False
        missing = self._types.keys() - names
        # A delete has the columns of the replica identity alone.
        if action == "D":
            return missing.isdisjoint(self.schema.key)
        # Only an update may leave a column out, and only one whose values may lie outside of the row.
        return all(action == "U" and _toastable(self._types[name]) for name in missing)

    def _by_key(self, old: Json) -> bool:
        """Whether the old image is the key alone; otherwise it is the whole row (REPLICA IDENTITY FULL)."""
        return bool(self.schema.key) and old.keys() - self._ignored == set(self.schema.key)

    def _struct(self, images: list[Json | None], *, complete: bool) -> pa.Array:
        kind = image_type(self.schema)
        if not any(images):
            return pa.nulls(len(images), kind)
        columns = [self._column(column, images, complete=complete) for column in self.schema.columns]
        mask = pa.array([image is None for image in images])
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)

    def _column(self, column: Column, images: list[Json | None], *, complete: bool) -> pa.Array:
        name = column.name
        values = [None if image is None else image.get(name) for image in images]
        if (
            complete
            and name in self._never_null
            and any(v is None and image and name in image for v, image in zip(values, images, strict=True))
        ):
            raise ValueOutOfRange(
                "wal2json sent null for a value that cannot be null: it was NaN or an infinity",
                where=f"{self.schema.table}.{name}",
                fix=f'correct the value in the source; or set plugin = "pgoutput": {FRESH_START}',
            )
        # The one type that still comes as JSON's own values: numbers were made texts before they were parsed.
        if pa.types.is_boolean(column.type):
            values = ["t" if v is True else "f" if v is False else v for v in values]
        texts = pa.array(values, pa.string())
        if pa.types.is_binary(column.type):  # printed without its prefix, unless it is of a domain
            prefixed = pc.binary_join_element_wise(pa.scalar("\\x"), texts, pa.scalar(""))
            texts = pc.if_else(pc.starts_with(texts, "\\x"), texts, prefixed)
        return types.from_text(texts, column, self.schema.table)


class Shapes:
    """Finds the version that a row is of, from the catalogue as it is now and from what the row itself says."""

    def __init__(
        self,
        config: SourceConfig,
        describe: Callable[[TableName], CatalogueTable | None],
        base: Callable[[str], str],
    ) -> None:
        self._config = config
        self._describe = describe
        self._base_of = base
        self._bases: dict[str, str] = {}

    def version(self, name: TableName, record: Json) -> Version:
        """The catalogue's shape where the row fits it. Otherwise the row tells what the catalogue has changed since.
        Raises TypeError for a row that names no columns."""
        listed = record["identity" if record["action"] == "D" else "columns"]
        if not all(isinstance(text, str) for c in (*listed, *record.get("pk", ())) for text in (c["name"], c["type"])):
            raise TypeError("a column without a name or a type")
        table = self._describe(name)
        logged_types = {c["name"]: self._base(c["type"]) for c in listed}
        ignored = frozenset(c.name for c in table.columns if c.generated) if table else frozenset[str]()
        columns = self._columns(record["action"], table, logged_types, ignored)
        key = table.key(self._config) if table else tuple(self._config.keys.get(str(name), ()))
        logged_key = tuple(c["name"] for c in record.get("pk", ()))
        if str(name) not in self._config.keys and set(logged_key) != set(key):
            # The primary key has changed since. Where there was none, a unique key may stand for it.
            key = logged_key or (table.unique_key if table else ())
        # NaN and the infinities come as null, which shows only where a column is never NULL.
        floats = (
            frozenset(
                c.name for c in table.columns if c.not_null and c.source_type.startswith(("real", "double", "numeric"))
            )
            if table
            else frozenset[str]()
        )
        schema = shape_to_read(TableSchema(name, columns, key), self._config.columns)
        contradiction = table.contradiction(self._config) if table else ""
        return Version(schema, ignored=ignored, never_null=floats, base=self._base, contradiction=contradiction)

    def _columns(
        self, action: str, table: CatalogueTable | None, logged_types: dict[str, str], ignored: frozenset[str]
    ) -> tuple[Column, ...]:
        columns = []
        known = {c.name for c in table.columns} if table else set[str]()
        renamed_in_case = {name.lower() for name in logged_types if name not in known}
        for c in table.columns if table else ():
            column = types.column(c.name, logged_types.get(c.name, c.source_type))
            missing = c.name not in logged_types
            # An INSERT has every column, an UPDATE all but unchanged TOAST values: what lacks there came later.
            added_since = missing and (action == "I" or (action == "U" and not _toastable(column.type)))
            # No lake keeps two columns of such names: it is the one that the row has, renamed since.
            renamed_since = missing and c.name.lower() in renamed_in_case
            if c.name not in ignored and not added_since and not renamed_since:
                columns.append(column)
        listed = {c.name for c in columns} | ignored
        dropped_since = [types.column(name, text) for name, text in logged_types.items() if name not in listed]
        return (*columns, *dropped_since)

    def _base(self, text: str) -> str:
        """The base type of a type name; names that map to an Arrow type are bases already."""
        if text not in self._bases:
            self._bases[text] = text if not pa.types.is_string(types.arrow_type(text)) else self._base_of(text)
        return self._bases[text]
