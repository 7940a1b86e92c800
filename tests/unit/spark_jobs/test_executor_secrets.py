"""What Spark sends to executors has the secrets that they need, and no others."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from dblog_core.config.secret_settings import SOURCE
from spark_jobs import dump
from spark_jobs.source import _Query
from tests.marked import MARK, Marked, mark_config


@pytest.fixture
def planted_config(tmp_path: Path) -> Marked:
    return mark_config(tmp_path)


@pytest.fixture
def file(planted_config: Marked, tmp_path: Path) -> Path:
    return planted_config.write(tmp_path / "source.toml")


@pytest.mark.parametrize("stream", [False, True])
def test_who_reads_the_changelog_gets_the_secrets_of_storage_alone(
    planted_config: Marked, file: Path, stream: bool
) -> None:
    query = _Query.of({"config": str(file)}, StructType(), stream=stream)
    assert planted_config.shown_in(pickle.dumps(query)) == [("s3", "secret_key")]
    assert MARK not in repr(query)


def test_the_workers_of_a_dump_get_the_secrets_of_a_worker(
    planted_config: Marked, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    class Crew:
        """Notes what would be sent to executors."""

        def __init__(self, *_: object) -> None:
            """It needs nothing."""

        def run(self, config: str) -> list[str]:
            sent.append(config)
            return []

        def read_worked_on(self) -> list[object]:
            return []

    monkeypatch.setattr(dump, "SparkCrew", Crew)
    monkeypatch.setattr(dump, "open_state", lambda _: BytesIO())
    monkeypatch.setattr("spark_jobs.entry_point.session", lambda *_: nullcontext())
    assert dump.main(["--config", str(file)]) == 0
    (config,) = sent
    assert {str(place[0]) for place in planted_config.shown_in(config)} == set(SOURCE)
