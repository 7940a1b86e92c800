"""Resolves secrets: each ${NAME} of a configuration's values stands in the environment, never in the file."""

from __future__ import annotations

import os
import re
from typing import Any

from dblog_core.config.faults import Fault, Place
from dblog_core.config.fields import FromEnvironment, Unset, Withheld
from dblog_core.config.secret_settings import is_needed

NOTHING = object()
"""What a parser of DAG files needs."""

_ENV = re.compile(r"\$\{(\w*)([^}]*)(\}?)")


def expand(value: Any, place: Place, faults: list[Fault], needs: Any) -> Any:
    """A value of the file with each ${NAME} replaced; what cannot be replaced is added to `faults`.

    `needs`: sections that the caller has use for, as `secret_settings.Needs`; NOTHING for a parser of DAG files.
    """
    if isinstance(value, dict):
        return {k: expand(v, (*place, k), faults, needs) for k, v in value.items()}
    if isinstance(value, list):
        return [expand(v, (*place, i), faults, needs) for i, v in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    for name, rest, end in _ENV.findall(value):
        if rest or not (name and end):
            faults.append(
                Fault(place, "holds a ${ that is not ${NAME}", "put the whole value into an environment variable")
            )
        elif name not in os.environ:
            if needs is NOTHING:
                return Unset(value)
            if not is_needed(place, needs):
                return Withheld(value)
            faults.append(Fault(place, f"the environment variable {name} is not set", f"set it: export {name}=…"))
    if any(f.place == place for f in faults):
        return Unset(value)
    return FromEnvironment(_ENV.sub(lambda match: os.environ[match[1]], value))
