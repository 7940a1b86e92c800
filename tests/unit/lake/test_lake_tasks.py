"""Lake tasks: filed once, carried out by whoever has the lake, waited for by the command that asked."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import LakeStatus, lake_at, own_directory
from dblog_core.lake.lake_tasks import Outcome
from dblog_core.lake.merge_options import MergeOptions
from dblog_core.lake.task_requests import RebuildRequest, ResetRequest
from dblog_core.lake.task_results import ResetResult
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.storage.location import Location
from dblog_core.wiring import open_lake, open_state

RESULT = ResetResult("shop.t", "d1", 3)
DONE = Outcome(0, RESULT)
RESET = ResetRequest("shop.t")


@pytest.fixture
def lake(tmp_path: Path) -> Location:
    return lake_at(str(tmp_path / "lake"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    source = {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]}
    return Config.model_validate(
        {
            "source": source,
            "staging": {"path": str(tmp_path / "staging")},
            "lake": {"path": str(tmp_path / "lake")},
            "state": {"url": f"sqlite://{tmp_path}/state.db"},
        }
    )


class Merges:
    """Stands for the merge job: how often it ran, and what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, does: Any = lambda: None) -> None:
        self.started: list[MergeOptions] = []
        self._does = does
        monkeypatch.setattr(lake_tasks, "run_merge", self._run)

    def _run(self, config: Config, options: MergeOptions, *, stop: Any, on_line: Any) -> int:
        self.started.append(options)
        self._does()
        return 0


def _read_outcome(lake: Location, task: str) -> Outcome[ResetResult] | None:
    return lake_tasks.read_outcome(lake, task, ResetResult)


def _do_all(lake: Location, outcome: Outcome[ResetResult] = DONE) -> None:
    for task in lake_tasks.waiting_tasks(lake):
        lake_tasks.record_outcome(lake, task.id, outcome)


def _carry_out(config: Config, stop: threading.Event | None = None, lines: list[str] | None = None) -> Any:
    output = lines if lines is not None else []
    return lake_tasks.carry_out(config, RESET, ResetResult, stop=stop or threading.Event(), on_line=output.append)


def test_tasks_wait_in_the_order_they_were_filed_until_they_have_an_outcome(lake: Location) -> None:
    first = lake_tasks.file_task(lake, RebuildRequest("shop.t"))
    second = lake_tasks.file_task(lake, RESET)
    assert lake_tasks.waiting_tasks(lake) == [first, second]
    assert _read_outcome(lake, first.id) is None
    lake_tasks.record_outcome(lake, first.id, DONE)
    assert lake_tasks.waiting_tasks(lake) == [second]
    assert _read_outcome(lake, first.id) == DONE


def test_the_first_outcome_of_a_task_stays(lake: Location) -> None:
    task = lake_tasks.file_task(lake, RESET)
    lake_tasks.record_outcome(lake, task.id, DONE)
    lake_tasks.record_outcome(lake, task.id, Outcome(9, None, "again"))
    assert _read_outcome(lake, task.id) == DONE


def test_old_outcomes_go_and_waiting_tasks_stay(lake: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_tasks, "KEEP", 2)
    unread = lake_tasks.file_task(lake, RESET)
    tasks = [lake_tasks.file_task(lake, RESET).id for _ in range(6)]
    for task in tasks:
        lake_tasks.record_outcome(lake, task, DONE)
    names = list((own_directory(lake) / "tasks").names())
    assert sorted(n for n in names if n.endswith(".done.json")) == [f"{task}.done.json" for task in tasks[-2:]]
    assert lake_tasks.waiting_tasks(lake) == [unread] and len(names) == 5


def test_a_damaged_task_is_named(lake: Location) -> None:
    task = lake_tasks.file_task(lake, RESET)
    (own_directory(lake) / "tasks" / f"{task.id}.json").replace(b"{")
    with pytest.raises(LakeError, match=task.id):
        lake_tasks.waiting_tasks(lake)


def test_a_lake_that_nobody_merges_gets_a_merge_of_its_own(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    merges = Merges(monkeypatch, does=lambda: _do_all(open_lake(config)))
    assert _carry_out(config) == RESULT
    assert merges.started == [MergeOptions("tasks")]


def test_a_running_merge_is_waited_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    merges = Merges(monkeypatch)
    lines = []
    with closing(open_state(config)) as state:
        assert state.acquire("merge", "host:7", ttl=60) is not None
        monkeypatch.setattr(lake_tasks, "_LOOK_SECONDS", 0.01)
        real = lake_tasks._wait

        def wait(*arguments: Any) -> None:
            _do_all(open_lake(config))
            real(*arguments)

        monkeypatch.setattr(lake_tasks, "_wait", wait)
        assert _carry_out(config, lines=lines) == RESULT
    assert merges.started == [] and "host:7" in lines[0]


def test_a_merge_that_ends_without_doing_it_is_followed_by_one_of_its_own(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges = Merges(monkeypatch, does=lambda: _do_all(open_lake(config)))
    with closing(open_state(config)) as state:
        lease = state.acquire("merge", "host:7", ttl=60)
        assert lease is not None
        threading.Timer(0.2, lease.release).start()
        assert _carry_out(config) == RESULT
    assert merges.started == [MergeOptions("tasks")]


def test_an_outcome_counts_once_its_merge_has_ended(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = open_lake(config)
    merged = iter((4, 5))

    def does() -> None:
        _do_all(lake, Outcome(5, RESULT))
        Records(own_directory(lake)).finish(LakeStatus(merge=next(merged)))

    merges = Merges(monkeypatch, does=does)
    assert _carry_out(config) == RESULT
    assert len(merges.started) == 2


def test_a_failed_task_is_an_error_with_its_fix(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    Merges(
        monkeypatch, does=lambda: _do_all(open_lake(config), Outcome(0, None, "no such table", "shop.x", "name one"))
    )
    with pytest.raises(LakeError, match=r"shop\.x: no such table\n  fix: name one"):
        _carry_out(config)


def test_a_merge_that_does_nothing_is_not_started_for_ever(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    merges = Merges(monkeypatch)
    with pytest.raises(LakeError, match="without carrying out the task"):
        _carry_out(config)
    assert len(merges.started) == 2 and len(lake_tasks.waiting_tasks(open_lake(config))) == 1


def test_an_interrupted_command_says_that_its_task_stays(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    Merges(monkeypatch)
    stop = threading.Event()
    stop.set()
    with pytest.raises(LakeError, match="stays filed"):
        _carry_out(config, stop)
    assert len(lake_tasks.waiting_tasks(open_lake(config))) == 1
