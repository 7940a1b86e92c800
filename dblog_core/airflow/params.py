"""The parameters of dumps and verifications: the trigger form, the JSON schema that checks them everywhere, and the
request behind them."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from dblog_core.errors import RequestError
from dblog_core.model import sizes

if TYPE_CHECKING:
    from dblog_core.config.settings import Config
    from dblog_core.dumps.requests import DumpRequest
    from dblog_core.verify.verification import VerifyRequest

ALL = "*.*"
"""All tables: what the field says unless somebody writes another name into it."""

KEYS = "Only some rows"
PACE = "Pace"
_NAMED = 30  # captured tables in the help of a field
_KEY_TYPES = ["string", "integer", "number", "boolean", "array"]
_KEY_HELP = (
    'A key is JSON: 42, "A-17", "2024-05-01"; a composite key is an array in key order: [7, "EUR"]; '
    "a binary key is base64."
)
_FILTER_HELP = (
    "Conditions that a row must all pass, one per line: COLUMN OPERATOR VALUE, such as: amount >= 10, or: state in "
    '["new", "paid"], or: day < 2026-11-01. Operators: = < <= > >= in. A value is JSON, or plain text where the column '
    'holds text or a date; for a column with a space in its name: ["my column", "=", 5].'
)
_FILTER_FIX = 'write COLUMN OPERATOR VALUE, such as amount >= 10, or ["COLUMN", "OPERATOR", VALUE]'
_SIZE = r"^\s*(\d+\s*[KMGTkmgt]?[Bb]?)?\s*$"


def form(config: Config) -> dict[str, Param]:
    """Every field but `tables` may be left empty; an empty one means what the configuration says."""
    return {"tables": _tables(config, "dump"), **_keys(), **_pace(config), "dry_run": _dry_run()}


def replay_form(config: Config) -> dict[str, Param]:
    """Of a replay; a run that has a data interval does not need them."""
    text: dict[str, Any] = {"type": ["null", "string"]}
    place = "a commit time such as 2026-11-21T14:00:00Z, or an offset"
    first = f"Where the replay begins: {place}. Empty: with the run's interval, or an hour before its end."
    last = f"Where it ends: {place}. Empty: with the run's interval, or now."
    return {
        "tables": _tables(config, "replay", of="tables of the lake"),
        "from": Param(None, title="From", description_md=first, **text),
        "to": Param(None, title="To", description_md=last, **text),
    }


def verify_form(config: Config) -> dict[str, Param]:
    """Of a verification."""
    sample = "Compare so many rows, drawn at random. Empty: every row."
    rate = "Rows a second that the source hashes, at most. Empty: no limit."
    whole: dict[str, Any] = {"type": ["null", "integer"], "minimum": 1}
    mend = "Dump the keys that differ, merge them, and compare them again."
    return {
        "tables": _tables(config, "verify"),
        "repair": Param(config.airflow.verify_repair, type=["null", "boolean"], title="Repair", description_md=mend),
        "pass_over_refused": _pass_over(),
        "sample_rows": Param(None, title="Sample", description_md=sample, section=PACE, **whole),
        "rows_per_second": Param(None, title="Rows a second", description_md=rate, section=PACE, **whole),
    }


def repair_form(config: Config) -> dict[str, Param]:
    """Of a repair; a run that has a data interval does not need them."""
    number: dict[str, Any] = {"type": ["null", "integer"], "minimum": 1}
    text = f"Which of {config.airflow.repair_slices} slices of each table's keys. Empty: the one that waited longest."
    rate = "Rows a second that the source hashes, at most. Empty: no limit."
    return {
        "tables": _tables(config, "repair"),
        "pass_over_refused": _pass_over(),
        "slice": Param(None, title="Slice", description_md=text, maximum=config.airflow.repair_slices, **number),
        "rows_per_second": Param(None, title="Rows a second", description_md=rate, section=PACE, **number),
    }


def _pass_over() -> Param:
    text = "Tables that the source does not let us capture are named_tables, and the run does not fail for them."
    return Param(False, type="boolean", title="Pass over refused tables", description_md=text)


def _tables(config: Config, what: str, *, of: str = "captured tables that have a key") -> Param:
    """Lines of text: a list to choose from drops what it does not know, and nothing would be left of a slip."""
    patterns = config.source.tables
    more = f", and {len(patterns) - _NAMED} more" if len(patterns) > _NAMED else ""
    text = (
        f"Tables to {what}, one per line: SCHEMA.TABLE, or patterns with {_as_is('*')} and ?. {_as_is(ALL)} alone: all "
        f"{of}. Captured: {_as_is(', '.join(patterns[:_NAMED]))}{more}."
    )
    items = {"type": "string", "pattern": r"^\s*([^.]+\.[\s\S]+)?$"}
    return Param([ALL], type="array", items=items, minItems=1, title="Tables", description_md=text)


def _as_is(text: str) -> str:
    """Text that Markdown shows as it is, without the boxes of code, which overlap in two lines."""
    return re.sub(r"([\\`*_\[\]<&])", r"\\\1", text)


def _keys() -> dict[str, Param]:
    # Without a type in `items` the form shows one line per key, and JSON keys pass through the API as they are.
    keys = {"not": {"type": ["null", "object"]}}
    listed = f"Primary keys, one per line; needs exactly one table. {_KEY_HELP}"
    many: dict[str, Any] = {"type": ["null", "array"], "items": keys, "minItems": 1, "section": KEYS}
    ends: dict[str, Any] = {"type": ["null", *_KEY_TYPES], "section": KEYS}
    first, last = (f"{end} of a key range, included; written like a primary key." for end in ("Start", "End"))
    # Conditions are lines of text too: `items` without a type, for the same reason.
    tests = {"not": {"type": ["null", "number", "boolean", "object"]}}
    some: dict[str, Any] = {"type": ["null", "array"], "items": tests, "minItems": 1, "section": KEYS}
    return {
        "pks": Param(None, title="Primary keys", description_md=listed, **many),
        "key_from": Param(None, title="First key", description_md=first, **ends),
        "key_to": Param(None, title="Last key", description_md=last, **ends),
        "filters": Param(None, title="Filters", description_md=_FILTER_HELP, **some),
    }


def _pace(config: Config) -> dict[str, Param]:
    def number(kind: str, title: str, text: str, default: float, low: float, high: float) -> Param:
        help_text = f"{text} Empty: {default:g}, from the configuration."
        return Param(
            None, type=["null", kind], minimum=low, maximum=high, title=title, description_md=help_text, section=PACE
        )

    usual = config.dump
    return {
        "chunk_size": number("integer", "Rows in a chunk", "Rows of one SELECT.", usual.chunk_size, 1, 1_000_000),
        "delay_seconds": number("number", "Delay", "Seconds between two chunks of a worker.", usual.delay, 0, 86_400),
        "rows_per_second": number(
            "integer", "Rows a second", "Upper limit for one worker; 0: none.", usual.rate, 0, 1_000_000_000
        ),
        "workers": number("integer", "Workers", "Ranges that are read at the same time.", usual.workers, 1, 64),
        "ranges": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=64,
            title="Ranges",
            description_md="Into how many ranges to cut each table; 1: none. Empty: as many as suit its size.",
            section=PACE,
        ),
        "adaptive": Param(
            None,
            type=["null", "boolean"],
            title="Adaptive",
            description_md="Slow down while the source suffers (replication lag, running statements, slow SELECTs). "
            f"Empty: {str(usual.adaptive).lower()}, from the configuration.",
            section=PACE,
        ),
        "max_retained": Param(
            None,
            type=["null", "string"],
            pattern=_SIZE,
            title="Retained log",
            description_md="Stand still while the source retains more log than this: bytes, or 10G; 0: no limit. "
            f"Empty: {usual.max_retained}, from the configuration.",
            section=PACE,
        ),
    }


def _dry_run() -> Param:
    text = "Only say what would be read: tables, estimated rows, chunks. Nothing is requested."
    return Param(False, type=["null", "boolean"], title="Dry run", description_md=text)


def check_arguments(form_fields: Mapping[str, Param], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator as its form would hand them on, checked by the same schema. Raises RequestError."""
    from airflow.sdk.exceptions import ParamValidationError

    checked = {}
    for name, value in arguments.items():
        param = form_fields[name]
        try:
            checked[name] = param.resolve(_typed(value, param.schema["type"]))
        except ParamValidationError as error:
            reason = str(error).splitlines()[0].removeprefix("Invalid input for param ")
            raise RequestError(reason, where=name, fix="correct the argument") from None
    return checked


def _typed(value: Any, types: str | list[str]) -> Any:
    """An argument that a template may have made text of: JSON, or a Python literal, where the form takes no text."""
    if not isinstance(value, str) or "string" in types:
        return value
    if "null" in types and value in ("", "None"):
        return None
    is_list = "array" in types
    # Every digit counts in a decimal key.
    read_json = functools.partial(json.loads, parse_float=str if is_list else float)
    for read in (read_json, ast.literal_eval):
        try:
            literal = read(value)
        except (ValueError, SyntaxError):
            continue
        return [value] if is_list and not isinstance(literal, list) else literal
    return [value] if is_list else value


def request(params: Mapping[str, Any]) -> DumpRequest:
    """What the parameters ask for. Names and keys are checked where the request is filed."""
    from dblog_core.dumps.requests import DumpRequest

    return DumpRequest(
        tables=named_tables(params),
        keys=tuple(_key(item) for item in lines("pks", params.get("pks")) or ()),
        key_from=_key(params.get("key_from")),
        key_to=_key(params.get("key_to")),
        filters=tuple(map(_filter, lines("filters", params.get("filters")) or ())),
        ranges=params.get("ranges"),
        chunk_size=params.get("chunk_size"),
        workers=params.get("workers"),
        delay=params.get("delay_seconds"),
        rate=params.get("rows_per_second"),
        adaptive=params.get("adaptive"),
        max_retained=_bytes(params.get("max_retained")),
    )


def verify_request(params: Mapping[str, Any]) -> VerifyRequest:
    """What the parameters of a verification ask for."""
    from dblog_core.verify.sample import SampleSize
    from dblog_core.verify.verification import VerifyRequest

    rows = params.get("sample_rows")
    sample = SampleSize() if rows is None else SampleSize(rows=int(rows))
    return VerifyRequest(
        tables=named_tables(params),
        repair=bool(params.get("repair")),
        sample=sample,
        rate=int(params.get("rows_per_second") or 0),
        pass_over_refused=bool(params.get("pass_over_refused")),
    )


def named_tables(params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The tables that `tables` names; None: all of them. Raises RequestError where it names none, or some beside all:
    what is left of a slip is never taken for everything."""
    tables = lines("tables", params.get("tables", [ALL]), of=_table)
    if tables is None:
        raise RequestError("no table is named", where="tables", fix=f"name tables, or give {ALL} for all of them")
    if ALL not in tables:
        return tables
    if others := [name for name in tables if name != ALL]:
        what = f"{ALL} is all tables, and {', '.join(others)} is named too"
        raise RequestError(what, where="tables", fix=f"remove {ALL}, or the others")
    return None


def _table(line: str) -> str:
    """The name in a line. One that a line cannot hold as it is (spaces at its ends, a line break) is a JSON string."""
    from dblog_core.model import table_names

    text = line.strip()
    if text.startswith('"') and not table_names.is_quoted(text):
        try:
            decoded = json.loads(text)
        except ValueError:
            return text
        return str(decoded)
    return text


def lines(name: str, items: list[Any] | None, *, of: Callable[[str], str] = str.strip) -> tuple[Any, ...] | None:
    """What is in the list, without the empty lines that the form hands on; `of`: what a line of text says. Raises
    RequestError if that is nothing."""
    if items is None:
        return None
    texts = (of(item) if isinstance(item, str) else item for item in items)
    entries = tuple(item for item in texts if item != "")
    if not entries:  # not the same as leaving it out, which means everything
        raise RequestError("the list is empty", where=name, fix="leave it out, or name something")
    return entries


def _key(item: Any) -> Any:
    """A JSON key as it is, or the one in a string; a string that holds no JSON is itself the key."""
    if not isinstance(item, str):
        return item
    try:
        return json.loads(item, parse_float=str, parse_constant=str)  # every digit counts in a decimal key
    except ValueError:
        return item or None


def _filter(item: Any) -> tuple[str, str, Any]:
    """A condition as `COLUMN OPERATOR VALUE`, or as an array of the three, also in a string. Raises RequestError."""
    from dblog_core.model.filters import Typed

    if isinstance(item, str) and item.lstrip().startswith("["):
        try:
            item = json.loads(item, parse_float=str, parse_constant=str)
        except ValueError:
            raise RequestError("a condition that is not JSON", where="filters", fix=_FILTER_FIX) from None
    elif isinstance(item, str):
        column, operator, value = (*item.split(maxsplit=2), "", "", "")[:3]
        if value:
            return column, operator, Typed(value)
    if isinstance(item, list) and len(item) == 3 and isinstance(item[0], str) and isinstance(item[1], str):
        return item[0], item[1], item[2]
    raise RequestError("a line that is no condition", where="filters", fix=_FILTER_FIX)


def _bytes(text: str | None) -> int | None:
    if text is None or not text.strip():
        return None
    try:
        return sizes.parse(text)
    except ValueError as error:
        raise RequestError(f"{text!r} {error}", where="max_retained", fix="correct it, or leave it empty") from error
