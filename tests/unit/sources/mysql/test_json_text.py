"""Binary JSON printed by kernels against the plain printer: any document, at any size, and bytes gone wrong."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.sources.mysql.values import binary_values, json_text
from dblog_core.sources.mysql.values.binary_values import ValueFault, Values
from dblog_core.sources.mysql.values.json_text import NoDocument
from dblog_core.sources.mysql.values.types import ColumnType, Kind
from tests.unit.mysql_json import to_text
from tests.unit.mysql_rows import Opaque, document, json_value, packed_decimal

JSON = ColumnType(Kind.JSON, pa.string(), "json", prefix=4)


def values(*documents: bytes | None) -> Values:
    lengths = np.array([-1 if d is None else len(d) for d in documents], dtype=np.int64)
    ends = np.cumsum(np.maximum(lengths, 0))
    raw = np.frombuffer(b"".join(d or b"" for d in documents), dtype=np.uint8)
    return Values(raw, np.where(lengths < 0, -1, ends - lengths), lengths, lengths >= 0)


def texts(*documents: bytes | None) -> list[str | None]:
    array = binary_values.to_arrow(JSON, values(*documents), zero_dates="error")
    array.validate(full=True)
    json_texts: list[str | None] = array.to_pylist()
    return json_texts


def is_left(document: bytes) -> bool:
    """Whether the kernels leave a value of the document to the plain printer. Raises NoDocument."""
    document_values = values(document)
    return json_text._print_by_kernels(document_values.raw, document_values.starts, document_values.lengths)[2]


def is_broken(document: bytes) -> bool:
    try:
        is_left(document)
    except NoDocument as error:
        return "no JSON document" in str(error)
    return False


@pytest.mark.parametrize("large", [False, True])
def test_any_document_is_printed_as_the_plain_printer_does(large: bool) -> None:
    r = random.Random(large)
    documents = [document(json_value(r, 4), large=large) for _ in range(400)]
    assert texts(*documents) == [to_text(d) for d in documents]


def test_documents_are_what_they_were_made_of() -> None:
    r = random.Random(5)
    plain = []
    while len(plain) < 300:
        value = json_value(r, 3)
        if "Opaque" not in repr(value):
            plain.append(value)
    assert [json.loads(text or "") for text in texts(*map(document, plain))] == plain


def test_nulls_and_the_document_that_an_altered_column_has() -> None:
    assert texts(None, b"", document("x"), None) == [None, "null", '"x"', None]


@pytest.mark.parametrize("text", ['"\\/\b\f\n\r\t\x01\x1f\x7fé😀', "", "\0" * 50, "a" * 127, "a" * 128, "\n" * 5000])
def test_strings_and_keys_are_escaped_alike(text: str) -> None:
    key = text[:60]
    assert texts(document({key: text})) == ["{" + json_text.quote(key) + ": " + json_text.quote(text) + "}"]


def test_a_short_text_of_a_long_document_and_a_long_text_of_a_short_one() -> None:
    spare = document([1, 2]) + bytes(100_000)  # what an update in place leaves behind
    grows = document(["\x01" * 20_000] * 3)
    assert texts(spare, grows, document({})) == ["[1, 2]", to_text(grows), "{}"]


def nest(depth: int, inner: Any = 1) -> Any:
    for level in range(depth):
        inner = [inner] if level % 2 else {"k": inner}
    return inner


def test_containers_as_deep_as_the_server_stores_them() -> None:
    deep = document(nest(100))
    assert texts(deep) == [to_text(deep)] and not is_left(deep)
    with pytest.raises(ValueFault, match="no JSON document"):
        texts(document(nest(102)))


@pytest.mark.parametrize(
    "value",
    [1e15, 1e-6, 123456789012345.67, 0.1 + 0.2, 5e-324, Opaque(252, b"\0\1"), Opaque(246, b"\0\0"), Opaque(10, b"\1")],
)
def test_what_is_left_to_the_plain_printer_is_told_from_what_is_broken(value: Any) -> None:
    assert is_left(document({"a": ["x", value], "b": 1}))


@pytest.mark.parametrize("value", [0.1, -0.0, 1e14, 99999999999999.9, 1e-5, 2.5, 1200.0, -0.00012])
def test_short_numbers_are_printed_by_the_kernel(value: float) -> None:
    assert not is_left(document([value]))
    assert texts(document([value])) == [f"[{json_text.double(value)}]"]


def test_doubles_of_any_length() -> None:
    r = random.Random(7)
    numbers = [r.randrange(10 ** r.randrange(1, 18)) / 10 ** r.randrange(20) for _ in range(3000)]
    numbers += [struct.unpack("<d", r.randbytes(8))[0] for _ in range(3000)]
    numbers = [n for n in numbers if n - n == 0]
    assert texts(*map(document, numbers)) == [json_text.double(n) for n in numbers]


@pytest.mark.parametrize(
    ("precision", "scale"), [(1, 0), (9, 9), (10, 1), (18, 0), (27, 9), (65, 30), (65, 0), (30, 30)]
)
def test_decimals_of_functions(precision: int, scale: int) -> None:
    r = random.Random(precision)
    numbers = [0, 1, -1, 10**precision - 1, -(10**precision - 1), *(r.randrange(10**precision) for _ in range(50))]
    documents = [
        document([Opaque(246, bytes([precision, scale]) + packed_decimal(n, precision, scale))]) for n in numbers
    ]
    assert texts(*documents) == [to_text(d) for d in documents] and not any(map(is_left, documents))


def test_a_document_that_points_into_itself_ends() -> None:
    itself = b"\x02" + struct.pack("<HH", 2, 10) + (b"\x02" + struct.pack("<H", 0)) * 2
    assert is_broken(itself)
    shared = document([[[1, 1], 1], 1])
    doubled = bytearray(shared)
    with pytest.raises(ValueFault) as raised:
        texts(document(1), itself)
    assert raised.value.row == 1
    for at in range(len(doubled)):  # any one place that points elsewhere
        for value in (0, 1, 4, 0xFF):
            check_wrong_bytes(bytes(doubled[:at]) + bytes([value]) + bytes(doubled[at + 1 :]))


def test_a_document_whose_branches_meet_again_is_refused_before_it_grows() -> None:
    inner = b"".join(struct.pack("<HH", 2, 10) + (b"\x02" + struct.pack("<H", 10)) * 2 for _ in range(18))
    assert is_broken(b"\x02" + inner + struct.pack("<HH", 0, 4))


def check_wrong_bytes(data: bytes) -> None:
    """It is printed as the plain printer prints it, or refused."""
    try:
        (got,) = texts(data)
    except ValueFault:
        return
    assert got == to_text(data)


def test_wrong_bytes_are_an_error_or_the_plain_printers_text() -> None:
    r = random.Random(3)
    for _ in range(2000):
        data = bytearray(document(json_value(r, 3), large=r.random() < 0.3)[:3000])
        for _ in range(r.randrange(4)):
            data[r.randrange(len(data))] = r.choice((0, 1, 2, 0x7F, 0x80, 0xFF, r.randrange(256)))
        check_wrong_bytes(bytes(data[: r.choice((len(data), r.randrange(len(data) + 1)))]))


def test_rows_of_every_kind_keep_their_places() -> None:
    r = random.Random(11)
    kinds = [
        lambda: None,
        lambda: document({"a": 0.1 + 0.2, "b": [Opaque(246, bytes([5, 2]) + packed_decimal(-12345, 5, 2)), "x"]}),
        lambda: document([Opaque(252, r.randbytes(r.randrange(80))), 1e300, "\0", Opaque(252, b"")]),
        lambda: document([Opaque(12, r.randrange(1 << 56).to_bytes(8, "little")), {"k": "\xff"}]),
        lambda: b"",
        lambda: document({"plain": [1, "two", None]}),
    ]
    for rows in (1, 2, 40):
        documents = [r.choice(kinds)() for _ in range(rows)]
        assert texts(*documents) == [None if d is None else to_text(d) for d in documents]


def test_a_value_that_is_none_is_told_with_its_row() -> None:
    good = document([1e300])
    nan = b"\x0b" + struct.pack("<d", float("nan"))
    with pytest.raises(ValueFault, match="no number of JSON") as raised:
        texts(document([2.5]), good, nan, good)
    assert raised.value.row == 2
    with pytest.raises(ValueFault, match="utf-8") as raised:
        texts(good, document("x"), b"\x0c\x01\xff", good)
    assert raised.value.row == 2


def test_long_binary_values_have_the_line_ends_of_the_servers_base64() -> None:
    (text,) = texts(document([Opaque(252, bytes(range(58)))]))
    line = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4"
    assert text == f'["base64:type252:{line}\\nOQ=="]'
    (text,) = texts(document([Opaque(252, bytes(range(57)))]))
    assert text == f'["base64:type252:{line}"]'
