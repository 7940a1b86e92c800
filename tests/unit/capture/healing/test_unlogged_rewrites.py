"""Two stamps of a table tell whether its rows are others without an event, and whoever looks next is told too."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import orjson
import pytest

from dblog_core.capture.healing.unlogged_rewrites import Stamps, has_missed_changes, mixed_up
from dblog_core.model.table_stamp import ColumnStamp, LargeValues, PublicationStamp, TableStamp, TypeStamp
from dblog_core.staging.table_records import STAMP_NODES, TableRecords

STORED: dict[str, Any] = {
    "table": 9,
    "columns": {"id": [1, {}, 23, -1, "700"], "v": [2, {"5": "red"}, 99, -1, "700"]},
    "files": {"9": 40},
}
BASE = TableStamp.from_json(STORED)


def other(files: dict[str, int] | None = None, **columns: list[Any]) -> TableStamp:
    return TableStamp.from_json(
        {"table": 9, "columns": {**STORED["columns"], **columns}, "files": files or STORED["files"]}
    )


@pytest.mark.parametrize(
    ("now", "is_told"),
    [
        (other(), False),
        (other(n=[3, {}, 23, -1, "800"]), False),  # a column that was added
        (other(v=[3, {}, 99, -1, "800"]), True),  # another column under the name
        (other(v=[2, {"5": "rot"}, 99, -1, "700"]), True),
        (other(v=[2, {"5": "red", "6": "blue"}, 99, -1, "700"]), False),
        (other({"9": 41}), False),  # VACUUM FULL, TRUNCATE
        (other(v=[2, {"5": "red"}, 99, -1, "800"]), False),  # NOT NULL
        (other({"9": 41}, v=[2, {"5": "red"}, 99, -1, "800"]), True),
        (other({"9": 41}, v=[2, {"5": "red"}, 99, 8, "700"]), True),
        (other({"10": 43, "11": 51}), False),  # of partitions that were not there before
        (other({"9": 40, "10": 42}, v=[2, {"5": "red"}, 99, -1, "800"]), False),  # a partition more
    ],
)
def test_values_are_others_under_another_column_or_label_or_in_files_that_were_written_anew(
    now: TableStamp, is_told: bool
) -> None:
    assert mixed_up(BASE, now) is is_told


def typed(base: int, form: str = "", labels: dict[str, str] | None = None, type_id: int = 20_000) -> TableStamp:
    """The table with a column of a type of users."""
    writes = dict.fromkeys(labels or {}, "690")
    return other(v=[2, labels or {}, type_id, -1, "700", base, form, writes, bool(labels)])


MOODS = {"5": "sad", "6": "glad"}
CIDR_TO_INET = (other(v=[2, {}, 650, -1, "700"]), other(v=[2, {}, 869, -1, "800"]))


@pytest.mark.parametrize(
    ("before", "now", "is_told"),
    [
        (typed(20_000, "f", MOODS), typed(20_000, "f", MOODS), False),
        (typed(20_000, "f", MOODS), typed(20_000, "f", {**MOODS, "6": "mad"}), True),
        (typed(20_000, "f", MOODS), typed(20_000, "f", {"5": "sad"}), True),
        (typed(20_000, "f", MOODS), typed(20_000, "f", {**MOODS, "7": "mad"}), False),
        (typed(20_000, "f"), typed(20_000, "g"), True),  # an attribute more, another function that prints it
        (typed(20_000, "f", MOODS), typed(20_000, "f", MOODS, type_id=20_001), False),  # a domain over it
        (*CIDR_TO_INET, True),
        (other(v=[2, {}, 25, -1, "700"]), other(v=[2, {}, 1043, 9, "800"]), False),  # text to varchar
        (other(v=[2, {}, 25, -1, "700"]), other(v=[2, {}, 1562, 9, "800"]), True),
        (other(v=[2, {}, 1043, 9, "700"]), other(v=[2, {}, 1043, -1, "800"]), False),
        (other(v=[2, {}, 25, -1, "700"]), typed(25, type_id=20_001), False),  # a domain over text
        (other(v=[2, MOODS, 20_000, -1, "700"]), typed(20_000, "f", MOODS), False),
        (other(v=[2, MOODS, 20_000, -1, "700"]), typed(20_000, "f", {**MOODS, "6": "mad"}), True),
        (other(v=[2, {}, 20_000, -1, "700"]), typed(20_000, "f", MOODS), True),  # by a version that saw no such labels
    ],
)
def test_values_print_another_text_under_another_label_or_type(
    before: TableStamp, now: TableStamp, is_told: bool
) -> None:
    assert mixed_up(TableStamp.from_json(orjson.loads(orjson.dumps(before.to_json()))), now) is is_told


def test_a_partition_whose_file_is_another_one_may_have_been_emptied() -> None:
    before = other({"10": 42, "11": 51})
    assert mixed_up(before, other({"10": 43, "11": 51}))
    assert not mixed_up(before, before)
    assert not mixed_up(before, other({"11": 51})), "one that went is found by other means"


@pytest.mark.parametrize(
    ("now", "is_told"),
    [
        (other(), False),
        (other(n=[3, {}, 23, -1, "800"]), True),  # a column that was added
        (other(v=[2, {"5": "red"}, 25, -1, "800"]), True),  # another type
        (other(v=[2, {"5": "red"}, 99, 8, "800"]), True),  # another length
        (other(v=[2, {"5": "rot"}, 99, -1, "800"]), False),  # a label, NOT NULL
        (other({"9": 41}), False),
    ],
)
def test_the_shape_is_another_one_with_other_columns_or_types(now: TableStamp, is_told: bool) -> None:
    stamps = Stamps(TableRecords())
    stamps.look({"s.t": BASE})
    stamps.look({"s.t": now})
    assert stamps.reshaped == (["s.t"] if is_told else [])


def test_what_was_not_saved_is_found_again() -> None:
    records = TableRecords()
    changed = {"s.t": other(v=[3, {}, 99, -1, "800"])}
    first = Stamps(records)
    assert first.look({"s.t": BASE}) == []
    first.save()
    assert first.look(changed) == ["s.t"]
    assert first.look(changed) == []
    restored_stamps = Stamps(records)
    assert restored_stamps.look(changed) == ["s.t"]
    restored_stamps.save()
    assert Stamps(records).look(changed) == []


def test_another_table_under_the_name_is_none_that_was_altered() -> None:
    records = TableRecords()
    stamps = Stamps(records)
    stamps.look({"s.t": BASE})
    assert stamps.look({"s.t": replace(other(v=[1, {}, 99, -1, "800"]), table=10), "s.new": BASE}) == []


def test_a_table_that_is_altered_has_little_written_again() -> None:
    records = TableRecords()
    columns = {f"column_{n}": ColumnStamp(n, 23, -1, str(700 + n), TypeStamp(23, "")) for n in range(200)}
    stamps_by_table = {f"shop.table_{n}": TableStamp(n, columns, {str(n): n}) for n in range(500)}
    stamps = Stamps(records)
    stamps.look(stamps_by_table)
    stamps.save()
    entries = [records.get(node) for node in STAMP_NODES]
    assert max(len(entry.data) for entry in entries if entry is not None) < 1 << 18
    columns = {**columns, "column_7": ColumnStamp(999, 23, -1, "700", TypeStamp(23, ""))}
    changed = replace(stamps_by_table["shop.table_9"], columns=columns)
    assert Stamps(records).look({**stamps_by_table, "shop.table_9": changed}) == ["shop.table_9"]


def test_a_table_that_has_gone_is_forgotten() -> None:
    records = TableRecords()
    for stamps_of_look in ({"s.t": BASE}, {"s.other": BASE}):
        stamps = Stamps(records)
        stamps.look(stamps_of_look)
        stamps.save()
    assert Stamps(records).look({"s.t": other(v=[3, {}, 99, -1, "800"])}) == []


def test_stamps_are_stored_in_the_form_that_captures_have_always_read() -> None:
    records = TableRecords()
    first = Stamps(records)
    first.look({"s.t": BASE})
    first.save()
    (entry,) = filter(None, map(records.get, STAMP_NODES))
    assert zlib.decompress(entry.data) == orjson.dumps({"s.t": STORED})
    assert Stamps(records).look({"s.t": BASE}) == []


@pytest.mark.parametrize(
    ("now", "is_told"),
    [
        (replace(BASE, large_values=LargeValues(50, True)), False),
        (replace(BASE, large_values=LargeValues(61, True)), True),  # SET UNLOGGED, SET LOGGED
        (replace(BASE, large_values=LargeValues(61, False)), False),  # pg_repack
        (replace(other(n=[3, {}, 23, -1, "800"]), large_values=LargeValues(61, True)), False),  # DEFAULT random()
        (BASE, False),
    ],
)
def test_large_values_in_another_place_tell_of_rows_that_an_alter_wrote_again(now: TableStamp, is_told: bool) -> None:
    before = replace(BASE, large_values=LargeValues(50, True))
    assert mixed_up(TableStamp.from_json(orjson.loads(orjson.dumps(before.to_json()))), now) is is_told
    assert not mixed_up(BASE, now), "of the time before these stamps nobody knows, nor of a table that had none"


SHOWN = PublicationStamp(15, 300, "10 false", "900", "301 900", "")


def shown(**changed: Any) -> TableStamp:
    return replace(BASE, shown=replace(SHOWN, **changed))


@pytest.mark.parametrize(
    ("now", "has_missed"),
    [
        (shown(), False),
        (BASE, False),  # a publication that is gone: the log itself fails
        (shown(written="901"), True),  # set to something and back, as far as anybody knows
        (shown(written="901", options="11 false"), False),  # another owner, or generated columns in the log
        (shown(member="302 905"), True),  # taken out and put in again
        (shown(publication=400, written="950"), True),
        (shown(publication=400, options="11 false", written="950"), True),
        (shown(server=18, publication=17, written="3", member="19 3"), False),  # all made again by an upgrade
        (shown(lacks="it lacks updates", written="901"), False),  # it stops, and is dumped when it goes on
    ],
)
def test_a_publication_that_was_altered_may_have_left_out_changes(now: TableStamp, has_missed: bool) -> None:
    assert has_missed_changes(shown(), now) is has_missed
    assert not has_missed_changes(BASE, now), "of the time before these stamps nobody knows"
    assert not has_missed_changes(shown(lacks="it lacks updates"), now)


def test_a_table_that_the_publication_leaves_out_is_named_once_also_after_a_restart() -> None:
    records = TableRecords()
    stamps = Stamps(records)
    stamps.look({"s.t": shown(), "s.new": shown(lacks="is not in it yet")})
    assert stamps.left_out == {}
    partial = shown(lacks="it lacks updates", fix="ALTER PUBLICATION")
    assert stamps.look({"s.t": partial, "s.new": shown()}) == []
    assert stamps.left_out == {"s.t": partial.shown}
    stamps.save()
    for looking in (stamps, Stamps(records)):
        assert looking.look({"s.t": partial, "s.new": shown()}) == [] and looking.left_out == {}
    assert Stamps(records).look({"s.t": shown(), "s.new": shown(member="310 999")}) == ["s.new"]


def test_what_was_shown_is_stored_beside_the_rest() -> None:
    before = shown(lacks="it lacks updates", fix="not stored")
    again = TableStamp.from_json(orjson.loads(orjson.dumps(before.to_json())))
    assert again == before and again.shown is not None and again.shown.fix == ""
    later_form = {**before.to_json(), "shown": [*before.to_json()["shown"], "more"], "other": 1}
    assert TableStamp.from_json(later_form) == before
