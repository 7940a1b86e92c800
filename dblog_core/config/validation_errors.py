"""A validation error of pydantic as a fault: what is wrong in the writer's words, and which key was meant."""

from __future__ import annotations

import difflib
import re
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from dblog_core.config.faults import Fault, Place

_TYPES = {
    "int": "a whole number, such as 3306, without quotes",
    "float": "a number, such as 0.5, without quotes",
    "bool": "true or false, without quotes",
    "string": 'text in quotes, such as "shop"',
    "tuple": 'a list, such as ["shop.orders"]',
    "dict": "a table of its own",
    "model": "a section of its own",
    "path": "a path in quotes",
}


def to_fault(error: ErrorDetails, root: type[BaseModel]) -> Fault:
    """A validation error of `root` in the words of this house."""
    place = error["loc"]
    kind = error["type"]
    context = error.get("ctx", {})
    model = _model_at(place[:-1], root)
    if kind == "extra_forbidden":
        return Fault(place, "is not known", _suggest_fix(str(place[-1]), model, root))
    description = _describe(place, root)
    if kind == "missing":
        return Fault(place, "is missing", f"add it{description}")
    if kind == "literal_error":
        return Fault(place, "is none of the possible values", f"use {context['expected']}")
    if kind == "string_pattern_mismatch":
        form = description or (" ([a-z][a-z0-9_]*)" if place[0] == "output" else " (SCHEMA.TABLE)")
        return Fault(place, "does not have the right form", f"correct it{form}")
    if kind == "value_error":
        return Fault(place, str(context["error"]), f"correct it{description}")
    type_in_words = _TYPES.get(kind.split("_")[0])
    if type_in_words and not kind.startswith("string_too"):
        return Fault(place, "has the wrong type", f"it must be {type_in_words}")
    return Fault(place, re.sub(r"^\w+ should", "must", error["msg"]), f"correct it{description}")


def _model_at(place: Place, root: type[BaseModel]) -> type[BaseModel] | None:
    """The section that holds the keys at `place`; through the tables of a mapping too."""
    model: type[BaseModel] | None = root
    for part in place:
        field = model.model_fields.get(str(part)) if model else None
        if field is None:
            continue  # the name of a table, within the mapping that came before it
        candidates = [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return model


def _suggest_fix(key: str, model: type[BaseModel] | None, root: type[BaseModel]) -> str:
    keys = list(model.model_fields) if model else []
    if close := difflib.get_close_matches(key, keys, 1):
        return f"did you mean {close[0]}?"
    for name in root.model_fields:
        section = _model_at((name,), root)
        if section and key in section.model_fields:
            return f"it belongs in [{name}]"
    return f"remove it; known here are {', '.join(keys)}"


def _describe(place: Place, root: type[BaseModel]) -> str:
    model = _model_at(place[:-1], root)
    field = model.model_fields.get(str(place[-1])) if model else None
    return f" ({field.description})" if field and field.description else ""
