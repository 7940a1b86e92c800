"""How a table is written as text, and read again: `SCHEMA.TABLE`, whatever the server lets both be called.

The first dot ends the schema, and the table is all that follows, as it is: dots, spaces and quotes in it need nothing.
A schema with a dot in it, or that begins with a double quote, stands in double quotes, and a double quote in it twice:

    shop.orders.2026              the table "orders.2026" of the schema shop
    "shop.eu".orders              the table orders of the schema shop.eu
    "Quoted_"" . Schema".orders   of the schema Quoted_" . Schema

So each table has one text, and each text one table. Patterns of tables are cut alike.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

_QUOTED = re.compile(r'"((?:[^"]|"")+)"\.(.+)', re.DOTALL)

FORM = r"^(\"([^\"]|\"\")+\"|[^.]+)\.[\s\S]+$"
"""What has this form, for JSON schemas: in a regular expression a dot stands for no line break."""


def join(schema: str, name: str) -> str:
    """The text of a table."""
    if "." in schema or schema.startswith('"'):
        schema = f'"{schema.replace(chr(34), chr(34) * 2)}"'
    return f"{schema}.{name}"


def split(text: str) -> tuple[str, str]:
    """The schema and the table of a text. Raises ValueError if one of them is missing."""
    if match := _QUOTED.fullmatch(text):
        return match[1].replace('""', '"'), match[2]
    schema, dot, name = text.partition(".")
    if not (schema and dot and name):
        raise ValueError(f"{text!r} is not of the form SCHEMA.TABLE")
    return schema, name


def quote_for_toml(text: str) -> str:
    """The text as a key in a configuration file, in the quotes that it needs there."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def keys_entry(table: object) -> str:
    """Where a table's key is named in a configuration."""
    return f"[source.keys] {quote_for_toml(str(table))}"


def exclude_entry(table: object, columns: Sequence[str]) -> str:
    """Where a configuration names the columns of a table that are not captured."""
    listed = ", ".join(map(quote_for_toml, columns))
    return f"[source.columns.{quote_for_toml(str(table))}] exclude = [{listed}]"


def quote_for_shell(table: object) -> str:
    """The text of a table as an argument in a shell."""
    return shlex.quote(str(table))


def some(names: Sequence[str], most: int = 10) -> str:
    """The first of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def is_quoted(text: str) -> bool:
    """Whether the schema stands in double quotes, needed or not."""
    return _QUOTED.fullmatch(text) is not None


def canonical(text: str) -> str:
    """The one text of what `text` names; a pattern, and what is no SCHEMA.TABLE, alike."""
    try:
        return join(*split(text))
    except ValueError:
        return text


def require_canonical(text: str) -> str:
    """The text, as a setting that is looked up by it. Raises ValueError if another text is the one of that name."""
    if canonical(text) != text:
        raise ValueError("has a schema in double quotes that needs none: write it without them")
    return text
