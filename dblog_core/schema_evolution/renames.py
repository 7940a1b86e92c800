"""Renamed columns: what columns of rows that were staged, or merged, under older names are called now.

Marks of new shapes tell it where it is proven (`LogMark.renamed`). A row takes part in every rename that comes after
it. A name that a rename, or a column with a known value, takes later may have been another column's before, which was
dropped since: that one is not to be mixed up with it, and gets a name that no table has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dblog_core.model.schema import TableSchema
from dblog_core.staging.manifest import LogMark

_STALE = "_dblog_stale_"


def is_stale(name: str) -> bool:
    """Whether it is the name of a column whose own another one has taken."""
    return name.startswith(_STALE)


def describe_stale(stale: str) -> str:
    """What a history calls a column whose name another one has taken: with the offset at which it has."""
    offset, _, name = stale.removeprefix(_STALE).partition("_")
    return name_until(name, int(offset))


def name_until(name: str, offset: int) -> str:
    """As `until`."""
    return f"{name}_until_{offset}"


@dataclass(frozen=True)
class Rename:
    """The renames of one mark: at `offset`, from old names to `new` ones; `filled`: added columns of known value;
    `constants`: those of them whose value is not NULL, with its JSON form."""

    offset: int
    pairs: tuple[tuple[str, str], ...]
    filled: tuple[str, ...] = ()
    constants: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def new(self) -> dict[str, str]:
        return dict(self.pairs)

    @cached_property
    def reused_names(self) -> frozenset[str]:
        """Names that mean another column from here on."""
        return frozenset((*self.new.values(), *self.filled))

    def current_name(self, name: str) -> str:
        # A swap of two names is one mark: each is looked up once, never its result again.
        if name in self.new:
            return self.new[name]
        return f"{_STALE}{self.offset}_{name}" if name in self.reused_names else name


@dataclass(frozen=True, slots=True)
class Renames:
    """Those of one table, by growing offset."""

    steps: tuple[Rename, ...] = ()

    @classmethod
    def of(cls, marks: Iterable[LogMark]) -> Renames:
        steps = (_rename(mark) for mark in marks if mark.renamed or mark.filled)
        # Marks may come from several manifests, in any order.
        return cls(tuple(sorted(steps, key=lambda step: step.offset)))

    def __bool__(self) -> bool:
        return bool(self.steps)

    def after(self, offset: int) -> Renames:
        """Those that a row of this offset takes part in."""
        return replace(self, steps=tuple(step for step in self.steps if step.offset > offset))

    @property
    def last_offset(self) -> int:
        """The offset of the last one; 0: there is none."""
        return self.steps[-1].offset if self.steps else 0

    def current_name(self, name: str) -> str:
        """What the column is called now."""
        for step in self.steps:
            name = step.current_name(name)
        return name

    def rename_columns(self, schema: TableSchema) -> TableSchema:
        """The shape with the names of now, its columns in the same order."""
        if not self.steps:
            return schema
        columns = tuple(replace(c, name=self.current_name(c.name)) for c in schema.columns)
        return TableSchema(schema.table, columns, tuple(map(self.current_name, schema.key)))

    @property
    def columns_with_known_value(self) -> set[str]:
        """Columns, under their names of now, of which rows from before all of this are known to hold a value."""
        return {self.after(step.offset).current_name(name) for step in self.steps for name in step.filled}

    @property
    def constants(self) -> dict[str, tuple[int, Any]]:
        """Such columns whose value is not NULL: the offset before which rows hold it, and its JSON form."""
        constants: dict[str, tuple[int, Any]] = {}
        for step in self.steps:
            later_renames = self.after(step.offset)
            for name, value in step.constants:
                constants[later_renames.current_name(name)] = (step.offset, value)
        return constants


def _rename(mark: LogMark) -> Rename:
    filled = mark.filled or {}
    pairs = tuple((old, new) for new, old in (mark.renamed or {}).items())
    constants = tuple((name, value) for name, value in filled.items() if value is not None)
    return Rename(mark.offset, pairs, tuple(filled), constants)
