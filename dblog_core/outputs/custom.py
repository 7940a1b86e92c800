"""Outputs of users: a class by MODULE:CLASS, or by a name of the entry points `dblog.outputs`."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from dblog_core.errors import OutputRefused
from dblog_core.interfaces import Output

GROUP = "dblog.outputs"
_METHODS = ("open", "write", "commit", "close")


def load(name: str, *, source: str, output: str, options: dict[str, Any]) -> Output:
    """The output of that class, made with source, output and its options as keyword arguments.

    Raises OutputRefused for a class that is not there, does not take the options, or is no `Output`.
    """
    where = f"output {output}, class {name}"
    try:
        made = _class(name)(source=source, output=output, **options)
    except (ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise OutputRefused(
            f"cannot be made: {error}",
            where=where,
            fix='give class = "MODULE:CLASS" that is installed here, and the options that it takes',
        ) from error
    missing = [m for m in _METHODS if not callable(getattr(made, m, None))]
    if missing or not isinstance(getattr(made, "exactly_once", None), bool):
        raise OutputRefused(
            f"is no output: it lacks {', '.join(missing) or 'exactly_once'}", where=where, fix="see docs/outputs.md"
        )
    result: Output = made
    return result


def _class(name: str) -> Any:
    module, colon, path = name.partition(":")
    if colon:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        return found
    known = entry_points(group=GROUP)
    if name not in known.names:
        raise LookupError(
            f"no entry point {GROUP} has that name; known are: {', '.join(sorted(known.names)) or 'none'}"
        )
    return known[name].load()
