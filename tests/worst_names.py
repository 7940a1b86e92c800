"""The worst names that MySQL, MariaDB and PostgreSQL let schemas, tables and columns have: one list for all tests.

Wherever a name is written (SQL, patterns, settings, paths, URLs, topics, states, labels, pages) each of them must come
out as it went in, or be refused by its name.
"""

from __future__ import annotations

from dblog_core.model.schema import TableName

ANY = (
    "order",  # a reserved word of all three
    "a.b",
    ".",
    "..",
    "a b",
    " lead",
    "a`b",
    'a"b',
    '"a"',
    "a'b",
    "a\\b",
    "a/b",
    "a%b",
    "%2F",
    "100%",
    "%s %(x)s",
    "a*b",
    "wh?t",
    "a[b]{c}(d)",
    "a,b;c",
    "a:b",
    "a#b--c/*d*/",
    "${HOME} $x {{ y }}",
    "<b>&amp;",
    "~2F",
    "a=b",
    "!a",
    "a@b/1!",
    "a\nb",
    "a\tb",
    "\x01\x7f",
    "Größe",
    "größe",
    "e\u0301",
    "\u00e9",
    "日本語",
    "İi",
    "\u2028",
    "history__history",
)
"""For tables, schemas and columns of all three servers."""
EMOJI = "\U0001f600"
LONG = "n" * 62 + "%b"
"""64 characters: MySQL and MariaDB take no more."""
LONG_WIDE = "ö" * 64
LONG_CJK = "日" * 48
"""The server's files have five characters for each."""
LONG_BYTES = "é" * 31 + "z"
"""63 bytes: PostgreSQL takes no more."""
EXPANDED = "${HOME} $x {{ y }}"
"""A configuration file would put a variable in its place: there a pattern is written for it."""
TABLES = {
    "mysql": (*ANY, LONG, LONG_WIDE, LONG_CJK),
    "mariadb": (*ANY, LONG, LONG_WIDE, LONG_CJK),
    "postgres": (*ANY, EMOJI, "trail ", LONG_BYTES),
}
SCHEMAS = {
    "mysql": ("shop.eu", 'Quoted_" . Schema', "a`b", "a/b%2F"),
    "mariadb": ("shop.eu", 'Quoted_" . Schema', "a`b", "a/b%2F"),
    "postgres": ("shop.eu", 'Quoted_" . Schema', "a`b", "a/b%2F", EMOJI),
}
EVERY = tuple(dict.fromkeys(name for names in (*TABLES.values(), *SCHEMAS.values()) for name in names))
"""Of all kinds of servers."""
PAIRS = tuple(TableName(schema, name) for schema in EVERY for name in EVERY)
"""Each as the schema of each."""
