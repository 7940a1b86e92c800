"""VARIANTs are encoded as Spark encodes the same texts, and are read as Spark makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dblog_core.rows.variant_encoding import encode_texts

pytestmark = pytest.mark.one_of(8)

LONG = "x" * 70
WIDE_OBJECT = json.dumps({f"name {n}": n for n in range(300)})
DEEP = "[" * 900 + "]" * 900
TEXTS = [
    *("null", "true", "false", '""', '"x"', json.dumps(LONG), "[]", "{}", "[[], {}, null]"),
    *("0", "-0", "127", "-129", "32768", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *("1.10", "0.00", "-0.5", "123456789.123456789", "1e5", "-1E-7", "1E400", "1" * 38, "1" * 39, f"0.{'1' * 39}"),
    *('{"b": 1, "a": {"c": [1, 2.50, "z"]}}', '{"a": 1, "a": 2}', '[{"a": 1}, {"b": 2}]', '{"": 1}'),
    *(
        '"\\u00e4\\ud83d\\ude00 ä😀"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\ud800x"',
        '{"\\ud800": 1}',
        '"\\n\\"\\\\"',
        '{"ä": "ß"}',
        "{",
        "[1, 2",
        "1" * 1001,
    ),
    *(json.dumps(list(range(1000))), json.dumps([LONG] * 3_000), WIDE_OBJECT, DEEP, f"[{DEEP[:900]}{DEEP}]"),
]


# Beyond what a source's JSON can be, too.
MORE_TEXTS = [
    *(
        "1 2",
        "[1] x",
        '{"a":1}}',
        " [1 ] ",
        "",
        " ",
        "nul",
        "NaN",
        "Infinity",
        "-",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "[1,]",
    ),
    *("-0.0", "-0e0", "0e0", "1.0e2", "1e-400", "1.7976931348623157e308", "1.7976931348623159e308", "2.4e-324"),
    *("2.5e-324", "99999999.9", "0.123456789", "0.1234567891", "1.123456789012345678", "-9223372036854775809"),
    *(
        "-" + "9" * 38,
        f"0.{'0' * 37}1",
        f"0.{'0' * 38}1",
        "1234567890" * 3 + ".12345678",
        "1234567890" * 3 + ".123456789",
    ),
    *("1" * 1000, "-" + "1" * 1000, "0." + "1" * 999, "0." + "1" * 1000, "1e" + "9" * 400, "1.5.5", "00", "true false"),
    *("truex", "[true1]", "1\x00", "1\u00a0", "\ufeff1", "/*c*/1", "{a:1}", "{'a':1}", '{"a":1,}', '"\t"', '"\x01"'),
    *('"\x7f"', '"\\x41"', '"\\/"', '"\\u0000"', '"a\\ud83d"', '"\\ud83dx\\ude00"', '"\\ud800\\ud800"'),
    *('"' + "a" * 63 + '"', '"' + "a" * 64 + '"', '"' + "é" * 32 + '"', '"\ud7ff\ue000"', '{"b":{"a":2},"a":{"c":1}}'),
    *('{"\\ud83d\\ude00": 1, "\uffee": 2, "z": 3}', json.dumps([*range(255)]), json.dumps([*range(256)])),
    *(json.dumps({str(i): i for i in range(255)}), json.dumps({str(i): i for i in range(256)})),
    *(json.dumps({str(i): "x" * 300 for i in range(300)}), json.dumps(["y" * 70_000]), json.dumps({"k" * 300: 1})),
    *(json.dumps({"k" * 50_000: 1}), json.dumps({"k" * 50_001: 1})),
    *("[" * 1000 + "]" * 1000, "[" * 1001 + "]" * 1001, '{"a":' * 1000 + "1" + "}" * 1000),
]


def test_texts_are_encoded_byte_for_byte_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    texts = [*TEXTS, *MORE_TEXTS]
    frame = spark.createDataFrame(list(enumerate(texts)), "id int, j string").coalesce(1)
    frame.selectExpr("id", "try_parse_json(j) v").write.parquet(str(tmp_path / "parsed"))
    by_spark = pq.read_table(tmp_path / "parsed").sort_by("id")["v"].to_pylist()
    encoded = encode_texts(pa.array(texts)).to_pylist()
    rows = zip(texts, by_spark, encoded, strict=True)
    assert [text[:99] for text, expected, variant in rows if variant != expected] == []
