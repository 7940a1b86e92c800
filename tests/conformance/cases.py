"""So many statements of all forms of a kind of server, by a seed."""

from __future__ import annotations

import random

from tests.conformance import mysql_forms, postgres_forms
from tests.conformance.forms import Case, Maker
from tests.conformance.known import is_left_out

FORMS = {"mysql": mysql_forms, "mariadb": mysql_forms, "postgres": postgres_forms}

_OF_GENERATED = ("defaults", "stored and virtual columns")
"""Forms whose tables stop where the log leaves generated columns out: not made there, so that nowhere else they may."""


def cases(kind: str, database: str, draw: random.Random, count: int, *, logs_generated: bool = True) -> list[Case]:
    """Cases of so many statements, or a few more: all forms in turn, in a random order, and again."""
    module = FORMS[kind]
    maker = Maker(kind, database, draw, module.values(kind), logs_generated=logs_generated)
    chosen_cases: list[Case] = []
    while True:
        forms = [form for form in module.forms(kind, draw) if not is_left_out(form.name, kind)]
        if not logs_generated:
            forms = [form for form in forms if form.name not in _OF_GENERATED]
        draw.shuffle(forms)
        for form in forms:
            chosen_cases.append(maker.case(form))
            count -= len(chosen_cases[-1].steps)
            if count <= 0:
                return chosen_cases
