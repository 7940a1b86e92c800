"""Which log store has the commits of a lake: ours, but for schemes for which the user has set another."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from dblog_core.errors import LakeError
from spark_jobs import delta_log_store

OURS = "dblog.CreateIfAbsentLogStore"
GCS = "io.delta.storage.GCSLogStore"


def _installed(settings: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """A session whose driver has begun with these settings, and what they are with our log store."""
    held = {f"spark.delta.logStore.{name}": value for name, value in settings.items()}
    conf = mock.Mock()
    conf.getAll = lambda: [mock.Mock(_1=lambda n=n: n, _2=lambda v=v: v) for n, v in held.items()]
    conf.set = held.__setitem__
    spark = mock.Mock()
    spark.sparkContext._jvm.org.apache.spark.SparkEnv.get.return_value.conf.return_value = conf
    with mock.patch.object(delta_log_store, "_load"):
        delta_log_store.install(spark)
    return spark, held


def test_a_store_of_another_scheme_leaves_ours_for_the_lake() -> None:
    spark, held = _installed({"gs.impl": GCS, "s3a.impl": "other"})
    assert held["spark.delta.logStore.file.impl"] == held["spark.delta.logStore.s3.impl"] == OURS
    assert held["spark.delta.logStore.gs.impl"] == GCS
    for lake in ("/lake", "s3://bucket/lake"):
        delta_log_store.check_excludes(spark, lake)


@pytest.mark.parametrize("setting", ["file.impl", "class"])
def test_a_store_of_the_lakes_own_scheme_that_may_not_exclude_is_refused(setting: str) -> None:
    spark, _ = _installed({setting: "io.delta.storage.LocalLogStore"})
    with pytest.raises(LakeError, match=f"logStore.{setting} is io.delta.storage.LocalLogStore") as caught:
        delta_log_store.check_excludes(spark, "/lake")
    assert "remove" in caught.value.fix


def test_a_store_that_is_known_to_exclude_is_taken() -> None:
    spark, held = _installed({"s3.impl": "io.delta.storage.S3DynamoDBLogStore"})
    delta_log_store.check_excludes(spark, "s3://bucket/lake")
    assert held["spark.delta.logStore.file.impl"] == OURS
