"""Values that options and settings are typed as: on and off, and sizes in bytes."""

from __future__ import annotations

from enum import Enum
from typing import Any

import typer

from dblog_core import sizes


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
