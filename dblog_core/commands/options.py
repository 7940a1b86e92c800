"""Values that options and settings are typed as: on and off, sizes in bytes, addresses."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import typer

from dblog_core.errors import ConfigError
from dblog_core.model import sizes


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
    found = re.fullmatch(r"\[?(?P<host>[^\[\]]+?)\]?:(?P<port>\d{1,5})", listen)
    if found is None or int(found["port"]) > 65_535:
        raise ConfigError(f"{listen!r} is no HOST:PORT", where="--listen", fix="such as 127.0.0.1:9178")
    return found["host"], int(found["port"])
