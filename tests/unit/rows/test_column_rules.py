"""Column rules that fit no table or column: refused by name, and nothing of their tables passes in the open."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pydantic import SecretStr

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.config.settings import Config
from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.dumps import dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import ConfigError, RequestError, SourceRefused
from dblog_core.interfaces import Problem
from dblog_core.model import watermark
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import High, Mark
from dblog_core.monitoring import held_tables
from dblog_core.rows import column_rule_faults
from dblog_core.rows.column_rules import MASK, Rules
from dblog_core.rows.row_hashes import is_compared
from dblog_core.state import owed_dumps, rule_acceptances, settings_in_force, stopped_tables
from tests.fake_source import ORDERS, FakeSource
from tests.unit.reload_world import A, B
from tests.unit.reload_world import World as Capture
from tests.unit.workers_world import World, world
from tests.waiting import wait_until

__all__ = ["world"]

SECRET = "qZx7 in the open"
RENAMED = TableSchema(A.table, (A.columns[0], Column("w", "text", pa.string())), A.key)
RULES = '[source.columns."shop.a"]\nmask = ["v"]'


def faults_of_rules(columns: Iterable[str], key: Iterable[str], **rules: Any) -> list[tuple[str, str]]:
    rules_by_table = {"shop.a": ColumnRules.model_validate(rules)}
    return [(p.what, p.fix) for p in column_rule_faults.of_table("shop.a", tuple(columns), tuple(key), rules_by_table)]


@pytest.mark.parametrize("rule", column_rule_faults.RULES)
def test_a_rule_of_a_column_that_is_not_there_is_told_with_the_column_that_was_meant(rule: str) -> None:
    value = {"IBAN": "text"} if rule == "staged_as" else ["IBAN"]
    ((what, fix),) = faults_of_rules(("id", "iban"), ("id",), **{rule: value})
    assert what == f'[source.columns."shop.a"] {rule}: shop.a has no column IBAN'
    assert "(to iban?)" in fix and fix.endswith("its columns are iban, id")
    assert (
        faults_of_rules(("id", "iban"), ("id",), **{rule: {"iban": "text"} if rule == "staged_as" else ["iban"]}) == []
    )


def test_a_rule_of_a_key_column_is_told() -> None:
    ((what, _),) = faults_of_rules(("id", "iban"), ("id",), hash=["id"])
    assert what.endswith("hash: id belongs to the key of shop.a")


def test_rules_of_a_table_that_is_not_captured_are_told_with_the_table_that_was_meant() -> None:
    rules = {name: ColumnRules(mask=("v",)) for name in ("shop.a", "shop.custmers")}
    (problem,) = column_rule_faults.of_missing({"shop.a", "shop.customers"}, rules)
    assert problem.table == "shop.custmers" and "(to shop.customers?)" in problem.fix


def test_nothing_of_a_table_that_its_rules_do_not_fit_passes() -> None:
    rules = Rules({"shop.a": ColumnRules(mask=("v",))})
    rows = pa.RecordBatch.from_pylist([{"id": 1, "w": SECRET}], RENAMED.arrow)
    misfit = rules.misfit(RENAMED)
    assert misfit is not None and misfit.table == "shop.a" and rules.misfit(A) is None
    for attempt in (lambda: rules.rows(RENAMED, rows), lambda: rules.schema(RENAMED)):
        with pytest.raises(ConfigError, match="has no column v"):
            attempt()


@pytest.mark.parametrize(
    "name", ["_people_gho", "_people_del", "_people_new", "people_old", "old_people", "people2", "PEOPLE", "people$1"]
)
@pytest.mark.parametrize("schema", ["shop", "archive"])
def test_nothing_of_a_table_that_looks_like_a_copy_of_one_with_rules_passes_without_an_entry(
    schema: str, name: str
) -> None:
    table = f"{schema}.{name}"
    by_table = {"shop.people": ColumnRules(mask=("v",), exclude=("note",))}
    columns = [Column(c, "text", pa.string()) for c in ("id", "v", "note")]
    copy = TableSchema(TableName(schema, name), tuple(columns), ("id",))
    rows = pa.RecordBatch.from_pylist([{"id": "1", "v": SECRET, "note": SECRET}], copy.arrow)
    rules = Rules(by_table)
    misfit = rules.misfit(copy)
    assert misfit is not None and misfit.table == table
    assert misfit.what == f"{table} has no rules, and all columns that the rules of shop.people hide (note, v)"
    assert f'[source.columns."{table}"]' in misfit.fix
    for attempt in (lambda: rules.rows(copy, rows), lambda: rules.schema(copy)):
        with pytest.raises(ConfigError, match="has no rules"):
            attempt()
    decided = Rules({**by_table, table: ColumnRules()})
    assert decided.misfit(copy) is None and decided.rows(copy, rows).equals(rows)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("peoples", ("id", "v")),
        ("townspeople", ("id", "v")),
        ("staff", ("id", "v")),
        ("people_old", ("id", "w")),
    ],
)
def test_a_table_of_another_name_or_other_columns_needs_no_entry(name: str, columns: tuple[str, ...]) -> None:
    shape = TableSchema(TableName("shop", name), tuple(Column(c, "text", pa.string()) for c in columns), ("id",))
    rules = Rules({"shop.people": ColumnRules(mask=("v",)), "shop.peop": ColumnRules(staged_as={"v": "text"})})
    assert rules.misfit(shape) is None and rules.schema(shape) is shape


@pytest.mark.parametrize(
    ("columns", "rules"),
    [
        ((), {}),
        ((), {"shop.other": ColumnRules(mask=("a",))}),
        (("a", "b"), {"shop.t": ColumnRules(exclude=("a", "b"))}),
    ],
)
def test_a_shape_without_a_column_stops_its_table_alone(
    columns: tuple[str, ...], rules: dict[str, ColumnRules]
) -> None:
    schema = TableSchema(TableName("shop", "t"), tuple(Column(name, "int", pa.int32()) for name in columns), ())
    misfit = Rules(rules).misfit(schema)
    assert misfit is not None and misfit.table == "shop.t" and "no column to stage" in misfit.what
    assert not misfit.fatal
    (problem,) = column_rule_faults.of_table("shop.t", columns, (), rules)
    assert problem == misfit


def test_two_processes_have_a_digest_in_common_only_where_their_rules_are_the_same() -> None:
    table = TableName("shop", "a")
    rules = [
        *(ColumnRules(), ColumnRules(mask=("v",)), ColumnRules(hash=("v",)), ColumnRules(exclude=("v",))),
        *(ColumnRules(mask=("v", "w")), ColumnRules(staged_as={"v": "text"})),
    ]
    digests = [Rules({"shop.a": column_rules}).digest(table) for column_rules in rules]
    assert len({"", *digests}) == len(rules) + 1
    assert Rules({"shop.a": ColumnRules(mask=("w", "v"))}).digest(table) == digests[4]
    assert Rules({}).digest(table) == ""


# A capture ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Its source refuses what a real one does."""
    ruled_capture = Capture(tmp_path, monkeypatch)
    tables = FakeSource.tables

    def open_source(config: SourceConfig) -> FakeSource:
        source = ruled_capture.source(config)
        source.rules = config.columns  # type: ignore[attr-defined]
        return source

    def find_refusals(self: FakeSource) -> tuple[Problem, ...]:
        rules, shapes = self.rules, tables(self)  # type: ignore[attr-defined]
        rule_faults = [
            p for s in shapes for p in column_rule_faults.of_table(str(s.table), s.arrow.names, s.key, rules)
        ]
        return (*rule_faults, *column_rule_faults.of_missing({str(s.table) for s in shapes}, rules))

    def usable(self: FakeSource) -> tuple[TableSchema, ...]:
        left_out = {problem.table for problem in find_refusals(self)}
        return tuple(s for s in tables(self) if str(s.table) not in left_out)

    monkeypatch.setattr(FakeSource, "check", lambda self: list(find_refusals(self)))
    monkeypatch.setattr(FakeSource, "list_refusals", find_refusals)
    monkeypatch.setattr(FakeSource, "tables", usable)
    monkeypatch.setattr(wiring, "open_source", open_source)
    ruled_capture.write("shop.?", more=RULES)
    return ruled_capture


def rename(capture: Capture, shape: TableSchema, old: str, new: str) -> None:
    """The table has this shape from here on."""
    with capture.database.lock:
        capture.database.schemas[shape.table] = shape
        rows = capture.database.rows[shape.table]
        rows.update({key: {new if n == old else n: v for n, v in row.items()} for key, row in rows.items()})


def put(capture: Capture, shape: TableSchema, row: dict[str, Any]) -> None:
    capture.database.commit(capture.database.put(row, shape.table))


def written_bytes(capture: Capture) -> bytes:
    return b"".join(path.read_bytes() for path in (capture.path / "staging").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "rules",
    ['[source.columns."shop.c"]\nmask = ["v"]', '[source.columns."shop.a"]\nmask = ["V"]'],
    ids=["another table", "another case"],
)
def test_a_capture_does_not_begin_with_a_rule_that_fits_nothing(capture: Capture, rules: str) -> None:
    capture.write("shop.?", more=rules)
    with pytest.raises(SourceRefused, match=r"source\.columns"):
        capture.capture()
    assert wiring.open_staging(capture.config).head() is None


def test_a_rule_that_fits_nothing_does_not_come_into_force_while_a_capture_runs(
    capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    capture.capture()
    with capture.capturing():
        capture.write("shop.?", more='[source.columns."shop.a"]\nmask = ["W"]')
        wait_until(lambda: "shop.a has no column W" in caplog.text, "the file is refused")
        capture.put(A, 1, v=SECRET)
        wait_until(lambda: capture.lines(A), "the row is staged")
    assert [line["after"]["v"] for line in capture.lines(A) if line["op"] == "c"] == [MASK]


def rename_the_ruled_column(capture: Capture) -> None:
    """Once a row with it is staged; a row under the new name follows."""
    wait_until(lambda: capture.lines(A), "the first row is staged")
    rename(capture, RENAMED, "v", "w")
    put(capture, RENAMED, {"id": 2, "w": SECRET})


def test_a_table_whose_ruled_column_is_renamed_stops_alone_until_a_rule_fits_again(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_reload, "NEWCOMERS", 3600)  # the log alone tells of it
    capture.capture()
    capture.put(A, 1, v=SECRET)
    with capture.capturing():
        rename_the_ruled_column(capture)
        capture.put(B, 1)
        wait_until(lambda: any(line["op"] == "c" for line in capture.lines(B)), "the other table goes on")
        entry = wait_until(lambda: stopped_tables.read(capture.records).get("shop.a"), "the table is stopped")
        assert "shop.a has no column v" in entry.why and "its columns are id, w" in entry.fix
        with pytest.raises(RequestError, match="has no column v"):
            filing.submit(capture.config, DumpRequest(("shop.a",)))
        assert SECRET.encode() not in written_bytes(capture)
        capture.write("shop.?", more=RULES.replace('"v"', '"w"'))
        wait_until(lambda: [d.state for d in dump_store.list_dumps(capture.state)] == ["done"], "it is dumped")
        put(capture, RENAMED, {"id": 3, "w": SECRET})
        wait_until(lambda: len(capture.replay(A)) == 3, "its log flows again")
    assert capture.replay(A) == {(key,): {"id": key, "w": MASK} for key in (1, 2, 3)}
    assert stopped_tables.read(capture.records) == {} and SECRET.encode() not in written_bytes(capture)


def test_a_table_whose_column_comes_back_is_dumped_once_somebody_accepts_it(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.1)
    failures: list[object] = []
    monkeypatch.setattr(owed_dumps, "record_failures", lambda records, dump, reasons: failures.append(reasons))
    capture.capture()
    capture.put(A, 1, v=SECRET)
    with capture.capturing():
        rename_the_ruled_column(capture)
        wait_until(lambda: "shop.a" in stopped_tables.read(capture.records), "the table is stopped")
        rename(capture, A, "w", "v")
        capture.put(A, 3, v=SECRET)
        capture.put(B, 1)
        wait_until(lambda: any(line["op"] == "c" for line in capture.lines(B)), "the other table goes on")
        assert dump_store.list_dumps(capture.state) == []
        config = capture.config
        source, staging = wiring.open_source(config.source), wiring.open_staging(config)
        held_tables.accept(config, source, staging, capture.state, ["shop.a"])
        wait_until(lambda: [d.state for d in dump_store.list_dumps(capture.state)] == ["done"], "it is dumped")
    assert rule_acceptances.read(capture.state) == {}
    assert not any(failures), "no dump has failed: it waited for the manifest with the acceptance"
    assert capture.replay(A) == {(key,): {"id": key, "v": MASK} for key in (1, 2, 3)}
    assert SECRET.encode() not in written_bytes(capture)


def test_a_ruled_column_that_has_gone_while_no_capture_ran_stops_its_table_alone(capture: Capture) -> None:
    capture.capture()
    capture.put(A, 1, v=SECRET)
    capture.capture()
    rename(capture, RENAMED, "v", "w")
    put(capture, RENAMED, {"id": 2, "w": SECRET})
    capture.put(B, 1)
    capture.capture()
    assert [line["op"] for line in capture.lines(B)] == ["s", "c"]
    assert list(stopped_tables.read(capture.records)) == ["shop.a"] and SECRET.encode() not in written_bytes(capture)


# Workers --------------------------------------------------------------------------------------------------------------


def with_rules(config: Config, **rules: Any) -> Config:
    columns = {"shop.orders": ColumnRules.model_validate(rules)} if rules else {}
    return config.model_copy(update={"source": config.source.model_copy(update={"columns": columns})})


def test_a_chunk_of_a_worker_with_older_rules_is_refused_and_read_again_under_the_new_ones(world: World) -> None:
    """The worker has looked at the rules that are in force before the capture took up the new ones."""
    world.fill(1, 2, name=SECRET)
    world.request({})
    now = with_rules(world.config, mask=["name"])
    world.take_rules(now)
    catch_up = world.clock.hooks.append

    def restart() -> None:
        if world.status().tasks[0].progress.broken:
            world.config = now

    catch_up(restart)
    world.stop.clear()
    older = world.config

    def stop() -> None:
        if world.highs() and world.config is not older:
            world.stop.set()

    catch_up(stop)
    world.work()
    assert world.status().tasks[0].progress.broken and world.placed_keys() == []
    world.stop.clear()
    world.clock.hooks.remove(stop)
    world.work()
    assert world.status().state == "done" and world.placed_keys() == [1, 2]
    (placed,) = [ref for m in world.staging.manifests() for ref in m.chunks]
    assert world.staging.read_chunk(placed.path).column("name").to_pylist() == [MASK, MASK]


def test_a_worker_reads_nothing_while_the_capture_goes_by_other_rules(world: World) -> None:
    world.fill(1)
    world.request({})
    masked = settings_in_force.LiveSettings.of(with_rules(world.config, mask=["name"]).source)
    settings_in_force.put_in_force(world.records, masked)
    world.place()
    with pytest.raises(ConfigError, match="different rules for the columns"):
        world.work()
    assert world.source.reads == [] and world.highs() == []
    world.config = with_rules(world.config, mask=["name"])
    world.take_rules(world.config)
    world.work()
    assert world.status().state == "done"


def test_a_worker_fails_the_task_of_a_table_that_its_rules_do_not_fit(world: World) -> None:
    world.fill(1, name=SECRET)
    world.request({})
    world.config = with_rules(world.config, mask=["nam"])
    world.take_rules(world.config)
    with pytest.raises(ConfigError, match="has no column nam"):
        world.work()
    status = world.status()
    assert status.state == "failed" and "has no column nam" in str(status.error)
    staged = [path.read_bytes() for path in Path(world.config.staging.path).rglob("*") if path.is_file()]
    assert SECRET.encode() not in b"".join(staged)


def test_a_high_watermark_of_a_version_without_digests_is_of_no_rules() -> None:
    mark = Mark("shop", TaskId("d", 0), 1, 0, "0" * 32, "shop.orders")
    high = High(mark, None, 0, 0, "", ORDERS.fingerprint, None, final=True)
    text = watermark.encode(high)
    assert "rules" not in orjson.loads(text) and watermark.parse(text) == high
    ruled = replace(high, rules="0123456789abcdef")
    assert watermark.parse(watermark.encode(ruled)) == ruled


# A key of hashes ------------------------------------------------------------------------------------------------------

KEY = "0123456789abcdef of hashes"


def test_hashes_with_a_key_are_hmacs_whose_values_take_no_part_in_row_hashes() -> None:
    rules, plain = (Rules({"shop.a": ColumnRules(hash=("v",))}, key) for key in (KEY, ""))
    rows = pa.RecordBatch.from_pylist([{"id": 1, "v": "mail"}, {"id": 2, "v": None}], A.arrow)
    keyed = hmac.new(KEY.encode(), b"mail", hashlib.sha256).hexdigest()
    assert rules.rows(A, rows).column("v").to_pylist() == [keyed, None]
    assert plain.rows(A, rows).column("v").to_pylist() == [hashlib.sha256(b"mail").hexdigest(), None]
    assert [is_compared(c) for c in rules.shape_for_hashes(A).columns] == [True, False]
    assert plain.shape_for_hashes(A) == plain.schema(A) and rules.shape_for_hashes(A).arrow == rules.schema(A).arrow
    assert rules.digest(A.table) != plain.digest(A.table)


def test_another_key_has_tables_with_hashes_dumped_and_the_others_not(capture: Capture) -> None:
    more = 'hash_key = "{}"\n' + RULES.replace("mask", "hash")
    capture.write("shop.?", more=more.format(KEY))
    capture.put(A, 1, v=SECRET)
    capture.put(B, 1)
    capture.capture()
    capture.write("shop.?", more=more.format(KEY[::-1]))
    capture.capture()
    assert [tables for _, tables in capture.dumps()] == [("shop.a",)]
    assert KEY not in str(settings_in_force.read_in_force(capture.records)) and KEY[::-1] not in str(
        settings_in_force.read_in_force(capture.records)
    )
    assert not settings_in_force.has_same_rules(
        capture.records, capture.config.source.model_copy(update={"hash_key": SecretStr("")}), "shop.a"
    )


def test_rules_for_a_copy_that_leaves_columns_out_are_those_of_the_others() -> None:
    rules = Rules({"shop.a": ColumnRules(mask=("v",), hash=("w",))}).without(A.table, ["w"])
    assert rules.misfit(A) is None and rules.misfit(RENAMED) is not None
