"""A reset empties one table and waits for its dump, while its log flows and the others go on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.errors import SourceUnavailable
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import State, TableStatus, read_status
from dblog_core.lake.task_results import ResetResult
from dblog_core.lake_engine.tables import log
from tests.spark.asked import ask, ask_well, dies
from tests.spark.lakes import Dumps, TestLake
from tests.spark.segments import table

pytestmark = pytest.mark.one_of(6)

T = table("t", id=pa.int64(), v=pa.string())
WIDE = table("t", key=("id", "part"), id=pa.string(), part=pa.int32(), v=pa.string(), w=pa.int64())
U = table("u", id=pa.int64(), v=pa.string())
STEPS = ("recorded", "requested shop.t", "emptied shop.t", "done", "cut")
"""Of which a run takes one, by its seed."""


def _merge_tables(lake: TestLake) -> None:
    for schema in (T, U):
        for i in range(3):
            lake.build.create(schema, {"id": i, "v": "a"})
    lake.build.seal()
    lake.merge_well()


def _status(lake: TestLake, name: str = "shop.t") -> TableStatus:
    status = read_status(lake.location)
    assert status is not None
    return status.tables[name]


def test_a_reset_table_is_incomplete_until_its_dump_is_merged_and_its_log_flows(lake: TestLake) -> None:
    _merge_tables(lake)
    u = log.version(lake.table(U))
    version = log.version(lake.table(T))
    lake.build.create(T, {"id": 9, "v": "staged, and not merged: the dump brings it"})
    lake.build.seal()
    dumps = Dumps()
    assert ask_well(lake, "reset", {"table": "shop.t"}, dumps=dumps)["dump"] == "dump1"
    assert dumps.asked == [("shop.t", [])]
    assert lake.rows(T) == [] and log.version(lake.table(U)) == u
    assert (_status(lake).state, _status(lake).awaits) == (State.INCOMPLETE, "dump1")
    old = lake.spark.read.format("delta").option("versionAsOf", str(version)).load(str(lake.table(T)))
    assert old.count() == 3
    since = lake.build.offset
    lake.build.create(T, {"id": 7, "v": "live"})
    lake.build.update(U, {"id": 0, "v": "b"})
    lake.build.seal()
    lake.merge_well()
    assert lake.rows(T) == [{"id": 7, "v": "live"}] and lake.rows(U)[0]["v"] == "b"
    assert _status(lake).state is State.INCOMPLETE
    lake.build.chunk(T, [{"id": 1, "v": "dumped"}, {"id": 7, "v": "live"}], evicted=[1], dump="dump1")
    lake.build.finished(T, "dump1", since=since, since_segment=3)
    lake.build.seal()
    lake.merge_well()
    assert lake.rows(T) == [{"id": 1, "v": "dumped"}, {"id": 7, "v": "live"}]
    assert (_status(lake).state, _status(lake).awaits) == (State.OK, None)
    assert _status(lake).segment == 4


def test_a_table_that_stopped_because_of_its_shape_lives_again_with_another_key_and_other_types(lake: TestLake) -> None:
    _merge_tables(lake)
    lake.build.schema(WIDE)
    lake.build.create(WIDE, {"id": "x", "part": 1, "v": "new", "w": 5})
    lake.build.seal()
    lake.merge()
    assert _status(lake).state is State.STOPPED and "dblog reset shop.t" in (_status(lake).error or "")
    ask_well(lake, "reset", {"table": "shop.t"}, dumps=Dumps())
    assert (_status(lake).state, _status(lake).error) == (State.INCOMPLETE, None)
    since = lake.build.offset
    lake.build.create(WIDE, {"id": "y", "part": 2, "v": "live", "w": 6})
    lake.build.chunk(WIDE, [{"id": "x", "part": 1, "v": "new", "w": 5}], dump="dump1")
    lake.build.finished(WIDE, "dump1", since=since, since_segment=3)
    lake.build.seal()
    lake.merge_well()
    assert lake.rows(WIDE) == [
        {"id": "x", "part": 1, "v": "new", "w": 5}, {"id": "y", "part": 2, "v": "live", "w": 6}
    ]  # fmt: skip
    assert _status(lake).state is State.OK


def test_lines_that_the_dump_may_not_see_are_merged_again(lake: TestLake) -> None:
    """PostgreSQL: a row that such a line has touched is evicted from the chunk."""
    _merge_tables(lake)
    before = lake.build.offset
    lake.build.update(T, {"id": 1, "v": "unseen"})
    lake.build.update(U, {"id": 1, "v": "once"})
    lake.build.seal(unseen_after=before)
    lake.merge_well()
    u = log.version(lake.table(U))
    ask_well(lake, "reset", {"table": "shop.t"}, dumps=Dumps())
    assert _status(lake).offset == before
    lake.build.chunk(T, [{"id": 0, "v": "a"}, {"id": 1, "v": "a"}, {"id": 2, "v": "a"}], evicted=[1], dump="dump1")
    lake.build.finished(T, "dump1", since=before, since_segment=2)
    lake.build.seal()
    lake.merge_well()
    assert [row["v"] for row in lake.rows(T)] == ["a", "unseen", "a"]
    assert _status(lake).state is State.OK and _status(lake).segment == 3
    assert log.version(lake.table(U)) == u


def test_any_later_full_dump_completes_the_table(lake: TestLake) -> None:
    _merge_tables(lake)
    ask_well(lake, "reset", {"table": "shop.t"}, dumps=Dumps())
    since = lake.build.offset
    lake.build.chunk(T, [{"id": 1, "v": "x"}], dump="part")
    lake.build.finished(T, "part", since=since, since_segment=2, key_from=0, key_to=5)
    lake.build.seal()
    lake.merge_well()
    assert _status(lake).state is State.INCOMPLETE
    lake.build.chunk(T, [{"id": 1, "v": "x"}], dump="by hand")
    lake.build.finished(T, "by hand", since=since, since_segment=2)
    lake.build.seal()
    lake.merge_well()
    assert _status(lake).state is State.OK


def test_a_reset_that_died_is_finished_by_the_next_merge(lake: TestLake, soak_seed: int) -> None:
    step = STEPS[soak_seed % len(STEPS)]
    _merge_tables(lake)
    dumps = Dumps()
    task = dies(lake, "reset", {"table": "shop.t"}, step, dumps=dumps)
    since = lake.build.offset
    # Staged after the crash: the reset began before it, and this line counts.
    lake.build.create(T, {"id": 7, "v": "live"})
    lake.build.seal()
    lake.merge_well(dumps=dumps)
    assert lake.rows(T) == [{"id": 7, "v": "live"}]
    outcome = lake_tasks.read_outcome(lake.location, task, ResetResult)
    assert outcome is not None and outcome.error is None and outcome.result is not None
    assert _status(lake).awaits == f"dump{len(dumps.asked)}" and _status(lake).reset_at == since
    assert [cut["cut"] for cut in lake.cuts()] == [1, 2, 3]


def test_a_dump_that_cannot_be_requested_leaves_the_table_as_it_was(lake: TestLake) -> None:
    class Refusing(Dumps):
        def submit(self, table: str, keys: list[object]) -> str:
            raise SourceUnavailable("the server is away", where="shop", fix="try again")

    _merge_tables(lake)
    outcome = ask(lake, "reset", {"table": "shop.t"}, dumps=Refusing())
    assert (outcome.error, outcome.fix) == ("the server is away", "try again")
    assert len(lake.rows(T)) == 3 and _status(lake).awaits is None


def test_a_table_that_the_lake_does_not_have_is_refused(lake: TestLake) -> None:
    _merge_tables(lake)
    assert "no such table" in (ask(lake, "reset", {"table": "shop.none"}, dumps=Dumps()).error or "")
