"""Which tables of the super-changelog a statement in the log means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.config.source import ColumnRules
from dblog_core.model.events import (
    Altered,
    ChangedByStatement,
    Crashed,
    Created,
    DatabaseDropped,
    LogBatch,
    Rewritten,
    RowsMoved,
    SchemaSeen,
    Transaction,
    Truncated,
    Unreadable,
)
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.schema_changes import Step
from dblog_core.rows.acceptance import Acceptance, digest_columns
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import TableGuard
from dblog_core.staging.reader import lines
from tests.fake_source import ORDERS, changes_batch
from tests.unit.airflow.test_probes import Log

LOWER, UPPER = (TableName(ORDERS.table.schema, name) for name in ("orders", "ORDERS"))


def log_with(path: Path, *tables: TableName) -> Log:
    """A capture that has seen rows' shapes of these tables."""
    log = Log(path)
    for table in tables:
        log.take(None, SchemaSeen(0, 0, TableSchema(table, ORDERS.columns, ORDERS.key)))
    return log


def truncated_tables(log: Log) -> list[str]:
    log.publish()
    return [line["table"] for line in lines(log.staging) if line["op"] == "t"]


def test_a_statement_means_the_table_that_differs_in_case_alone(tmp_path: Path) -> None:
    log = log_with(tmp_path, UPPER)
    log.take(None, Truncated(0, 0, LOWER, any_case=True))
    log.take(None, Rewritten(0, 0, LOWER, any_case=True))
    assert log.sequencer.tables.follow_ups.take_rewritten().keys() == {UPPER} and truncated_tables(log) == [str(UPPER)]


def test_dropping_a_database_means_its_tables_in_any_case(tmp_path: Path) -> None:
    log = log_with(tmp_path, UPPER)
    log.take(None, DatabaseDropped(0, 0, UPPER.schema.upper(), any_case=True))
    assert truncated_tables(log) == [str(UPPER)]


def test_after_a_crash_of_the_server_only_dumps_tell_what_tables_hold(tmp_path: Path) -> None:
    log = log_with(tmp_path, LOWER, UPPER)
    log.take(None, Crashed(0, 0))
    assert log.sequencer.tables.follow_ups.take_rewritten().keys() == {LOWER, UPPER} and truncated_tables(log) == []


def test_a_statement_that_nobody_knows_may_have_moved_rows_of_any_table_at_its_own_place(tmp_path: Path) -> None:
    """Of many in a row the last counts for what is dumped: rows in between may be of another table already."""
    log = log_with(tmp_path, LOWER)
    signals = [replace(changed(), sequence=number, reshapes=True) for number in (3, 8)]
    batch = log.sequencer.tables.name_changed(LogBatch((), tuple(signals), (Transaction("1", "1", 0),), "1"))
    assert [s.sequence for s in batch.signals if isinstance(s, RowsMoved) and s.left is None] == [3, 8]
    assert [s.sequence for s in batch.signals if isinstance(s, Rewritten)] == [8]


def test_rows_of_one_batch_pass_or_are_held_at_their_own_places(tmp_path: Path) -> None:
    """Those between a swap of columns and a DROP and CREATE of the table have other columns under its rules."""
    hides = {str(ORDERS.table): ColumnRules(mask=("name",))}
    entries = {str(ORDERS.table): "entry"}
    guard = TableGuard(hides, entries, {str(ORDERS.table): Acceptance("entry", digest_columns(ORDERS))})
    log = Log(tmp_path)
    head = log.staging.head()
    assert head is not None
    log.sequencer = Sequencer(
        log.staging, source="shop", epoch=1, head=head, visibility=LogOrder(), rules=Rules(hides), guard=guard
    )
    rows = [(place, 0, "c", None, {"id": place, "name": "SECRET", "big": "b"}, ()) for place in (1, 4, 8)]
    swap = Step(renamed={"name": "big", "big": "name"})
    signals = (
        SchemaSeen(0, 0, ORDERS),
        Altered(3, 0, ORDERS.table, swap),
        Truncated(5, 0, ORDERS.table),
        Altered(6, 0, ORDERS.table, None, anew=True),
        Created(7, 0, ORDERS.table),
    )
    batch = LogBatch((changes_batch(ORDERS, rows),), signals, (Transaction("1", "1", 1),), "1")
    log.sequencer.process(batch)
    log.publish()
    staged = [line for line in lines(log.staging) if line["op"] == "c"]
    assert [line["key"] for line in staged] == [{"id": 1}] and "SECRET" not in str(staged)
    assert str(ORDERS.table) in log.sequencer.tables.take_unreadable()


def changed(*names: str, schemas: frozenset[str] | None = None) -> ChangedByStatement:
    tables = frozenset(TableName("shop", name) for name in names) or None
    return ChangedByStatement(0, 0, tables, "statement UPDATE", "set binlog_format = ROW", schemas)


@pytest.mark.parametrize(
    ("signal", "broken_tables"),
    [
        (changed(), {"orders", "ORDERS"}),
        (changed("orders"), {"orders"}),
        (changed("made_by_it"), {"made_by_it"}),
        (changed(schemas=frozenset({"shop"})), {"orders", "ORDERS"}),
        (changed(schemas=frozenset({"tools"})), set()),
    ],
)
def test_rows_that_a_statement_may_have_changed_are_for_dumps_to_bring(
    tmp_path: Path, signal: ChangedByStatement, broken_tables: set[str]
) -> None:
    log = log_with(tmp_path, LOWER, UPPER)
    log.take(None, signal)
    follow_ups = log.sequencer.tables.follow_ups
    assert {table.name for table in follow_ups.take_rewritten()} == broken_tables
    unlogged = follow_ups.take_unlogged()
    assert unlogged is not None and unlogged.change == signal and follow_ups.take_unlogged() is None
    assert unlogged.tables == {f"shop.{name}" for name in broken_tables}


def test_a_table_that_a_statement_may_have_filled_is_not_known_to_be_empty(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.take(None, Created(0, 0, LOWER))
    log.take(None, changed())
    assert not log.sequencer.tables.shapes.empty_tables


def test_where_two_tables_had_the_name_only_dumps_tell_which_is_meant(tmp_path: Path) -> None:
    log = log_with(tmp_path, LOWER, UPPER)
    log.take(None, Truncated(0, 0, LOWER, any_case=True))
    assert log.sequencer.tables.follow_ups.take_rewritten().keys() == {LOWER, UPPER} and truncated_tables(log) == []


@pytest.mark.parametrize("signal", [Truncated(0, 0, LOWER), Altered(0, 0, LOWER, None), Rewritten(0, 0, LOWER)])
def test_where_the_server_minds_the_case_the_name_is_the_tables(tmp_path: Path, signal: Truncated) -> None:
    log = log_with(tmp_path, UPPER)
    log.take(None, signal)
    assert UPPER not in log.sequencer.tables.follow_ups.take_rewritten() and str(UPPER) not in truncated_tables(log)


def test_a_known_table_that_was_altered_is_to_show_its_shape_until_a_row_has(tmp_path: Path) -> None:
    log = log_with(tmp_path, UPPER)
    log.take(None, Altered(0, 0, UPPER, None, shows=True))
    log.take(None, Altered(0, 0, LOWER, None, shows=True))  # of which there is no copy
    assert log.sequencer.dirty and log.sequencer.tables.follow_ups.take_reshaped() == {UPPER}
    log.take(None, Altered(0, 0, UPPER, None, shows=True))
    log.take(None, SchemaSeen(0, 0, TableSchema(UPPER, ORDERS.columns[:2], ORDERS.key)))
    assert log.sequencer.tables.follow_ups.take_reshaped() == set()
    log.take(None, Altered(0, 0, UPPER, None))  # DROP TABLE
    assert log.sequencer.tables.follow_ups.take_reshaped() == set()
    log.take(None, Altered(0, 0, UPPER, None, shows=True))
    log.take(None, Rewritten(0, 0, UPPER))
    assert log.sequencer.tables.follow_ups.take_reshaped() == set()


def test_a_table_whose_rows_are_passed_over_is_emptied_all_the_same(tmp_path: Path) -> None:
    """It may be dropped: then nothing else would ever take its rows from the lake."""
    log = log_with(tmp_path, LOWER)
    log.take(None, Unreadable(0, 0, LOWER, "why", "fix"))
    log.take(None, Truncated(0, 0, LOWER))
    log.take(None, Unreadable(0, 0, UPPER, "why", "fix"))
    log.take(None, Truncated(0, 0, UPPER))
    assert truncated_tables(log) == [str(LOWER)], "of the other one no rows are anywhere"
    head = log.staging.head()
    assert head is not None and head.born == (), "rows that come next are passed over: it is not known to be whole"
