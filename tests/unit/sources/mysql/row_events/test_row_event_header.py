"""Row events that lack columns: which are enough, and what is missing in the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dblog_core.model.events import CREATE, DELETE, UPDATE
from dblog_core.sources.mysql.binlog.events import Event, Type
from dblog_core.sources.mysql.row_events import row_event_header
from dblog_core.sources.mysql.row_events.row_decoder import RowEvents
from dblog_core.sources.mysql.row_events.row_event_header import ColumnsMissing
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from tests.unit import mysql_rows

INT = next(sample.column for sample in mysql_rows.SAMPLES if sample.column.text == "int")
KEYED = mysql_rows.version([INT] * 3)
WHOLE = 0b111
TYPES = {CREATE: Type.WRITE_ROWS_V1, UPDATE: Type.UPDATE_ROWS_V1, DELETE: Type.DELETE_ROWS_V1}


def rows_event(op: str, *present: int) -> Event:
    """An event with one row, in whose images each column that is there holds its number."""
    images = b""
    for columns in present:
        values = [n.to_bytes(4, "little") for n in range(3) if columns >> n & 1]
        images += mysql_rows.image([INT] * len(values), values)
    body = bytes(8) + b"\3" + bytes(present) + images
    return Event(TYPES[op], 1, 1, 0, len(body), artificial=False, body=body)


def read(op: str, *present: int, version: TableVersion = KEYED) -> tuple[list[object], bool]:
    body, at, key_only = row_event_header.images(rows_event(op, *present), version)
    events = RowEvents(version)
    events.add(op, memoryview(body)[at:])
    events.count()
    sides = [events.before("null"), events.after("null")]
    return [list(image.values()) for side in sides for image in side.to_pylist() if image], key_only


def test_an_event_with_all_columns_is_taken_as_it_is() -> None:
    for op, present in ((CREATE, [WHOLE]), (UPDATE, [WHOLE, WHOLE]), (DELETE, [WHOLE])):
        assert read(op, *present) == ([[0, 1, 2]] * len(present), False)
        event = rows_event(op, *present)
        assert row_event_header.images(event, KEYED)[0] is event.body


def test_before_a_change_the_key_is_enough() -> None:
    assert read(DELETE, 0b001) == ([[0, None, None]], True)
    assert read(UPDATE, 0b011, WHOLE) == ([[0, 1, None], [0, 1, 2]], True)


@pytest.mark.parametrize(
    ("op", "present", "names"),
    [
        (CREATE, [0b011], ("c2",)),
        (UPDATE, [WHOLE, 0b001], ("c1", "c2")),
        (UPDATE, [0b110, WHOLE], ("c0",)),
        (DELETE, [0b110], ("c0",)),
    ],
)
def test_what_is_missing_is_named(op: str, present: list[int], names: tuple[str, ...]) -> None:
    with pytest.raises(ColumnsMissing) as missing:
        read(op, *present)
    assert missing.value.names == names


def test_without_a_key_all_columns_are_needed() -> None:
    with pytest.raises(ColumnsMissing) as missing:
        read(DELETE, 0b011, version=mysql_rows.version([INT] * 3, key=()))
    assert missing.value.names == ("c2",)


def test_columns_that_are_excluded_may_be_missing_as_mariadb_11_leaves_generated_ones_out() -> None:
    version = replace(KEYED, excluded=frozenset({2}))
    assert read(UPDATE, 0b011, 0b011, version=version) == ([[0, 1, None], [0, 1, None]], False)
    assert read(DELETE, 0b011, version=version) == ([[0, 1, None]], False)
    assert read(CREATE, 0b011, version=version) == ([[0, 1, None]], False)
    with pytest.raises(ColumnsMissing) as missing:
        read(UPDATE, 0b011, 0b001, version=version)
    assert missing.value.names == ("c1",)


def test_another_number_of_columns_is_another_table() -> None:
    with pytest.raises(ColumnsMissing):
        read(DELETE, WHOLE, version=mysql_rows.version([INT] * 4))
