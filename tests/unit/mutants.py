"""Mistakes that the engine has made once, put back by hand: each changed a copy silently, and a unit test finds it.

Others of their kind are in the mutants of protocol, simulation and merge, and in `test_compaction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.algorithm.chunk_placement import Chunks
from dblog_core.capture.follow_ups import FollowUps
from dblog_core.capture.healing import doubts, logged_rows, unlogged_rewrites
from dblog_core.capture.healing.logged_rows import LoggedRows
from dblog_core.capture.table_events import TableEvents
from dblog_core.capture.table_shapes import TableShapes
from dblog_core.config.source import ColumnRules
from dblog_core.errors import RequestError
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.model import values
from dblog_core.model.events import Rewritten
from dblog_core.model.schema import TableName
from dblog_core.monitoring import preflight
from dblog_core.rows import column_rule_faults, key_progress
from dblog_core.sources.minor_releases import Fault
from dblog_core.sources.mysql.binlog import events, row_intake
from dblog_core.sources.mysql.binlog.event_groups import ChangedTables
from dblog_core.sources.mysql.binlog.reach import reached_tables
from dblog_core.sources.mysql.binlog.unread_tables import UnreadTables
from dblog_core.sources.mysql.ddl import column_forms, row_statements, statement_text, statement_tokens
from dblog_core.sources.mysql.ddl.altered_columns import AlteredColumns
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.row_events import table_ids
from dblog_core.sources.mysql.session_settings import Setting
from dblog_core.sources.mysql.sql import key_order
from dblog_core.sources.mysql.values import binary_values
from dblog_core.verify.report import Report
from tests.unit.algorithm import test_chunk_placement
from tests.unit.capture import test_statements_on_tables, test_whole_tables
from tests.unit.capture.healing import test_doubts, test_unlogged_rewrites
from tests.unit.engine_world import World
from tests.unit.lake import test_lake_places
from tests.unit.rows import test_key_progress
from tests.unit.sources import test_minor_releases
from tests.unit.sources.mysql import test_session_settings, test_values
from tests.unit.sources.mysql.binlog import test_log_state, test_unlogged_alters, test_unread_tables
from tests.unit.sources.mysql.binlog import test_logged_statements as statements
from tests.unit.sources.mysql.ddl import test_column_forms, test_known_forms
from tests.unit.sources.mysql.row_events import test_row_decoder
from tests.unit.sources.mysql.sql import test_key_order
from tests.unit.verify import test_verify

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and the test that finds it, with a directory of its own."""

    name: str
    patch: Patch
    found_by: Callable[[Path], None]


def _zero_dates_in_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    to_arrow = binary_values.to_arrow

    def everywhere_alike(*arguments: Any, in_key: bool, **more: Any) -> pa.Array:
        return to_arrow(*arguments, **more)

    monkeypatch.setattr(binary_values, "to_arrow", everywhere_alike)


def _names_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_tokens.StatementTokens, "fold_name", lambda self, name: name)


def _names_are_all_that_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reached_tables.Catalogue, "find_reached", lambda self, targets, sql: frozenset(targets))


def _executable_comments_are_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    find_targets = row_statements.find_targets

    def without_them(sql: str, schema: str, *, any_case: bool) -> frozenset[TableName] | None:
        return find_targets(sql.replace("/*!", "/*"), schema, any_case=any_case)

    monkeypatch.setattr(row_statements, "find_targets", without_them)


def _savepoints_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(self: ChangedTables, name: str) -> int | None:
        return next((at for at, level in enumerate(self._levels) if name and level[0] == name), None)

    monkeypatch.setattr(ChangedTables, "_find", find)


def _meant_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableEvents, "_find_tables_meant", lambda self, signal: [signal.table])


def _always_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = statement_text.decode_statement
    monkeypatch.setattr(
        statement_text, "decode_statement", lambda sql, collation, charsets: decode(sql, None, charsets)
    )


def _nan_by_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(column: pa.Array) -> list[Any]:
        values: list[Any] = column.to_pylist()
        return values

    monkeypatch.setattr(values, "_parts", parts)


def _files_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "_require_ours", lambda self, high, files: None)


def _alterations_wait_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableEvents, "record_reshape", lambda self, table: None)


def _parts_of_a_dump_are_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_plan, "is_full", lambda mark: True)


def _born_empty_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableShapes, "forget_empty", lambda self, table: None)


def _first_shapes_prove_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FollowUps, "add_unproven", lambda self, table, at: None)


def _what_is_merged_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_applied_rows(status: TableStatus, withheld: int) -> TableStatus:
        return replace(status, state=State.OK, error=None, withheld=withheld)

    monkeypatch.setattr(TableStatus, "with_applied_rows", with_applied_rows)


def _versions_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_ids, "_OF_VERSIONS", ())


def _versioning_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnreadTables, "follow", lambda self, statement: None)


def _left_out_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Report, "missing_tables", ())


def _as_many_members_as_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_values, "_MOST_MEMBERS", 65)


def _begun_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_START_ALTER", 0)


def _failed_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_ROLLBACK_ALTER", 0)


def _histories_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "shares_history", lambda table, others: None)


def _a_key_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableShapes, "has_key", lambda self, fingerprint: True)


def _rounding_keeps_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_forms, "_SAME_TEXTS", (lambda before, after: before.type == after.type == "DECIMAL",))


def _answers_hold_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Position, "has_reached", lambda self, target: True)


def _rows_are_written_again_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlteredColumns, "recompute", lambda self: None)


def _types_change_with_statements_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_intake, "_storage", lambda version: [])


def _look_for_shared_places(directory: Path) -> None:
    (directory / "lake").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        shared_places = ["shop.a__history and the history of shop.a"]
        test_lake_places.test_tables_that_want_the_same_place_are_told_each_alone(
            World(directory, patched),
            patched,
            ["shop.a", "shop.a__history"],
            history=True,
            folds=False,
            expected_texts=shared_places,
        )


_DUMPED_IN_PART = [test_whole_tables.full(9, 2, key_from=1)]
_VERSIONED = (["ALTER TABLE shop.v ADD SYSTEM VERSIONING"], ["v stops"])
_GBK = ("TRUNCATE TABLE `誠`".encode("gbk"), 28, "誠")
_SJIS = ("TRUNCATE TABLE `ソ`".encode("shift_jis"), 13, "ソ")
_LATIN = ("TRUNCATE TABLE aufträge".encode("latin-1"), 8, "aufträge")


def _lists_prove_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoggedRows, "all_are_listed", lambda *arguments: True)


def _labels_prove_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "find_other_labels", lambda before, now: (False, set()))


def _no_transaction_is_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_rows, "_is_before", lambda xid, other: False)


def _types_print_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlogged_rewrites, "_prints_otherwise", lambda old, new: False)


def _sessions_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setting, "holds", lambda self, present: True)


def _releases_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fault, "concerns", lambda self, kind, version: False)


def _hidden_columns_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_rule_faults, "refuse_hidden_filters", lambda table, filtered, rules: None)


def _filter_by_a_hidden_column(_: Path) -> None:
    rules = {"shop.orders": ColumnRules(mask=("iban",))}
    with pytest.raises(RequestError, match=r"hides iban \(mask\)"):
        column_rule_faults.refuse_hidden_filters("shop.orders", ["id", "iban"], rules)


MUTANTS = [
    Mutant(
        "a zero date in a key is NULL",
        _zero_dates_in_keys,
        lambda _: test_row_decoder.test_a_zero_date_in_a_key_is_never_null(),
    ),
    Mutant(
        "names in statements are read as they were typed",
        _names_as_typed,
        lambda _: statements.test_where_the_server_does_not_mind_the_case_statements_are_told_in_lower_case("shop.*"),
    ),
    Mutant(
        "a statement means the table of that very name",
        _meant_as_typed,
        test_statements_on_tables.test_a_statement_means_the_table_that_differs_in_case_alone,
    ),
    Mutant(
        "statements are UTF-8 (latin1)",
        _always_utf8,
        lambda _: statements.test_a_statement_is_read_in_its_sessions_character_set(*_LATIN),
    ),
    Mutant(
        "statements are UTF-8 (gbk)",
        _always_utf8,
        lambda _: statements.test_a_statement_is_read_in_its_sessions_character_set(*_GBK),
    ),
    Mutant(
        "statements are UTF-8 (sjis)",
        _always_utf8,
        lambda _: statements.test_a_statement_is_read_in_its_sessions_character_set(*_SJIS),
    ),
    Mutant(
        "sjis is read as latin1",
        lambda monkeypatch: monkeypatch.setitem(statement_text.CODECS, "sjis", "latin-1"),
        lambda _: statements.test_a_statement_is_read_in_its_sessions_character_set(*_SJIS),
    ),
    Mutant(
        "NaN in a key is known by its object",
        _nan_by_its_object,
        lambda _: test_chunk_placement.test_a_row_whose_key_is_nan_is_evicted_by_its_own_event(pa.float64(), "default"),
    ),
    Mutant(
        "a chunk's file is not asked for",
        _files_not_asked_for,
        lambda _: test_chunk_placement.test_each_file_of_an_attempt_has_to_be_there(),
    ),
    Mutant(
        "an ALTER is followed with the next row",
        _alterations_wait_for_rows,
        test_statements_on_tables.test_a_known_table_that_was_altered_is_to_show_its_shape_until_a_row_has,
    ),
    Mutant(
        "a dump of a part of a table is a dump of all of it",
        _parts_of_a_dump_are_all_of_it,
        lambda _: test_whole_tables.test_what_a_table_lacks_is_known_to_be_there_by_an_empty_table_or_a_full_dump(
            _DUMPED_IN_PART, 0, 0
        ),
    ),
    Mutant(
        "a table that has got rows without events goes on to have begun empty",
        _born_empty_for_ever,
        lambda directory: test_whole_tables.test_the_first_shape_says_whether_the_table_had_no_row_before(
            directory, [test_whole_tables.CREATED, Rewritten(0, 0, test_whole_tables.TABLE)], None
        ),
    ),
    Mutant(
        "a table whose first shape is shown has no rows of before",
        _first_shapes_prove_all,
        lambda directory: test_whole_tables.test_the_first_shape_says_whether_the_table_had_no_row_before(
            directory, [], None
        ),
    ),
    Mutant(
        "a table is ok once rows of it are merged",
        _what_is_merged_is_ok,
        lambda _: (
            test_whole_tables.test_a_table_that_only_lacks_a_dump_waits_for_nothing_that_the_merge_has_asked_for()
        ),
    ),
    Mutant(
        "the columns of MariaDB's versions are such as any",
        _versions_are_columns,
        lambda _: test_unread_tables.test_a_system_versioned_table_is_known_by_the_columns_that_mariadb_gives_it(),
    ),
    Mutant(
        "a table stays what it was when a statement makes it system-versioned",
        _versioning_not_followed,
        lambda _: test_unread_tables.test_statements_tell_which_tables_are_system_versioned(*_VERSIONED),
    ),
    Mutant(
        "a verification that leaves a table out has found all equal",
        _left_out_without_a_word,
        lambda _: test_verify.test_a_table_that_was_left_out_is_named_and_counts_unless_it_is_passed_over(),
    ),
    Mutant(
        "a SET has a member for each of its labels, also for a second one of a name at place 65",
        _as_many_members_as_labels,
        lambda _: test_values.test_a_set_has_64_labels_at_most_whatever_its_definition_says(),
    ),
    Mutant(
        "an ALTER in two phases has happened when it begins",
        _begun_is_done,
        lambda _: test_log_state.test_an_alter_in_two_phases_has_happened_when_it_has_succeeded([2, 4], 1),
    ),
    Mutant(
        "an ALTER in two phases has happened when it is rolled back",
        _failed_is_done,
        lambda _: test_log_state.test_an_alter_in_two_phases_has_happened_when_it_has_succeeded([2, 8], 0),
    ),
    Mutant(
        "a decimal keeps its values whatever its scale",
        _rounding_keeps_values,
        lambda _: test_column_forms.test_values_may_be_others("DECIMAL(50,2)", "DECIMAL(52,4)"),
    ),
    Mutant(
        "what the catalogue says now holds at any place of the log",
        _answers_hold_everywhere,
        lambda _: test_known_forms.test_an_answer_holds_only_behind_the_end_that_the_log_had(),
    ),
    Mutant(
        "generated columns keep their values when all rows are written again",
        _rows_are_written_again_as_they_are,
        lambda _: test_column_forms.test_what_the_server_computes_is_computed_anew("FORCE"),
    ),
    Mutant(
        "a table has other types only after a statement in the log",
        _types_change_with_statements_alone,
        lambda _: test_unlogged_alters.test_other_types_without_a_statement_owe_a_dump("", True),
    ),
    Mutant(
        "a change in statement form reaches what it names alone",
        _names_are_all_that_is_reached,
        lambda _: statements.test_a_change_that_may_reach_any_table_breaks_all("INSERT INTO with_trigger VALUES (1)"),
    ),
    Mutant(
        "a foreign key leads nowhere",
        _names_are_all_that_is_reached,
        lambda _: statements.test_a_change_of_rows_in_statement_form_breaks_the_tables_that_it_reaches(
            "DELETE FROM orders", "orders lines"
        ),
    ),
    Mutant(
        "a comment is none of the statement",
        _executable_comments_are_comments,
        lambda _: statements.test_a_change_that_may_reach_any_table_breaks_all(
            "INSERT INTO /*!99999 x */ lines VALUES (1)"
        ),
    ),
    Mutant(
        "savepoints differ in upper and lower case",
        _savepoints_as_typed,
        lambda _: statements.test_the_tables_that_a_rollback_to_a_savepoint_concerns(
            [statements.A, "s", statements.B], "S", {statements.B}
        ),
    ),
    Mutant(
        "a session has every setting that its server gives it",
        _sessions_are_right,
        lambda _: test_session_settings.test_a_session_waits_for_locks_as_long_as_its_reader_says(),
    ),
    Mutant(
        "no release of a server has a fault",
        _releases_are_right,
        lambda _: test_minor_releases.test_check_warns_of_each_fault_of_a_release_of_postgres(150012, 1),
    ),
    Mutant("a filter may name a column that a rule hides", _hidden_columns_are_compared, _filter_by_a_hidden_column),
    Mutant("no table's history has the place of another table", _histories_stand_alone, _look_for_shared_places),
    Mutant(
        "rows mean what the catalogue says, whatever columns the log listed",
        _lists_prove_all,
        lambda _: test_doubts.test_rows_prove_what_they_mean_by_the_columns_that_the_log_lists(None, True),
    ),
    Mutant(
        "a label that has its name back never had another",
        _labels_prove_all,
        lambda _: test_doubts.test_a_label_that_was_written_asks_for_a_dump_if_there_are_rows(),
    ),
    Mutant(
        "a transaction prints what labels are called when it commits",
        _no_transaction_is_early,
        lambda _: test_doubts.test_a_transaction_that_was_open_while_a_label_was_renamed_asks_for_another_dump(),
    ),
    Mutant(
        "a column of another type prints what it printed",
        _types_print_alike,
        lambda _: test_unlogged_rewrites.test_values_print_another_text_under_another_label_or_type(
            *test_unlogged_rewrites.CIDR_TO_INET, True
        ),
    ),
    Mutant(
        "a table without a key that gets one has all its rows",
        _a_key_changes_nothing,
        test_whole_tables.test_a_table_that_is_given_a_key_is_dumped,
    ),
    Mutant(
        "the beginning of a column is ordered as all of it",
        lambda patch: patch.setattr(key_order, "_has_octets", lambda _: False),
        lambda _: test_key_order.test_a_column_that_no_index_holds_whole_is_ordered_by_its_octets(
            ("k",), test_key_order.index("PRIMARY", "k(700)"), key_order.KeyOrder(None, {"k": 700})
        ),
    ),
    Mutant(
        "keys ascend in whatever order they come",
        lambda patch: patch.setattr(key_progress, "_ascends", lambda _: True),
        lambda _: test_key_progress.test_keys_of_one_column_that_do_not_ascend_are_out_of_order([(7,), (6,), (8,)]),
    ),
    Mutant(
        "two rows may have one key",
        lambda patch: patch.setattr(key_progress, "_count_distinct", lambda rows, _: rows.num_rows),
        lambda _: test_key_progress.test_rows_with_one_key_have_no_place_behind_it(None),
    ),
]
