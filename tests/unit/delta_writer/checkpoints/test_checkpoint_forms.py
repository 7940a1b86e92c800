"""A checkpoint continues one of any form, and any number of others."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.checkpoints.checkpoint_writer import write_checkpoint
from tests.unit.delta_writer.checkpoints.logs import (
    DAY_MS,
    NOW_MS,
    check,
    checkpoint_file,
    content,
    files_in,
    files_of,
    forget_before,
    log,
    random_log,
    state_of,
    write,
)
from tests.unit.delta_writer.tables import (
    Table,
    fill_table,
    row,
    write_commit,
)


@pytest.mark.parametrize("seed", range(8))
def test_checkpoints_upon_checkpoints_are_what_the_whole_log_says(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    table = Table.create_at(tmp_path / "table")
    whole = Table.create_at(tmp_path / "whole")
    now_ms = NOW_MS
    for version, commit in enumerate(random_log(dice, 30, NOW_MS)):
        for place in (table, whole):
            write_commit(place.path, version, *commit)
        now_ms += dice.randrange(2 * DAY_MS)
        if dice.random() < 0.3:
            by_checkpoints = snapshot.newest(files_of(table))
            assert state_of(by_checkpoints) == state_of(snapshot.newest(files_of(whole)))
            write(table, now_ms)
            if dice.random() < 0.5:
                forget_before(table, version)
            shutil.copytree(whole.path, alone := tmp_path / f"at-{version}" / "table")
            write_checkpoint(files_of(Table(alone.parent)), now_ms)
            assert content(checkpoint_file(table)) == content(alone / "_delta_log" / checkpoint_file(table).name)
            assert state_of(snapshot.newest(files_of(table))) == state_of(by_checkpoints)


V2_NAME = "checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
FORMS = ("parts", "sidecar", "inline", "by delta-rs")


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_goes_on_from_one_of_any_form(tmp_path: Path, form: str) -> None:
    table = Table.create_at(tmp_path, reader=["v2Checkpoint"])
    writer = fill_table(table)
    table.merge(writer, [row(5, "new", offset=2)], [row(7)])
    _make_of_form(table, form)
    forget_before(table, 3)
    write(table)
    assert not checkpoint_file(table).exists() or form == "by delta-rs", "another form is as good"
    table.merge(writer, [row(6, "new", offset=3)], [row(8)])
    by_commits = snapshot.newest(files_of(table))
    write(table)
    forget_before(table, 4)
    assert state_of(snapshot.newest(files_of(table))) == state_of(by_commits)
    assert len(files_in(table, "remove")) == 2, "the file without a vector, and with its first one"
    check(table)


def _make_of_form(table: Table, form: str) -> None:
    if form == "by delta-rs":
        DeltaTable(str(table.path)).create_checkpoint()
        return
    write(table)
    classic = checkpoint_file(table)
    rows = pq.read_table(classic)
    (log(table) / "_last_checkpoint").unlink()
    if form == "parts":
        for part in (1, 2):
            chosen = rows.slice((part - 1) * 3, 3 if part == 1 else None)
            pq.write_table(chosen, log(table) / f"{3:020d}.checkpoint.{part:010d}.{2:010d}.parquet")
    else:
        of_files = [{k: v} for r in rows.to_pylist() for k, v in r.items() if v is not None]
        lines = [{"checkpointMetadata": {"version": 3}}, *map(_as_json, of_files)]
        if form == "sidecar":
            (log(table) / "_sidecars").mkdir()
            pq.write_table(rows.select(["add", "remove"]), log(table) / "_sidecars" / "a.parquet")
            small = [line for line in lines if not {"add", "remove"} & line.keys()]
            lines = [*small, {"sidecar": {"path": "a.parquet", "sizeInBytes": 1, "modificationTime": 1}}]
        (log(table) / f"{3:020d}.{V2_NAME}").write_text("".join(json.dumps(line) + "\n" for line in lines))
    classic.unlink()


def _as_json(action: Mapping[str, Any]) -> dict[str, Any]:
    """With Parquet's maps as objects."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None}
        is_map = isinstance(value, list) and all(isinstance(pair, tuple) for pair in value)
        return dict(value) if is_map else value

    features = {k: plain(v) for k, v in action.items()}
    for name in ("readerFeatures", "writerFeatures", "partitionColumns"):
        for fields in features.values():
            if fields.get(name) == {}:
                fields[name] = []
    return features
