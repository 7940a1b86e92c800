"""A certificate: what a verification has seen, so that it can be checked later whether the lake still has it.

It holds, for each table, the outcome, the columns that were not compared, the ranges that the source was read in (keys,
rows, sums of hashes, places in the log), and rows and sums of hashes of the lake's pinned version, by the same ranges
where the lake orders the key as the source does. It names every table that was asked for: those too that have no such
entry, with the reason.

Format 1 had no word of tables that could not be compared, and other hashes of some columns: it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from dblog_core import __version__
from dblog_core.errors import RequestError
from dblog_core.interfaces import Json
from dblog_core.model.key_order import has_one_order
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json
from dblog_core.rows.arrow_hashes import sum_exactly
from dblog_core.rows.row_hashes import HASH
from dblog_core.verify.judge.comparison import Sum
from dblog_core.verify.pinned_version import Pin
from dblog_core.verify.report import TableReport
from dblog_core.verify.source_reader import PlacedReading

FORMAT = 2
MOST_RANGES = 64


@dataclass(frozen=True, slots=True)
class Span:
    """Keys up to `key_to` (JSON; None: to the end), read within `since` and `upto`: so many rows, with this sum."""

    key_to: Any
    rows: int
    hash: int
    since: int
    upto: int
    position: str


def describe_table(
    report: TableReport, schema: TableSchema, spans: Sequence[Span], bounds: Sequence[Any], sums: Sequence[Sum]
) -> Json:
    """A table's part of a certificate. `schema`: of what is staged, and hashed; `spans`: the ranges that the source was
    read in; `bounds`: keys by which `sums`, of the lake's pinned version alone, are divided."""
    pinned = report.pin
    return {
        "table": report.table,
        "equal": report.equal,
        "outcome": report.outcome,
        "not_compared": [column.to_json() for column in report.not_compared],
        "rows": report.rows,
        "found": report.difference_count,
        "undecided": len(report.undecided),
        "schema": schema.to_json(),
        "ranges": [_with_text(span) for span in spans],
        "lake": pinned
        and {
            "version": pinned.version,
            "offset": pinned.offset,
            "segment": pinned.segment,
            "staged": report.staged,
            "bounds": list(bounds),
            "sums": [_with_text(part) for part in sums],
        },
    }


def _with_text(part: Span | Sum) -> Json:
    """With the sum as text: JSON numbers of other readers end at 2^53."""
    return {**asdict(part), "hash": str(part.hash)}


@dataclass(frozen=True, slots=True)
class Claim:
    """What a certificate says of one table. `outcome`: in words; `pin` None: the lake had no copy of it. `staged`: rows
    that were on top of the pinned version."""

    table: str
    equal: bool
    outcome: str
    not_compared: tuple[str, ...]
    schema: TableSchema
    pin: Pin | None
    staged: int
    bounds: tuple[Any, ...]
    sums: tuple[Sum, ...]

    @classmethod
    def from_json(cls, data: Json) -> Claim:
        lake = data["lake"] or {"sums": (), "bounds": (), "staged": 0}
        return cls(
            table=str(data["table"]),
            equal=data["equal"] is True,
            outcome=str(data["outcome"]),
            not_compared=tuple(str(column["column"]) for column in data["not_compared"]),
            schema=TableSchema.from_json(data["schema"]),
            # No staged rows are folded on top of a certified version, so its own offset is the newest.
            pin=Pin(lake["version"], lake["offset"], lake["segment"], lake["offset"]) if data["lake"] else None,
            staged=int(lake["staged"]),
            bounds=tuple(lake["bounds"]),
            sums=tuple(Sum(part["rows"], int(part["hash"])) for part in lake["sums"]),
        )


def join_readings(readings: Sequence[PlacedReading]) -> tuple[Span, ...]:
    """The ranges of the source. Neighbours are joined, so that the file stays small however large the table is.

    Raises LakeError where the local disk fails.
    """
    size = -(-len(readings) // MOST_RANGES)
    return tuple(_join(readings[i : i + size]) for i in range(0, len(readings), size))


def _join(readings: Sequence[PlacedReading]) -> Span:
    last = readings[-1].reading.key_to
    return Span(
        key_to=None if last is None else key_to_json(last),
        rows=sum(len(p.reading.rows) for p in readings),
        hash=sum(sum_exactly(p.reading.rows.read()[HASH].to_numpy()) for p in readings),
        since=min(p.since for p in readings),
        upto=max(p.upto for p in readings),
        position=readings[-1].position,
    )


def find_bounds(spans: Sequence[Span], schema: TableSchema) -> tuple[Any, ...]:
    """The ends of the ranges, where the lake orders the key as the source does."""
    # Text is left out: its order is the collation's in the database and that of its bytes in the lake.
    (first, *others) = schema.key_columns
    is_alike = not others and has_one_order(first) and not pa.types.is_timestamp(first.type)
    return tuple(span.key_to for span in spans[:-1]) if is_alike else ()


@dataclass(frozen=True, slots=True)
class UncertifiedTable:
    """A table that was asked for, and of which there is no evidence. `counts`: whether the lake should have it."""

    table: str
    reason: str
    counts: bool = True

    def to_json(self) -> Json:
        return asdict(self)


def certificate(
    source: str,
    at: str,
    asked: Iterable[str],
    tables: Sequence[Json],
    uncertified: Sequence[UncertifiedTable] = (),
) -> bytes:
    """The file. `at`: the time, ISO 8601; `asked`: the names of all tables that should be in it; `tables`: those that
    are (`describe_table`)."""
    data = {
        "format": FORMAT,
        "dblog": __version__,
        "source": source,
        "at": at,
        "asked": sorted(asked),
        "tables": list(tables),
        "not_certified": [table.to_json() for table in uncertified],
    }
    return orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate as it is read. `at`: when it was made; `uncertified`: tables without evidence, those too of which
    the file does not say a word though they were asked for."""

    at: str
    claims: tuple[Claim, ...]
    uncertified: tuple[UncertifiedTable, ...]


def write(file: Path, data: bytes) -> None:
    """For its owner alone: it has keys of rows."""
    # The mode counts from the file's creation on: a later chmod would leave it readable for a moment.
    with open(file, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        out.write(data)


def read_certificate(file: Path, *, source: str) -> Certificate:
    """Raises RequestError where the file is no certificate of this source, or one of another format."""
    try:
        data = orjson.loads(file.read_bytes())
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}, and {FORMAT} is known")
        if data["source"] != source:
            raise ValueError(f"it is of source {data['source']}")
        claims = tuple(map(Claim.from_json, data["tables"]))
        uncertified = [UncertifiedTable(t["table"], t["reason"], t["counts"]) for t in data["not_certified"]]
        named = {claim.table for claim in claims} | {table.table for table in uncertified}
        silent = [str(table) for table in data["asked"] if table not in named]
        uncertified += [UncertifiedTable(table, "the certificate does not say what was found") for table in silent]
        return Certificate(str(data["at"]), claims, tuple(uncertified))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"is no certificate: {error}",
            where=str(file),
            fix="give a file that `verify --certificate` of this version has written",
        ) from error
