"""When the doorbell of the merge rings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblog_core.airflow.triggers import JUDGE, QUIET, TROUBLED, WAITING, Watch, sealed_segments
from dblog_core.config.loader import load
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import LakeStatus, lake_at, own_directory
from dblog_core.lake.lake_tasks import Outcome
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.merging.merge_records import Intent, Records, TaskIntent
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.wiring import open_staging
from tests.fix_s3 import Bucket
from tests.unit.staged import root_of


def manifest(number: int, *, rows: int, first: int = 1) -> Manifest:
    return Manifest(
        source="shop", segment=number, epoch=1, first_offset=first, last_offset=first + rows - 1, position="p",
        partial=0, log_position="p", commit_time=None, sealed_at=0,
    )  # fmt: skip


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(str(tmp_path / "staging"), "shop", str(tmp_path / "lake"))


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path / "staging"), source="shop")


def test_it_rings_at_start_when_the_lake_is_behind(watch: Watch, staging: Staging) -> None:
    staging.publish(manifest(1, rows=3))
    assert watch.look() == (True, QUIET)


def test_it_is_silent_before_the_first_row_and_rings_once_for_new_segments(watch: Watch, staging: Staging) -> None:
    assert watch.look()[0] is False
    staging.publish(manifest(1, rows=0))
    assert watch.look()[0] is False
    staging.publish(manifest(2, rows=2))
    staging.publish(manifest(3, rows=0, first=3))
    assert watch.look()[0] is True
    assert watch.segment == 3
    assert watch.look()[0] is False


def test_it_rings_once_when_the_staging_is_replaced_by_one_that_the_lake_does_not_continue(
    staging: Staging, tmp_path: Path
) -> None:
    """The merge that it starts fails, and says why. What the new staging seals counts from its own beginning."""
    for number in range(1, 5):
        staging.publish(manifest(number, rows=1, first=number))
    Records(own_directory(lake_at(str(tmp_path / "lake")))).finish(LakeStatus(1, 4, 4, "p"))
    now = [0.0]
    watch = Watch(str(tmp_path / "staging"), "shop", str(tmp_path / "lake"), now=lambda: now[0])
    assert watch.look()[0] is False
    shutil.rmtree(tmp_path / "staging")
    replaced = Staging(str(tmp_path / "staging"), source="shop")
    replaced.publish(manifest(1, rows=1))
    now[0] += JUDGE
    assert watch.look() == (True, QUIET) and watch.segment == 1
    now[0] += JUDGE
    assert watch.look()[0] is False
    replaced.publish(manifest(2, rows=1, first=2))
    assert watch.look()[0] is True
    assert Watch(str(tmp_path / "staging"), "shop", str(tmp_path / "lake")).look()[0] is True, "the triggerer starts"


@pytest.mark.parametrize("work", ["task", "merge"])
def test_it_rings_once_for_work_that_nobody_finishes_though_no_row_follows(
    staging: Staging, tmp_path: Path, work: str
) -> None:
    staging.publish(manifest(1, rows=4))
    lake = lake_at(str(tmp_path / "lake"))
    records = Records(own_directory(lake))
    records.finish(LakeStatus(1, 1, 4, "p"))
    now = [0.0]
    watch = Watch(str(tmp_path / "staging"), "shop", str(tmp_path / "lake"), now=lambda: now[0])
    assert watch.look()[0] is False

    def looks(seconds: float) -> list[bool]:
        end = now[0] + seconds
        rings = []
        while now[0] < end:
            now[0] += JUDGE
            rings.append(watch.look()[0])
        return rings

    assert not any(looks(2 * WAITING)), "nothing waits"
    for _ in range(2):
        if work == "task":
            task = lake_tasks.file_task(lake, MaintainRequest()).id
        else:
            records.begin(Intent(2, Span(2, 1, 5, 4, "p", None), {}, TaskIntent("t", MaintainPlan())))
        assert not any(looks(WAITING)), "somebody is at work on it"
        assert looks(3 * WAITING).count(True) == 1
        if work == "merge":
            return
        lake_tasks.record_outcome(lake, task, Outcome(2, None, "it has failed"))


def test_it_watches_an_object_store_with_the_settings_of_the_file(bucket: Bucket, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    places = bucket.sections()
    secret = places["s3"]["secret_key"]
    source = {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]}
    state = {"url": f"sqlite:///{tmp_path}/state.db"}
    sections: dict[str, dict[str, Any]] = {"source": source, "state": state, **places}
    sections["s3"] = {name: value for name, value in sections["s3"].items() if value not in (None, "")}
    with file.open("w") as out:
        for name, keys in sections.items():
            out.write(f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()))
    config = load(file)
    open_staging(config).publish(manifest(1, rows=3))
    (watcher,) = sealed_segments(config, file).watchers
    _, kwargs = watcher.trigger.serialize()
    assert secret not in json.dumps(kwargs)
    watch = Watch(kwargs["staging"], kwargs["source"], kwargs["lake"], config=kwargs["config"])
    assert watch.look() == (True, QUIET)


def test_what_cannot_be_read_is_looked_at_again_later(watch: Watch, staging: Staging) -> None:
    watch.look()
    staging.publish(replace(manifest(1, rows=1)))
    path = next(root_of(staging).glob("manifests/*1.json"))
    path.write_bytes(b"{}")
    assert watch.look() == (False, TROUBLED)
