"""Mistakes that the engine has made once, put back by hand: each changed a copy silently, and a unit test finds it.

Others of their kind are in the mutants of protocol, simulation and merge, and in `test_compaction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.algorithm.chunk_placement import Chunks
from dblog_core.capture.table_events import TableEvents
from dblog_core.model import values
from dblog_core.sources.mysql.ddl import statement_text, statement_tokens
from dblog_core.sources.mysql.values import binary_values
from tests.unit.algorithm import test_chunk_placement
from tests.unit.capture import test_statements_on_tables
from tests.unit.sources.mysql.binlog import test_log
from tests.unit.sources.mysql.row_events import test_row_decoder

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and the test that finds it, with a directory of its own."""

    name: str
    patch: Patch
    found_by: Callable[[Path], None]


def _zero_dates_in_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    to_arrow = binary_values.to_arrow

    def everywhere_alike(*given: Any, in_key: bool, **more: Any) -> pa.Array:
        return to_arrow(*given, **more)

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
        found: list[Any] = column.to_pylist()
        return found

    monkeypatch.setattr(values, "_parts", parts)


def _files_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "_require_ours", lambda self, high, held: None)


def _alterations_wait_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableEvents, "record_reshape", lambda self, table: None)


_GBK = ("TRUNCATE TABLE `誠`".encode("gbk"), 28, "誠")
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
        lambda _: test_log.test_where_the_server_does_not_mind_the_case_statements_are_told_in_lower_case("shop.*"),
    ),
    Mutant(
        "a statement means the table of that very name",
        _meant_as_typed,
        test_statements_on_tables.test_a_statement_means_the_table_that_differs_in_case_alone,
    ),
    Mutant(
        "statements are UTF-8 (latin1)",
        _always_utf8,
        lambda _: test_log.test_a_statement_is_read_in_its_sessions_character_set(*_LATIN),
    ),
    Mutant(
        "statements are UTF-8 (gbk)",
        _always_utf8,
        lambda _: test_log.test_a_statement_is_read_in_its_sessions_character_set(*_GBK),
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
]
