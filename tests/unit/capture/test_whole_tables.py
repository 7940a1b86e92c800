"""A table is incomplete until a full dump of it is merged, unless the log shows that it began without a row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.capture import background_threads, table_shapes
from dblog_core.capture.healing.owed_dump_requests import OwedDumps
from dblog_core.capture.run_capture import run_capture
from dblog_core.clock import SystemClock
from dblog_core.dumps import control, dump_records, dump_store
from dblog_core.dumps.dump_records import Refusal
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import WHOLE
from dblog_core.lake import table_health
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.merge_plan import Work, lacks_since
from dblog_core.model import position_spec
from dblog_core.model.events import Created, LogBatch, Rewritten, SchemaSeen, Transaction, Truncated, Unreadable
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import owed_dumps
from dblog_core.state.owed_dumps import OwedDump
from dblog_core.storage import Bytes
from dblog_core.storage.local import LocalStorage
from tests.fake_source import ORDERS
from tests.unit.airflow.test_probes import Log
from tests.unit.engine_world import World

TABLE, NAME = ORDERS.table, str(ORDERS.table)
CREATED, EMPTIED, SHOWN = Created(0, 0, TABLE), Truncated(0, 0, TABLE), SchemaSeen(0, 0, ORDERS)


def shapes(log: Log) -> list[bool | None]:
    """Whether the table was whole at each of its shapes, as far as the log says."""
    log.publish()
    return [
        m.whole for manifests in log.staging.manifests() for m in manifests.marks if m.op == "s" and m.table == NAME
    ]


def test_shapes_that_come_in_one_batch_are_stored_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    stored: list[int] = []
    create_missing = LocalStorage.create_missing

    def count(self: LocalStorage, files: Mapping[str, Bytes]) -> None:
        stored.append(len(files))
        create_missing(self, files)

    monkeypatch.setattr(LocalStorage, "create_missing", count)
    tables = [TableSchema(TableName("shop", f"t{n}"), ORDERS.columns, ORDERS.key) for n in range(70)]
    signals = [SchemaSeen(n, 0, table) for n, table in enumerate(tables)]
    left_out = Unreadable(0, 0, tables[0].table, "why", "fix")
    log.take(None, left_out)
    log.sequencer.process(LogBatch((), tuple(signals[1:]), (Transaction("1", "1", 1, None),), "1"))
    assert stored == [69]
    log.publish()
    head = log.staging.head()
    assert head is not None and len(head.schemas) == 69
    reader = Staging(str(tmp_path), source="shop")
    assert [reader.schema(fingerprint) for fingerprint in head.schemas.values()] == tables[1:]


@pytest.mark.parametrize(
    ("signals", "whole"),
    [
        ([], None),
        ([CREATED], True),
        ([EMPTIED], True),
        ([CREATED, Rewritten(0, 0, TABLE)], None),
        ([Rewritten(0, 0, TABLE), EMPTIED], True),
        ([CREATED, Unreadable(0, 0, TABLE, "why", "fix")], None),
    ],
)
def test_the_first_shape_says_whether_the_table_had_no_row_before(
    tmp_path: Path, signals: list[Any], whole: bool | None
) -> None:
    log = Log(tmp_path)
    for signal in signals:
        log.take(None, signal)
        log.publish()
        log.restart()
    log.take(None, SHOWN)
    unproven = log.sequencer.tables.follow_ups.take_unproven()
    assert unproven.keys() == (set() if whole else {TABLE})
    assert shapes(log) == [whole]
    head = log.staging.head()
    assert head is not None and head.born == ()


def test_a_table_that_is_stopped_before_its_first_shape_has_missed_rows(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.take(None, CREATED)
    log.sequencer.tables.stop([NAME])
    log.take(None, CREATED)
    log.publish()
    head = log.staging.head()
    assert head is not None and head.born == ()


def test_only_the_first_shape_says_it(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.take(None, CREATED)
    log.take(None, SHOWN)
    wider = TableSchema(TABLE, (*ORDERS.columns, Column("more", "int", pa.int64())), ORDERS.key)
    log.take(None, CREATED)  # somebody has created it IF NOT EXISTS, say
    log.take(None, SchemaSeen(0, 0, wider))
    assert shapes(log) == [True, None]


def test_a_table_that_is_given_a_key_is_dumped(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.take(None, CREATED)
    log.take(None, SchemaSeen(0, 0, replace(ORDERS, key=())))
    assert log.sequencer.tables.follow_ups.take_rewritten() == {}
    log.take(None, SHOWN)
    assert log.sequencer.tables.follow_ups.take_rewritten().keys() == {TABLE}
    log.take(None, SHOWN)
    assert log.sequencer.tables.follow_ups.take_rewritten() == {}


def test_a_column_that_comes_back_in_another_case_is_renamed_and_the_table_is_dumped(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.take(None, CREATED)
    log.take(None, SHOWN)
    name = next(column.name for column in ORDERS.columns if column.name not in ORDERS.key)
    columns = tuple(replace(c, name=c.name.upper()) if c.name == name else c for c in ORDERS.columns)
    log.take(None, SchemaSeen(0, 0, replace(ORDERS, columns=columns)))
    assert log.sequencer.tables.follow_ups.take_rewritten().keys() == {TABLE}
    log.publish()
    marks = [mark for manifest in log.staging.manifests() for mark in manifest.marks if mark.op == "s"]
    assert [(mark.renamed, mark.whole) for mark in marks] == [(None, True), ({name.upper(): name}, False)]


def test_of_too_many_tables_without_a_shape_the_oldest_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_shapes, "MOST_EMPTY", 2)
    log = Log(tmp_path)
    for name in ("a", "b", "a", "c"):
        log.take(None, Created(0, 0, replace(TABLE, name=name)))
    log.publish()
    head = log.staging.head()
    assert head is not None and head.born == (f"{TABLE.schema}.a", f"{TABLE.schema}.c")


def mark(offset: int, op: str, **more: Any) -> LogMark:
    return LogMark(offset, op, "shop.t", "", 0, **more)


def shape(offset: int, *, whole: bool | None = None) -> LogMark:
    return mark(offset, "s", schema="a", whole=whole)


def full(offset: int, since: int, **more: Any) -> LogMark:
    return mark(offset, "f", since=since, **more)


@pytest.mark.parametrize(
    ("marks", "before", "lacks"),
    [
        ([], 0, 0),
        ([], None, None),
        ([shape(3)], 0, 0),
        ([shape(3)], None, None),
        ([shape(3, whole=True)], 0, None),
        ([full(9, 2)], 0, None),
        ([full(9, 2, key_from=1)], 0, 0),
        ([mark(4, "t")], 0, None),
        ([shape(5, whole=False)], None, 5),
        ([shape(5, whole=False), full(9, 4)], None, 5),
        ([shape(5, whole=False), full(9, 5)], None, None),
        ([shape(5, whole=False), mark(7, "t")], None, None),
        ([full(4, 1), shape(5, whole=False)], 0, 5),
        ([mark(4, "t"), shape(5, whole=False)], 0, 5),
        ([full(9, 5)], 6, 6),
    ],
)
def test_what_a_table_lacks_is_known_to_be_there_by_an_empty_table_or_a_full_dump(
    marks: list[LogMark], before: int | None, lacks: int | None
) -> None:
    of: Callable[[str], tuple[LogMark, ...]] = lambda op: tuple(m for m in marks if m.op == op)  # noqa: E731
    assert lacks_since(Work("shop.t", "a", truncates=of("t"), finished=of("f"), reshaped=of("s")), before) == lacks


def test_a_fresh_start_tells_that_every_table_waits_for_its_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none can be requested, for any later one."""
    world = World(tmp_path, monkeypatch)
    world.capture()
    world.put(1)
    world.capture()
    world.capture_until_dumped(fresh_start=True)
    manifests = [m for manifest in world.staging.manifests() for m in manifest.marks if m.op == "s"]
    (dump,) = dump_store.list_dumps(world.state)
    assert [(m.dump, m.whole) for m in manifests] == [(None, None), (dump.id, None)]
    world.put(2)
    monkeypatch.setattr(world.source, "tables", lambda: ())
    run_capture(world.config, stop=threading.Event(), until_current=True, fresh_start=True)
    manifests = [m for manifest in world.staging.manifests() for m in manifest.marks if m.op == "s"]
    assert [(m.dump, m.whole) for m in manifests[2:]] == [(None, False)]


def test_with_an_initial_dump_a_table_that_comes_later_is_dumped_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the log shows that it began empty, or a dump of it is under way."""
    world = World(tmp_path, monkeypatch)
    world.config = world.config.model_copy(
        update={"source": world.config.source.model_copy(update={"start": "initial"})}
    )
    monkeypatch.setattr(background_threads, "HOUSEKEEPING_SECONDS", 3600.0)  # nobody works on dumps
    world.capture()
    world.put(1)
    world.capture()
    (first,) = dump_store.list_dumps(world.state)
    later = replace(ORDERS, table=replace(TABLE, name="later"))
    world.database.schemas[later.table] = later
    world.database.commit(world.database.put({"id": 1, "name": "n", "big": "b"}, later.table))
    world.capture()
    (second,) = (d for d in dump_store.list_dumps(world.state) if d.id != first.id)
    assert second.tables == (str(later.table),) and second.requested_by == dump_records.SYSTEM
    marks = [m for manifests in world.staging.manifests() for m in manifests.marks if m.table == str(later.table)]
    assert [(m.op, m.whole, m.dump) for m in marks] == [("s", None, None), ("s", None, second.id)]
    monkeypatch.setattr(position_spec, "INITIAL", "never")
    third = replace(ORDERS, table=replace(TABLE, name="third"))
    world.database.schemas[third.table] = third
    world.database.commit(world.database.put({"id": 1, "name": "n", "big": "b"}, third.table))
    world.capture()
    assert len(dump_store.list_dumps(world.state)) == 2


INCOMPLETE = TableStatus(State.INCOMPLETE, None, 3, 30)


def test_a_table_that_only_lacks_a_dump_waits_for_nothing_that_the_merge_has_asked_for() -> None:
    assert INCOMPLETE.waits  # by an older version
    lacking = replace(INCOMPLETE, lacks=0)
    assert not lacking.waits
    assert replace(lacking, awaits="d1").waits and replace(lacking, withheld=2).waits
    assert (
        lacking.with_applied_rows(0) == lacking and replace(lacking, lacks=None).with_applied_rows(0).state is State.OK
    )
    assert replace(lacking, lacks=None).with_applied_rows(2).state is State.INCOMPLETE


def test_an_incomplete_table_says_why_and_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    world.put(1)
    lacking = replace(INCOMPLETE, lacks=0)
    owed = {NAME: OwedDump("d1", "NaN in n", 1)}

    def health_text(table: TableStatus, **owed: Any) -> str:
        return ": ".join(map(str, table_health.of_table(NAME, table, dump_store.list_dumps(world.state), owed)))

    assert "no full dump of it is merged: `dblog dump --table shop.orders`" in health_text(lacking)
    assert "dump d1 has failed: NaN in n: repair that" in health_text(lacking, **owed)
    assert "waits for dump d9, which is no longer known: `dblog dump" in health_text(replace(INCOMPLETE, awaits="d9"))
    damaged = replace(INCOMPLETE, damage="commit 7 (RESTORE) has brought back an older version", damaged_at=30)
    assert "RESTORE" in health_text(replace(damaged, awaits="d9")) and "no longer known" in health_text(
        replace(damaged, awaits="d9")
    )
    assert health_text(damaged).endswith("merged: `dblog dump --table shop.orders`")
    assert damaged.with_applied_rows(0).state is State.INCOMPLETE
    assert health_text(replace(INCOMPLETE, withheld=2)).startswith("2 rows wait for a dump of their keys")
    assert health_text(replace(INCOMPLETE, state=State.OK)) == "None: None"
    assert health_text(replace(INCOMPLETE, state=State.STOPPED, error="no\n  fix: yes")) == "no: yes"
    dump = submit(world.config, WHOLE, state=world.state)
    assert health_text(lacking).startswith(f"dump {dump} is not merged yet: none while")
    control.cancel(world.state, dump)
    assert health_text(replace(INCOMPLETE, awaits=dump)).startswith(
        f"it waits for dump {dump}, which was cancelled: `dblog dump"
    )


def test_a_table_whose_dump_nobody_has_planned_or_that_is_refused_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    records = TableRecords()

    def health(table: TableStatus) -> tuple[str | None, str | None]:
        OwedDumps(world.config, world.state, records, SystemClock()).request_due(lambda table: True, offset=0)
        return table_health.of_table(NAME, table, dump_store.list_dumps(world.state), owed_dumps.read(records))

    def refuse(dump: str) -> None:
        refusal = Refusal(NAME, "SELECT is denied to dblog", f"GRANT SELECT ON {NAME} TO dblog")
        dump_store.fail_unplanned(world.state, dump_store.read_dump(world.state, dump), refusal)

    withheld = replace(INCOMPLETE, lacks=None, withheld=2)
    for keys, table in (([], replace(INCOMPLETE, awaits="d")), ([1], withheld)):
        dump = dump_store.file_deferred(world.state, world.config.dump, NAME, keys)
        table = replace(table, awaits=table.awaits and dump)
        cause, fix = health(table)
        assert cause is not None and f"dump {dump} is requested, and no process has planned it yet" in cause
        assert fix == "start the capture, or `dblog work`"
        refuse(dump)
        cause, fix = health(table)
        assert cause is not None and "failed: " in cause and "SELECT is denied to dblog" in cause
        assert fix is not None and fix.startswith(f"GRANT SELECT ON {NAME} TO dblog")
        assert ("`dblog dump --table" in fix) == (not keys) and ("a later merge requests" in fix) == bool(keys)
        assert ("start the capture again" in fix) == (not keys), "a dump of the whole table is owed"


def test_a_table_that_the_log_shows_to_be_mended_is_not_stopped_by_an_older_look(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.take(None, SHOWN)
    log.take(None, Unreadable(0, 0, TABLE, "has lost its key", "give it one", refused=True))
    log.take(None, SHOWN)
    assert log.sequencer.tables.stop([NAME]) == set()  # its entry goes once the dump is requested
    assert log.sequencer.tables.follow_ups.take_rewritten().keys() == {TABLE}
    assert log.sequencer.tables.stop([NAME]) == {NAME}
