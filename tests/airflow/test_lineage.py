"""What tasks tell OpenLineage: one name for what the dump writes and the merge reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog_core.airflow import openlineage
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.config.settings import Config
from dblog_core.dumps.dump_records import DumpOptions, DumpRecord, DumpState, TaskRecord, TaskStatus
from dblog_core.dumps.status import DumpStatus
from dblog_core.lake.lake_status import LakeStatus, MergeCounts, State, TableStatus


def config(kind: str, lake: str = "/lake") -> Config:
    source = {"name": "shop", "kind": kind, "host": "db.example", "database": "shop", "tables": ["shop.*"]}
    s3 = {"s3": {"endpoint": "http://127.0.0.1:1", "access_key": "a", "secret_key": "b"}} if "://" in lake else {}
    sections = {"staging": {"path": "/staging"}, "state": {"url": "sqlite:////s.db"}, "lake": {"path": lake}, **s3}
    return Config.model_validate({"source": source, **sections})


def dataset_names(datasets: list[Any]) -> list[tuple[str, str]]:
    return [(dataset.namespace, dataset.name) for dataset in datasets]


@pytest.mark.parametrize(
    ("kind", "namespace", "name"),
    [
        ("mysql", "mysql://db.example:3306", "shop.orders"),
        ("mariadb", "mysql://db.example:3306", "shop.orders"),
        ("postgres", "postgres://db.example:5432", "shop.shop.orders"),
    ],
)
def test_a_dump_reads_tables_and_the_merge_reads_what_it_staged(
    tmp_path: Path, kind: str, namespace: str, name: str
) -> None:
    own_config = config(kind, str(tmp_path / "lake"))
    tasks = tuple(
        TaskStatus(number, TaskRecord("shop.orders"), TaskProgress("shop.orders", rows=rows, evicted=1))
        for number, rows in enumerate((7, 5))
    )
    record = DumpRecord(("shop.orders",), DumpOptions(), DumpState.REQUESTED, None, "2026-11-25T10:00:00Z", "user")
    dumped = openlineage.of_dump(own_config, DumpStatus.of("d1", record, tasks))
    assert dataset_names(dumped.inputs) == [(namespace, name)]
    assert dataset_names(dumped.outputs) == [("file", "/staging/shop/shop.orders")]
    assert dumped.outputs[0].outputFacets["outputStatistics"].rowCount == 12
    tables = {
        "shop.orders": TableStatus(State.OK, None, 1, 9, merged=MergeCounts(4, applied=11)),
        "shop.old": TableStatus(State.OK, None, 1, 9, merged=MergeCounts(3, applied=2)),
        "shop.none": TableStatus(State.STOPPED, "why", 1, 9),
    }
    merged = openlineage.of_merge(own_config, LakeStatus(merge=4, tables=tables), 3)
    assert dataset_names(merged.inputs) == dataset_names(dumped.outputs)
    assert dataset_names(merged.outputs) == [("file", f"{tmp_path}/lake/shop/orders")]
    assert merged.outputs[0].outputFacets["outputStatistics"].rowCount == 11


def test_an_object_store_is_the_namespace() -> None:
    assert openlineage.lake_table(config("mysql", "s3://bucket/lake"), "shop.a b") == ("s3://bucket", "lake/shop/a b")
