"""What a capture writes into its log of changed columns, over restarts, and when it asks for a dump."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.config.source import ColumnRules
from dblog_core.model.events import (
    Altered,
    LogBatch,
    SchemaSeen,
    Signal,
    Transaction,
)
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.schema_changes import (
    Layout,
    Step,
)
from dblog_core.rows.column_rules import Rules
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark, Manifest
from dblog_core.staging.reader import lines
from tests.unit.statement_facts import BASE, rename_columns


class Capture:
    """A capture of shop.t that is told one signal a transaction."""

    def __init__(self, path: Path, rules: Rules | None = None) -> None:
        self.staging = Staging(str(path), source="shop")
        self.rules = rules or Rules({})
        self.place = 0
        self.staging.publish(Manifest("shop", 1, 1, 1, 0, "0", 0, "", None, 0))
        self.restart()

    def restart(self) -> None:
        head = self.staging.head()
        assert head is not None
        self.sequencer = Sequencer(
            self.staging, source="shop", epoch=1, head=head, visibility=LogOrder(), rules=self.rules
        )

    def take(self, signal: Signal) -> None:
        self.place += 1
        at = Transaction(str(self.place), str(self.place), self.place)
        self.sequencer.process(LogBatch((), (signal,), (at,), str(self.place)))

    def see(self, schema: TableSchema) -> None:
        self.take(SchemaSeen(0, 0, schema))

    def alter(self, step: Step | None, name: str = "t") -> None:
        self.take(Altered(0, 0, TableName("shop", name), step))

    def publish(self) -> tuple[LogMark, ...]:
        manifest = self.sequencer.seal(0)
        self.staging.publish(manifest)
        self.sequencer.begin_next_segment()
        manifest_read = self.staging.manifest(manifest.segment)
        assert manifest_read == manifest
        return manifest_read.marks


def test_a_mark_tells_what_is_proven_over_a_restart(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    capture.see(BASE)
    capture.alter(Step({"a": "c"}))
    capture.publish()
    capture.restart()
    capture.alter(Step(nulls=("n",)))
    after = rename_columns(BASE, "id", "c", "b")
    after = replace(after, columns=(*after.columns, replace(BASE.columns[1], name="n")))
    capture.see(after)
    (mark,) = capture.publish()
    assert (mark.renamed, mark.filled) == ({"c": "a"}, {"n": None})
    staged_lines = list(lines(capture.staging))[-1]
    assert (staged_lines["op"], staged_lines["renamed"], staged_lines["filled"]) == ("s", {"c": "a"}, {"n": None})
    assert capture.staging.manifest(3).altered == {}


def test_columns_that_swap_names_are_told_although_the_shape_is_the_same(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    capture.see(BASE)
    capture.alter(Step({"a": "b", "b": "a"}))
    capture.see(BASE)
    capture.see(BASE)
    first, second = capture.publish()
    assert (first.renamed, second.renamed) == (None, {"a": "b", "b": "a"})


@pytest.mark.parametrize("how", ["unknown", "rules", "case", "new"])
def test_a_mark_tells_nothing_where_a_statement_is_not_known(tmp_path: Path, how: str) -> None:
    rules = Rules({"shop.t": ColumnRules(mask=("b",))}) if how == "rules" else None
    capture = Capture(tmp_path, rules)
    if how != "new":
        capture.see(BASE)
    if how == "unknown":
        capture.alter(None)
        capture.see(BASE)  # a column may have been dropped and added
    capture.alter(Step({"a": "c"}), name="T" if how == "case" else "t")
    capture.see(rename_columns(BASE, "id", "c", "b"))
    assert capture.publish()[-1].renamed is None


@pytest.mark.parametrize(
    ("steps", "dumped"),
    [
        ([Step(unknown=("a",), dropped=("a",))], True),  # another column under the name of one
        ([Step(dropped=("a",)), Step(nulls=("A",))], True),
        ([Step({"a": "x"}), Step({"b": "a"})], True),
        ([Step({"a": "b", "b": "a"})], True),
        ([Step({"a": "x"}, nulls=("n",))], False),
        ([Step({"a": "A"}), Step(dropped=("b",)), Step(unknown=("m",))], False),
    ],
)
def test_a_table_is_dumped_where_a_name_stands_for_another_column(
    tmp_path: Path, steps: list[Step], dumped: bool
) -> None:
    capture = Capture(tmp_path)
    capture.see(BASE)
    for step in steps:
        capture.publish()
        capture.restart()
        capture.alter(step)
    assert list(capture.sequencer.tables.follow_ups.take_rewritten()) == [BASE.table] * dumped


def test_a_layout_is_known_over_a_restart_and_not_after_a_shape_without_one(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    shapes = [rename_columns(BASE, "id", name, "b") for name in "acdef"]
    layout = Layout("1/2")
    renames = []
    for shape, layout_told in zip(shapes, (layout, layout, None, layout, layout), strict=True):
        capture.take(SchemaSeen(0, 0, shape, layout_told))
        renames.append(capture.publish()[0].renamed)
        capture.restart()
    assert renames == [None, {"c": "a"}, None, None, {"f": "e"}]
