"""What a database server says of an error, without the values of rows that it quotes: it goes into logs, the state
store and pages, where nobody looks for rows."""

from __future__ import annotations

import re
from typing import Any

_CUT = "…"
_MYSQL_QUOTE = frozenset({1062, 1292, 1366, 1411, 1525})  # duplicate entries, values that are none of their type
_MYSQL_VALUE = re.compile(r"'.*'(?= for )|'.*'$", re.DOTALL)
_POSTGRES_QUOTE = ("22", "23")  # data exceptions, constraints
_POSTGRES_VALUE = re.compile(r'"[^"]*"')


def by_mysql(code: int, text: str) -> str:
    """`text`: the server's, of the error of that number."""
    return _MYSQL_VALUE.sub(f"'{_CUT}'", text, count=1) if code in _MYSQL_QUOTE else text


def by_postgres(error: Any) -> str:
    """`error`: of psycopg2. Of errors about values only the first line is shown, since the others quote rows."""
    code = error.pgcode or ""
    primary = error.diag.message_primary if code.startswith(_POSTGRES_QUOTE) else None
    if primary is None:
        return " ".join(str(error).split()) or type(error).__name__
    text = " ".join(primary.split())
    return _POSTGRES_VALUE.sub(f'"{_CUT}"', text) if code.startswith("22") else text
