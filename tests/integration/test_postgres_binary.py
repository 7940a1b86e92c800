"""Binary values as a real server sends them: the same arrays, and the same errors, as its text form gives."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dblog_core.config.source import SourceConfig
from dblog_core.errors import ValueOutOfRange
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.sql import copy_rows
from dblog_core.sources.postgres.sql.connection import connect
from dblog_core.sources.postgres.values import types
from dblog_core.sources.postgres.values.binary_values import is_supported, to_arrow

TABLE = TableName("public", "t")

whole = st.integers
signs = st.sampled_from(["", "-"])
figures = st.text("0123456789", min_size=1, max_size=40)
letters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(letters, max_size=12)
plain = st.text("abcé東 {}\"'\\,\n\t", max_size=12)
years = st.integers(1, 9999)
days = st.dates().map(str)
clocks = st.times().map(str) | st.just("24:00:00")
zones = st.sampled_from(["+00", "-15:59", "+05:30", "+01:02:03", "-00:00:07"])
odd_floats = st.sampled_from(["NaN", "Infinity", "-Infinity", "-0"])


def floats(width: int) -> st.SearchStrategy[str]:
    return st.floats(width=width).map(str) | odd_floats  # type: ignore[arg-type]  # 32 or 64


def decimals(before: int, after: int) -> st.SearchStrategy[str]:
    digits = [st.text("0123456789", min_size=1, max_size=size) if size else st.just("") for size in (before, after)]
    return st.tuples(signs, digits[0], digits[1]).map(lambda parts: f"{parts[0]}0{parts[1]}.{parts[2]}0")


def hexadecimal(size: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=size, max_size=size).map(bytes.hex)


GENERATED: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from(["t", "f"]),
    "smallint": whole(-(2**15), 2**15 - 1).map(str),
    "integer": whole(-(2**31), 2**31 - 1).map(str),
    "bigint": whole(-(2**63), 2**63 - 1).map(str),
    "real": floats(32),
    "double precision": floats(64),
    "numeric": decimals(45, 45)
    | st.sampled_from(["NaN", "Infinity", "-Infinity", "1e131071", "-1e-16383", "0e-20", "1e20"]),
    "numeric(60,5)": decimals(54, 5),
    "numeric(12,2)": decimals(9, 2),
    "numeric(15,2)": decimals(12, 2),
    "numeric(18,18)": decimals(0, 18),
    "numeric(19,3)": decimals(15, 3),
    "numeric(38,10)": decimals(27, 10),
    "numeric(38,0)": decimals(37, 0),
    "numeric(38,38)": decimals(0, 38),
    "date": days,
    "timestamp without time zone": st.datetimes().map(str),
    "timestamp(3) without time zone": st.datetimes().filter(lambda t: t.year < 9999).map(str),
    "timestamp with time zone": st.tuples(st.datetimes().filter(lambda t: 1 < t.year < 9999), zones).map(
        lambda parts: f"{parts[0]}{parts[1]}"
    ),
    "time without time zone": clocks,
    "time(3) without time zone": clocks,
    "time with time zone": st.tuples(clocks, zones).map("".join),
    "text": texts,
    "character varying(20)": texts,
    "character varying": texts,
    "character(12)": texts,
    "name": texts,
    "json": plain.map(lambda text: '{"a" : [1.10, ' + _quote(text) + "]}"),
    "jsonb": plain.map(lambda text: '{"b": -0.10e2, ' + _quote(text) + ": [null, true]}"),
    "xml": st.sampled_from(["", "x", "<a b='1'/>", "<?xml version='1.0' encoding='latin1' standalone='yes'?><é/>"]),
    "bytea": st.binary(max_size=9).map(lambda value: rf"\x{value.hex()}"),
    "uuid": hexadecimal(16),
    "macaddr": hexadecimal(6),
    "macaddr8": hexadecimal(8),
    "oid": whole(0, 2**32 - 1).map(str),
}
REFUSED = {
    "numeric(5,2)": ["NaN"],
    "date": [
        "infinity", "-infinity", "0044-03-15 BC", "0001-12-31 BC", "10000-01-01", "5874897-12-31", "4714-11-24 BC",
    ],
    "timestamp without time zone": [
        "infinity", "-infinity", "0001-12-31 23:59:59.999999 BC", "10000-01-01", "294276-12-31 23:59:59.99",
        "4714-11-24 00:00:00 BC", "12024-02-29 12:00:00.120500",
    ],
    "timestamp with time zone": ["infinity", "-infinity", "0001-12-31 23:59:59.9+00 BC", "10000-01-01 00:00+00"],
}  # fmt: skip


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[Any]:
    """With the session settings of the capture."""
    account = postgres.admin
    config = SourceConfig.model_validate(
        {"name": "t", "kind": "postgres", "host": postgres.host, "port": postgres.port, "database": "postgres",
         "user": account.user, "password": account.password, "tables": ["public.*"], "tls": "off"}
    )  # fmt: skip
    opened = connect(config)
    yield opened
    opened.close()


def both_ways(connection: Any, kind: str, values: list[str | None]) -> tuple[Any, Any]:
    """What the binary and the text form of the same values give: an array, or the error's text."""
    with connection.cursor() as cursor:
        source = "FROM unnest(%s::text[]) WITH ORDINALITY AS v(value, place) ORDER BY place"
        query = cursor.mogrify(f"SELECT value::{kind} {source}", (values,)).decode()
        binary = io.BytesIO()
        text = io.StringIO()
        cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT binary)", binary)
        cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT csv, NULL 'NULL', FORCE_QUOTE *)", text)
    parsed_rows = copy_rows.parse(np.frombuffer(binary.getvalue(), dtype=np.uint8), 1)
    column = types.column("value", kind)
    return (
        _outcome(lambda: to_arrow(parsed_rows.raw, parsed_rows.starts[0], parsed_rows.lengths[0], column, TABLE)),
        _outcome(lambda: types.from_text(pa.array(_texts(text.getvalue(), values), pa.string()), column, TABLE)),
    )


def _texts(printed: str, values: list[str | None]) -> list[str | None]:
    """The values of a CSV of one column; a NULL alone stands without quotes."""
    reader = csv.reader(io.StringIO(printed, newline=""))
    return [None if value is None else row[0] for value, row in zip(values, reader, strict=True)]


def _outcome(convert: Any) -> Any:
    try:
        converted = convert()
    except ValueOutOfRange as error:
        return str(error)
    converted.validate(full=True)
    return converted


def same(left: Any, other: Any) -> bool:
    if isinstance(left, str) or isinstance(other, str):
        return bool(left == other)
    if not pa.types.is_floating(left.type):
        return bool(left.equals(other))
    bits = np.int32 if left.type == pa.float32() else np.int64  # a NaN equals itself, and 0.0 is not -0.0
    values = [array.fill_null(0).to_numpy(zero_copy_only=False).view(bits) for array in (left, other)]
    return bool(left.is_null().equals(other.is_null())) and values[0].tolist() == values[1].tolist()


@pytest.mark.parametrize("kind", GENERATED)
def test_binary_and_text_give_one_array(connection: Any, kind: str) -> None:
    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.none() | GENERATED[kind], min_size=1, max_size=40))
    def check(values: list[str | None]) -> None:
        binary, text = both_ways(connection, kind, values)
        assert not isinstance(binary, str), binary
        assert same(binary, text), f"binary {binary}\ntext {text}"

    assert is_supported(kind)
    check()


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in REFUSED.items() for value in values])
def test_binary_and_text_refuse_the_same_values_in_the_same_words(connection: Any, kind: str, value: str) -> None:
    binary, text = both_ways(connection, kind, [None, value, None])
    assert binary == text
    assert value.split()[0].rstrip("0") in binary
