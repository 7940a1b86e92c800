"""Files that share their keys become files that share none, in the order of the key; rows, marks and places stay."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer import stored_rows
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import cluster_files as module
from dblog_core.delta_writer.rewriting import key_overlap, ordered_rewrite, rewrite
from dblog_core.delta_writer.rewriting.cluster_files import cluster_files, plan_cluster
from dblog_core.delta_writer.rewriting.key_overlap import Overlap
from dblog_core.delta_writer.rewriting.ordered_rewrite import OrderedRewrite
from dblog_core.delta_writer.rewriting.rewrite import Rewritten, commit_rewritten
from dblog_core.errors import LakeError, LeaseLost
from tests.unit.delta_writer.tables import Table, commit_of, newest, row

TARGET = 24_000  # bytes, of some 100 rows


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of the same keys are too many. A row group takes hundreds of bytes, much of what a file has here."""
    monkeypatch.setattr(key_overlap, "FILES", 1.2)
    monkeypatch.setattr(ordered_rewrite, "_GROUPS", 2)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create_at(tmp_path)


def text(number: int, step: int = 0) -> str:
    """That does not become much shorter by compression."""
    return "".join(hashlib.sha512(f"{number} {step} {i}".encode()).hexdigest() for i in range(4))


def fill_mixed(table: Table, files: int = 4, rows: int = 100) -> OpenTable:
    """Files with keys from everywhere, a few of whose rows are dead."""
    writer = table.writer()
    for i in range(files):
        table.merge(writer, [row(k, text(k), offset=i) for k in range(i, files * rows, files)])
    table.merge(writer, [row(k, "changed", offset=9) for k in range(0, files * rows, 37)], [row(5), row(66)])
    return writer


def plan(writer: OpenTable, **options: Any) -> OrderedRewrite:
    planned = plan_cluster(writer, **{"target": TARGET, **options})
    assert isinstance(planned, OrderedRewrite)
    return planned


def carry_out(writer: OpenTable, **options: Any) -> Rewritten:
    rewritten = plan(writer, **options).carry_out()
    assert rewritten is not None
    return rewritten


def cluster_all(table: Table, writer: OpenTable, *, target: int = TARGET, together: int = 1 << 20) -> int:
    """How often files were put in order; the table is checked after each time."""
    count = 0
    while cluster_files(writer, target=target, together=together):
        count += 1
        assert count < 60, "it does not end"
        table.check()
    return count


def overlap_of(writer: OpenTable) -> Overlap:
    writer.refresh()
    names = [writer.snapshot.shape("t")[name].physical for name in writer.keys]
    live_files = writer.snapshot.files.values()
    return Overlap([key_overlap.KeyRange(f.size, key_overlap.ends_of(f.add["stats"], names)) for f in live_files])


def key_names(table: Table) -> list[str]:
    """As files have them."""
    return [f"col-{list(table.fields).index(name)}" if table.mapped else name for name in table.keys]


def stored_keys(table: Table, path: str) -> list[tuple[Any, ...]]:
    stored = pq.read_table(table.path / path)
    return list(zip(*(stored[name].to_pylist() for name in key_names(table)), strict=True))


def check_files(table: Table, version: int) -> None:
    """Each added file is in the order of the key, none has a key of another, and statistics are those of its rows."""
    added = [action["add"] for action in commit_of(table.path, version) if "add" in action]
    keys = [stored_keys(table, add["path"]) for add in added]
    assert all(file == sorted(file) for file in keys)
    ordered = sorted(keys)
    assert all(a[-1] < b[0] for a, b in pairwise(ordered))
    for add, file in zip(added, keys, strict=True):
        statistics = json.loads(add["stats"])
        assert statistics["numRecords"] == len(file)
        if isinstance(file[0][0], int):
            firsts = [key[0] for key in file]
            name = key_names(table)[0]
            ends = statistics["minValues"][name], statistics["maxValues"][name]
            assert ends == (min(firsts), max(firsts))


def test_files_come_to_share_no_keys(table: Table) -> None:
    writer = fill_mixed(table)
    assert overlap_of(writer).files > 3
    before = newest(table.path)
    assert cluster_all(table, writer) == 1
    assert newest(table.path) == before + 1
    check_files(table, newest(table.path))
    assert overlap_of(writer).files == 1.0 and len(writer.snapshot.files) > 2
    actions = [a.get("add") or a.get("remove") for a in commit_of(table.path, newest(table.path))]
    assert {a["dataChange"] for a in actions if a} == {False}
    assert all(live.vector is None for live in writer.snapshot.files.values())
    info = commit_of(table.path, newest(table.path))[0]["commitInfo"]
    assert info["operation"] == "OPTIMIZE"
    for k in (0, 17, 200, 399):
        assert [r["id"] for r in table.read(f"id = {k}")] == [k]


def test_the_index_knows_the_new_places_without_reading_files(table: Table) -> None:
    writer = fill_mixed(table)
    cluster_all(table, writer)
    index = writer._index
    assert index is not None and all(index.covers(path, f.size) for path, f in writer.snapshot.files.items())
    table.merge(writer, [row(k, "after", offset=20) for k in range(0, 420, 3)], [row(k) for k in range(1, 420, 9)])
    table.check()
    table.merge(table.writer(), [row(k, "by another", offset=21) for k in range(0, 420, 7)])
    table.check()


def test_keys_that_are_many_are_read_when_the_index_needs_them(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblog_core.delta_writer.data_file.KEY_BYTES", 1500)
    writer = fill_mixed(table)
    rewritten = carry_out(writer)
    assert rewritten.files[0].keys is not None and rewritten.files[-1].keys is None
    assert commit_rewritten(writer, rewritten)
    table.merge(writer, [row(k, "after", offset=20) for k in range(0, 420, 3)], [row(k) for k in range(1, 420, 9)])
    table.check()


def test_rows_that_die_meanwhile_are_dead_in_each_new_file(table: Table) -> None:
    writer = fill_mixed(table)
    rewritten = carry_out(writer)
    assert len(rewritten.files) > 2
    table.merge(writer, [row(k, "meanwhile", offset=15) for k in (1, 399)], [row(k) for k in range(2, 390, 3)])
    table.merge(writer, [row(k, "again", offset=16) for k in (1, 2, 200)])
    assert commit_rewritten(writer, rewritten)
    table.check()
    added = [action["add"] for action in commit_of(table.path, newest(table.path)) if "add" in action]
    assert len({add["deletionVector"]["offset"] for add in added}) == len(rewritten.files)
    assert {add["deletionVector"]["pathOrInlineDv"] for add in added} == {added[0]["deletionVector"]["pathOrInlineDv"]}
    table.merge(writer, [row(k, "after", offset=20) for k in range(0, 420, 2)], [row(k) for k in range(1, 420, 18)])
    table.check()


def test_a_new_file_whose_rows_all_die_meanwhile_is_not_added(table: Table) -> None:
    writer = fill_mixed(table)
    rewritten = carry_out(writer)
    first = rewritten.files[0]
    assert first.keys is not None
    table.merge(writer, [], [row(k) for k in first.keys["id"].to_pylist()])
    assert commit_rewritten(writer, rewritten)
    table.check()
    assert first.name not in writer.snapshot.files and len(rewritten.files) - 1 <= len(writer.snapshot.files)
    table.merge(writer, [row(k, "born", offset=20) for k in first.keys["id"].to_pylist()[:5]])
    table.check()


@pytest.mark.parametrize("emptied_by", ["delete", "restore"])
def test_where_others_empty_the_table_all_was_for_nothing(table: Table, emptied_by: str) -> None:
    writer = fill_mixed(table)
    rewritten = carry_out(writer)
    delta = DeltaTable(str(table.path))
    if emptied_by == "delete":
        delta.delete()
    else:
        delta.restore(0)
    table.rows.clear()
    assert not commit_rewritten(writer, rewritten)
    table.check()
    table.merge(writer, [row(1, "born", offset=20)])
    table.check()


def test_a_table_in_order_is_left_alone(table: Table) -> None:
    writer = table.writer()
    for i in range(4):
        table.merge(writer, [row(k, text(k)) for k in range(i * 100, i * 100 + 100)])
    assert plan_cluster(writer, target=TARGET) is None and plan_cluster(writer, target=TARGET // 3) is None
    assert plan_cluster(fill_mixed(Table.create_at(table.lake / "other"))) is None, "it is small"


def test_a_maintenance_asks_for_a_better_order_than_others(table: Table) -> None:
    writer = fill_mixed(table)
    assert plan_cluster(writer, target=TARGET, times=2.0) is not None
    assert plan_cluster(writer, target=TARGET, times=5.0) is None


def test_few_files_at_a_time_are_put_in_order_until_all_are(table: Table) -> None:
    writer = fill_mixed(table, files=12)
    largest = max(live.size for live in writer.snapshot.files.values())
    planned = plan(writer, together=3 * largest)
    sizes = [planned.ranges[source.live.path].bytes for source in planned.sources]
    assert len(sizes) >= 3 and sum(sizes) <= 3 * largest
    before = overlap_of(writer).files
    assert cluster_all(table, writer, together=3 * largest) > 3
    assert before > 10 and overlap_of(writer).files < before / 2


def test_merges_continue_between_and_it_ends(table: Table, soak_seed: int) -> None:
    dice = random.Random(soak_seed)
    writer = fill_mixed(table, files=8)
    for step in range(12):
        keys = dice.sample(range(900), 60)
        planned = plan_cluster(writer, target=TARGET, together=4 * TARGET)
        rewritten = None if planned is None else planned.carry_out()
        table.merge(writer, [row(k, text(k, step), offset=20 + step) for k in keys[:40]], [row(k) for k in keys[40:]])
        assert rewritten is None or commit_rewritten(writer, rewritten)
        table.check()
    cluster_all(table, writer, together=4 * TARGET)
    assert not cluster_files(writer, target=TARGET, together=4 * TARGET)


def test_rows_are_read_in_small_parts(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that are large, few are gathered at once; parts end anywhere, files between two parts."""
    monkeypatch.setattr(stored_rows, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(ordered_rewrite, "_PART_BYTES", 9000)
    monkeypatch.setattr(ordered_rewrite, "is_worth", lambda files, new_files, others: True)  # such groups are large
    gather = ordered_rewrite._Rows._gather
    sizes: list[int] = []

    def record_sizes(*arguments: Any) -> Any:
        for rows in gather(*arguments):
            sizes.append(rows.nbytes)
            yield rows

    monkeypatch.setattr(ordered_rewrite._Rows, "_gather", record_sizes)
    writer = fill_mixed(table)
    assert commit_rewritten(writer, carry_out(writer))
    assert max(sizes) < 10_000
    table.check()
    check_files(table, newest(table.path))
    assert overlap_of(writer).files == 1.0 and len(writer.snapshot.files) > 2


def test_only_row_groups_with_rows_of_a_part_are_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_rewrite, "_GROUPS", 8)
    writer = fill_mixed(table, rows=800)
    cluster_all(table, writer, target=6 * TARGET)
    table.merge(writer, [row(k, text(k), offset=30) for k in range(0, 3200, 3)])
    planned = plan(writer, target=6 * TARGET)
    read: dict[str, int] = {}
    stretches = stored_rows._Opened.read_stretches

    def count(opened: Any, *arguments: Any, **more: Any) -> Any:
        read[opened.where] = read.get(opened.where, 0) + 1
        return stretches(opened, *arguments, **more)

    monkeypatch.setattr(stored_rows._Opened, "read_stretches", count)
    rewritten = planned.carry_out()
    assert rewritten is not None and len(rewritten.files) > 1
    for source in planned.sources:
        url = writer.files.url(source.live.path)
        groups = pq.ParquetFile(table.path / source.live.path).num_row_groups
        if groups > 1:  # it was in order: once for its keys, and about once for its rows
            assert 2 * groups <= read[url] < 4 * groups
        else:  # once for each new file too
            assert read[url] > 3


def test_files_for_which_there_is_no_room_are_left_out(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = fill_mixed(table, files=6)
    assert len(carry_out(writer).sources) >= 6
    with monkeypatch.context() as small:
        small.setattr(ordered_rewrite, "MOST_ROWS", 350)
        rewritten = carry_out(writer)
        assert len(rewritten.sources) == 3 and sum(file.count for file in rewritten.files) <= 350
        assert commit_rewritten(writer, rewritten)
        table.check()
        small.setattr(ordered_rewrite, "MOST_ROWS", 10)
        assert plan(writer).carry_out() is None
    with monkeypatch.context() as small:
        small.setattr(ordered_rewrite, "_KEY_BYTES", 10)
        assert plan(writer).carry_out() is None and not cluster_files(writer, target=TARGET)
    assert cluster_files(writer, target=TARGET)
    table.check()


def test_large_files_become_several_before_they_are_put_in_order(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files of so many rows no two could be put in order at once."""
    monkeypatch.setattr("dblog_core.delta_writer.stored_rows._ROWS_AT_ONCE", 10)
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 1)
    writer = fill_mixed(table)
    large = max(writer.snapshot.files.values(), key=lambda live: live.rows or 0)
    assert large.rows is not None and not module.is_large(large)
    monkeypatch.setattr(module, "MOST_ROWS", 2 * large.rows - 2)
    assert module.is_large(large)
    split = plan_cluster(writer, target=TARGET)
    assert split is not None and split.sources[0].live.path in writer.snapshot.files and len(split.sources) == 1
    rewritten = split.carry_out()
    assert rewritten is not None and len(rewritten.files) > 1
    assert all(file.count <= large.rows - 1 for file in rewritten.files)
    assert cluster_all(table, writer) > 1 and split.sources[0].live.path not in writer.snapshot.files


def test_a_row_that_is_too_large_is_left_alone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = fill_mixed(table, rows=1)
    monkeypatch.setattr(module, "LARGEST", 100)
    monkeypatch.setattr(key_overlap.Overlap, "is_mixed", lambda overlap, times: True)
    assert plan_cluster(writer, target=100) is None


def test_a_file_of_dead_rows_alone_goes(table: Table) -> None:
    """A writer that leaves a file without a living row could bring it about."""
    writer = fill_mixed(table)
    planned = plan(writer)
    sources = tuple(replace(s, dead=s.dead.with_rows(np.arange(s.live.rows or 0))) for s in planned.sources)
    rewritten = replace(planned, sources=sources).carry_out()
    assert rewritten is not None and rewritten.files == ()


def test_a_rewrite_ends_where_it_is_asked_to(table: Table) -> None:
    planned = plan(fill_mixed(table))
    asked: list[int] = []

    def stop() -> None:
        asked.append(1)
        if len(asked) == 6:
            raise LeaseLost("another merge has taken the lake over")

    with pytest.raises(LeaseLost):
        planned.carry_out(stop)
    table.check()


def test_what_cannot_be_sorted_is_an_error_of_the_lake(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    planned = plan(fill_mixed(table))
    monkeypatch.setattr(OrderedRewrite, "_read_keys", fail)
    with pytest.raises(LakeError, match="no room"):
        planned.carry_out()
