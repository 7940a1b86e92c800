"""Watermarks: what a worker writes into the source's own log around each SELECT (DBLog, section 3.2).

A worker has one row in the watermark table and overwrites its payload; the log keeps every version. The payload is
JSON text, so that any database stores it unchanged. A dump's watermarks place a chunk; those of a verification
(`Probe`) place nothing, and only tell where in the log its SELECT lies. Of a source that is never written, the same
texts stand in the state store (`announced`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import orjson

from dblog_core.errors import UnknownLogEvent
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Heals:
    """The key range (JSON, both ends included; None: open) in which a finished dump has seen every row."""

    key_from: Any = None
    key_to: Any = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Which window of which dump a watermark belongs to.

    `task`: one key range or key list of one table; `attempt` grows with each worker (or restart of one) that takes the
    task up; `ordinal` counts the task's chunks over all attempts; `window` is a fresh id per chunk read; `parts`: how
    many tasks of the dump cover the table, or its range, together; `heals`: what their common end says about ghosts
    (None: nothing; keys of a range, or `Heals()` for the whole table).
    """

    source: str
    task: TaskId
    attempt: int
    ordinal: int
    window: str
    table: str
    parts: int = 1
    heals: Heals | None = None


@dataclass(frozen=True, slots=True)
class Low:
    """Written before the chunk's SELECT: the window opens where the log shows it."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class High:
    """Written after the chunk's rows are durable in staging: everything that the capture needs to place them.

    `schema`: fingerprint that the rows were read with; `last_key`: the JSON key the next chunk starts after (None: no
    row was found); `final`: the task ends with this chunk; `snapshot`: PostgreSQL's `pg_current_snapshot()` of the
    SELECT; `absent`: requested keys (JSON) that the SELECT did not find; `end`: of a read-only source, where its log
    ended after the SELECT; `arrived`: of the keys that rows arrived at (`arrivals`), those that the chunk is of;
    `whole`: it is of the whole table, for their sake; `rules`: digest of the column rules that the rows went through
    (`rules`; empty: none). `file` is None for a chunk without rows.
    """

    mark: Mark
    file: str | None
    rows: int
    bytes: int
    checksum: str
    schema: str
    last_key: Any
    final: bool
    snapshot: str | None = None
    absent: tuple[Any, ...] = ()
    end: str | None = None
    arrived: tuple[str, ...] = ()
    whole: bool = False
    rules: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """Written before (`high` false) and after the SELECT of a verification, which compares rows and stages none.

    `window`: a fresh id for each SELECT; `snapshot`, of the high one: PostgreSQL's `pg_current_snapshot()` of it, and
    `end` as in `High`.
    """

    source: str
    window: str
    table: str
    high: bool
    snapshot: str | None = None
    end: str | None = None


_WITNESS = "witness"


def encode_witness(source: str, number: int) -> str:
    """The payload text of a witness (`dblog_core.capture.healing.witness`)."""
    return orjson.dumps({"dblog": FORMAT, "kind": _WITNESS, "source": source, "number": number}).decode()


def parse_witness(payload: str) -> int:
    """The number of a witness; 0 where the text is none, or of a newer format."""
    try:
        data = _load_json(payload)
    except UnknownLogEvent:
        return 0
    number = data.get("number") if (data.get("dblog"), data.get("kind")) == (FORMAT, _WITNESS) else 0
    return number if isinstance(number, int) else 0


def encode(watermark: Low | High | Probe) -> str:
    """The payload text of a watermark."""
    kind = "probe" if isinstance(watermark, Probe) else "low" if isinstance(watermark, Low) else "high"
    data = {"dblog": FORMAT, "kind": kind, **asdict(watermark)}
    if not isinstance(watermark, Probe):
        data["mark"]["task"] = str(watermark.mark.task)
    for name in ("end", "arrived", "whole", "rules"):  # a capture from before there were these reads it too
        if not data.get(name):
            data.pop(name, None)
    return orjson.dumps(data).decode()


def parse(payload: str) -> Low | High | Probe:
    """The watermark of a payload. Raises UnknownLogEvent where the text is not in our format, or in a newer one."""
    return _parse_fields(payload, _load_json(payload))


def parse_for(source: str, payload: str) -> Low | High | Probe | None:
    """The watermark of a payload, as `parse`; None where it is another source's, of whatever version, or a witness."""
    data = _load_json(payload)
    if data.get("kind") == _WITNESS:
        return None
    mark = data.get("mark", data)
    named = mark.get("source") if isinstance(mark, dict) else None
    return None if isinstance(named, str) and named != source else _parse_fields(payload, data)


def _load_json(payload: str) -> dict[str, Any]:
    try:
        data = orjson.loads(payload)
    except ValueError as error:
        raise _unknown_watermark(payload) from error
    if not isinstance(data, dict):
        raise _unknown_watermark(payload)
    return data


def _parse_fields(payload: str, data: dict[str, Any]) -> Low | High | Probe:
    try:
        if data.pop("dblog") != FORMAT:
            raise ValueError("a newer format")
        if (kind := data.pop("kind")) == "probe":
            return _check_types(Probe(**data))
        mark = _check_types(_build_mark(**data.pop("mark")))
        if kind == "low":
            return Low(**{**data, "mark": mark})
        rest = {**data, "absent": tuple(data["absent"]), "arrived": tuple(data.get("arrived", ()))}
        return _check_types(High(mark, **rest))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unknown_watermark(payload) from error


_UNREAD = "dblog cannot read the row: "


def describe_unread(why: str) -> str:
    """A payload that stands for a row which the log does not hold whole: no watermark, and why."""
    return _UNREAD + why


def _unknown_watermark(payload: str) -> UnknownLogEvent:
    # Others may have put anything into the table: a row's text does not go into an error.
    why = f": {payload.removeprefix(_UNREAD)}" if payload.startswith(_UNREAD) else f" ({len(payload):,} characters)"
    return UnknownLogEvent(
        f"the watermark table holds a row that is not a watermark of this version{why}",
        fix="only dblog may write that table; upgrade the capture before the dump workers",
    )


def _build_mark(*, task: str, heals: dict[str, Any] | None, **fields: Any) -> Mark:
    return Mark(task=TaskId.parse(task), heals=None if heals is None else Heals(**heals), **fields)


_NUMBERS = ("attempt", "ordinal", "parts", "rows", "bytes")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("source", "window", "table", "checksum", "schema", "rules"), (str,)),
    **dict.fromkeys(("file", "snapshot", "end"), (str, type(None))),
    **dict.fromkeys(_NUMBERS, (int,)),
    **dict.fromkeys(("final", "high", "whole"), (bool,)),
}
_Checked = TypeVar("_Checked", Mark, High, Probe)


def _check_types(record: _Checked) -> _Checked:
    """The same. Raises TypeError or ValueError for a value that no version of us writes."""
    for field in fields(record):
        value = getattr(record, field.name)
        if type(value) not in _TYPES.get(field.name, (type(value),)) or (field.name in _NUMBERS and value < 0):
            raise TypeError(f"{field.name} is {value!r}")
    if not isinstance(record, High):
        TableName.parse(record.table)
    return record
