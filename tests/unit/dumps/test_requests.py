"""What a dump request becomes: names and values checked against the catalogue, each table once, tasks without a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.dumps import dry_run, dump_records, dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import RequestError
from dblog_core.model.filters import FiledFilter, Literal, Typed
from dblog_core.model.watermark import Heals
from tests.unit import requests_world
from tests.unit.requests_world import CUSTOMERS, CUSTOMS, LINES, ORDERS, World, file_dump


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return requests_world.make(tmp_path, monkeypatch, chunk_size=10, workers=2)


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "tables"),
    [
        (("shop.cust*",), ["shop.customers", "shop.customs"]),
        (("shop.custom?",), ["shop.customs"]),
        (("*.orders",), ["shop.orders"]),
        (("shop.customs", "shop.cust*", "shop.customs"), ["shop.customs", "shop.customers"]),
        (("shop.orders", "shop.orders"), ["shop.orders"]),
        (None, ["shop.customers", "shop.customs", "shop.lines", "shop.orders"]),
    ],
)
def test_patterns_name_tables_each_once(world: World, names: tuple[str, ...] | None, tables: list[str]) -> None:
    status = file_dump(world, DumpRequest(names))
    assert list(status.tables) == tables
    assert [t.table for t in status.tasks] == tables


def test_a_pattern_is_no_regular_expression(world: World) -> None:
    for name in ("shop.custom.", "shop.(orders|lines)", "shop.[a-z]*", "shopXorders", "*", "SHOP.ord*"):
        with pytest.raises(RequestError, match="captured table"):
            file_dump(world, DumpRequest((name,)))
    assert dump_store.list_dumps(world.state) == []


def test_a_table_whose_name_looks_like_a_pattern_is_that_table(world: World) -> None:
    odd = requests_world.table("cust*")
    world.database.schemas[odd.table] = odd
    assert file_dump(world, DumpRequest(("shop.cust*",))).tables == ("shop.cust*",)


def test_a_table_without_a_key_is_refused_by_name_and_left_out_of_patterns(world: World) -> None:
    with pytest.raises(RequestError, match="no key") as refused:
        file_dump(world, DumpRequest(("shop.events",)))
    assert "give it a primary key, or a unique key" in str(refused.value)
    for names in (None, ("shop.*",), ("shop.e*", "shop.orders")):
        status = file_dump(world, DumpRequest(names))
        assert "shop.events" not in status.tables
        assert [r.table for r in status.refused] == ["shop.events"], "it is told what was left out"
    with pytest.raises(RequestError, match=r"shop\.events"):
        file_dump(world, DumpRequest(("shop.e*",)))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (DumpRequest(()), "no table is named"),
        (DumpRequest(("shop.nothing",)), "'shop.nothing' is not a captured table"),
        (DumpRequest(("shop.nothing*",)), "matches no captured table"),
        (DumpRequest(("shop.orders", "shop.nothing")), "'shop.nothing'"),
        (DumpRequest(("shop.o*", "shop.cust*"), keys=(1,)), "keys belong to one table"),
        (DumpRequest(None, key_from=1), "keys belong to one table"),
        (DumpRequest(("shop.orders",), keys=(1,), key_to=1), "both keys and a key range"),
        (DumpRequest(("shop.orders",), keys=(1,), filters=(("name", "=", "x"),)), "both keys and filters"),
        (DumpRequest(("shop.orders",), keys=(1,), ranges=2), "ranges"),
        (DumpRequest(("shop.orders",), keys=("1; DROP TABLE orders",)), "not a value of key column id"),
        (DumpRequest(("shop.lines",), key_from=1), "not a key of shop.lines"),
        (DumpRequest(("shop.orders",), key_from=100, key_to=1), "ends before it begins: from 100 to 1"),
        (DumpRequest(("shop.orders",), ranges=65), "65 ranges"),
        (DumpRequest(("shop.orders",), ranges=0), "0 ranges"),
        (DumpRequest(("shop.orders",), chunk_size=0), "chunk_size"),
        (DumpRequest(("shop.orders",), delay=float("nan")), "delay"),
        (DumpRequest(("shop.orders",), max_retained=-1), "max_retained"),
        (DumpRequest(("shop.orders",), filters=(("name", "like", "x%"),)), "like"),
        (DumpRequest(("shop.orders",), filters=(("nothing", "=", 1),)), "no column nothing"),
        (DumpRequest(("shop.orders",), filters=(("name; --", "=", 1),)), "no column name; --"),
        (DumpRequest(("shop.orders", "shop.lines"), filters=(("name", "=", "x"),)), r"shop\.lines has no column name"),
        (DumpRequest(("shop.orders",), filters=(("id", "=", "1 OR 1=1"),)), "id"),
        (DumpRequest(("shop.orders",), filters=(("name", "=", None),)), "name"),
        (DumpRequest(("shop.orders",), filters=(("name", "in", []),)), "name"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_name_and_not_filed(
    world: World, request_: DumpRequest, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        file_dump(world, request_)
    assert refused.value.fix
    assert dump_store.list_dumps(world.state) == []
    assert world.walked == [], "the source is not read for a request that is refused"


@pytest.mark.parametrize("rule", ["exclude", "mask", "hash"])
@pytest.mark.parametrize("tables", [("shop.orders",), ("shop.ord*",)])
def test_no_request_filters_by_a_column_that_a_rule_hides(
    world: World, rule: str, tables: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may see which keys a dump reads could find the value, comparison by comparison."""
    rules = {"shop.orders": {rule: ["name"]}}
    source = SourceConfig.model_validate({**world.config.source.model_dump(), "columns": rules})
    world.config = world.config.model_copy(update={"source": source})
    for value in (Typed("DE5secret"), "DE5secret", Literal("DE5secret", quoted=True), Literal("5", quoted=False), 7):
        hidden = (("name", ">=", value),)
        for request_ in (
            DumpRequest(tables, filters=hidden),
            DumpRequest(tables, filters=(("id", "=", 1), *hidden)),
            DumpRequest(tables, table_filters=(("shop.ord*", hidden),)),
        ):
            for carry_out in (filing.submit, dry_run.plan):
                with pytest.raises(RequestError, match=rf'"shop.orders".* hides name \({rule}\)') as refused:
                    carry_out(world.config, request_)
                assert refused.value.fix
                assert "DE5" not in f"{refused.value}{refused.value.__cause__}{caplog.text}"
    assert dump_store.list_dumps(world.state) == []
    assert world.walked == []
    open_filter = (("id", "=", 1),)
    assert filing.submit(world.config, DumpRequest(("shop.orders",), filters=open_filter))


# Keys and filters -----------------------------------------------------------------------------------------------------


def test_listed_keys_are_read_once_each_in_tasks_of_bounded_size(world: World) -> None:
    keys = [n % 6_000 for n in range(12_000)]
    status = file_dump(world, DumpRequest(("shop.orders",), keys=tuple(keys)))
    assert [len(t.record.keys or ()) for t in status.tasks] == [5_000, 1_000]
    assert sorted(k for t in status.tasks for k in t.record.keys or ()) == list(range(6_000))
    assert {(t.record.parts, t.record.heals is None, t.record.estimated) for t in status.tasks} == {
        (2, True, 5_000),
        (2, True, 1_000),
    }


@pytest.mark.parametrize(
    ("column", "operator", "text", "values"),
    [
        ("name", "=", "42", ["42"]),
        ("name", "=", '"42"', ["42"]),
        ("name", "=", "true", ["true"]),
        ("name", "=", "x'; DROP TABLE customers; --", ["x'; DROP TABLE customers; --"]),
        ("name", "in", '["a", "b"]', ["a", "b"]),
        ("born", ">=", "2026-11-01", ["2026-11-01"]),
        ("born", ">=", '"2026-11-01"', ["2026-11-01"]),
        ("balance", "<", "123456789012345678.10", ["123456789012345678.10"]),
        ("id", "in", "[1, 2]", [1, 2]),
        ("id", "=", "-5", [-5]),
    ],
)
def test_a_typed_value_is_what_its_column_makes_of_it(
    world: World, column: str, operator: str, text: str, values: list[Any]
) -> None:
    status = file_dump(world, DumpRequest(("shop.customers",), filters=((column, operator, Typed(text)),)))
    assert status.tasks[0].record.filters == (FiledFilter(column, operator, tuple(values)),)


@pytest.mark.parametrize(
    ("column", "operator", "text"),
    [
        ("id", "=", "one"),
        ("id", "=", "1.5"),
        ("id", "=", "[1]"),
        ("id", "in", "1"),
        ("name", "in", "a,b"),
        ("name", "=", "null"),
        ("born", "=", "yesterday"),
        ("balance", "=", "1e"),
    ],
)
def test_a_typed_value_that_does_not_fit_is_refused(world: World, column: str, operator: str, text: str) -> None:
    with pytest.raises(RequestError, match=column):
        file_dump(world, DumpRequest(("shop.customers",), filters=((column, operator, Typed(text)),)))


def test_filters_are_anded_and_a_filtered_dump_heals_nothing(world: World) -> None:
    world.fill(CUSTOMERS, [(n,) for n in range(1_000)])
    world.passing = 500
    tests = (("name", "=", "x"), ("id", ">", 5))
    status = file_dump(world, DumpRequest(("shop.customers",), filters=tests))
    assert len(status.tasks) > 1
    for task in status.tasks:
        assert [(f.column, f.op) for f in task.record.filters] == [("name", "="), ("id", ">")]
        assert task.record.heals is None
    assert sum(t.record.estimated or 0 for t in status.tasks) == pytest.approx(500, abs=len(status.tasks))


def test_a_filter_that_few_rows_pass_is_one_range_and_reads_no_boundaries(world: World) -> None:
    world.fill(CUSTOMERS, [(n,) for n in range(10_000)])
    world.passing = 3
    status = file_dump(world, DumpRequest(("shop.customers",), filters=(("name", "=", "x"),)))
    assert [(t.record.parts, t.record.estimated) for t in status.tasks] == [(1, 3)]
    assert world.walked == []


# Ranges ---------------------------------------------------------------------------------------------------------------


def count_covered(status: DumpStatus, keys: list[int]) -> list[int]:
    """How many of the keys each task reads; each key is read by exactly one."""
    tasks = status.tasks
    hits = [[i for i, t in enumerate(tasks) if _reads(t, key)] for key in keys]
    assert all(len(hit) == 1 for hit in hits), "every key belongs to one range"
    return [sum(hit == [i] for hit in hits) for i in range(len(tasks))]


def _reads(task: dump_records.TaskStatus, key: int) -> bool:
    above = (task.record.after is None or key > task.record.after) and (
        task.record.key_from is None or key >= task.record.key_from
    )
    return above and (task.record.key_to is None or key <= task.record.key_to)


@pytest.mark.parametrize("believed", [None, 0, 200, 3_000, 40_000, 2_000_000])
@pytest.mark.parametrize("step", [1, 1_000])
def test_ranges_cover_every_key_once_and_are_balanced_whatever_the_server_believes(
    world: World, believed: int | None, step: int
) -> None:
    keys = [n * n * step if n > 1_500 else n for n in range(3_000)]  # skewed
    world.fill(ORDERS, [(k,) for k in keys])
    if believed is not None:
        world.estimates[ORDERS.table] = believed
    status = file_dump(world, DumpRequest(("shop.orders",)))
    sizes = count_covered(status, keys)
    assert {(t.record.parts, t.record.heals) for t in status.tasks} == {(len(sizes), Heals())}
    assert (status.tasks[0].record.after, status.tasks[-1].record.key_to) == (None, None)
    if believed is not None and believed > 100 * len(keys):
        return  # so wrong that the sample is too coarse: fewer ranges, still without a gap
    assert len(sizes) == 8, "four for each of two workers"
    assert max(sizes) <= 1.5 * min(sizes)
    assert [t.record.estimated for t in status.tasks] == pytest.approx(sizes, abs=160)


def test_a_stale_estimate_never_makes_more_than_64_ranges(world: World) -> None:
    keys = list(range(50_000))
    world.fill(ORDERS, [(k,) for k in keys])
    world.estimates[ORDERS.table] = 1
    status = file_dump(world, DumpRequest(("shop.orders",), chunk_size=1, workers=64))
    assert len(status.tasks) == 64
    sizes = count_covered(status, keys[::7])
    assert max(sizes) <= 1.5 * min(sizes)


@pytest.mark.parametrize(("rows", "ranges"), [(0, 1), (1, 1), (200, 1), (220, 4), (320, 6), (5_000, 8)])
def test_small_tables_stay_whole_and_no_range_is_smaller_than_five_chunks(world: World, rows: int, ranges: int) -> None:
    world.fill(ORDERS, [(k,) for k in range(rows)])
    status = file_dump(world, DumpRequest(("shop.orders",)))
    assert len(status.tasks) == ranges


@pytest.mark.parametrize(
    ("range_count", "rows", "ranges"), [(1, 5_000, 1), (3, 5_000, 3), (64, 5_000, 64), (4, 12, 4), (4, 2, 2)]
)
def test_the_number_of_ranges_can_be_asked_for(world: World, range_count: int, rows: int, ranges: int) -> None:
    world.fill(ORDERS, [(k,) for k in range(rows)])
    status = file_dump(world, DumpRequest(("shop.orders",), ranges=range_count))
    assert len(status.tasks) == ranges
    count_covered(status, list(range(rows)))
    assert world.walked or range_count == 1, "one range needs no boundaries"


def test_a_key_order_that_no_index_serves_is_read_in_one_range(world: World) -> None:
    world.fill(ORDERS, [(k,) for k in range(5_000)])
    world.scans.add(ORDERS.table)
    assert len(file_dump(world, DumpRequest(("shop.orders",), ranges=8)).tasks) == 1
    assert world.walked == []


def test_a_key_range_keeps_its_ends_and_heals_between_them(world: World) -> None:
    world.fill(ORDERS, [(k,) for k in range(10_000)])
    status = file_dump(world, DumpRequest(("shop.orders",), key_from=1_000, key_to=5_999))
    sizes = count_covered(status, list(range(1_000, 6_000)))
    assert len(sizes) == 8
    assert not any(_reads(t, k) for t in status.tasks for k in (999, 6_000))
    assert {t.record.heals for t in status.tasks} == {Heals(1000, 5999)}
    assert [(t.record.key_from, t.record.after is None) for t in status.tasks] == [(1_000, True), *[(None, False)] * 7]


def test_a_small_part_of_a_huge_table_is_cut_by_its_own_size(world: World) -> None:
    world.fill(ORDERS, [(k,) for k in range(10_000)])
    world.estimates[ORDERS.table] = 10**9
    status = file_dump(world, DumpRequest(("shop.orders",), key_from=1_000, key_to=5_999))
    assert max(count_covered(status, list(range(1_000, 6_000)))) <= 700
    assert sum(t.record.estimated or 0 for t in status.tasks) == pytest.approx(5_000, rel=0.02)


def test_only_the_database_tells_the_order_of_texts(world: World) -> None:
    world.fill(CUSTOMS, [(f"{k:05}",) for k in range(100)])
    (task,) = file_dump(world, DumpRequest(("shop.customs",), key_from="b", key_to="a")).tasks
    assert (task.record.key_from, task.record.after, task.record.key_to) == ("b", None, "a")


def test_a_range_of_one_key_is_a_range(world: World) -> None:
    world.fill(ORDERS, [(k,) for k in range(100)])
    (task,) = file_dump(world, DumpRequest(("shop.orders",), key_from=5, key_to=5)).tasks
    assert (task.record.key_from, task.record.key_to) == (5, 5)


def test_only_keys_that_the_lake_orders_as_the_database_does_heal_a_range(world: World) -> None:
    world.fill(CUSTOMS, [(f"{k:05}",) for k in range(1_000)])
    world.fill(LINES, [(k // 10, str(k % 10)) for k in range(1_000)])
    assert {t.record.heals for t in file_dump(world, DumpRequest(("shop.customs",), key_from="00100")).tasks} == {None}
    lines = file_dump(world, DumpRequest(("shop.lines",), key_to=[50, "x"]))
    assert len(lines.tasks) > 1
    assert {t.record.heals for t in lines.tasks} == {None}
    whole = file_dump(world, DumpRequest(("shop.customs",)))
    assert {t.record.heals for t in whole.tasks} == {Heals()}


def test_each_table_of_a_dump_has_its_own_ranges(world: World) -> None:
    world.fill(ORDERS, [(k,) for k in range(5_000)])
    world.fill(CUSTOMERS, [(k,) for k in range(30)])
    status = file_dump(world, DumpRequest(None))
    parts = {t.table: t.record.parts for t in status.tasks}
    assert parts == {"shop.customers": 1, "shop.customs": 1, "shop.lines": 1, "shop.orders": 8}
    assert [t.number for t in status.tasks] == list(range(11))


def test_options_come_from_the_request_and_else_from_the_configuration(world: World) -> None:
    request = DumpRequest(("shop.orders",), workers=5, adaptive=True, max_retained=1 << 40)
    options = file_dump(world, request).options
    assert (options.workers, options.adaptive, options.max_retained) == (5, True, 1 << 40)
    assert (options.chunk_size, options.delay, options.rate, options.in_flight) == (10, 0.0, 0, 16)


def test_nobody_sees_a_dump_before_it_is_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    create = world.state.create
    seen = []

    def watching(path: str, data: bytes) -> None:
        seen.append([d.id for d in dump_store.list_dumps(world.state)])
        create(path, data)

    monkeypatch.setattr(world.state, "create", watching)
    world.fill(ORDERS, [(k,) for k in range(5_000)])
    filing.submit(world.config, DumpRequest(("shop.orders",)), state=world.state)
    assert seen == [[]] * 2, "the list of what is unfinished, and the dump"
    assert len(dump_store.list_dumps(world.state)) == 1
