"""What a signal asks for: Debezium's form, translated into the one dump request, or into a word to running dumps.

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

LARGEST = 64 << 10  # bytes of a signal's data
LONGEST_ID = 255  # characters
_MOST_PATTERNS = 1000
IGNORED = ("snapshot-window-open", "snapshot-window-close")
"""What Debezium writes into a table that it shares with us: its own watermarks."""


@dataclass(frozen=True, slots=True)
class Message:
    """A signal as it came: its own id, its type, and its data (JSON text; None: it has none)."""

    id: str
    type: str
    data: str | None = None


class Word(Enum):
    """What is said to running dumps."""

    PAUSE = "pause-snapshot"
    RESUME = "resume-snapshot"
    STOP = "stop-snapshot"


@dataclass(frozen=True, slots=True)
class Said:
    """A word to the dumps of some tables (patterns; None: to all), or to one: `dump` is its id, or its signal's."""

    word: Word
    tables: tuple[str, ...] | None
    dump: str | None


EXECUTE = "execute-snapshot"
TYPES = (EXECUTE, *(word.value for word in Word))
_KNOWN = {
    EXECUTE: ("type", "data-collections", "additional-conditions", "surrogate-key"),
    **{word.value: ("type", "data-collections", "dump") for word in Word},
}


def translated(message: Message, *, kind: str) -> DumpRequest | Said:
    """What the signal asks for. `kind`: of the source. Raises RequestError, also for what cannot be done exactly."""
    if not message.id or len(message.id) > LONGEST_ID:
        raise RequestError(
            "a signal without an id" if not message.id else f"an id of {len(message.id)} characters",
            fix=f"give an id of 1 to {LONGEST_ID} characters, another one for each signal",
        )
    if message.type not in TYPES:
        raise RequestError(f"there is no signal {message.type!r}", fix=f"types are {', '.join(TYPES)}")
    data = _data(message)
    _check_keys(message.type, data)
    _check_type(data)
    if message.type == EXECUTE:
        return _request(data, kind)
    given = _patterns(data["data-collections"]) if data.get("data-collections") is not None else None
    return Said(Word(message.type), given, _text(data, "dump"))


def _data(message: Message) -> dict[str, Any]:
    if message.data is None or not message.data.strip():
        return {}
    if len(message.data.encode()) > LARGEST:
        raise RequestError(f"data of more than {LARGEST} bytes", fix="ask for less at once")
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
    given = data.get("type", "incremental")
    if not isinstance(given, str) or given.lower() not in ("incremental", "blocking"):
        raise RequestError(f"there is no snapshot of type {given!r}", fix="give incremental or blocking")


def _request(data: dict[str, Any], kind: str) -> DumpRequest:
    tables = _patterns(data.get("data-collections"))
    return DumpRequest(
        tables=tables,
        table_filters=_conditions(data.get("additional-conditions"), kind),
        chunk_by=_text(data, "surrogate-key"),
    )


def _conditions(given: Any, kind: str) -> tuple[TableFilters, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise RequestError("additional-conditions is no list of objects", fix='[{"data-collection": …, "filter": …}]')
    return tuple(_condition(one, kind) for one in given)


def _condition(given: dict[str, Any], kind: str) -> TableFilters:
    if set(given) != {"data-collection", "filter"} or not isinstance(given["filter"], str):
        raise RequestError(
            f"a condition with {', '.join(sorted(map(str, given))) or 'nothing'}",
            fix='give {"data-collection": TABLE, "filter": SQL}',
        )
    (pattern,) = _patterns([given["data-collection"]])
    return pattern, sql_conditions.parse(given["filter"], kind=kind)


def _patterns(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise RequestError("data-collections names no table", fix='give a list such as ["shop.orders", "shop.cust*"]')
    if len(given) > _MOST_PATTERNS:
        raise RequestError(f"{len(given)} patterns are more than {_MOST_PATTERNS}", fix="use * and ?")
    return tuple(dict.fromkeys(map(_pattern, given)))


def _pattern(given: str) -> str:
    """SCHEMA.TABLE with `*` and `?`, of a name, of a pattern of ours, or of a regular expression that says no more.

    Whose schema stands in double quotes is a name or a pattern of ours, as it is: it may hold what is special there.
    """
    if table_names.is_quoted(given):
        return table_names.canonical(given)
    pattern = given.strip()
    whole = pattern == ".*"
    pattern = pattern.replace("\\.", "\0")  # a dot that is no wildcard
    if "\0" in pattern:
        pattern = pattern.replace(".*", "*")
    elif pattern.count(".") > 1:
        head, _, tail = pattern.partition(".")
        pattern = f"{head}\0{tail.replace('.*', '*')}"
    pattern = "*.*" if whole else pattern.replace("\0", ".")
    if set("()[]{}|+^\\") & set(pattern) or not all(pattern.partition(".")):
        raise RequestError(
            f"{given!r} is no pattern of tables",
            fix="give SCHEMA.TABLE with the wildcards * and ?, such as shop.cust*; a name that holds one of "
            '()[]{}|+^\\ has its schema in double quotes, such as "shop".a+b',
        )
    return pattern


def _text(data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is None or (isinstance(value, str) and value):
        return value
    raise RequestError(f"{name} is no text", fix="give its name in quotes, or leave it out")
