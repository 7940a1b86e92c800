"""JSON texts become VARIANTs as Spark makes them: its own bytes, and what they decode to."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.rows.variant_encoding import VARIANT, encode, encode_texts
from tests.plain_variants import decode, parse_text

BY_SPARK = {
    "null": ("00", "010000"),
    "true": ("04", "010000"),
    "-129": ("107fff", "010000"),
    "-2147483649": ("18ffffff7fffffffff", "010000"),
    "9223372036854775808": ("280000000000000000800000000000000000", "010000"),
    "1.10": ("20026e000000", "010000"),
    "0.1234567891": ("240ad302964900000000", "010000"),
    "1e5": ("1c00000000006af840", "010000"),
    "-0.0": ("200100000000", "010000"),
    "[[], {}, null]": ("03030003060703000002000000", "010000"),
    '{"b": 1, "a": {"c": [1, 2.50, "z"]}}': (
        "020201000200170c01020102001003030002080a0c012002fa000000057a",
        "010300010203626163",
    ),
    '{"\\ud83d\\ude00": 1, "\uffee": 2, "z": 3}': ("0203020001040002060c010c020c03", "010300040708f09f9880efbfae7a"),
    " [1 ] ": ("030100020c01", "010000"),
    "1 2": ("0c01", "010000"),
}
"""What Spark 4.2 has made of texts."""


@pytest.mark.parametrize("text", BY_SPARK)
def test_the_bytes_are_those_of_spark(text: str) -> None:
    value, metadata = (bytes.fromhex(part) for part in BY_SPARK[text])
    assert encode(text) == (value, metadata)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "{", "[1,]", "01", "1.", "NaN", "truex", '"\t"', "{'a':1}", '{"a": 1, "a": 2}', '"\\ud800"'),
        *('{"\\ud800": 1}', "1" * 1001, "1\x00", "[" * 1001 + "]" * 1001, json.dumps({"k" * 50_001: 1})),
    ],
)
def test_what_spark_does_not_parse_has_none(text: str) -> None:
    assert encode(text) is None


def test_a_number_of_so_many_digits_is_a_double_and_deep_documents_are_encoded() -> None:
    assert encode("-" + "1" * 1000) == (bytes.fromhex("1c000000000000f0ff"), b"\x01\x00\x00")
    encode_texts(pa.array([], pa.string()))
    deep = encode('{"a":' * 1000 + "1" + "}" * 1000)
    assert deep is not None and len(deep[0]) == 6900


def draw_value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(9 if depth < 4 else 7)
    if kind == 7:
        return [draw_value(dice, depth + 1) for _ in range(dice.choice((0, 1, 3, 300 if depth == 0 else 5)))]
    if kind == 8:
        names = {draw_text(dice) for _ in range(dice.choice((0, 1, 5, 400 if depth == 0 else 7)))}
        return {name: draw_value(dice, depth + 1) for name in names}
    numbers = (
        dice.randrange(-200, 200),
        dice.randrange(-(1 << 70), 1 << 70),
        dice.gauss(0, 1e9),
        dice.randrange(10**40),
    )
    return (None, True, False, dice.choice(numbers), dice.choice(numbers), draw_text(dice), draw_text(dice))[kind]


def draw_text(dice: random.Random) -> str:
    length = dice.choice((0, 1, 3, 8, 63, 64, 300))
    return "".join(dice.choice('ab\u007f\u00e9\ud7ff\ue000\uffee\U0001f600"\\\n') for _ in range(length))


def test_drawn_documents_decode_to_what_they_are(soak_seed: int) -> None:
    dice = random.Random(soak_seed)
    texts = [json.dumps(draw_value(dice), ensure_ascii=dice.random() < 0.5) for _ in range(300)]
    variants = encode_texts(pa.chunked_array([texts, [None]]))
    assert variants.type == VARIANT and variants.null_count == 1 and variants[-1].as_py() is None
    for text, parts in zip(texts, variants.to_pylist()[:-1], strict=True):
        assert decode(parts["value"], parts["metadata"]) == parse_text(text)
