"""Text of character sets of several bytes, beside a codec that reads the same table."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.sources.mysql.values import binary_values, multibyte
from dblog_core.sources.mysql.values.binary_values import ValueFault, Values
from dblog_core.sources.mysql.values.multibyte import Multibyte
from dblog_core.sources.mysql.values.types import ColumnType, Kind

CODECS = {"gbk": "gbk", "gb18030": "gb18030", "ujis": "euc_jp", "cp932": "cp932", "big5": "big5", "euckr": "cp949"}


class Server:
    """Answers as a server whose characters are a codec's; `off`: how many characters too few."""

    def __init__(self, charset: str, *, off: int = 0) -> None:
        self._charset = charset
        self._off = off
        self.asked = 0

    def cursor(self) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, sql: str, _: object) -> None:
        self._given = bytes.fromhex(sql.split("'")[1])
        assert sql == f"SELECT CONVERT(CONVERT(x'{self._given.hex()}' USING {self._charset}) USING utf8mb4)"
        assert len(sql) < 100_000
        self.asked += 1

    def fetchall(self) -> list[tuple[str]]:
        form = multibyte.FORMS[self._charset]
        at = 0
        text = ""
        while at < len(self._given):
            size = length(self._given[at:], form)
            text += decode_code(self._given[at : at + size], self._charset)
            at += size
        return [(text[self._off :],)]


def length(rest: bytes, form: multibyte.Form) -> int:
    singles = {byte for low, high in form.singles for byte in range(low, high + 1)}
    if rest[0] < 0x80 or rest[0] in singles:
        return 1
    if form.threes and rest[0] == 0x8F:
        return 3
    return 4 if form.fours and 0x30 <= rest[1] <= 0x39 else 2


def decode_code(code: bytes, charset: str) -> str:
    text = code.decode(CODECS[charset], "replace")
    return text if len(text) == 1 and text != "\ufffd" else "?"


def values(texts: list[bytes | None]) -> Values:
    raw = np.frombuffer(b"".join(text or b"" for text in texts) + b"!", np.uint8)
    lengths = np.array([-1 if text is None else len(text) for text in texts], np.int64)
    starts = np.where(lengths < 0, -1, np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0))
    return Values(raw, starts, lengths, lengths >= 0)


def column(decode: Multibyte) -> ColumnType:
    return ColumnType(Kind.TEXT, pa.string(), "text", prefix=2, decode=decode)


@pytest.mark.parametrize("charset", sorted(CODECS))
def test_text_reads_as_the_server_has_told(charset: str) -> None:
    server = Server(charset)
    draw = random.Random(charset)
    decode = multibyte.ask(server, charset)  # type: ignore[arg-type]
    codes = [code for _, code in multibyte.codes(multibyte.FORMS[charset])]
    drawn = [draw.choices(codes, k=draw.randrange(9)) for _ in range(400)]
    if charset == "gb18030":
        drawn += [[multibyte.four(number) for number in (188_999, 189_000, 189_000 + 0xFFFFF, 189_000 + 0x100000)]]
    texts: list[bytes | None] = [b"".join(chosen) for chosen in drawn]
    expected_texts: list[str | None] = ["".join(decode_code(code, charset) for code in chosen) for chosen in drawn]
    texts[7] = expected_texts[7] = None
    array = binary_values.to_arrow(column(decode), values(texts), zero_dates="error")
    assert array.to_pylist() == expected_texts and server.asked == -(-len(codes) // 8_000)
    assert [decode(text) for text in texts if text is not None] == [text for text in expected_texts if text is not None]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("charset", "bad"),
    [
        ("gbk", b"\x81"), ("gbk", b"\x80"), ("gbk", b"\x81\x7f"), ("gbk", b"\xff\x41"), ("gbk", b"\x81\x30\x81\x30"),
        ("ujis", b"\x8f\xa1"), ("ujis", b"\x8f\xa1\x41"), ("ujis", b"\x8e\xe0"), ("ujis", b"\xa0\xa1"),
        ("gb18030", b"\x81\x30"), ("gb18030", b"\x81\x30\x81"), ("gb18030", b"\x81\x30\x80\x30"),
        ("gb18030", b"\x81\x30\x81\x3a"), ("gb18030", b"\x80\x30\x81\x30"), ("cp932", b"\xa0"), ("cp932", b"\x81\xfd"),
        ("euckr", b"\x81\x5b"), ("big5", b"\xfa\x40"), ("big5", b"\xa1\x80"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_code_are_an_error_that_names_their_row(charset: str, bad: bytes) -> None:
    decode = multibyte.ask(Server(charset), charset)  # type: ignore[arg-type]
    with pytest.raises(ValueFault, match="no text of its character set") as raised:
        binary_values.to_arrow(column(decode), values([b"a", b"", None, b"b" + bad, b"c"]), zero_dates="error")
    assert raised.value.row == 3
    with pytest.raises(ValueError, match="no text"):
        decode(bad)


def test_a_server_that_answers_otherwise_is_not_believed() -> None:
    with pytest.raises(ValueError, match="one character a code"):
        multibyte.ask(Server("gbk", off=1), "gbk")  # type: ignore[arg-type]
