"""Dump requests: expanded, deduplicated and checked against the catalogue, cut into tasks, and filed.

Nothing that a user types reaches SQL but as a bound value: names resolve against the catalogue, keys and filter values
against their columns' types. A request that cannot be carried out as asked is refused before it is filed, by name.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
import pyarrow as pa

from dblog_core import wiring
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.dumps import control, key_ranges
from dblog_core.dumps.key_ranges import MOST_RANGES, Range
from dblog_core.errors import RequestError, SourceError, SourceForbids, ValueOutOfRange
from dblog_core.interfaces import ChunkReader, Clock, Json, Source, StateStore
from dblog_core.model import filters, table_names, table_patterns
from dblog_core.model.filters import Filter
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.table_names import keys_entry
from dblog_core.model.values import key_from_json, key_to_json
from dblog_core.state.stopped_tables import by_source

KEYS_PER_TASK = 5_000
MAX_KEYS = 200_000
_LOOKS = 5  # at tables that somebody alters at the same time
_OPTIONS = ("chunk_size", "chunk_bytes", "workers", "delay", "rate", "adaptive", "max_retained")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Typed:
    """A filter's value as somebody typed it: JSON, or the text itself where the column holds text, a date or a time."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A filter's value as SQL spells it: text in quotes, or a number, true or false without.

    It is taken only where SQL compares it as what it is: a number with text, say, is compared by rules of each server.
    """

    text: str
    quoted: bool


TableFilters = tuple[str, tuple[tuple[str, str, Any], ...]]
"""A SCHEMA.TABLE name or pattern, and filters of its tables alone, as `DumpRequest.filters`."""


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What a user asks for; None: the configuration's value, or what suits the table.

    `tables`: SCHEMA.TABLE names or patterns (None: all); keys and range ends are JSON, both ends included; `filters`:
    (column, operator, JSON value, `Typed` or `Literal`), all of which a row must pass; `table_filters`: more of them,
    of single tables; `ranges`: tasks to cut a table into; `chunk_by`: the column that chunks are to be cut by;
    `shapes`: a window without rows, which shows the table's shape at its place in the log.
    """

    tables: tuple[str, ...] | None
    keys: tuple[Any, ...] = ()
    key_from: Any = None
    key_to: Any = None
    filters: tuple[tuple[str, str, Any], ...] = ()
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


WHOLE = DumpRequest(tables=None, ranges=1)
"""What a capture asks for: uncut, since reading boundaries would keep its log waiting."""
SHAPES = DumpRequest(tables=None, shapes=True)
"""What a capture asks for where a table was altered and no row has shown how."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A table that a request asks for, with the request's filters typed for its columns."""

    schema: TableSchema
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A table that a request's pattern takes in, and that cannot be dumped. `keyless`: since it has no key."""

    table: str
    reason: str
    fix: str
    keyless: bool = False

    def to_json(self) -> Json:
        return {"table": self.table, "reason": self.reason, "fix": self.fix}


def submit(
    config: Config,
    request: DumpRequest,
    *,
    requested_by: str = control.USER,
    state: StateStore | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
    on_table: Callable[[str], None] = lambda _: None,
) -> str:
    """Checks the request against the catalogue, cuts it into tasks and files it; returns the dump's id.

    Reads the boundaries of the ranges from the key's index, which takes its time on a very large table: `on_table` is
    told the name of each. Raises RequestError before anything is filed.
    """
    found = draft(config, request, requested_by=requested_by, clock=clock, new_id=new_id, on_table=on_table)
    if state is None:
        with closing(wiring.open_state(config)) as store:
            _file(store, found)
    else:
        _file(state, found)
    return found.id


@dataclass(frozen=True, slots=True)
class Draft:
    """A dump that is checked and cut, and that nobody sees yet."""

    id: str
    record: Json
    tasks: tuple[Json, ...]


def draft(
    config: Config,
    request: DumpRequest,
    *,
    requested_by: str,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
    on_table: Callable[[str], None] = lambda _: None,
) -> Draft:
    """The dump that `submit` files. Raises RequestError."""
    options = options_of(config, request)
    _, refused, (cut, unreadable) = settled(
        config, request, lambda found: _cut(config, request, found, options, on_table)
    )
    refused = [*refused, *unreadable]
    if not cut:
        told = "; ".join(f"{refusal.reason} (fix: {refusal.fix})" for refusal in unreadable)
        raise RequestError(f"no table that is asked for can be dumped: {told}", fix="as said there")
    now = dt.datetime.fromtimestamp((clock or SystemClock()).time(), dt.UTC)
    record = {
        "tables": [str(table.schema.table) for table, _ in cut],
        "options": options,
        "state": "requested",
        "error": None,
        "requested_at": now.isoformat(timespec="microseconds"),
        "requested_by": requested_by,
        "refused": [r.to_json() for r in refused],
    }
    return Draft(f"{now:%Y%m%dT%H%M%S}-{new_id()}", record, tuple(task for _, tasks in cut for task in tasks))


def _file(state: StateStore, found: Draft) -> None:
    file_tasks(state, found)
    control.show(state, found.id, found.record)  # last: until then nobody sees the dump


def file_tasks(state: StateStore, found: Draft) -> None:
    """Writes the tasks of a dump that nobody sees before `control.show` is called."""
    tasks = {
        f"dumps/{found.id}/tasks/{number}/task": orjson.dumps({**task, "attempt": 0})
        for number, task in enumerate(found.tasks)
    }
    state.create_all(tasks)


# What is asked for ----------------------------------------------------------------------------------------------------


def options_of(config: Config, request: DumpRequest) -> Json:
    """The options in force at first. Raises RequestError."""
    given = {name: getattr(request, name) for name in _OPTIONS}
    options = {name: getattr(config.dump, name) if value is None else value for name, value in given.items()}
    control.check_options(options)
    return {**options, "in_flight": config.dump.in_flight}


def resolve(config: Config, request: DumpRequest) -> tuple[list[Wanted], list[Refusal]]:
    """The tables of a request, each captured, there and with a key, and those that its patterns take in without one.

    Raises RequestError for a request that is empty, unknown or contradicts itself.
    """
    _check_shape(request)
    request = _named(request)
    source = wiring.open_source(config.source)
    known = {str(s.table): s for s in source.tables()}
    shapes, refused = _tables(known, _stopped(source, request.tables), request.tables)
    if (request.keys or _ends(request)) and len(shapes) != 1:
        raise RequestError(f"keys belong to one table, and {len(shapes)} are asked for", fix="name exactly one table")
    for key in (*request.keys, *_ends(request)):
        key_from_json(key, shapes[0])
    _check_chunk_key(request, shapes)
    return [Wanted(s, _filters(_filters_of(request, shapes, s), s)) for s in shapes], refused


def _named(request: DumpRequest) -> DumpRequest:
    """The request with the one text of each table."""
    tables = None if request.tables is None else tuple(map(table_names.canonical, request.tables))
    return replace(request, tables=tables)


def settled(
    config: Config, request: DumpRequest, look: Callable[[list[Wanted]], T]
) -> tuple[list[Wanted], list[Refusal], T]:
    """`resolve`, and what `look` finds out about those tables; anew where one was altered in between.

    Raises what `resolve` and `look` raise.
    """
    found = resolve(config, request)
    for _ in range(_LOOKS):
        try:
            return *found, look(found[0])
        except (SourceError, RequestError):  # the server's words, or ours for a column that is gone
            if (now := resolve(config, request)) == found:
                raise
            found = now
    return *found, look(found[0])


def of_each(
    request: DumpRequest, wanted: Sequence[Wanted], look: Callable[[Wanted], T]
) -> tuple[list[tuple[Wanted, T]], list[Refusal]]:
    """What `look` finds out about each table. One that may not be read, and one whose key holds a value without an
    exact form, is refused alone.

    Raises RequestError where that one is asked for by its name, and what `look` raises.
    """
    found: list[tuple[Wanted, T]] = []
    refused: list[Refusal] = []
    for table in wanted:
        name = str(table.schema.table)
        try:
            found.append((table, look(table)))
        except (ValueOutOfRange, SourceForbids) as error:
            if request.tables is not None and name in map(table_names.canonical, request.tables):
                raise RequestError(error.message, where=error.where, fix=error.fix) from error
            refused.append(Refusal(name, error.reason, error.fix))
    return found, refused


def _check_shape(request: DumpRequest) -> None:
    """What is wrong whatever the catalogue says."""
    if request.tables is not None and not request.tables:
        raise RequestError("no table is named", fix="name tables, or ask for all of them")
    if request.keys and _ends(request):
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
    for column, operator, _ in [f for each in (request.filters, *(f for _, f in request.table_filters)) for f in each]:
        if operator not in filters.OPERATORS:
            fix = f"operators are {', '.join(filters.OPERATORS)}"
            raise RequestError(f"the filter on {column} has the unknown operator {operator!r}", fix=fix)


def _check_chunk_key(request: DumpRequest, shapes: Sequence[TableSchema]) -> None:
    """A chunk's rows are told apart, evicted and gone on from by one key. Raises RequestError for another one."""
    for schema in shapes if request.chunk_by is not None else ():
        if schema.key != (request.chunk_by,):
            raise RequestError(
                f"{schema.table} cannot be cut by {request.chunk_by}: its rows are known by ({', '.join(schema.key)}), "
                "in the log and in each chunk alike",
                fix="leave the surrogate key out: any key is cut as the database orders it; or name another key of the "
                "table under [source.keys], for its log too",
            )


def _filters_of(
    request: DumpRequest, shapes: Sequence[TableSchema], schema: TableSchema
) -> tuple[tuple[str, str, Any], ...]:
    """All filters of a table. Raises RequestError for one of a table that is not asked for."""
    found = list(request.filters)
    for pattern, more in request.table_filters:
        if not any(table_patterns.matches(s.table, [pattern]) for s in shapes):
            raise RequestError(f"a condition on {pattern!r}, which is not asked for", fix="name it among the tables")
        if table_patterns.matches(schema.table, [pattern]):
            found += more
    return tuple(found)


def _ends(request: DumpRequest) -> list[Any]:
    return [k for k in (request.key_from, request.key_to) if k is not None]


def _stopped(source: Source, names: tuple[str, ...] | None) -> dict[str, Refusal]:
    """Wanted tables among those named, whose log cannot be read as they are: a dump of one would miss changes."""
    entries = by_source(source.refused())
    found = {table: Refusal(table, entry["why"], entry["fix"]) for table, entry in entries.items()}
    if names is None:
        return found
    return {name: refusal for name, refusal in found.items() if table_patterns.matches(TableName.parse(name), names)}


def _tables(
    known: dict[str, TableSchema], stopped: dict[str, Refusal], names: tuple[str, ...] | None
) -> tuple[list[TableSchema], list[Refusal]]:
    shapes: dict[str, TableSchema] = {}
    refused = dict(stopped)
    for name in names or ():
        if name in stopped:
            raise RequestError(stopped[name].reason, fix=stopped[name].fix)
    for pattern in dict.fromkeys(names) if names is not None else (None,):
        if pattern in known:
            if not known[pattern].key:
                refusal = _no_key(pattern)
                raise RequestError(refusal.reason, fix=refusal.fix)
            shapes[pattern] = known[pattern]
            continue
        found = known if pattern is None else _matching(known, pattern)
        refused.update({name: _no_key(name) for name, schema in found.items() if not schema.key})
        shapes.update({name: schema for name, schema in found.items() if schema.key})
    if not shapes:
        without = f": {', '.join(refused)} have no primary key" if refused else ""
        raise RequestError(f"no table that is asked for can be dumped{without}", fix="see `dblog check`")
    return list(shapes.values()), list(refused.values())


def _matching(known: dict[str, TableSchema], pattern: str) -> dict[str, TableSchema]:
    """By the configuration's rules: `*` and `?` are special, within the schema and within the table."""
    found = {name: schema for name, schema in known.items() if table_patterns.matches(schema.table, [pattern])}
    if not found:
        captured = ", ".join(sorted(known)[:20]) or "none"
        what = "matches no captured table" if "*" in pattern or "?" in pattern else "is not a captured table"
        raise RequestError(f"{pattern!r} {what}", fix=f"captured tables are: {captured}")
    return found


def _no_key(name: str) -> Refusal:
    return Refusal(
        name,
        f"{name} has no primary key",
        f"name its unique, never-null columns under {keys_entry(name)}",
        keyless=True,
    )


def _filters(given: Sequence[tuple[str, str, Any]], schema: TableSchema) -> tuple[Filter, ...]:
    if not given:
        return ()
    columns = {c.name: c for c in schema.columns}
    typed = [(name, op, _values(value, op, columns.get(name))) for name, op, value in given]
    return filters.parse(typed, schema)


def _values(value: Any, operator: str, column: Column | None) -> Any:
    if isinstance(value, tuple):
        return [_literal(one, column) for one in value]
    return _literal(value, column) if isinstance(value, Literal) else _value(value, operator, column)


def _literal(value: Literal, column: Column | None) -> Any:
    """The JSON value of SQL's; a time needs its zone where the column is a point in time."""
    if column is None:
        return value.text
    kind = column.type
    if not value.quoted:
        if not any(
            of(kind) for of in (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        ):
            raise _incomparable(value, column, "text in quotes")
        return json.loads(value.text.lstrip("+"), parse_float=str) if _is_json(value.text) else value.text
    zoned = not pa.types.is_timestamp(kind) or not kind.tz or _has_zone(value.text)
    if not zoned:
        raise _incomparable(value, column, "a time with its zone, such as '2026-11-01T10:00:00Z'")
    if not any(of(kind) for of in (pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)):
        raise _incomparable(value, column, "a value of its own type, without quotes")
    return value.text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _has_zone(text: str) -> bool:
    try:
        return dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return True  # no time at all: refused as such


def _incomparable(value: Literal, column: Column, wanted: str) -> RequestError:
    return RequestError(
        f"the filter on {column.name} ({column.source_type}) compares it with {value.text!r}, which has no "
        "exact meaning",
        fix=f"give {wanted}",
    )


def _value(value: Any, operator: str, column: Column | None) -> Any:
    """The JSON value of what somebody typed; every digit counts, and 42 in a text column is text."""
    if not isinstance(value, Typed) or column is None:
        return value.text if isinstance(value, Typed) else value
    kind = column.type
    plain = pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    try:
        parsed = json.loads(value.text, parse_float=str, parse_constant=str)
    except ValueError as error:
        if plain and operator != "in":
            return value.text
        wants = "a JSON array" if operator == "in" else "a JSON value"
        raise RequestError(
            f"filter on {column.name} ({column.source_type}): {value.text!r} is not JSON",
            fix=f"give {wants}; text in it needs double quotes of its own",
        ) from error
    return value.text if plain and operator != "in" and parsed is not None and not isinstance(parsed, str) else parsed


# Tasks ----------------------------------------------------------------------------------------------------------------


def _cut(
    config: Config,
    request: DumpRequest,
    wanted: Sequence[Wanted],
    options: Json,
    on_table: Callable[[str], None],
) -> tuple[list[tuple[Wanted, list[Json]]], list[Refusal]]:
    """The tasks of each table, and the tables that cannot be cut. The order of a key is that of the time before its
    table is cut: whatever changes it while it is cut, or later, its workers notice."""
    with closing(wiring.open_source(config.source).open_reader()) as reader:

        def cut(table: Wanted) -> list[Json]:
            order = reader.key_order(table.schema)
            if request.shapes:
                tasks = [_task(table.schema, Range(estimated=0), parts=1, keys=[])]
            elif request.keys:
                tasks = _listed(request, table.schema)
            else:
                on_table(str(table.schema.table))
                tasks = _ranged(reader, request, table, options)
            return [{**task, "order": order} for task in tasks]

        return of_each(request, wanted, cut)


def _listed(request: DumpRequest, schema: TableSchema) -> list[Json]:
    keys = listed_keys(request, schema)
    parts = [keys[i : i + KEYS_PER_TASK] for i in range(0, len(keys), KEYS_PER_TASK)]
    return [_task(schema, Range(estimated=len(part)), keys=part, parts=len(parts)) for part in parts]


def listed_keys(request: DumpRequest, schema: TableSchema) -> list[Any]:
    """The request's keys as JSON, each once."""
    return [key_to_json(k) for k in dict.fromkeys(key_from_json(k, schema) for k in request.keys)]


def _ranged(reader: ChunkReader, request: DumpRequest, table: Wanted, options: Json) -> list[Json]:
    schema = table.schema
    ends = _whole(request, schema)
    cut = key_ranges.cut(reader, schema, table.filters, ends, options, wanted=request.ranges)
    conditions = filters.to_json(table.filters) if table.filters else []
    heals = None if conditions or not _may_heal(ends, schema) else {"key_from": ends.key_from, "key_to": ends.key_to}
    return [_task(schema, part, parts=len(cut), filters=conditions, heals=heals) for part in cut]


def _whole(request: DumpRequest, schema: TableSchema) -> Range:
    """The range that the request asks for, its ends in the one form that a key has."""
    first, last = (
        None if end is None else key_to_json(key_from_json(end, schema)) for end in (request.key_from, request.key_to)
    )
    return Range(key_from=first, key_to=last)


def _may_heal(ends: Range, schema: TableSchema) -> bool:
    """Whether the lake can tell which of its rows lie in the range: it must order the key as the database does."""
    if ends.key_from is None and ends.key_to is None:
        return True
    return key_ranges.ordered_alike(schema)


def _task(
    schema: TableSchema,
    part: Range,
    *,
    parts: int,
    keys: list[Any] | None = None,
    filters: Sequence[Json] = (),
    heals: Json | None = None,
) -> Json:
    return {
        "table": str(schema.table),
        "keys": keys,
        "key_from": part.key_from,
        "after": part.after,
        "key_to": part.key_to,
        "filters": list(filters),
        "parts": parts,
        "heals": heals,
        "estimated": part.estimated,
    }
