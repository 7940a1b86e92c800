"""Renames of columns in a lake table: the columns that it ends with, and the second run, which changes nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dblog_core.delta_writer import delta_types as t
from dblog_core.delta_writer.altering.alterations import Change, DropColumns, RenameColumn, SetProperties
from dblog_core.delta_writer.altering.altered_table import Described
from dblog_core.lake.merge_plan import lacks_before, plan_works, split_at_renames
from dblog_core.lake_engine.tables import alter_table
from dblog_core.schema_evolution.renames import Rename
from dblog_core.staging.manifest import DataFile, LogMark
from tests.unit.staged import manifest


class Lake:
    """A Delta table as its changes leave it: each column has an identity."""

    def __init__(self, columns: dict[str, int], properties: dict[str, str]) -> None:
        self.columns = columns
        self.properties = properties

    @property
    def have(self) -> Described:
        kinds = ((name, "variant" if name.endswith("_variant") else "long") for name in self.columns)
        return Described(t.StructType([t.StructField(name, kind) for name, kind in kinds]), self.properties)

    def run(self, step: Rename) -> int:
        """How many changes it takes."""
        changes = alter_table.rename(self.have, step)
        for change in changes:
            self._do(change)
        return len(changes)

    def _do(self, change: Change) -> None:
        match change:
            case RenameColumn((old,), new):
                assert new.lower() not in {name.lower() for name in self.columns if name != old}, change
                self.columns = {new if name == old else name: who for name, who in self.columns.items()}
            case DropColumns(names):
                for name in names:
                    del self.columns[name]
            case SetProperties(values):
                self.properties |= values
            case _:
                raise AssertionError(f"a rename makes no {change}")


OLD = st.sampled_from(["id", "a", "b", "c"])
NEW = st.sampled_from(["id", "a", "b", "c", "A", "x", "k"])


@pytest.mark.thorough
@settings(deadline=None, max_examples=1000)
@given(st.dictionaries(OLD, NEW, max_size=4), st.booleans())
def test_each_column_has_its_new_name(new: dict[str, str], has_kept_column: bool) -> None:
    columns = {"id": 0, "a": 1, "b": 2, "c": 3}
    names = [new.get(name, name).lower() for name in columns]
    if len({*names}) < len(names):
        return  # no table would have them
    step = Rename(7, tuple(new.items()))
    have = {**columns, **({"k": 9} if has_kept_column else {}), "_dblog_offset": 10}
    lake = Lake(have, {"dblog.key": json.dumps(["id"]), "dblog.dropped": json.dumps(["k"] if has_kept_column else [])})
    assert lake.run(step)
    stale = {} if not has_kept_column or "k" in new.values() else {"k": 9}
    assert lake.columns == {**{new.get(n, n): who for n, who in columns.items()}, **stale, "_dblog_offset": 10}
    assert json.loads(lake.properties["dblog.key"]) == [new.get("id", "id")]
    assert json.loads(lake.properties["dblog.dropped"]) == list(stale)
    assert not lake.run(step)


@settings(deadline=None, max_examples=1000)
@example({"id": "a", "a": "b", "b": "c", "c": "id"}, {"id"}, False)
@given(st.dictionaries(OLD, NEW, max_size=4), st.sets(OLD), st.booleans())
@pytest.mark.thorough
def test_variants_follow_their_texts(new: dict[str, str], json_columns: set[str], has_kept_column: bool) -> None:
    columns = {"id": 0, "a": 1, "b": 2, "c": 3, **({"k": 9} if has_kept_column else {})}
    renamed = {name: new.get(name, name) for name in columns if name != "k"}
    if len({name.lower() for name in renamed.values()}) < len(renamed):
        return  # no table would have them
    texts = {name for name in columns if name in json_columns or name == "k"}
    properties = {"dblog.key": json.dumps(["id"]), "dblog.dropped": json.dumps(["k"] if has_kept_column else [])}
    lake = Lake({**columns, **{f"{name}_variant": -columns[name] for name in texts}}, properties)
    step = Rename(7, tuple(new.items()))
    assert lake.run(step)
    stays = {} if not has_kept_column or "k" in new.values() else {"k": 9, "k_variant": -9}
    expected = {now: columns[name] for name, now in renamed.items()}
    expected |= {f"{renamed[name]}_variant": -columns[name] for name in texts if name != "k"}
    assert lake.columns == {**expected, **stays}


def test_a_column_that_is_not_there_yet_takes_the_name_of_one_that_is_gone() -> None:
    lake = Lake({"id": 0, "a": 1}, {"dblog.key": '["id"]'})
    assert lake.run(Rename(7, (("added", "a"),)))
    assert lake.columns == {"id": 0}


def test_a_history_loses_nothing_to_a_name_that_is_taken() -> None:
    lake = Lake({"id": 0, "a": 1, "b": 2}, {})
    assert lake.run(Rename(7, (("a", "b"),)))
    assert lake.columns == {"id": 0, "b": 1, "b_until_7": 2}


def test_a_file_is_cut_at_the_renames_that_its_rows_lie_around() -> None:
    marks = tuple(LogMark(o, "s", "shop.orders", "p", 0, schema="f", renamed={"y": "x"}) for o in (3, 6, 20))
    file = DataFile("shop.orders", "f", "path", 10, 1, "", 1, 10, has_unchanged=False, has_moves=False)
    work = plan_works([manifest(1, 1, 10, files=(file,), marks=marks)], lambda name: 0)["shop.orders"]
    parts = split_at_renames(work.files[0], work.renames)
    assert [(p.first_offset, p.last_offset, p.part) for p in parts] == [(1, 3, True), (4, 6, True), (7, 10, True)]
    assert not work.without_proofs().renames


def test_no_dump_is_due_for_what_is_proven() -> None:
    shapes = {"one": ["id", "x"], "two": ["id", "y", "n"]}
    mark = LogMark(5, "s", "shop.orders", "p", 0, schema="two", renamed={"y": "x"}, filled={"n": None})
    work = plan_works([manifest(1, 1, 10, marks=(mark,))], lambda name: 0)["shop.orders"]
    assert lacks_before(work, "one", shapes.__getitem__) is None
    assert lacks_before(work.without_proofs(), "one", shapes.__getitem__) == 5
