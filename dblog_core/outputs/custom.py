"""Outputs of users: a class by MODULE:CLASS, or by a name of the entry points `dblog.outputs`."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from dblog_core.errors import OutputRefused
from dblog_core.interfaces import Output

GROUP = "dblog.outputs"
_METHODS = ("open", "write", "commit", "close")


def load_output(name: str, *, source: str, output: str, options: dict[str, Any]) -> Output:
    """The output of that class, made with source, output and its options as keyword arguments.

    Raises OutputRefused for a class that is not there, does not take the options, or is no `Output`.
    """
    where = f"output {output}, class {name}"
    try:
        # The class is the user's: whatever its constructor raises is an error of the configuration.
        output_object = _class(name)(source=source, output=output, **options)
    except (ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise OutputRefused(
            f"cannot be made: {error}",
            where=where,
            fix='give class = "MODULE:CLASS" that is installed here, and the options that it takes',
        ) from error
    missing = [m for m in _METHODS if not callable(getattr(output_object, m, None))]
    if missing or not isinstance(getattr(output_object, "exactly_once", None), bool):
        raise OutputRefused(
            f"is no output: it lacks {', '.join(missing) or 'exactly_once'}", where=where, fix="see docs/outputs.md"
        )
    result: Output = output_object
    return result


def _class(name: str) -> Any:
    module, colon, path = name.partition(":")
    if colon:
        attribute: Any = importlib.import_module(module)
        for part in path.split("."):
            attribute = getattr(attribute, part)
        return attribute
    registered = entry_points(group=GROUP)
    if name not in registered.names:
        raise LookupError(
            f"no entry point {GROUP} has that name; known are: {', '.join(sorted(registered.names)) or 'none'}"
        )
    return registered[name].load()
