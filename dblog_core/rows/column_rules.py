"""Column rules (exclude, mask, hash, staged_as): applied before staging, by one path for log rows and chunk rows."""

from __future__ import annotations

import decimal
import hashlib
import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.errors import ConfigError, ValueOutOfRange
from dblog_core.interfaces import Problem
from dblog_core.model.events import (
    THEN_DUMPED,
    TableChanges,
    Transaction,
    Unreadable,
    changes_schema,
    image_type,
)
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.values import to_json
from dblog_core.rows import column_rule_faults
from dblog_core.rows.value_forms import FORMS, FormFault, form_of

MASK = "*****"
KEYED = "keyed hash"
"""The source's type, as row hashes take it, of a column whose hashes are keyed."""
_LISTS = column_rule_faults.HIDING


class Rules:
    """The rules of all tables of a source; tables without rules pass through untouched.

    Nothing of a table whose rules do not fit its shape, or that lacks them, passes at all: `schema`, `rows` and
    `changes` raise ConfigError.
    """

    def __init__(self, columns: Mapping[str, ColumnRules], hash_key: str = "") -> None:
        """`hash_key`: what the hashes of `hash` are keyed with; empty: nothing."""
        self._rules = dict(columns)
        self._hash_key = hash_key
        self._shapes: dict[tuple[str, str], TableSchema] = {}
        self._misfits: dict[tuple[str, str], Problem | None] = {}

    @classmethod
    def of(cls, source: SourceConfig) -> Rules:
        """Those of a configuration."""
        return cls(source.columns, source.hash_key.get_secret_value())

    def without(self, table: TableName, columns: Collection[str]) -> Rules:
        """The same for copies of the table that leave these columns out."""
        table_rules = self._rules.get(str(table))
        if table_rules is None or not columns:
            return self
        lists = {name: tuple(c for c in getattr(table_rules, name) if c not in columns) for name in _LISTS}
        forms = {name: form for name, form in table_rules.staged_as.items() if name not in columns}
        left = table_rules.model_copy(update={**lists, "staged_as": forms})
        return Rules({**self._rules, str(table): left}, self._hash_key)

    def shape_for_hashes(self, schema: TableSchema) -> TableSchema:
        """The shape that is staged, as row hashes take it: keyed hashes are no part of them (`hashes`), since a server
        that computed them would have to get the key.
        """
        rules = self._rules.get(str(schema.table))
        staged = self.schema(schema)
        if rules is None or not self._hash_key:
            return staged
        columns = tuple(replace(c, source_type=KEYED) if c.name in rules.hash else c for c in staged.columns)
        return replace(staged, columns=columns)

    def concern(self, table: TableName) -> bool:
        """Whether there are any for the table."""
        return str(table) in self._rules

    def digest(self, table: TableName) -> str:
        """16 hex digits that two processes have in common only where the table's rules are the same; empty: none."""
        if (rules := self._rules.get(str(table))) is None:
            return ""
        settings: dict[str, object] = {name: sorted(getattr(rules, name)) for name in _LISTS}
        if rules.hash and self._hash_key:
            settings["key"] = key_digest(self._hash_key)
        text = orjson.dumps({**settings, "staged_as": rules.staged_as}, option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def entry_digests(self) -> dict[str, str]:
        """The `digest` of each table that has an entry."""
        return {table: self.digest(TableName.parse(table)) for table in self._rules}

    def misfit(self, schema: TableSchema) -> Problem | None:
        """Why the rules do not fit a shape of their table, or why that needs some; None where they do. Also that the
        shape has no column."""
        if not self._rules:
            return None if schema.columns else column_rule_faults.explain_no_column(str(schema.table), (), {})
        table = str(schema.table)
        shape = (table, schema.fingerprint)
        if shape not in self._misfits:
            problems = list(
                column_rule_faults.of_table(table, [c.name for c in schema.columns], schema.key, self._rules)
            )
            self._misfits[shape] = column_rule_faults.join_problems(problems)
        return self._misfits[shape]

    def schema(self, schema: TableSchema) -> TableSchema:
        """The shape that is staged."""
        rules = self._rules.get(str(schema.table))
        if rules is None:
            self._refuse_misfit(schema)
            return schema
        cached = self._shapes.get((str(schema.table), schema.fingerprint))
        if cached is None:
            self._refuse_misfit(schema)
            columns = tuple(_shape(c, rules) for c in schema.columns if c.name not in rules.exclude)
            cached = TableSchema(schema.table, columns, schema.key)
            self._shapes[(str(schema.table), schema.fingerprint)] = cached
        return cached

    def _refuse_misfit(self, schema: TableSchema) -> None:
        if (misfit := self.misfit(schema)) is not None:
            raise ConfigError(misfit.what, where=str(schema.table), fix=misfit.fix)

    def rows(self, schema: TableSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Chunk rows of `schema` as they are staged. Raises ValueOutOfRange where a form does not hold a value."""
        staged = self.schema(schema)
        if str(schema.table) not in self._rules:
            return rows
        try:
            arrays = self._columns(schema, {c.name: rows.column(c.name) for c in schema.columns})
        except _Unformed as fault:
            raise fault.to_error(str(schema.table)) from fault
        return pa.RecordBatch.from_arrays(arrays, schema=staged.arrow)

    def changes(
        self, changes: TableChanges, transactions: Sequence[Transaction]
    ) -> tuple[TableChanges, Unreadable | None]:
        """Row changes as they are staged, up to the first whose value a form does not hold, and the error that names
        it.
        """
        unreadable = None
        while True:
            try:
                return self._changes(changes), unreadable
            except _Unformed as fault:  # a later row may have been met first: each column is converted as a whole
                unreadable = _unreadable_row(changes, transactions, fault)
                changes = TableChanges(changes.schema, changes.batch.slice(0, fault.row))

    def _changes(self, changes: TableChanges) -> TableChanges:
        """All of the row changes as they are staged. Raises _Unformed."""
        staged = self.schema(changes.schema)
        rules = self._rules.get(str(changes.schema.table))
        if rules is None:
            return changes
        columns = {name: changes.batch.column(name) for name in changes.batch.schema.names}
        columns["before"] = self._images(changes.schema, columns["before"])
        columns["after"] = self._images(changes.schema, columns["after"])
        if rules.exclude:
            columns["unchanged"] = _drop_names(columns["unchanged"], frozenset(rules.exclude))
        return TableChanges(staged, pa.RecordBatch.from_arrays(list(columns.values()), schema=changes_schema(staged)))

    def _images(self, schema: TableSchema, images: pa.StructArray) -> pa.StructArray:
        arrays = self._columns(schema, dict(zip((c.name for c in schema.columns), images.flatten(), strict=True)))
        fields = list(image_type(self.schema(schema)))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=images.is_null())

    def _columns(self, schema: TableSchema, columns: dict[str, pa.Array]) -> list[pa.Array]:
        rules = self._rules[str(schema.table)]
        arrays = []
        by_name = {column.name: column for column in schema.columns}
        for name, values in columns.items():
            if name in rules.exclude:
                continue
            if form := form_of(by_name[name], rules.staged_as):
                try:
                    values = FORMS[form].convert(values)
                except FormFault as fault:
                    raise _Unformed(name, form, fault) from fault
            if name in rules.hash:
                values = _hash_values(values, self._hash_key)
            elif name in rules.mask:
                values = _mask_values(values)
            arrays.append(values)
        return arrays


class _Unformed(Exception):
    """A value that the form of its column does not hold; `row`: the number of its row."""

    def __init__(self, column: str, form: str, fault: FormFault) -> None:
        super().__init__(fault.why)
        self.row = fault.row
        self._column = column
        self._form = form

    def to_error(self, where: str) -> ValueOutOfRange:
        return ValueOutOfRange(
            f"column {self._column}: {self}, so it has no form as {self._form}",
            where=where,
            fix="correct the value in the source, or take the column out of staged_as in [source.columns]",
        )


def _unreadable_row(changes: TableChanges, transactions: Sequence[Transaction], fault: _Unformed) -> Unreadable:
    row = changes.batch.slice(fault.row, 1)
    number = row.column("transaction")[0].as_py()
    transaction = transactions[number]
    table = changes.schema.table
    error = fault.to_error(f"{table} at {transaction.position} (transaction {transaction.id})")
    fix = f"{error.fix}; {THEN_DUMPED}"
    return Unreadable(row.column("sequence")[0].as_py(), number, table, error.reason, fix)


def _shape(column: Column, rules: ColumnRules) -> Column:
    if form := form_of(column, rules.staged_as):
        return Column(column.name, column.source_type, FORMS[form].type)
    return Column(column.name, column.source_type, pa.string()) if column.name in rules.hash else column


def mask_of(kind: pa.DataType) -> pa.Scalar:
    """What stands in place of every value of a type."""
    if pa.types.is_string(kind):
        return pa.scalar(MASK)
    if pa.types.is_binary(kind):
        return pa.scalar(MASK.encode())
    if pa.types.is_decimal(kind):
        return pa.scalar(decimal.Decimal(0), kind)  # of few digits: Arrow casts no integer to it
    return pa.scalar(0, pa.int32()).cast(kind) if pa.types.is_date(kind) else pa.scalar(0).cast(kind)


def _mask_values(values: pa.Array) -> pa.Array:
    """Every value replaced by one constant of the type; null stays null."""
    return pc.if_else(values.is_valid(), mask_of(values.type), pa.scalar(None, values.type))


def key_digest(hash_key: str) -> str:
    """What tells two keys of `hash` apart and is no secret; empty: there is none."""
    return hmac.new(hash_key.encode(), b"dblog hash_key", hashlib.sha256).hexdigest()[:16] if hash_key else ""


def _hash_values(values: pa.Array, key: str) -> pa.Array:
    """HMAC-SHA256, without a key SHA-256, of each value's text (of the bytes themselves for text and binary), in hex;
    null stays null."""
    secret = key.encode()

    def digest(value: object) -> str | None:
        if value is None:
            return None
        raw = value if isinstance(value, bytes) else str(to_json(value)).encode()
        return (hmac.new(secret, raw, hashlib.sha256) if key else hashlib.sha256(raw)).hexdigest()

    return pa.array([digest(v) for v in values.to_pylist()], pa.string())


def _drop_names(unchanged: pa.ListArray, excluded: frozenset[str]) -> pa.ListArray:
    lists = [None if names is None else [n for n in names if n not in excluded] for names in unchanged.to_pylist()]
    return pa.array([names or None for names in lists], unchanged.type)
