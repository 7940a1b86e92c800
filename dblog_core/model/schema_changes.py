"""What statements are known to have done to a table's columns, and what that proves of two shapes of it.

A shape says names and types alone, so that a renamed column looks like one that is gone and another that was added.
Statements tell more, if every one of them since the older shape is known and together they lead to the newer one
exactly. Anything else proves nothing: the merge then goes by the names, and has a dump bring what it cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dblog_core.model.column_defaults import Constant
from dblog_core.model.schema import TableName, TableSchema

_Constants = dict[str, Constant | None]
"""Added columns of which it is known what untouched rows hold in them; None: NULL."""

MOST_STEPS = 100
"""Statements about a table with no row of it in between, after which none is remembered: each manifest has them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One statement, done to all columns at once: `renamed` {old name: new name}; an added one holds in untouched rows
    NULL (`nulls`), a value that is known (`constants`), or what only the source can tell (`unknown`); `dropped`;
    `revalued`: of which no row event tells that rows may hold other values than before.

    Names are as the statement writes them: old ones may differ from the column's in upper and lower case.
    """

    renamed: dict[str, str] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()
    constants: dict[str, Constant] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    revalued: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        """Whether another column than before has the name after it, if there was one of that name before."""
        new_names = (new for old, new in self.renamed.items() if old.lower() != new.lower())
        return name.lower() in {other.lower() for other in (*new_names, *self.added_columns)}

    @property
    def added_columns(self) -> tuple[str, ...]:
        return (*self.nulls, *self.constants, *self.unknown)

    def to_json(self) -> dict[str, Any]:
        lists = {name: list(getattr(self, name)) for name in ("nulls", "unknown", "dropped", "revalued")}
        constants = {name: [constant.kind, constant.text] for name, constant in self.constants.items()}
        return {"renamed": self.renamed, "constants": constants, **lists}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Step:
        lists = {name: tuple(data.get(name, ())) for name in ("nulls", "unknown", "dropped", "revalued")}
        constants = {name: Constant(*constant) for name, constant in data.get("constants", {}).items()}
        return cls(dict(data["renamed"]), constants=constants, **lists)


@dataclass(frozen=True, slots=True)
class Facts:
    """From the shape before to the one after: `renamed` {new name: old name}, and what added columns hold in rows that
    were there (`filled`, in the JSON form of `log`)."""

    renamed: dict[str, str]
    filled: dict[str, Any]

    def __bool__(self) -> bool:
        return bool(self.renamed or self.filled)


def prove_changes(before: TableSchema, after: TableSchema, steps: Sequence[Step]) -> Facts | None:
    """What the steps, all that there were, prove of the two shapes; None where they do not lead from one to the other.

    A name is followed from step to step. Every column of `before` must come out as one of `after` with the same type,
    and all others of `after` must have been added.
    """
    origins: dict[str, str | None] = {c.name: c.name for c in before.columns}
    constants: _Constants = {}
    for step in steps:
        if (moved := _apply_step(origins, constants, step)) is None:
            return None
        origins, constants = moved
    old, new = ({c.name: c.type for c in schema.columns} for schema in (before, after))
    if origins.keys() != new.keys():
        return None
    if any(origin is not None and old[origin] != new[name] for name, origin in origins.items() if origin != name):
        return None
    renamed = {name: origin for name, origin in origins.items() if origin is not None and origin != name}
    now = {origin: name for name, origin in renamed.items()}
    if tuple(now.get(name, name) for name in before.key) != after.key:
        return None
    return Facts(renamed, _values_in_old_rows(constants, after))


def _values_in_old_rows(constants: _Constants, after: TableSchema) -> dict[str, Any]:
    """What added columns hold, as far as it is a value of their present type."""
    filled: dict[str, Any] = {}
    for column in after.columns:
        constant = constants.get(column.name)
        value = constant.value(column) if constant is not None else None
        if column.name in constants and (constant is None or value is not None):
            filled[column.name] = value
    return filled


def _apply_step(
    origins: dict[str, str | None], constants: _Constants, step: Step
) -> tuple[dict[str, str | None], _Constants] | None:
    """Where each name comes from after the step, and what added ones hold; None where it does not fit."""
    by_case = {name.lower(): name for name in origins}
    if len(by_case) != len(origins) or step.dropped:
        return None
    renamed = {by_case.get(old.lower(), old): new for old, new in step.renamed.items()}
    if len(renamed) != len(step.renamed) or not renamed.keys() <= origins.keys():
        return None
    names = [*(renamed.get(name, name) for name in origins), *step.added_columns]
    if len({name.lower() for name in names}) != len(names):
        return None
    then: dict[str, str | None] = {renamed.get(name, name): origin for name, origin in origins.items()}
    then |= dict.fromkeys(step.added_columns)
    others = {name.lower() for name in step.revalued}
    stay = {renamed.get(name, name): constant for name, constant in constants.items()}
    stay = {name: constant for name, constant in stay.items() if constant is None or name.lower() not in others}
    return then, {**stay, **dict.fromkeys(step.nulls), **step.constants}


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a table has, where the source knows that it never had others (PostgreSQL).

    `token`: two shapes with the same one are of one table, of which no column was ever dropped and no row written again
    in between. `old_row_values`: what columns hold in rows that are older than they are, as far as it is known, in the
    JSON form of `log`.
    """

    token: str
    old_row_values: Mapping[str, Any] = field(default_factory=dict)


def match_layouts(before: TableSchema, after: TableSchema, token: str | None, layout: Layout | None) -> Facts | None:
    """What the places of columns prove, if the shapes have layouts: those that were there are the first ones still."""
    if token is None or layout is None or token != layout.token or len(before.columns) > len(after.columns):
        return None
    pairs = list(zip(before.columns, after.columns, strict=False))
    renamed = {now.name: was.name for was, now in pairs if was.name != now.name}
    if any(was.name != now.name and was.type != now.type for was, now in pairs):
        return None
    names = {was.name: now.name for was, now in pairs}
    if tuple(names[name] for name in before.key) != after.key:
        return None
    added = (column.name for column in after.columns[len(before.columns) :])
    return Facts(renamed, {name: layout.old_row_values[name] for name in added if name in layout.old_row_values})


def match_names_in_another_case(before: TableSchema, after: TableSchema) -> dict[str, str]:
    """Columns {new name: old name} of one type whose names differ only in upper and lower case, where nothing is proven
    of the shapes. A lake cannot keep both: it keeps one column, whose values only a dump tells.

    Columns of the key are left out, since their rows could be others. None is matched where the names of two columns
    of a shape differ only in case.
    """
    old, new = ({column.name: column.type for column in schema.columns} for schema in (before, after))
    if any(len({name.lower() for name in names}) != len(names) for names in (old, new)):
        return {}
    dropped_names = {name.lower(): name for name in old if name not in new and name not in before.key}
    added_names = [name for name in new if name not in old and name not in after.key]
    pairs = {name: dropped_names[name.lower()] for name in added_names if name.lower() in dropped_names}
    return {name: old_name for name, old_name in pairs.items() if old[old_name] == new[name]}


class Pending:
    """Statements that tables have had since their newest shape, and that no row of them has followed yet."""

    def __init__(self, saved_steps: Mapping[str, Any]) -> None:
        """`saved_steps`: what `to_json` gave before a restart."""
        self._steps: dict[str, list[Step] | None] = {
            table: None if steps is None else [Step.from_json(step) for step in steps]
            for table, steps in saved_steps.items()
        }

    def add(self, table: TableName, step: Step | None, tables: Iterable[str]) -> None:
        """Takes a statement about one of `tables`; None: what it did is not known. Where the name differs in upper and
        lower case alone it may be of any of them, so that nothing is known of them from there on."""
        if step == Step():
            return
        for name in tables:
            if name == str(table):
                steps = self._steps.setdefault(name, [])
                if steps is None or step is None or len(steps) >= MOST_STEPS:
                    self._steps[name] = None
                else:
                    steps.append(step)
            elif name.lower() == str(table).lower():
                self._steps[name] = None

    def steps(self, table: str) -> Sequence[Step]:
        """The statements about a table; none where it is not known what they did."""
        return self._steps.get(table) or ()

    def settle(self, before: TableSchema, after: TableSchema, *, plain: bool) -> Facts | None:
        """The table is seen with the shape `after`, which may be the one that it had. What is proven of the way there.

        `plain`: its rows are staged as they are. The same shape proves only what the statements themselves say:
        where they are not known, or say otherwise, they stay unknown until the shape is another one.
        """
        name = str(after.table)
        steps = self._steps.pop(name, [])
        proven = prove_changes(before, after, steps) if steps and plain else None
        if before.fingerprint == after.fingerprint and proven is None and steps != []:
            self._steps[name] = None
        return proven

    def to_json(self) -> dict[str, Any]:
        return {
            table: None if steps is None else [step.to_json() for step in steps] for table, steps in self._steps.items()
        }
