"""Values that options and settings are typed as: on and off, sizes in bytes, addresses."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Any

import typer

from dblog_core.errors import ConfigError
from dblog_core.model import sizes

TablesOption = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="T", help="SCHEMA.TABLE, or a pattern with * and ?; repeatable."),
]
AllTablesOption = Annotated[bool, typer.Option("--all", help="Every captured table that has a key.")]


class OnOff(Enum):
    """A switch that also knows "as configured", by being left out."""

    ON = True
    OFF = False


class Size(int):
    """Bytes."""


def on_off(text: Any) -> OnOff:
    """Raises BadParameter."""
    try:
        return OnOff[str(text).upper()]
    except KeyError:
        raise typer.BadParameter(f"{text!r} is neither on nor off") from None


def size(text: Any) -> Size:
    """Bytes of `10G` (K, M, G, T: powers of 1024). Raises BadParameter."""
    try:
        return Size(sizes.parse(str(text)))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from None


def address(listen: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises ConfigError."""
    match = re.fullmatch(r"\[?(?P<host>[^\[\]]+?)\]?:(?P<port>\d{1,5})", listen)
    if match is None or int(match["port"]) > 65_535:
        raise ConfigError(f"{listen!r} is no HOST:PORT", where="--listen", fix="such as 127.0.0.1:9178")
    return match["host"], int(match["port"])
