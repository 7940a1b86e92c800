"""Staging and lake on an object store: the whole way of a row by real processes, and a repair of damage."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import read_status, table_location
from dblog_core.lake.spark_submit import config_json, job_command
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.maintenance import schedule
from dblog_core.maintenance.maintain_result import MaintainResult
from dblog_core.model.schema import TableName
from dblog_core.wiring import open_lake
from tests.fix_s3 import Bucket
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.hadoop_s3 import reach_s3
from tests.integration import cli_world
from tests.integration.cli_world import Commands


def write(config: Config, file: Path) -> None:
    """The configuration as TOML; the secret key comes from the environment."""
    source = config.source.model_dump(
        mode="json", include={"name", "kind", "host", "port", "user", "database", "tables"}
    )
    s3 = config.s3.model_dump(mode="json", include={"endpoint", "region", "access_key"})
    sections: dict[str, dict[str, Any]] = {
        "source": {**source, "password": config.source.password.get_secret_value()},
        "staging": {"path": config.staging.path},
        "state": {"url": config.state.url},
        "lake": {"path": config.lake.path},
        "spark": {"master": "local[2]"},
        "s3": {**s3, "secret_key": "${S3_TEST_SECRET}"},
    }
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()) for name, keys in sections.items()
    ]
    file.touch(mode=0o600)
    file.write_text("\n".join(lines))


@pytest.fixture
def config(database: Database, bucket: Bucket, tmp_path: Path) -> Config:
    return database.config(tmp_path, **bucket.sections())


@pytest.fixture
def dblog(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.setattr(cli_world, "DEADLINE", 300.0)
    monkeypatch.setenv("S3_TEST_SECRET", config.s3.secret_key.get_secret_value())
    write(config, tmp_path / "source.toml")
    commands = Commands(tmp_path / "source.toml", config.s3.secret_key.get_secret_value())
    yield commands
    commands.kill()


@pytest.mark.one_of(8)
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_rows_reach_a_lake_on_an_object_store(
    database: Database,
    dblog: Commands,
    config: Config,
    bucket: Bucket,
    spark: SparkSession,
    verify_here: Verify,
) -> None:
    database.execute(
        "CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(50))",
        "INSERT INTO a SELECT n, 'note ' || n FROM generate_series(1, 500) n",
        'CREATE TABLE "50% b" (code VARCHAR(50) NOT NULL PRIMARY KEY, amount DECIMAL(10,2))',
        "INSERT INTO \"50% b\" VALUES ('x', 1.10), ('y', 2.20)",
    )
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    assert dblog("dump", "--all", "--chunk-size", "100", "--wait").returncode == 0
    database.execute(
        "UPDATE a SET note = 'new' WHERE id BETWEEN 10 AND 20",
        "DELETE FROM a WHERE id = 7",
        "INSERT INTO a VALUES (501, NULL)",
    )
    assert dblog("capture", "--until-current").returncode == 0
    offsets = [json.loads(line)["offset"] for line in dblog("log").stdout.splitlines()]
    assert len(offsets) > 500 and offsets == sorted(set(offsets))

    lake = open_lake(config)
    tended = lake_tasks.file_task(lake, MaintainRequest()).id
    assert dblog("merge", "--once").returncode == 0, "by spark-submit, with what waits for a merge"
    status = read_status(lake)
    tending = lake_tasks.read_outcome(lake, tended, MaintainResult)
    assert status is not None and status.offset == offsets[-1]
    assert tending is not None and tending.error is None and schedule.read_maintained(lake)
    reach_s3(spark, config.s3)
    for name in ("a", "50% b"):
        rows = spark.read.format("delta").load(str(table_location(lake, TableName("public", name))))
        columns = [f"`{c}`" for c in rows.columns if not c.startswith("_dblog_")]
        assert {tuple(row) for row in rows.select(*columns).collect()} == set(database.query(f'SELECT * FROM "{name}"'))

    spark.newSession().sql(f"DELETE FROM delta.`{table_location(lake, TableName('public', 'a'))}` WHERE id IN (3, 4)")
    (mended,) = verify_here(config, "public.a", repair=True).tables
    assert mended.equal and mended.repaired is not None and mended.repaired.differences.missing == (3, 4)
    capture.send_signal(signal.SIGINT)
    assert dblog.end(capture).returncode == 0
    secret = config.s3.secret_key.get_secret_value().encode()
    objects = [bucket.storage().read(file.path) for file in bucket.storage().files("")]
    assert len(objects) > 10 and not any(secret in (data or b"") for data in objects)


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_job_has_no_secret_in_an_argument(config: Config, tmp_path: Path) -> None:
    command = job_command("merge", config, config_path=tmp_path / "source.toml")
    secret = config.s3.secret_key.get_secret_value()
    assert not [part for part in (*command.argv, *command.env.values()) if secret in part]
    assert Config.model_validate_json(config_json(config)) == config
