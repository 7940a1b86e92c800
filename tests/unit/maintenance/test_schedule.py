"""When a lake is maintained, how much room it takes, what keeps staging: what `status` tells, and lengths of time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from dblog_core import wiring
from dblog_core.cli import app
from dblog_core.commands.maintain import as_text
from dblog_core.commands.status import text
from dblog_core.config import loader
from dblog_core.config.lake import LakeConfig
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError, LakeError
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.maintenance import disk_usage, schedule
from dblog_core.maintenance.disk_usage import Patience, Room
from dblog_core.maintenance.maintain_result import MaintainedCuts, MaintainedStaging, MaintainedTable, MaintainResult
from dblog_core.maintenance.schedule import Maintained, TableSize, Timetable, ask_when_due
from dblog_core.model import durations, sizes
from dblog_core.monitoring.source_status import MergeProgress, SourceStatus
from dblog_core.monitoring.storage_usage import Meter
from dblog_core.staging import Staging
from dblog_core.staging.log_start import Need
from dblog_core.staging.retention import Retention
from tests.unit.compaction_world import Clock
from tests.unit.staged import MICROSECONDS, creates, manifest, table

ORDERS = table()
SIZE = TableSize("shop.orders", 2, 1000, 10, 1, 5, 5000)
DAY = 86_400.0


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("15m", 900), ("36h", 129_600), (" 7d ", 604_800), ("2 w", 1_209_600)]
)
def test_lengths_of_time_are_read_as_people_write_them(written: str, seconds: float) -> None:
    assert durations.parse(written) == seconds
    assert durations.parse(durations.text(seconds)) == seconds


def test_no_end_has_two_names_and_other_texts_are_refused() -> None:
    assert durations.parse("forever") == durations.parse("never") == math.inf
    assert durations.text(math.inf) == "forever"
    for wrong in ("7", "d", "1.5h", "-1d", "7 days"):
        with pytest.raises(ValueError, match="no length of time"):
            durations.parse(wrong)


def test_an_age_that_a_reader_could_not_live_with_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(
        f"""
        [source]
        name = "shop"
        kind = "mysql"
        database = "shop"
        tables = ["shop.*"]
        [staging]
        path = "{tmp_path}/staging"
        keep = "1s"
        [state]
        url = "sqlite:///{tmp_path}/state.db"
        [lake]
        path = "{tmp_path}/lake"
        keep = "59m"
        maintain_every = "soon"
        """
    )
    with pytest.raises(ConfigError) as caught:
        loader.load(file)
    assert "[lake] keep: is too short; give 1h or more" in caught.value.message
    assert "[staging] keep: is too short; give 1m or more" in caught.value.message
    assert "[lake] maintain_every: does not have the right form" in caught.value.message


@pytest.mark.parametrize(("size", "expected_text"), [(0, "0"), (9999, "9,999"), (10_240, "10K"), (12 << 30, "12G")])
def test_sizes_are_told_in_the_largest_unit_of_which_there_are_ten(size: int, expected_text: str) -> None:
    assert sizes.text(size) == expected_text


# When -----------------------------------------------------------------------------------------------------------------


def _timetable(tmp_path: Path, every: str = "1d") -> Timetable:
    return Timetable(lake_at(str(tmp_path)), LakeConfig(path=str(tmp_path), maintain_every=every))


def test_the_first_look_starts_the_clock_over_restarts_too(tmp_path: Path) -> None:
    assert not _timetable(tmp_path).is_due(1000.0)
    later = _timetable(tmp_path)
    assert not later.is_due(1000.0 + DAY - 1) and later.is_due(1000.0 + DAY)


def test_what_the_command_has_done_counts_and_what_failed_is_tried_again_in_an_hour(tmp_path: Path) -> None:
    timetable = _timetable(tmp_path)
    timetable.is_due(0.0)
    schedule.write_maintained(lake_at(str(tmp_path)), DAY - 60, [SIZE])
    assert not timetable.is_due(DAY) and timetable.is_due(2 * DAY)
    assert not timetable.is_due(2 * DAY + 3599) and timetable.is_due(2 * DAY + 3600)


def test_never_is_never_and_leaves_no_record(tmp_path: Path) -> None:
    assert not _timetable(tmp_path, "never").is_due(1e12)
    assert schedule.read_maintained(lake_at(str(tmp_path))) is None


def test_it_is_asked_for_as_a_lake_task_once(tmp_path: Path) -> None:
    lake = lake_at(str(tmp_path))
    timetable = _timetable(tmp_path, "1m")
    clock: Any = Clock()
    assert ask_when_due(timetable, lake, clock=clock) is None
    clock.now += 60
    task = ask_when_due(timetable, lake, clock=clock)
    assert lake_tasks.waiting_tasks(lake) == [task] and task is not None and task.kind == "maintain"
    assert ask_when_due(timetable, lake, clock=clock) is None


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    lake = lake_at(str(tmp_path))
    schedule.write_maintained(lake, 5.0, [SIZE])
    assert schedule.read_maintained(lake) == Maintained(5.0, (SIZE,))
    (tmp_path / "_dblog/maintained.json").write_text('{"at": 5.0}')
    with pytest.raises(LakeError, match="cannot be read") as caught:
        schedule.read_maintained(lake)
    assert "maintained.json" in caught.value.where


# Room -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(tmp_path / "staging"), "keep": "1d"},
            "state": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
            "lake": {"path": str(tmp_path / "lake")},
        }
    )


@pytest.fixture
def staging(config: Config, monkeypatch: pytest.MonkeyPatch) -> Staging:
    """Three segments, one of them with its rows in a file."""
    staging = wiring.open_staging(config)
    for number in range(1, 4):
        monkeypatch.setattr("dblog_core.staging.segment.INLINE_BYTES", 0 if number == 1 else 1 << 20)
        writer = staging.open_segment(number, 1)
        staging.put_schema(ORDERS)
        writer.add(ORDERS, creates(ORDERS, 10 * number, 3))
        new_manifest = manifest(number, 10 * number, 10 * number + 9, files=writer.write())
        staging.publish(replace(new_manifest, sealed_at=MICROSECONDS + number * 1_000_000))
    return staging


@pytest.fixture
def lake(tmp_path: Path) -> LakeStatus:
    """A lake of one table with two files, one of them of an old version."""
    for n in (1, 2):
        write_deltalake(tmp_path / "lake/shop/orders", pa.table({"id": [n] * n}), mode="overwrite")
    return LakeStatus(merge=2, segment=2, offset=29, tables={"shop.orders": TableStatus(State.OK, None, 2, 29)})


def _read(meter: Meter, staging: Staging, lake: LakeStatus) -> Any:
    return meter.read(staging, lake, [], None).to_json()


def test_room_is_counted_file_by_file(config: Config, staging: Staging, lake: LakeStatus, tmp_path: Path) -> None:
    reading = _read(Meter(config), staging, lake)
    written = [p.stat().st_size for p in (tmp_path / "staging/shop/manifests").iterdir()]
    assert reading["staging"]["manifests"] == {"files": 3, "bytes": sum(written)}
    assert reading["staging"]["log"]["files"] == 1 and reading["staging"]["chunks"] == {"files": 0, "bytes": 0}
    (orders,) = reading["tables"]
    files = {p.name: p.stat().st_size for p in (tmp_path / "lake/shop/orders").glob("*.parquet")}
    assert orders["files"] == 1 and orders["bytes"] in files.values()
    assert orders["disk_files"] == 4 and orders["disk_bytes"] > sum(files.values())
    assert orders["rows"] is None


def test_where_patience_ends_the_last_maintenance_is_told(config: Config, staging: Staging, lake: LakeStatus) -> None:
    schedule.write_maintained(wiring.open_lake(config), 1_700_000_000.0, [SIZE])
    (orders,) = _read(Meter(config, seconds=0.0), staging, lake)["tables"]
    assert (orders["bytes"], orders["measured_at"]) == (1000, "2023-11-14T22:13:20Z")
    (orders,) = _read(Meter(config), staging, lake)["tables"]
    assert orders["bytes"] != 1000 and (orders["rows"], orders["deleted"]) == (10, 1)


def test_counting_stops_when_patience_ends(tmp_path: Path) -> None:
    class Many:
        looked = 0

        def files(self, directory: str) -> Any:
            while True:
                self.looked += 1
                yield type("Stored", (), {"bytes": 1})

    ticks = iter(range(100))
    storage: Any = Many()
    reading = disk_usage.of_staging(storage, Patience(10.0, monotonic=lambda: float(next(ticks))))
    assert set(reading.values()) == {None} and storage.looked < 10_000
    assert disk_usage.of_table(lake_at(str(tmp_path)), "t", Patience(None)) is None
    assert Room(1, 2) == Room(1, 2)


def test_who_asks_again_and_again_is_told_what_was_counted(config: Config, staging: Staging, lake: LakeStatus) -> None:
    now = [NOW]
    meter = Meter(config, now=lambda: now[0])
    first = _read(meter, staging, lake)["staging"]
    staging.publish(manifest(4, 40, 49))
    assert _read(meter, staging, lake)["staging"] == first
    now[0] += 60
    assert _read(meter, staging, lake)["staging"]["manifests"]["files"] == 4


# What keeps staging ---------------------------------------------------------------------------------------------------

NOW = MICROSECONDS / 1e6 + 2 * DAY


def test_status_tells_what_keeps_old_segments(config: Config, staging: Staging, lake: LakeStatus) -> None:
    meter = Meter(config, now=lambda: NOW)
    stopped = replace(lake, tables={"shop.orders": TableStatus(State.STOPPED, "no", 0, 0)})
    retention = _read(meter, staging, stopped)["retention"]
    assert retention["held"] == [{"segment": 1, "why": "shop.orders is stopped at segment 0"}]
    assert (retention["segment"], retention["offset"], retention["sealed_at"]) == (1, 10, "2026-11-21T09:30:01Z")
    assert retention["looked_at"] is None
    assert _read(meter, staging, lake)["retention"]["held"] == []
    assert _read(Meter(config, now=lambda: NOW - 2 * DAY), staging, stopped)["retention"]["held"] == []


def test_status_tells_what_the_last_look_was_held_back_by(config: Config, staging: Staging, lake: LakeStatus) -> None:
    retention = Retention(staging, keep=DAY, now=NOW, over=lambda dump: True)
    retention.run([Need(2, "output kafka has passed on up to offset 12")])
    reading = _read(Meter(config, now=lambda: NOW), staging, lake)["retention"]
    assert (reading["segment"], reading["offset"], reading["looked_at"]) == (2, 20, "2026-11-23T09:30:00Z")
    assert reading["held"] == [
        {"segment": 2, "why": "the lake has merged up to segment 2"},
        {"segment": 2, "why": "output kafka has passed on up to offset 12"},
    ]


def test_nothing_staged_is_told_as_unknown(config: Config) -> None:
    reading = _read(Meter(config), wiring.open_staging(config), LakeStatus())
    assert reading["retention"]["segment"] is None and reading["tables"] == []


def test_people_read_it_in_lines(config: Config, staging: Staging, lake: LakeStatus) -> None:
    schedule.write_maintained(wiring.open_lake(config), NOW, [replace(SIZE, bytes=20 << 20)])
    stopped = replace(lake, tables={"shop.orders": TableStatus(State.STOPPED, "no", 0, 0)})
    storage = Meter(config, seconds=0.0, now=lambda: NOW).read(staging, stopped, [], None)
    status_text = text(
        SourceStatus(
            source="shop", leader=None, position=None, offset=None, lag_seconds=None, rows_per_second=None, tables=(),
            windows=(), dumps=(), merge=MergeProgress(None, None), outputs=(), errors=(), storage=storage,
        )
    )  # fmt: skip
    assert "held      from segment 1 on: shop.orders is stopped at segment 0" in status_text
    assert "size      shop.orders: 10 rows, 20M in 2 files, 5,000 on disk" in status_text
    assert "from segment 1 on, sealed 2026-11-21T09:30:01Z" in status_text


def test_the_command_asks_for_the_task_and_tells_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(
        f"""
        source = {{ name = "shop", kind = "mysql", database = "shop", tables = ["shop.*"] }}
        staging = {{ path = "{tmp_path}/staging" }}
        state = {{ url = "sqlite:///{tmp_path}/state.db" }}
        lake = {{ path = "{tmp_path}/lake" }}
        """
    )
    requests: list[Any] = []
    outcomes_by_task: dict[str, Any] = {
        "tables": [],
        "cuts": {"oldest": None, "removed": 0},
        "staging": {"segment": 1, "offset": 1, "removed_files": 0, "held": []},
        "failed": [],
    }

    def carry_out(config: Config, request: MaintainRequest, result_type: type[MaintainResult], **_: Any) -> Any:
        requests.append(request)
        if request.tables == ("shop.none",):
            raise LakeError("is not in the lake", where="shop.none", fix="`dblog status` lists the lake's tables")
        return result_type.from_json(outcomes_by_task)

    monkeypatch.setattr(lake_tasks, "carry_out", carry_out)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["--config", str(file), "maintain", *arguments])

    assert json.loads(run("--json", "--table", "shop.a", "--table", "shop.a").stdout) == outcomes_by_task
    assert "the oldest is none yet" in run().stdout
    assert requests == [MaintainRequest(("shop.a",)), MaintainRequest()]
    outcomes_by_task["failed"] = [{"name": "shop.b", "error": "a file is missing", "fix": "reset it"}]
    partly = run("--json")
    assert partly.exit_code == 1 and json.loads(partly.stdout) == outcomes_by_task
    assert "maintenance has failed for shop.b: a file is missing" in partly.stderr
    requests.pop()
    failed = run("--table", "shop.none")
    assert failed.exit_code == 1 and "is not in the lake" in failed.output and "fix:" in failed.output


def test_the_commands_result_is_shown_to_people() -> None:
    orders = TableSize("shop.orders", 2, 20 << 20, 1200, 0, 9, 1 << 30)
    result = MaintainResult(
        (MaintainedTable(orders, ("joined", "purged"), 7),),
        MaintainedCuts(4, 3),
        MaintainedStaging(8, 80, 12, (Need(8, "x is stopped"),)),
    )
    status_text = as_text(result)
    assert status_text.splitlines() == [
        "TABLE        ROWS   FILES  SIZE  ON DISK  DONE",
        "shop.orders  1,200  2      20M   1,024M   joined, purged",
        "cuts: 3 removed, the oldest is 4",
        "staging: 12 files removed, it begins at segment 8",
        "  held back from segment 8 on: x is stopped",
    ]
