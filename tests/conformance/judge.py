"""The judge: what a lake makes of the super-changelog, beside what the server itself prints of each table.

`Copies` folds lines as the merge does, in plain Python; `spark_lake` reads the real one. Both give rows as JSON values,
which are compared as text with the server's own casts (`tests.contract.printed`).
"""

from __future__ import annotations

import base64
import datetime as dt
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

import orjson
import pyarrow as pa

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.schema_evolution import compatibility
from dblog_core.staging.reader import lines
from tests.contract.printed import print_columns, theirs
from tests.fix_servers import Database

UNKNOWN = "nobody has told"
_WIDE = Context(prec=100)
Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass
class Copy:
    """What a keyed consumer holds of a table; of one without a key a bag of rows. `faults`: why a lake does not follow
    the table's shapes."""

    shape: TableSchema | None = None
    rows: dict[Key, Row] = field(default_factory=dict)
    seen: dict[Key, int] = field(default_factory=dict)
    left: dict[Key, Row | None] = field(default_factory=dict)
    loose: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Of a table without a key: at which offset a row came (1) or went (-1)."""
    faults: list[str] = field(default_factory=list)
    lacks_since: int | None = None
    """Where a full dump must begin, or later, that brings what may be missing (as `merge_plan.lacks_since` has it)."""

    def apply(self, line: dict[str, Any]) -> None:
        self._note_whole(line)
        match line["op"]:
            case "s":
                self._reshape(line)
            case "t":
                self.rows.clear()
                self.loose.clear()
            case "f" if line.get("key_from") is None and line.get("key_to") is None:
                self.rows = {k: r for k, r in self.rows.items() if self.seen[k] > line["since"]}
                self.loose = [entry for entry in self.loose if entry[0] > line["since"]]
            case "c" | "u" | "d" | "r" if line["key"] is None:
                for count, row in ((-1, line["before"]), (1, line["after"])):
                    if row is not None:
                        packed = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
                        self.loose.append((line["offset"], count, packed))
            case "d":
                key = tuple(line["key"].values())
                self.seen[key] = line["offset"]
                self.left = {key: self.rows.pop(key, None)}
            case "c" | "u" | "r":
                self._put(line)

    def _note_whole(self, line: dict[str, Any]) -> None:
        match line["op"]:
            case "s" if not line["key_columns"]:
                self.lacks_since = None
            case "s":
                begins = self.shape is None or not self.shape.key
                before = 0 if begins else self.lacks_since
                whole = line.get("whole")
                self.lacks_since = before if whole is None else None if whole else line["offset"]
            case "t":
                self.lacks_since = None
            case "f" if line.get("key_from") is None and line.get("key_to") is None:
                if self.lacks_since is not None and line["since"] >= self.lacks_since:
                    self.lacks_since = None

    def _put(self, line: dict[str, Any]) -> None:
        key = tuple(line["key"].values())
        moved = line.get("moved_from")
        self.seen[key] = line["offset"]
        old = self.left.get(tuple(moved.values())) if moved else self.rows.get(key)
        unchanged_values = {name: (old or {}).get(name, UNKNOWN) for name in line["unchanged"]}
        self.rows[key] = {**unchanged_values, **line["after"]}

    def _reshape(self, line: dict[str, Any]) -> None:
        columns = line["schema"]
        name = line["table"].partition(".")
        schema = TableSchema.from_json({"table": [name[0], name[2]], "columns": columns, "key": line["key_columns"]})
        renamed = line.get("renamed") or {}
        filled = line.get("filled") or {}
        if self.shape is not None:
            self.faults += compatibility.compare_schemas(_rename_columns(self.shape, renamed), schema).faults
        self.shape = schema
        for key, row in self.rows.items():
            self.rows[key] = {
                c.name: row.get(renamed.get(c.name, c.name), filled.get(c.name, UNKNOWN)) for c in schema.columns
            }

    @property
    def all_rows(self) -> list[Row]:
        """Of a table without a key each as often as it is there; one that went without having come is unknown."""
        bag: Counter[bytes] = Counter()
        for _, count, row in self.loose:
            bag[row] += count
        loose = [orjson.loads(row) for row, count in bag.items() for _ in range(count)]
        return [*self.rows.values(), *loose, *({} for count in bag.values() if count < 0)]

    @property
    def lacks(self) -> bool:
        """Whether a merge would ask for a dump: some value is in no line."""
        return any(UNKNOWN in row.values() for row in self.rows.values())


def _rename_columns(schema: TableSchema, renamed: dict[str, str]) -> TableSchema:
    now = {old: new for new, old in renamed.items()}
    columns = (Column(now.get(c.name, c.name), c.source_type, c.type) for c in schema.columns)
    return TableSchema(schema.table, tuple(columns), tuple(now.get(name, name) for name in schema.key))


def fold_copies(config: Config, accepted: dict[str, int]) -> dict[str, Copy]:
    """Every table's copy by its name. `accepted`: offsets up to which nothing counts of a table, since its newest shape
    was accepted there."""
    copies: dict[str, Copy] = {}
    for line in lines(wiring.open_staging(config)):
        table = line["table"]
        if line["offset"] > accepted.get(table, 0) or line["op"] == "s":
            copies.setdefault(table, Copy()).apply(line)
        if line["offset"] <= accepted.get(table, 0) and table in copies:
            copies[table].faults.clear()
    return copies


class Source:
    """What the server has, as it prints it itself."""

    def __init__(self, database: Database, config: Config, schemas: Iterable[str]) -> None:
        self._database = database
        self._config = config
        self._reader = wiring.open_source(config.source).open_reader()
        self._schemas = list(schemas)
        self._partitioned = set[TableName]()

    def close(self) -> None:
        self._reader.close()

    def tables(self) -> list[TableName]:
        """Every table that a pattern may mean, but our own."""
        own_tables = {TableName.parse(self._config.source.watermark_table)}
        table_kinds = [(TableName(*row[:2]), *row[2:]) for row in self._database.query(self._question())]
        self._partitioned = {table for table, *kind in table_kinds if kind == ["p"]}
        return [table for table, *_ in table_kinds if table not in own_tables]

    def _question(self) -> str:
        if self._database.kind == "postgres":
            return """SELECT nspname, relname, relkind FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
                WHERE relkind IN ('r', 'p') AND NOT relispartition AND relpersistence <> 't'
                AND nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"""
        names = ", ".join(f"'{schema}'" for schema in self._schemas)
        return f"""SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN ({names})
            AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY 1, 2"""

    def shape(self, table: TableName) -> TableSchema:
        """Without columns that a rule excludes. Raises RequestError for a table that is refused."""
        schema = self._reader.schema(table)
        rules = self._config.source.columns.get(str(table))
        excluded = rules.exclude if rules else ()
        return replace(schema, columns=tuple(c for c in schema.columns if c.name not in excluded))

    def rows(self, schema: TableSchema) -> list[dict[str, str | None]]:
        """What it prints of each row, in the form of `value_text`."""
        kinds = {column.name: column for column in schema.columns}
        rules = self._config.source.columns.get(str(schema.table))
        nulled = {name for name, form in rules.staged_as.items() if form == "or_null"} if rules else set()
        printed_rows = print_columns(self._database, schema, self._table_sql(schema.table))
        for row in printed_rows:
            row |= {name: None for name in nulled if not _is_date(row[name])}
        return [{n: None if v is None else theirs(v, kinds[n]) for n, v in row.items()} for row in printed_rows]

    def _table_sql(self, table: TableName) -> str:
        if self._database.kind == "postgres":
            schema, name = (part.replace('"', '""') for part in (table.schema, table.name))
            only = "" if table in self._partitioned else "ONLY "  # without the rows of its heirs
            return f'{only}"{schema}"."{name}"'
        schema, name = (part.replace("`", "``") for part in (table.schema, table.name))
        return f"`{schema}`.`{name}`"


def differences(schema: TableSchema, source: list[dict[str, str | None]], copy: Iterable[Row]) -> str | None:
    """How a copy's rows differ from the server's; None: they are equal."""
    names = [column.name for column in schema.columns]
    copied_rows = [{c.name: value_text(row.get(c.name, UNKNOWN), c) for c in schema.columns} for row in copy]
    copy_counts = Counter(tuple(row[name] for name in names) for row in copied_rows)
    source_counts = Counter(tuple(row[name] for name in names) for row in source)
    lacking = source_counts - copy_counts
    beyond = copy_counts - source_counts
    if not lacking and not beyond:
        return None
    count = lacking.total() + beyond.total()
    return f"{count} rows differ ({names}): in the source alone {_few(lacking)}, in the copy alone {_few(beyond)}"


def _few(rows: Counter[tuple[str | None, ...]]) -> str:
    shown_rows = [repr(tuple(v if v is None or len(v) < 60 else v[:60] + "…" for v in row)) for row in list(rows)[:2]]
    return "; ".join(shown_rows) or "none"


def value_text(value: Any, column: Column) -> str | None:
    """A JSON value of ours in the form of `printed.theirs`; also one of the type that the column had before."""
    kind = column.type
    if value is None or value is UNKNOWN:
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if pa.types.is_floating(kind):
        return repr(float(value))
    if pa.types.is_binary(kind):
        return base64.b64decode(value).hex()
    if pa.types.is_decimal(kind):
        return format(_WIDE.quantize(Decimal(value), Decimal(1).scaleb(-kind.scale)), "f")
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(value).replace(tzinfo=None).isoformat(" ", "microseconds")
    return str(value)


def source_of(database: Database, config: Config, schemas: Iterable[str]) -> closing[Source]:
    return closing(Source(database, config, schemas))


def _is_date(text: str | None) -> bool:
    """Whether it is a day, or a moment, of the years 1 to 9999."""
    try:
        dt.date.fromisoformat((text or "").partition(" ")[0] if "BC" not in (text or "") else "")
    except ValueError:
        return False
    return True
