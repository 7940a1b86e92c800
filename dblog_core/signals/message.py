"""What a signal asks for: Debezium's form, translated into the one dump request, or into an order to running dumps.

`data` is a JSON object. Its patterns are the configuration's, in which Debezium's `.*` and `\\.` are understood;
`blocking` is an ordinary dump, since no dump needs to pause the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from dblog_core.dumps.requests import DumpRequest, TableFilters
from dblog_core.errors import RequestError
from dblog_core.model import table_names
from dblog_core.signals import sql_conditions

MAX_DATA_BYTES = 64 << 10  # bytes of a signal's data
MAX_ID_CHARS = 255  # characters
_MOST_PATTERNS = 1000
IGNORED = ("snapshot-window-open", "snapshot-window-close")
"""What Debezium writes into a table that it shares with us: its own watermarks."""


@dataclass(frozen=True, slots=True)
class Message:
    """A signal as it came: its own id, its type, and its data (JSON text; None: it has none)."""

    id: str
    type: str
    data: str | None = None


class Verb(Enum):
    """What is said to running dumps."""

    PAUSE = "pause-snapshot"
    RESUME = "resume-snapshot"
    STOP = "stop-snapshot"


@dataclass(frozen=True, slots=True)
class Order:
    """An order to the dumps of some tables (patterns; None: to all), or to one dump: `dump` is its id, or its
    signal's.
    """

    verb: Verb
    tables: tuple[str, ...] | None
    dump: str | None


EXECUTE = "execute-snapshot"
TYPES = (EXECUTE, *(word.value for word in Verb))
_KNOWN = {
    EXECUTE: ("type", "data-collections", "additional-conditions", "surrogate-key"),
    **{word.value: ("type", "data-collections", "dump") for word in Verb},
}


def translate(message: Message, *, kind: str) -> DumpRequest | Order:
    """What the signal asks for. `kind`: of the source. Raises RequestError, also for what cannot be done exactly."""
    if not message.id or len(message.id) > MAX_ID_CHARS:
        raise RequestError(
            "a signal without an id" if not message.id else f"an id of {len(message.id)} characters",
            fix=f"give an id of 1 to {MAX_ID_CHARS} characters, another one for each signal",
        )
    if message.type not in TYPES:
        raise RequestError(f"there is no signal {message.type!r}", fix=f"types are {', '.join(TYPES)}")
    data = _data(message)
    _check_keys(message.type, data)
    _check_type(data)
    if message.type == EXECUTE:
        return _request(data, kind)
    tables = _patterns(data["data-collections"]) if data.get("data-collections") is not None else None
    return Order(Verb(message.type), tables, _text(data, "dump"))


def _data(message: Message) -> dict[str, Any]:
    if message.data is None or not message.data.strip():
        return {}
    if len(message.data.encode()) > MAX_DATA_BYTES:
        raise RequestError(f"data of more than {MAX_DATA_BYTES} bytes", fix="ask for less at once")
    try:
        data = orjson.loads(message.data)
    except ValueError as error:
        raise RequestError(f"data is not JSON: {error}", fix="give a JSON object") from error
    if not isinstance(data, dict):
        raise RequestError("data is no JSON object", fix='such as {"data-collections": ["shop.orders"]}')
    return data


def _check_keys(type_: str, data: dict[str, Any]) -> None:
    """What is left out in silence would be done otherwise than was asked."""
    if "additional-condition" in data:
        raise RequestError(
            "additional-condition is Debezium's old form",
            fix='additional-conditions = [{"data-collection": TABLE, "filter": SQL}]',
        )
    if unknown := [name for name in data if name not in _KNOWN[type_]]:
        raise RequestError(f"{type_} has no {', '.join(unknown)}", fix=f"its data may hold {', '.join(_KNOWN[type_])}")


def _check_type(data: dict[str, Any]) -> None:
    type_ = data.get("type", "incremental")
    if not isinstance(type_, str) or type_.lower() not in ("incremental", "blocking"):
        raise RequestError(f"there is no snapshot of type {type_!r}", fix="give incremental or blocking")


def _request(data: dict[str, Any], kind: str) -> DumpRequest:
    tables = _patterns(data.get("data-collections"))
    return DumpRequest(
        tables=tables,
        table_filters=_conditions(data.get("additional-conditions"), kind),
        chunk_by=_text(data, "surrogate-key"),
    )


def _conditions(conditions: Any, kind: str) -> tuple[TableFilters, ...]:
    if conditions is None:
        return ()
    if not isinstance(conditions, list) or not all(isinstance(condition, dict) for condition in conditions):
        raise RequestError("additional-conditions is no list of objects", fix='[{"data-collection": …, "filter": …}]')
    return tuple(_condition(condition, kind) for condition in conditions)


def _condition(condition: dict[str, Any], kind: str) -> TableFilters:
    if set(condition) != {"data-collection", "filter"} or not isinstance(condition["filter"], str):
        raise RequestError(
            f"a condition with {', '.join(sorted(map(str, condition))) or 'nothing'}",
            fix='give {"data-collection": TABLE, "filter": SQL}',
        )
    (pattern,) = _patterns([condition["data-collection"]])
    return pattern, sql_conditions.parse(condition["filter"], kind=kind)


def _patterns(patterns: Any) -> tuple[str, ...]:
    if not isinstance(patterns, list) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise RequestError("data-collections names no table", fix='give a list such as ["shop.orders", "shop.cust*"]')
    if len(patterns) > _MOST_PATTERNS:
        raise RequestError(f"{len(patterns)} patterns are more than {_MOST_PATTERNS}", fix="use * and ?")
    # Each once, in the given order.
    return tuple(dict.fromkeys(map(_pattern, patterns)))


def _pattern(text: str) -> str:
    """SCHEMA.TABLE with `*` and `?`, of a name, of our kind of pattern, or of a regular expression that says nothing
    beyond that.

    Whose schema stands in double quotes is a name or a pattern in our form, as it is: it may hold what is special
    there.
    """
    if table_names.is_quoted(text):
        return table_names.canonical(text)
    pattern = text.strip()
    whole = pattern == ".*"
    pattern = pattern.replace("\\.", "\0")  # a dot that is no wildcard
    # With escaped dots it is a regular expression: there a bare dot and star stand for any text.
    if "\0" in pattern:
        pattern = pattern.replace(".*", "*")
    elif pattern.count(".") > 1:
        head, _, tail = pattern.partition(".")
        pattern = f"{head}\0{tail.replace('.*', '*')}"
    pattern = "*.*" if whole else pattern.replace("\0", ".")
    if set("()[]{}|+^\\") & set(pattern) or not all(pattern.partition(".")):
        raise RequestError(
            f"{text!r} is no pattern of tables",
            fix="give SCHEMA.TABLE with the wildcards * and ?, such as shop.cust*; a name that holds one of "
            '()[]{}|+^\\ has its schema in double quotes, such as "shop".a+b',
        )
    return pattern


def _text(data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is None or (isinstance(value, str) and value):
        return value
    raise RequestError(f"{name} is no text", fix="give its name in quotes, or leave it out")
