"""When a lake table is as new as a time, by staging, lake and the source's own clock; no server runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.stop_condition import LATE
from dblog_core.config.settings import Config
from dblog_core.errors import LakeError, RequestError
from dblog_core.interfaces import Nodes, Problem
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, own_directory
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.monitoring import freshness
from dblog_core.monitoring.freshness import Freshness
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import owed_dumps, stopped_tables
from tests.unit.staged import manifest

NOON = 1_795_262_400_000_000
SECOND = 1_000_000
ORDERS = "shop.orders"


@dataclass
class Source:
    """Positions are numbers as text. `end`: the end of its log."""

    now: int = NOON + 2 * LATE
    end: int = 0
    asked: int = 0

    def time(self) -> int:
        return self.now

    def current_position(self) -> str:
        self.asked += 1
        return str(self.end)

    def has_reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)


@dataclass
class Clock:
    """Each wait takes its seconds, and then does what `on_wait` says."""

    now: float = 0.0
    on_wait: Any = lambda: None
    waits: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.now += seconds
        self.waits.append(seconds)
        self.on_wait()
        return stop.is_set()


class World:
    """A staging of numbered segments and a lake; position N is that after segment N."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.staging = wiring.open_staging(config)
        self.records = Records(own_directory(wiring.open_lake(config)))
        self.merges = 0
        self.last_offset = 0

    def seal(self, number: int, *, rows: int, committed: int | None, records: TableRecords | None = None) -> None:
        first = self.last_offset + 1
        self.last_offset += rows
        sealed = manifest(number, first, self.last_offset)
        changes: dict[str, Any] = {"position": str(number), "commit_time": committed}
        if records is not None:
            changes["records"] = records.write(self.staging.storage, segment=number, epoch=1)
        self.staging.publish(replace(sealed, **changes))

    def merge(self, upto: int, *, committed: int | None, **orders: Any) -> None:
        """All tables are merged up to the end of a segment; `orders`: what is otherwise with the table."""
        self.merges += 1
        offset = self.staging.manifest(upto).end_of(upto)
        table = replace(TableStatus(State.OK, None, upto, offset, 1), **orders)
        self.records.finish(LakeStatus(self.merges, upto, offset, f"log{upto}", committed, tables={ORDERS: table}))

    def judge(self, **options: Any) -> Freshness:
        return freshness.judge(self.config, ORDERS, NOON, **options)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(
        Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(tmp_path / "staging")},
                "state": {"url": "sqlite:///unused"},
                "lake": {"path": str(tmp_path / "lake")},
            }
        )
    )


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    fake = Source()
    monkeypatch.setattr(wiring, "open_source", lambda _: fake)
    return fake


def test_a_transaction_that_is_surely_later_proves_it_for_a_table_without_changes(world: World) -> None:
    world.seal(1, rows=3, committed=NOON - SECOND)
    world.merge(1, committed=NOON - SECOND)
    assert not world.judge().fresh
    world.seal(2, rows=2, committed=NOON + LATE)
    world.merge(2, committed=NOON + LATE)
    assert not world.judge().fresh, "a transaction gets its time before its place in the log"
    world.seal(3, rows=1, committed=NOON + LATE + 1)
    assert world.judge() == Freshness(ORDERS, False, "the lake lacks staged rows", 5)
    world.merge(3, committed=NOON + LATE + 1)
    assert world.judge().fresh


def test_segments_without_rows_need_no_merge(world: World) -> None:
    world.seal(1, rows=3, committed=NOON - SECOND)
    world.merge(1, committed=NOON - SECOND)
    world.seal(2, rows=0, committed=NOON + 2 * LATE)
    assert world.judge().fresh


def test_a_quiet_source_is_asked_for_its_clock_first_and_then_for_the_end_of_its_log(
    world: World, source: Source
) -> None:
    world.seal(1, rows=3, committed=NOON - 3600 * SECOND)
    world.merge(1, committed=NOON - 3600 * SECOND)
    source.now, source.end = NOON + LATE, 1
    early = freshness.find_log_end(source, NOON)  # type: ignore[arg-type]  # it has what is asked of it
    assert (early.position, early.wait_seconds, source.asked) == (None, 1.0, 0)
    assert not freshness.look(world.config, ORDERS, NOON, stop=threading.Event(), clock=Clock()).fresh  # type: ignore[arg-type]
    source.now += 1
    assert freshness.look(world.config, ORDERS, NOON, stop=threading.Event(), clock=Clock()).fresh  # type: ignore[arg-type]


def test_the_end_of_the_log_is_waited_for_and_not_for_long(world: World, source: Source) -> None:
    """Changes of tables that are not captured move the log on, and show no time."""
    world.seal(1, rows=3, committed=NOON - SECOND)
    world.merge(1, committed=NOON - SECOND)
    source.end = 2
    clock = Clock()
    assert not freshness.look(world.config, ORDERS, NOON, stop=threading.Event(), clock=clock).fresh  # type: ignore[arg-type]
    assert sum(clock.waits) == freshness.STAGED_SECONDS
    stop = threading.Event()
    clock = Clock(on_wait=stop.set)
    assert not freshness.look(world.config, ORDERS, NOON, stop=stop, clock=clock).fresh and len(clock.waits) == 1  # type: ignore[arg-type]
    clock = Clock(on_wait=lambda: world.seal(2, rows=0, committed=NOON - SECOND))
    assert freshness.look(world.config, ORDERS, NOON, stop=threading.Event(), clock=clock).fresh  # type: ignore[arg-type]
    assert source.asked == 3, "its present end moves on: one is asked for once"


def test_staged_rows_that_the_lake_lacks_may_be_older_than_the_time(world: World, source: Source) -> None:
    world.seal(1, rows=3, committed=NOON - SECOND)
    world.merge(1, committed=NOON - SECOND)
    world.seal(2, rows=1, committed=NOON)
    source.end = 2
    assert not freshness.look(world.config, ORDERS, NOON, stop=threading.Event(), clock=Clock()).fresh  # type: ignore[arg-type]
    assert source.asked == 0
    assert not world.judge(end="2").fresh
    world.merge(2, committed=NOON)
    assert world.judge(end="2").fresh


@pytest.mark.usefixtures("source")
def test_a_late_table_is_as_new_as_its_own_place(world: World) -> None:
    world.seal(1, rows=3, committed=NOON - SECOND)
    world.seal(2, rows=1, committed=NOON + 2 * LATE)
    world.merge(2, committed=NOON + 2 * LATE, segment=1, offset=3, begun=2)
    assert not world.judge().fresh and not world.judge(end="2").fresh
    assert world.judge(end="1").fresh


@pytest.mark.parametrize(
    ("orders", "reason"),
    [
        ({"state": State.STOPPED, "error": "no such type"}, "stopped in the lake: no such type"),
        ({"state": State.INCOMPLETE, "lacks": 0}, "incomplete in the lake: no full dump of it is merged"),
        ({"state": State.INCOMPLETE, "withheld": 2}, "incomplete in the lake: 2 rows wait"),
    ],
)
def test_a_table_that_is_not_well_in_the_lake_is_never_fresh(world: World, orders: dict[str, Any], reason: str) -> None:
    world.seal(1, rows=3, committed=NOON + 2 * LATE)
    world.merge(1, committed=NOON + 2 * LATE, **orders)
    judged = world.judge(end="1")
    assert not judged.fresh and not judged.has_staged_rows and reason in judged.reason


def stop_table(records: Nodes) -> None:
    held = {ORDERS: Problem("its columns are not accepted", "accept them")}
    stopped_tables.change(records, lambda entries: {**entries, **stopped_tables.held_entries(held)})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (stop_table, "the capture has stopped the table: its columns are not accepted"),
        (lambda r: owed_dumps.record_failures(r, "d1", {ORDERS: "no right"}), "the table is owed a dump: no right"),
    ],
    ids=["held", "owed"],
)
def test_a_table_whose_rows_the_capture_passes_over_is_never_fresh(world: World, spoil: Any, reason: str) -> None:
    records = TableRecords()
    spoil(records)
    world.seal(1, rows=3, committed=NOON + 2 * LATE, records=records)
    world.merge(1, committed=NOON + 2 * LATE)
    judged = world.judge(end="1")
    assert (judged.fresh, judged.reason) == (False, reason)


def test_a_table_without_a_copy_is_waited_for_and_one_that_is_not_captured_is_refused(world: World) -> None:
    assert world.judge() == Freshness(ORDERS, False, "the lake has no such table yet")
    for wrong in ("other.orders", "orders"):
        with pytest.raises(RequestError, match="is not a captured table"):
            freshness.judge(world.config, wrong, NOON)


def test_a_lake_that_does_not_continue_the_staging_is_an_error(world: World) -> None:
    world.seal(1, rows=3, committed=NOON + 2 * LATE)
    world.merge(1, committed=NOON + 2 * LATE)
    with pytest.raises(LakeError, match="staging"):
        freshness.judge(
            world.config.model_copy(
                update={
                    "staging": world.config.staging.model_copy(update={"path": str(world.config.staging.path) + "2"})
                }
            ),
            ORDERS,
            NOON,
        )
