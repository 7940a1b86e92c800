"""Keys of all types, and of several columns, whose files are put in order; those that statistics cannot tell apart."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dblog_core.delta_writer import stored_rows
from dblog_core.delta_writer.rewriting import key_overlap, ordered_rewrite
from dblog_core.delta_writer.rewriting.cluster_files import cluster_files, plan_cluster
from dblog_core.delta_writer.rewriting.rewrite import commit_rewritten
from tests.unit.delta_writer.rewriting.test_cluster_files import (
    TARGET,
    check_files,
    cluster_all,
    overlap_of,
    plan,
    stored_keys,
    text,
)
from tests.unit.delta_writer.tables import OFFSET, Row, Table, commit_of, newest

KINDS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "integer": ("long", lambda n: n - 300),
    "short integer": ("integer", lambda n: -n),
    "text": ("string", lambda n: f"é{n % 7}-{n}😀"),
    "long text": ("string", lambda n: f"{n % 5}" * 40 + f"{n}"),
    "decimal": ("decimal(20,4)", lambda n: Decimal(n * n - 5000) / 16),
    "day": ("date", lambda n: dt.date(1400, 1, 1) + dt.timedelta(days=n)),
    "time": ("timestamp", lambda n: dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=n * 700)),
}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of the same keys are too many."""
    monkeypatch.setattr(key_overlap, "FILES", 1.2)
    monkeypatch.setattr(ordered_rewrite, "_GROUPS", 2)


def two_columns(tmp_path: Path) -> Table:
    return Table.create_at(
        tmp_path, fields={"shop": "long", "id": "long", "note": "string", OFFSET: "long"}, keys=("shop", "id")
    )


def pair(shop: int, number: int, note: str = "") -> Row:
    return {"shop": shop, "id": number, "note": note or text(shop, number), OFFSET: 1}


@pytest.mark.parametrize("part_bytes", [1 << 29, 9000])
@pytest.mark.thorough
def test_rows_of_one_first_column_stay_in_one_file_where_they_can(
    tmp_path: Path, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows are large, and a part of them ends anywhere."""
    monkeypatch.setattr(ordered_rewrite, "_PART_BYTES", part_bytes)
    monkeypatch.setattr(stored_rows, "_ROWS_AT_ONCE", 7)
    table = two_columns(tmp_path)
    writer = table.writer()
    for i in range(4):
        table.merge(writer, [pair(k // 7, k % 7) for k in range(i, 720, 4)])
    assert cluster_all(table, writer) == 1
    added = [action["add"] for action in commit_of(table.path, newest(table.path)) if "add" in action]
    assert len(added) > 2
    shops = [{key[0] for key in stored_keys(table, add["path"])} for add in added]
    assert sum(map(len, shops)) == len(set().union(*shops))


@pytest.mark.parametrize("shops", [1, 3])
def test_a_first_column_of_few_values_is_ordered_by_the_next(tmp_path: Path, shops: int) -> None:
    table = two_columns(tmp_path)
    writer = table.writer()
    for i in range(4):
        table.merge(writer, [pair(k % shops, k) for k in range(i, 720, 4)])
    assert overlap_of(writer).files > 3
    cluster_all(table, writer)
    check_files(table, newest(table.path))
    # A file with the end of one value and the beginning of the next shares keys with all files of both.
    assert overlap_of(writer).files < (1.1 if shops == 1 else 3.5)
    assert not cluster_files(writer, target=TARGET)


def test_keys_that_statistics_cannot_tell_apart_are_left_alone(tmp_path: Path) -> None:
    """Binary keys have none; those of texts are cut: files would never be told apart."""
    for name, kind, value in (
        ("binary", "binary", lambda n: f"{n:05}".encode()),
        ("text", "string", lambda n: "https://www.example.org/articles/" + f"{n:05}"),
    ):
        fields = {"id": kind, "note": "string", OFFSET: "long"}
        table = Table.create_at(tmp_path / name, fields=fields)
        writer = table.writer()
        for i in range(4):
            table.merge(writer, [{"id": value(k), "note": text(k), OFFSET: 1} for k in range(i, 400, 4)])
        assert plan_cluster(writer, target=TARGET) is None
        table.check()


def test_a_column_without_statistics_comes_last_in_the_order(tmp_path: Path) -> None:
    fields = {"raw": "binary", "id": "long", "note": "string", OFFSET: "long"}
    table = Table.create_at(tmp_path, fields=fields, keys=("raw", "id"))
    writer = table.writer()
    for i in range(4):
        rows = [{"raw": bytes([k % 3]), "id": k // 2, "note": text(k), OFFSET: 1} for k in range(i, 400, 4)]
        table.merge(writer, rows)
    assert plan(writer).order == ("id", "raw")
    cluster_all(table, writer)
    assert not cluster_files(writer, target=TARGET)


@pytest.mark.parametrize("count", [40, 300])
def test_rows_without_a_key_stay(tmp_path: Path, count: int) -> None:
    """Another program has appended them. Files of such rows alone have no statistics: they are not worth it."""
    fields = {"id": "string", "note": "string", OFFSET: "long"}
    table = Table.create_at(tmp_path, fields=fields)
    writer = table.writer()
    for i in range(4):
        table.merge(writer, [{"id": f"{k:05}", "note": text(k), OFFSET: 1} for k in range(i, 400, 4)])
    foreign = [{"id": None, "note": text(k), OFFSET: k} for k in range(count)]
    write_deltalake(str(table.path), table.arrow(foreign), mode="append")
    writer.refresh()
    rewritten = plan(writer).carry_out()
    assert (rewritten is not None) == (count < 100)
    assert rewritten is None or commit_rewritten(writer, rewritten)
    rows_read = table.read()
    assert {r["note"] for r in rows_read if r["id"] is None} == {text(k) for k in range(count)}
    assert len(rows_read) == len(table.rows) + count
    assert [r for r in rows_read if r["id"] is not None] == table.model()


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_keys_of_each_type_come_to_share_none(tmp_path: Path, kind: str) -> None:
    delta_type, value = KINDS[kind]
    table = Table.create_at(tmp_path, fields={"id": delta_type, "note": "string", OFFSET: "long"}, mapped=True)
    writer = table.writer()
    for i in range(4):
        table.merge(writer, [{"id": value(k), "note": text(k), OFFSET: i} for k in range(i, 480, 4)])
    before = overlap_of(writer).files
    assert cluster_all(table, writer) == 1
    check_files(table, newest(table.path))
    # Statistics have milliseconds: files that follow each other may share one.
    most = 3.0 if kind == "time" else 1.0
    assert before > 3.9 and overlap_of(writer).files <= most and len(writer.snapshot.files) > 2


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.thorough
def test_keys_of_all_types(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    delta_type, value = KINDS[kind]
    fields = {"id": delta_type, "note": "string", OFFSET: "long"}
    table = Table.create_at(tmp_path_factory.mktemp("t"), fields=fields, mapped=data.draw(st.booleans()))
    writer = table.writer()

    def rows(numbers: list[int], step: int) -> list[Row]:
        return [{"id": value(n), "note": text(n, step), OFFSET: step} for n in numbers]

    dice = random.Random(data.draw(st.integers(0, 1 << 30)))
    for step in range(data.draw(st.integers(3, 5))):
        table.merge(writer, rows(dice.sample(range(500), 200), step), rows(dice.sample(range(500), 20), step)[:0])
    table.merge(writer, [], rows(dice.sample(range(500), data.draw(st.integers(0, 60))), 0))
    together = data.draw(st.sampled_from([4 * TARGET, 1 << 20]))
    planned = plan_cluster(writer, target=TARGET, together=together)
    rewritten = None if planned is None else planned.carry_out()
    table.merge(writer, rows(dice.sample(range(600), 30), 9))
    if rewritten is not None:
        assert commit_rewritten(writer, rewritten)
        table.check()
    cluster_all(table, writer, target=TARGET, together=together)
    table.merge(writer, rows(dice.sample(range(600), 100), 10))
    table.check()
    found = {tuple(key.values()) for key in ({"id": r["id"]} for r in table.read())}
    assert len(found) == len(table.rows)
