"""Dump requests: what a user asks for, expanded and checked against the catalogue.

Nothing that a user types reaches SQL but as a bound value: names resolve against the catalogue, keys and filter values
against their columns' types. A request that cannot be carried out as asked is refused before it is filed, by name.
`filing.py` cuts what is asked for into tasks, and files it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps.dump_records import DumpOptions, Refusal
from dblog_core.dumps.key_ranges import MOST_RANGES, ordered_alike
from dblog_core.errors import (
    RequestError,
    ServerNotSafe,
    SourceError,
    SourceForbids,
    SourceReadOnly,
    TableLocked,
    ValueOutOfRange,
)
from dblog_core.interfaces import Source
from dblog_core.model import filters, table_names, table_patterns
from dblog_core.model.filters import Expression, Filter
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import key_from_json, key_text
from dblog_core.rows import column_rule_faults
from dblog_core.rows.source_key_faults import UNIQUE_KEY
from dblog_core.staging import table_records
from dblog_core.state.stopped_tables import HELD_NODES, entries_by_source, read_held

MAX_KEYS = 200_000
_ATTEMPTS = 5  # looks at tables that somebody alters at the same time
_OPTIONS = ("chunk_size", "chunk_bytes", "workers", "delay", "rate", "adaptive", "max_retained")

T = TypeVar("T")

TableFilters = tuple[str, tuple[Expression, ...]]
"""A SCHEMA.TABLE name or pattern, and filters of its tables alone, as `DumpRequest.filters`."""


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What a user asks for; None: the configuration's value, or what suits the table.

    `tables`: SCHEMA.TABLE names or patterns (None: all); keys and range ends are JSON, both ends included; `filters`:
    (column, operator, JSON value, `Typed` or `Literal`), all of which a row must pass; `table_filters`: more of them,
    of single tables; `ranges`: tasks to cut a table into; `chunk_by`: the column that chunks are to be cut by;
    `shapes`: a window without rows, which shows the table's shape at its place in the log. The options from
    `chunk_size` on are those of `DumpOptions`.
    """

    tables: tuple[str, ...] | None
    keys: tuple[Any, ...] = ()
    key_from: Any = None
    key_to: Any = None
    filters: tuple[Expression, ...] = ()
    table_filters: tuple[TableFilters, ...] = ()
    ranges: int | None = None
    chunk_by: str | None = None
    shapes: bool = False
    chunk_size: int | None = None
    chunk_bytes: int | None = None
    workers: int | None = None
    delay: float | None = None
    rate: int | None = None
    adaptive: bool | None = None
    max_retained: int | None = None

    @property
    def key_ends(self) -> list[Any]:
        """The ends of the key range that are given."""
        return [key for key in (self.key_from, self.key_to) if key is not None]


WHOLE = DumpRequest(tables=None, ranges=1)
"""What a capture asks for: uncut, since reading boundaries would keep its log waiting."""
SHAPES = DumpRequest(tables=None, shapes=True)
"""What a capture asks for where a table was altered and no row has shown how."""


@dataclass(frozen=True, slots=True)
class RequestedTable:
    """A table that a request asks for, with the request's filters typed for its columns."""

    schema: TableSchema
    filters: tuple[Filter, ...]


def first_options(config: Config, request: DumpRequest) -> DumpOptions:
    """The options in force at first. Raises RequestError."""
    requested = {name: getattr(request, name) for name in _OPTIONS}
    return DumpOptions.of_settings(config.dump).with_changes(requested)


def resolve(config: Config, request: DumpRequest) -> tuple[list[RequestedTable], list[Refusal]]:
    """The tables of a request, each captured, there and with a key, and those that its patterns take in without one.

    Raises RequestError for a request that is empty, unknown or contradicts itself.
    """
    _check_shape(request)
    request = _with_canonical_names(request)
    source = wiring.open_source(config.source)
    refused = _find_refusals(config, source, request.tables)
    captured = {name: schema for schema in source.tables() if (name := str(schema.table)) not in refused}
    schemas, refusals = _find_tables(captured, refused, request.tables)
    if (request.keys or request.key_ends) and len(schemas) != 1:
        raise RequestError(f"keys belong to one table, and {len(schemas)} are asked for", fix="name exactly one table")
    for key in (*request.keys, *request.key_ends):
        key_from_json(key, schemas[0])
    if len(request.key_ends) == 2:
        _check_order(request, schemas[0])
    _check_chunk_key(request, schemas)
    return [_with_filters(config, request, schemas, schema) for schema in schemas], refusals


def _with_filters(
    config: Config, request: DumpRequest, schemas: Sequence[TableSchema], schema: TableSchema
) -> RequestedTable:
    expressions = _filters_of(request, schemas, schema)
    # Before a value is typed: an error must say no more of a hidden column than that it is one.
    columns = [column for column, _, _ in expressions]
    column_rule_faults.refuse_hidden_filters(str(schema.table), columns, config.source.columns)
    return RequestedTable(schema, filters.parse_expressions(expressions, schema))


def resolve_and_look(
    config: Config, request: DumpRequest, look: Callable[[list[RequestedTable], bool], T]
) -> tuple[list[RequestedTable], list[Refusal], T]:
    """`resolve`, and what `look` finds out about those tables; again where one was altered in between. `look` learns
    whether it is the last time: where tables come and go all the time, each look may miss another one.

    Raises what `resolve` and `look` raise.
    """
    resolved = resolve(config, request)
    for _ in range(_ATTEMPTS):
        try:
            return *resolved, look(resolved[0], False)
        except (SourceError, RequestError) as error:  # the server's words, or ours for a column that is gone
            now = resolve(config, request)
            if now == resolved:
                if isinstance(error, RequestError) or error.transient:
                    raise
                break  # nothing was altered: the server cannot open a table
            resolved = now
    return *resolved, look(resolved[0], True)


def look_at_each(
    request: DumpRequest, tables: Sequence[RequestedTable], look: Callable[[RequestedTable], T], *, is_last: bool
) -> tuple[list[tuple[RequestedTable, T]], list[Refusal]]:
    """What `look` finds out about each table. One that may not be read, one that is locked for longer than `look`
    waits, and one whose key holds a value without an exact form, is refused alone. So is one that was dropped or
    altered meanwhile, in the last look (`is_last`).

    In the last look so is one that the server cannot open. Raises RequestError where such a table is asked for by its
    name, and what `look` raises of the whole server.
    """
    findings: list[tuple[RequestedTable, T]] = []
    refusals: list[Refusal] = []
    for table in tables:
        name = str(table.schema.table)
        try:
            findings.append((table, look(table)))
        except (SourceError, RequestError) as error:
            # Dropped or altered meanwhile: by its own error, or by the server's words.
            is_refused_alone = isinstance(error, (ValueOutOfRange, SourceForbids, TableLocked))
            is_of_server = error.transient or isinstance(error, (ServerNotSafe, SourceReadOnly))
            if not is_refused_alone and (is_of_server or not is_last):
                raise
            if request.tables is not None and name in map(table_names.canonical, request.tables):
                raise RequestError(error.message, where=error.where, fix=error.fix) from error
            refusals.append(Refusal(name, error.reason, error.fix))
    return findings, refusals


# Checks ---------------------------------------------------------------------------------------------------------------


def _check_shape(request: DumpRequest) -> None:
    """What is wrong whatever the catalogue says."""
    if request.tables is not None and not request.tables:
        raise RequestError("no table is named", fix="name tables, or ask for all of them")
    if request.keys and request.key_ends:
        raise RequestError("both keys and a key range are given", fix="give one of the two")
    if request.keys and (request.filters or request.table_filters):
        # What a filter hides would look absent, and an absent key becomes a delete.
        raise RequestError("both keys and filters are given", fix="give one of the two; a filter goes with a key range")
    if request.keys and request.ranges is not None:
        raise RequestError("listed keys are not cut into ranges", fix="leave the number of ranges out")
    if len(request.keys) > MAX_KEYS:
        raise RequestError(f"{len(request.keys)} keys are more than {MAX_KEYS}", fix="dump the table, or a key range")
    if request.ranges is not None and not 1 <= request.ranges <= MOST_RANGES:
        raise RequestError(f"{request.ranges} ranges", fix=f"give a number from 1 to {MOST_RANGES}")
    for column, operator, _ in chain(request.filters, *(more for _, more in request.table_filters)):
        if operator not in filters.OPERATORS:
            fix = f"operators are {', '.join(filters.OPERATORS)}"
            raise RequestError(f"the filter on {column} has the unknown operator {operator!r}", fix=fix)


def _check_order(request: DumpRequest, schema: TableSchema) -> None:
    """Raises RequestError for a range that ends before it begins. The database alone knows the order of texts."""
    first, last = (key_from_json(end, schema) for end in request.key_ends)
    if ordered_alike(schema) and first > last:
        raise RequestError(
            f"the key range of {schema.table} ends before it begins: from {key_text(first)} to {key_text(last)}",
            fix="swap its two ends",
        )


def _check_chunk_key(request: DumpRequest, schemas: Sequence[TableSchema]) -> None:
    """One key tells a chunk's rows apart, evicts them, and says where the next chunk begins. Raises RequestError for
    another one.
    """
    for schema in schemas if request.chunk_by is not None else ():
        if schema.key != (request.chunk_by,):
            raise RequestError(
                f"{schema.table} cannot be cut by {request.chunk_by}: its rows are known by ({', '.join(schema.key)}), "
                "in the log and in each chunk alike",
                fix="leave the surrogate key out: any key is cut as the database orders it; or name another key of the "
                "table under [source.keys], for its log too",
            )


def _filters_of(request: DumpRequest, schemas: Sequence[TableSchema], schema: TableSchema) -> list[Expression]:
    """All filters of a table. Raises RequestError for one of a table that is not asked for."""
    expressions = list(request.filters)
    for pattern, more in request.table_filters:
        if not any(table_patterns.matches(s.table, [pattern]) for s in schemas):
            raise RequestError(f"a condition on {pattern!r}, which is not asked for", fix="name it among the tables")
        if table_patterns.matches(schema.table, [pattern]):
            expressions += more
    return expressions


# Tables ---------------------------------------------------------------------------------------------------------------


def _with_canonical_names(request: DumpRequest) -> DumpRequest:
    """The request with the one text of each table."""
    tables = None if request.tables is None else tuple(map(table_names.canonical, request.tables))
    return replace(request, tables=tables)


def _find_refusals(config: Config, source: Source, names: tuple[str, ...] | None) -> dict[str, Refusal]:
    """Tables among those named whose log cannot be read as they are: a dump of one would miss changes, or show in the
    open what rules of another name hide."""
    entries = entries_by_source(source.list_refusals())
    if config.source.columns:
        records = table_records.read_newest(wiring.open_staging(config), *HELD_NODES)
        entries |= read_held(records, config.source)
    refusals = {table: Refusal(table, entry.why, entry.fix) for table, entry in entries.items()}
    if names is None:
        return refusals
    return {name: r for name, r in refusals.items() if table_patterns.matches(TableName.parse(name), names)}


def _find_tables(
    captured: dict[str, TableSchema], refused_by_source: dict[str, Refusal], names: tuple[str, ...] | None
) -> tuple[list[TableSchema], list[Refusal]]:
    schemas: dict[str, TableSchema] = {}
    refusals = dict(refused_by_source)
    for name in names or ():
        if name in refused_by_source:
            raise RequestError(refused_by_source[name].reason, fix=refused_by_source[name].fix)
    for pattern in dict.fromkeys(names) if names is not None else (None,):
        if pattern in captured:
            if not captured[pattern].key:
                refusal = _no_key(pattern)
                raise RequestError(refusal.reason, fix=refusal.fix)
            schemas[pattern] = captured[pattern]
            continue
        matching = captured if pattern is None else _matching(captured, pattern)
        refusals.update({name: _no_key(name) for name, schema in matching.items() if not schema.key})
        schemas.update({name: schema for name, schema in matching.items() if schema.key})
    if not schemas:
        without = f": {', '.join(refusals)} have no key" if refusals else ""
        raise RequestError(f"no table that is asked for can be dumped{without}", fix="see `dblog check`")
    return list(schemas.values()), list(refusals.values())


def _matching(captured: dict[str, TableSchema], pattern: str) -> dict[str, TableSchema]:
    """By the configuration's rules: `*` and `?` are special, within the schema and within the table."""
    matching = {name: schema for name, schema in captured.items() if table_patterns.matches(schema.table, [pattern])}
    if not matching:
        some_names = ", ".join(sorted(captured)[:20]) or "none"
        what = "matches no captured table" if "*" in pattern or "?" in pattern else "is not a captured table"
        # A server does not show tables that the account may not read.
        fix = f"captured tables are: {some_names}; if one is missing, `dblog check` prints the GRANT that it may need"
        raise RequestError(f"{pattern!r} {what}", fix=fix)
    return matching


def _no_key(name: str) -> Refusal:
    return Refusal(name, f"{name} has no key", f"give it a primary key, or {UNIQUE_KEY}", keyless=True)
