"""So many statements of all forms of a kind of server, by a seed."""

from __future__ import annotations

import random

from tests.conformance import mysql_forms, postgres_forms
from tests.conformance.forms import Case, Maker
from tests.conformance.known import is_left_out

FORMS = {"mysql": mysql_forms, "mariadb": mysql_forms, "postgres": postgres_forms}


def cases(kind: str, database: str, draw: random.Random, count: int, *, logs_generated: bool = True) -> list[Case]:
    """Cases of so many statements, or a few more: all forms in turn, in a random order, and again."""
    module = FORMS[kind]
    maker = Maker(kind, database, draw, module.values(kind), logs_generated=logs_generated)
    chosen_cases: list[Case] = []
    while True:
        forms = [form for form in module.forms(kind, draw) if not is_left_out(form.name, kind)]
        draw.shuffle(forms)
        for form in forms:
            chosen_cases.append(maker.case(form))
            count -= len(chosen_cases[-1].steps)
            if count <= 0:
                return chosen_cases
