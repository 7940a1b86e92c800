"""Character sets: how the bytes of a text column in the log become the text that a SELECT gives.

The server converts the text of a SELECT to utf8mb4; the log holds the column's own bytes. So that both agree byte for
byte, the server itself is asked what each code of its character sets becomes: of the single-byte ones at once, of those
of several bytes that are not Unicode (`multibyte`) when the log first has one.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pymysql.connections import Connection

from dblog_core.sources.mysql.sql.connection import rows
from dblog_core.sources.mysql.values import multibyte
from dblog_core.sources.mysql.values.multibyte import Multibyte

Decode = Callable[[bytes], str]

BINARY = "binary"
UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})
"""Character sets whose bytes are UTF-8 already."""
_UNICODE = {"utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be", "ucs2": "utf_16_be"}
# MariaDB takes any byte for it; MySQL, which does not, would not say what the others become.
_ASCII = "".join(map(chr, range(128))) + "?" * 128
_SINGLE_BYTE = frozenset(
    {
        *("armscii8", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "dec8", "geostd8", "greek"),
        *("hebrew", "hp8", "keybcs2", "koi8r", "koi8u", "latin1", "latin2", "latin5", "latin7", "macce", "macroman"),
        *("swe7", "tis620"),
    }
)


def is_supported(charset: str) -> bool:
    """Whether text of the character set can be decoded, whatever the server."""
    return charset in every()


@lru_cache(maxsize=1)
def every() -> frozenset[str]:
    """The character sets of text that can be decoded, and `binary`."""
    return frozenset({*UTF8, *_UNICODE, *_SINGLE_BYTE, *multibyte.FORMS, "ascii", BINARY})


def _nobody(charset: str) -> Multibyte:
    raise ValueError(f"nobody can be asked about character set {charset}")


@dataclass(frozen=True)
class Charsets:
    """A server's collations and its single-byte character sets.

    `collations`: character set by collation id, for the log names collations by id alone; `tables`: the 256 characters
    of each single-byte character set; `ask`: asks the server about one of several bytes, and raises ValueError where it
    does not answer as expected.
    """

    collations: Mapping[int, str]
    tables: Mapping[str, str]
    ask: Callable[[str], Multibyte] = _nobody
    _tables: dict[str, Multibyte] = field(default_factory=dict, compare=False)

    def decoder(self, charset: str) -> Decode | None:
        """Decodes one value of a supported character set; None where the bytes are UTF-8 already. Raises what `ask`
        raises."""
        if charset in UTF8 or charset == BINARY:
            return None
        if charset in multibyte.FORMS:
            if charset not in self._tables:
                self._tables[charset] = self.ask(charset)
            return self._tables[charset]
        if charset == "ucs2":
            return _ucs2
        if codec := _UNICODE.get(charset):
            decode = codecs.lookup(codec).decode
            return lambda value: decode(value, "strict")[0]
        table = _ASCII if charset == "ascii" else self.tables[charset]
        return lambda value: codecs.charmap_decode(value, "strict", table)[0]


def _ucs2(value: bytes) -> str:
    """UCS-2 has no pairs of surrogates: the server sees two characters there, neither of which any text can hold."""
    text = codecs.utf_16_be_decode(value, "strict")[0]
    if len(text) * 2 != len(value):
        raise ValueError("surrogates stand for no character in ucs2")
    return text


def by_byte(decode: Decode) -> list[bytes] | None:
    """What each byte becomes in UTF-8; None where a character may have more bytes than one."""
    try:
        return [decode(bytes([byte])).encode() for byte in range(256)]
    except ValueError:  # as UTF-16 and the like do of any single byte
        return None


def load(connection: Connection[Any], ask: Callable[[str], Multibyte]) -> Charsets:
    """Asks the server. `ask`: as that of `Charsets`."""
    names = {str(name).lower() for (name,) in rows(connection, _COLUMNS)}
    table = "COLLATION_CHARACTER_SET_APPLICABILITY" if "id" in names else "COLLATIONS"
    charset_rows = rows(
        connection, f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table} WHERE ID IS NOT NULL"
    )
    collations = {int(number): str(charset) for number, charset in charset_rows if charset is not None}
    single = sorted(_SINGLE_BYTE & set(collations.values()))
    every = bytes(range(256)).hex()
    # The server's own tables: its latin1 is cp1252 with five more characters, which no codec of Python has.
    converted = [f"CONVERT(CONVERT(x'{every}' USING {charset}) USING utf8mb4)" for charset in single]
    (texts,) = rows(connection, "SELECT " + ", ".join(converted))
    return Charsets(collations, {charset: str(text) for charset, text in zip(single, texts, strict=True)}, ask)


# MariaDB 10.10 gives its newer collations an id per character set, and lists those only here.
_COLUMNS = """SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = 'information_schema' AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY'"""
