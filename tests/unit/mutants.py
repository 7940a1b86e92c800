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
from dblog_core.capture.table_events import TableEvents
from dblog_core.capture.table_shapes import TableShapes
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.model import values
from dblog_core.model.events import Rewritten
from dblog_core.monitoring import preflight
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.unread_tables import UnreadTables
from dblog_core.sources.mysql.ddl import statement_text, statement_tokens
from dblog_core.sources.mysql.row_events import table_ids
from dblog_core.sources.mysql.values import binary_values
from dblog_core.verify.report import Report
from tests.unit.algorithm import test_chunk_placement
from tests.unit.capture import test_statements_on_tables, test_whole_tables
from tests.unit.engine_world import World
from tests.unit.lake import test_lake_places
from tests.unit.sources.mysql import test_values
from tests.unit.sources.mysql.binlog import test_log_state, test_unread_tables
from tests.unit.sources.mysql.binlog import test_logged_statements as statements
from tests.unit.sources.mysql.row_events import test_row_decoder
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
    Mutant("no table's history has the place of another table", _histories_stand_alone, _look_for_shared_places),
    Mutant(
        "a table without a key that gets one has all its rows",
        _a_key_changes_nothing,
        test_whole_tables.test_a_table_that_is_given_a_key_is_dumped,
    ),
]
