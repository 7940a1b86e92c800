"""Random statements in any order, with restarts: what is said of columns is true whatever a catalogue knows."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.model.column_defaults import Constant
from dblog_core.model.schema import TableSchema
from dblog_core.model.schema_changes import (
    Layout,
    Pending,
    Step,
    match_layouts,
)
from dblog_core.sources.mysql.ddl.alter_table import NOTHING
from tests.unit.staged import table

NAMES = st.sampled_from("abcxyz")


class World:
    """A table whose columns have identities, which nobody else sees."""

    def __init__(self) -> None:
        self.columns: list[tuple[str, int]] = [("id", 0), ("a", 1), ("b", 2)]
        self.next = 3

    def shape(self) -> TableSchema:
        return table("shop.t", **{name: pa.int64() for name, _ in self.columns})

    def alter(self, what: str, name: str, other: str) -> Step | None:
        """Does it if the server would; what is told of it (None: not understood)."""
        names = [n for n, _ in self.columns]
        if what == "swap" and name in names and other in names and name != other:
            renamed = {name: other, other: name}
        elif what == "rename" and name in names and other not in names:
            renamed = {name: other}
        else:
            return self._other(what, name, other, names)
        self.columns = [(renamed.get(n, n), who) for n, who in self.columns]
        return Step(renamed)

    def _other(self, what: str, name: str, other: str, names: list[str]) -> Step | None:
        if what == "add" and name not in names:
            constant = Constant("number", str(self.next))
            self.columns.append((name, self.next))
            self.next += 1
            return Step(nulls=(name,)) if other < name else Step(constants={name: constant})
        if what == "drop" and name in names:
            self.columns = [c for c in self.columns if c[0] != name]
            return None
        return NOTHING


ACTS = st.tuples(
    st.sampled_from(["rename", "swap", "add", "drop", "nothing"]), NAMES, NAMES, st.booleans(), st.booleans()
)


@settings(deadline=None)
@given(st.lists(ACTS, max_size=12))
def test_what_is_said_is_true_wherever_shapes_are_seen_and_it_restarts(
    acts: list[tuple[str, str, str, bool, bool]],
) -> None:
    world = World()
    pending = Pending({})
    before = world.shape()
    was = dict(world.columns)
    for what, name, other, seen, restarts in acts:
        step_made = world.alter(what, name, other)
        if step_made != NOTHING:
            pending.add(before.table, step_made, ["shop.t"])
        if restarts:
            pending = Pending(pending.to_json())
        if not seen:
            continue
        after = world.shape()
        now = dict(world.columns)
        facts_settled = pending.settle(before, after, plain=True)
        if facts_settled is not None:
            assert {n: was[o] for n, o in facts_settled.renamed.items()} == {n: now[n] for n in facts_settled.renamed}
            assert all(
                now[n] not in was.values() and value in (None, now[n]) for n, value in facts_settled.filled.items()
            )
            left = now.keys() - facts_settled.renamed.keys() - facts_settled.filled.keys()
            assert {n: was[n] for n in left} == {n: now[n] for n in left}
        if facts_settled is not None or before.fingerprint != after.fingerprint:
            before = after
            was = now


class Catalogue:
    """A PostgreSQL table: each column's name, number, whether it is generated, whether the catalogue keeps a value for
    older rows, and what a row holds in it that nobody touches."""

    def __init__(self) -> None:
        self.columns = [["id", 1, False, False, "id"], ["a", 2, False, False, "a"], ["b", 3, False, False, "b"]]
        self.file = 1
        self.next = 4
        self.dropped = False
        self.values = 0

    def row(self) -> dict[str, str | None]:
        return {name: value for name, _, generated, _, value in self.columns if not generated}

    def shape(self) -> TableSchema:
        return table("shop.t", key=(), **{name: pa.int64() for name in self.row()})

    def look(self, shape: TableSchema) -> Layout | None:
        """As `layouts.layout`."""
        if self.dropped or [c[0] for c in self.columns] != [c.name for c in shape.columns]:
            return None
        if any(generated for _, _, generated, *_ in self.columns):
            return None
        return Layout(
            f"1/{self.file}", {name: value if is_kept else None for name, _, _, is_kept, value in self.columns}
        )

    def alter(self, what: str, name: str, other: str) -> None:
        columns_by_name = {c[0]: c for c in self.columns}
        if what == "rename" and name in columns_by_name and other not in columns_by_name:
            columns_by_name[name][0] = other
        elif what == "swap" and name in columns_by_name and other in columns_by_name:
            columns_by_name[name][0], columns_by_name[other][0] = other, name
        elif what == "drop" and name in columns_by_name:
            self.columns.remove(columns_by_name[name])
            self.dropped = True
        elif what == "express" and name in columns_by_name:
            columns_by_name[name][2] = False
        elif what in ("add", "default", "generated") and name not in columns_by_name:
            self.values += 1
            value = None if what == "add" else f"value {self.values}"
            self.columns.append([name, self.next, what == "generated", what == "default", value])
            self.next += 1
            if what == "generated":
                self._written_anew()
        elif what == "rewrite" and name in columns_by_name:
            self.values += 1
            columns_by_name[name][4] = f"value {self.values}"
            self._written_anew()

    def _written_anew(self) -> None:
        self.file += 1
        for column in self.columns:
            column[3] = False


PLACES = st.tuples(
    st.sampled_from(["rename", "rename", "swap", "drop", "express", "add", "add", "default", "generated", "rewrite"]),
    *(NAMES, NAMES, st.booleans(), st.integers(0, 2)),
)


@settings(deadline=None)
@given(st.lists(PLACES, max_size=14))
def test_places_say_what_is_true_however_far_the_log_is_behind_the_catalogue(
    acts: list[tuple[str, str, str, bool, int]],
) -> None:
    catalogue = Catalogue()
    token = None
    shapes_and_rows = [(catalogue.shape(), catalogue.row())]
    before: tuple[TableSchema, dict[str, str | None]] | None = None

    def read() -> None:
        nonlocal before, token
        shape, row = shapes_and_rows.pop(0)
        layout = catalogue.look(shape)
        if before is not None and (facts_found := match_layouts(before[0], shape, token, layout)) is not None:
            assert {n: before[1][o] for n, o in facts_found.renamed.items()} == {n: row[n] for n in facts_found.renamed}
            assert {n: row[n] for n in facts_found.filled} == facts_found.filled
            same = [
                n
                for n in row
                if n in before[1] and n not in facts_found.renamed and n not in facts_found.renamed.values()
            ]
            assert {n: before[1][n] for n in same} == {n: row[n] for n in same}
        if layout is not None:
            token = layout.token
        elif before is None or before[0].fingerprint != shape.fingerprint:
            token = None
        before = shape, row

    for what, name, other, writes, reads in acts:
        if what == "rewrite":  # `stamps` looks for those that a log behind the catalogue does not show
            while shapes_and_rows:
                read()
            read_now = (catalogue.shape(), catalogue.row())
            shapes_and_rows.append(read_now)
            read()
        catalogue.alter(what, name, other)
        if writes:
            shapes_and_rows.append((catalogue.shape(), catalogue.row()))
        for _ in range(min(reads, len(shapes_and_rows))):
            read()
    while shapes_and_rows:
        read()
