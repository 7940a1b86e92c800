"""The text of a statement in the log, which is in the character set of the session that ran it (character_set_client).

What is no text there stays visible: a byte becomes a lone surrogate, which no name of a server holds.
"""

from __future__ import annotations

from dblog_core.sources.mysql.values.charsets import UTF8, Charsets

CODECS = {
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
}
"""Character sets of several bytes, of which the second may look like a quote: a session may speak one of them."""
_OTHERWISE = {
    "eucjpms": str.maketrans("\u301c\u2016\u2212¢£¬¦", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2\uffe4"),
    "gb18030": str.maketrans("\ue7c7", "\u1e3f"),
    **dict.fromkeys(("sjis", "ujis"), str.maketrans("\uff3c", "\udc5c")),
}
"""What the codecs read otherwise than the servers do. A backslash of two bytes is none in a text: it stays unread."""
_GENERATED = b") START TRANSACTION"
"""How the row form of CREATE … SELECT ends: MySQL generates its text, in UTF-8 whatever the session speaks."""


def decode_statement(sql: bytes, collation: int | None, charsets: Charsets) -> str:
    """The statement as the server reads it. `collation`: of the session's character set; None: it is not known."""
    charset = "utf8mb4" if collation is None else charsets.collations.get(collation, "utf8mb4")
    if sql.isascii() or charset in UTF8 or sql.endswith(_GENERATED):
        return sql.decode("utf-8", "surrogateescape")
    if (codec := CODECS.get(charset)) is not None:
        return sql.decode(codec, "surrogateescape").translate(_OTHERWISE.get(charset, {}))
    decode = charsets.decoder(charset) if charset in charsets.tables else None
    return sql.decode("utf-8", "surrogateescape") if decode is None else decode(sql)


def is_read(name: str) -> bool:
    """Whether all of a name is text."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
