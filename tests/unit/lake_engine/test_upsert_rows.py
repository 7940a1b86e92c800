"""Folded rows go into a table without Spark as a reader of the lines, one after the other, would have them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.delta_writer.features import TableRefused
from dblog_core.errors import LakeError, LeaseLost
from dblog_core.lake_engine.events.fold import PUT, WITHHOLD, FoldedRows
from dblog_core.lake_engine.merging import upsert_rows
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.tables.column_types import OFFSET
from tests.spark.worlds import SHAPE, Oracle
from tests.unit.delta_writer.tables import (
    APP,
    commit_of,
    metadata,
    newest,
    protocol,
    schema_string,
    write_commit,
)
from tests.unit.lake_engine.world_lake import FIELDS, Lake, change


@pytest.mark.parametrize("number", range(3))
def test_a_table_is_what_the_lines_say_after_every_merge(tmp_path: Path, soak_seed: int, number: int) -> None:
    lake = Lake(tmp_path, random.Random(f"{soak_seed}/{number}"))
    oracle = Oracle()
    lake.source.add_unseen_rows(0.3)
    for _ in range(5):
        change(lake)
        lake.merge_as_told(oracle)
    kinds = ("chain of key changes", "swap of keys", "unchanged value over updates, a key change and a batch boundary")
    assert [kind for kind in kinds if not lake.source.seen[kind]] == []
    assert oracle.seen["withheld row"]


def test_a_merge_whose_number_is_taken_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("taken"))
    change(lake)
    lake.merge()
    change(lake)
    before = lake.rows()
    lake.number = 0
    with pytest.raises(LakeError, match="merge 1 has committed here already"):
        lake.merge()
    assert lake.rows() == before


def test_who_may_not_write_any_more_leaves_the_table_alone(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("fenced"))
    change(lake)
    lake.merge()
    before = newest(lake.table.path)

    def lose_lease() -> None:
        raise LeaseLost("another merge has taken the lake over")

    change(lake)
    with pytest.raises(LeaseLost):
        lake.merge(lake.open(lose_lease))
    assert newest(lake.table.path) == before


def test_another_who_has_committed_the_same_merge_is_found(tmp_path: Path) -> None:
    """A merger that was paused before its commit wakes up: its successor has made the same one."""
    lake = Lake(tmp_path, random.Random("twice"))
    change(lake)
    lake.merge()
    change(lake)
    successor = OpenTables().table(lake.table.location(), SHAPE, lambda: None)
    rows, _ = lake.fold_sealed()

    def commit_as_successor() -> None:
        upsert_rows.write(successor, rows, SHAPE, APP, 2, merged=lake.offset, withhold=lambda keys: None)

    done = lake.merge(lake.open(commit_as_successor))
    assert done.already and newest(lake.table.path) == 2


def test_a_column_that_the_source_has_no_more_is_null_in_what_is_written(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("left"))
    lake.table.fields["old"] = "string"
    write_commit(lake.table.path, 1, metadata(schema_string(lake.table.fields)))
    change(lake)
    lake.merge()
    assert {row["old"] for row in lake.table.read()} == {None}


def test_a_table_that_lacks_a_column_is_sparks(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("lacks"))
    write_commit(lake.table.path, 1, metadata(schema_string({n: k for n, k in FIELDS.items() if n != "big"})))
    change(lake)
    with pytest.raises(TableRefused, match="lacks the column big"):
        lake.merge()
    write_commit(lake.table.path, 2, metadata(schema_string(FIELDS)), protocol("icebergCompatV2"))
    with pytest.raises(TableRefused, match="icebergCompatV2"):
        lake.merge()


def test_a_shape_that_changes_before_the_commit_is_met(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("shape"))
    change(lake)
    lake.merge()
    change(lake)
    path = lake.table.path
    new_versions = list[int]()

    def between() -> None:
        if not new_versions:
            new_versions.append(newest(path) + 1)
            write_commit(path, new_versions[0], metadata(schema_string({**FIELDS, "more": "string"})))

    lake.table.fields["more"] = "string"
    lake.merge(lake.open(between))
    assert new_versions and newest(path) == new_versions[0] + 1
    assert [a["txn"]["version"] for a in commit_of(path, newest(path)) if "txn" in a] == [2]
    oracle = Oracle()
    oracle.read(lake.source.lines, lake.offset)
    assert lake.rows() == oracle.rows


def test_indexes_beyond_the_memory_are_closed_and_made_anew(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("shed"))
    lake.tables = OpenTables(tmp_path / "index", memory=0)
    oracle = Oracle()
    for _ in range(2):
        change(lake)
        first = lake.open()
        lake.merge()
        lake.tables.shed()
        assert lake.open() is not first
        oracle.read(lake.source.lines, lake.offset)
        assert lake.rows() == oracle.rows


def test_what_a_table_has_beyond_its_share_of_the_memory_lies_on_the_disk(tmp_path: Path) -> None:
    by_memory = {}
    for memory in (16 << 8, 16 << 20):
        lake = Lake(tmp_path / str(memory), random.Random("shares"))
        lake.tables = OpenTables(tmp_path / str(memory) / "index", memory=memory)
        for _ in range(3):
            change(lake)
            lake.merge()
        on_disk = sum(path.stat().st_size for path in (tmp_path / str(memory) / "index").rglob("*.run"))
        assert lake.open().memory <= memory // 16
        by_memory[memory] = on_disk
    assert by_memory[16 << 8] > 0 == by_memory[16 << 20]


def test_the_bytes_of_all_vectors_are_counted_of_closed_tables_too(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("counted"))
    lake.tables = OpenTables(tmp_path / "index", memory=0)
    write(lake, *(folded_row(k, 1, offset=1) for k in "abcde"))
    assert lake.tables.rewritten_bytes == 0
    for offset, k in enumerate("abc", 2):
        write(lake, folded_row(k, 2, offset=offset))
        vectors = [path.stat().st_size for path in (tmp_path / "lake").rglob("deletion_vector_*.bin")]
        assert len(vectors) == offset - 1 and lake.tables.rewritten_bytes == sum(vectors)
        if k == "b":
            lake.tables.shed()


def folded_row(k: str, a: int, *, op: str = PUT, offset: int = 1, origin: str = "log", born: bool = False) -> Any:
    row = {"world": 1, "k": k, "a": a, "f": None, "big": "b"} if op == PUT else None
    key = {"world": 1, "k": k}
    line_marks = {"op": op, "offset": offset, "position": f"p{offset}", "commit_time": None, "origin": origin}
    return {"key": key, **line_marks, "inserted": born, "unchanged_toast": None, "row": row}


def write(lake: Lake, *rows: Any, merged: int = 0, begins: int | None = None) -> Any:
    """As the next merge."""
    lake.number += 1
    kinds = {"key": pa.struct([(c.name, c.type) for c in SHAPE.key_columns]), "op": pa.string(), "offset": pa.int64()}
    kinds |= {"position": pa.string(), "commit_time": pa.timestamp("us", tz="UTC"), "origin": pa.string()}
    kinds |= {"inserted": pa.bool_(), "unchanged_toast": pa.list_(pa.string())}
    kinds |= {"row": pa.struct([(c.name, c.type) for c in SHAPE.columns]), "origin_key": kinds["key"]}
    folded = pa.Table.from_pylist(list(rows), schema=pa.schema(list(kinds.items())))
    rows = FoldedRows.in_memory(folded)
    return upsert_rows.write(
        lake.open(), rows, SHAPE, APP, lake.number, merged=merged, withhold=lake.withheld.update, begins=begins
    )


def lake_rows(lake: Lake) -> dict[str, tuple[int, int]]:
    return {row["k"]: (row["a"], row[OFFSET]) for row in lake.table.read()}


def test_a_dumped_row_wins_over_older_ones_alone_and_says_nothing_twice(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("dumped"))
    write(lake, *(folded_row(k, 1, offset=50) for k in "abcde"))
    done = write(
        lake,
        folded_row("a", 2, offset=40, origin="dump"),  # from before the row
        folded_row("b", 1, offset=60, origin="dump"),  # as it is
        folded_row("c", 2, offset=61, origin="dump"),
        folded_row("d", 1, offset=62, origin="dump", born=True),  # deleted and born again before the dump came by
        folded_row("e", 1, offset=63),  # what the log tells is written
        merged=50,
    )
    assert lake_rows(lake) == {"a": (1, 50), "b": (1, 50), "c": (2, 61), "d": (1, 62), "e": (1, 63)}
    assert (done.older, done.unchanged, done.updated) == (1, 1, 3)


def test_what_was_merged_before_a_table_stopped_is_not_merged_again(tmp_path: Path) -> None:
    """Its commit was made, and the merge failed after it: the next one has the same rows, and later ones."""
    lake = Lake(tmp_path, random.Random("again"))
    write(lake, folded_row("a", 2, offset=50), folded_row("b", 2, offset=51))
    write(lake, folded_row("a", 1, offset=49), folded_row("b", 0, op="d", offset=51), merged=51)
    assert lake_rows(lake) == {"a": (2, 50), "b": (2, 51)}


def test_a_row_with_a_value_that_nobody_knows_goes_and_its_key_is_told(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("lost"))
    write(lake, folded_row("a", 1), folded_row("b", 1))
    write(lake, folded_row("a", 0, op=WITHHOLD, offset=9), folded_row("c", 0, op=WITHHOLD, offset=10))
    assert lake_rows(lake) == {"b": (1, 1)}
    assert lake.withheld == {(1, "a"), (1, "c")}


def moved_row(k: str, old: str, offset: int) -> Any:
    """A row whose column `big` the log has left out: it is that of the key `old`."""
    row = folded_row(k, 3, offset=offset)
    row["row"]["big"] = None
    return {**row, "unchanged_toast": ["big"], "origin_key": {"world": 1, "k": old}}


@pytest.mark.parametrize(("begins", "is_known"), [(None, True), (51, True), (50, False), (20, False)])
def test_a_later_row_of_the_old_key_has_no_value_for_a_row_that_moved_away(
    tmp_path: Path, begins: int | None, is_known: bool
) -> None:
    """The lake is ahead of what is merged again: the row that it has there now is another one."""
    lake = Lake(tmp_path, random.Random("moved"))
    write(lake, folded_row("c", 1, offset=50), folded_row("d", 1, offset=50))
    write(lake, moved_row("a", "c", 60), moved_row("d", "d", 61), merged=50, begins=begins)
    rows = lake.rows()
    assert rows[(1, "d")] == {"a": 3, "f": None, "big": "b"}
    assert rows.get((1, "a")) == ({"a": 3, "f": None, "big": "b"} if is_known else None)
    assert lake.withheld == (set() if is_known else {(1, "a")})


def test_what_a_deleted_row_had_is_nobodys(tmp_path: Path) -> None:
    """A line that leaves a column out follows the delete of its key: the lake's row is that of another life."""
    lake = Lake(tmp_path, random.Random("life"))
    build = lake.source.build
    build.create(SHAPE, {"world": 1, "k": "a", "a": 1, "f": None, "big": '"old"'})
    build.seal()
    lake.merge()
    build.delete(SHAPE, {"world": 1, "k": "a"})
    build.update(SHAPE, {"world": 1, "k": "a", "a": 2, "f": None, "big": None}, unchanged=["big"])
    build.seal()
    lake.merge()
    assert lake.rows() == {} and lake.withheld == {(1, "a")}


def test_no_rows_have_no_keys(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("none"))
    change(lake)
    rows = pa.concat_tables(lake.fold_sealed()[0])
    assert upsert_rows.keys_of(rows.filter(pa.array([False] * len(rows))), SHAPE) == []


def test_only_a_column_that_is_in_no_image_may_have_been_left_out(tmp_path: Path) -> None:
    """The file says that lines leave columns out, and those that this merge takes leave out none but the key's."""
    lake = Lake(tmp_path, random.Random("none left"))
    before, after = {"world": 1, "k": "a"}, {"world": 1, "k": None, "a": 2, "f": None, "big": "b"}
    lake.source.build.line(SHAPE, "u", before=before, after=after, unchanged=["k"])
    lake.source.build.seal()
    lake.merge()
    assert lake.rows() == {(1, "a"): {"a": 2, "f": None, "big": "b"}}
