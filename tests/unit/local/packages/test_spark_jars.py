"""Jars are programs: each is checked when it is used, however long ago it was fetched."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dblog_core.errors import LocalError
from dblog_core.local.packages import spark_jars
from dblog_core.local.packages.spark_jars import Jar

GOOD = b"what was fetched"
JARS = [Jar("org.example", name, "1.0", hashlib.sha256(GOOD).hexdigest()) for name in ("first", "second")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a fetcher that needs no network."""

    def fetch(directory: Path, work: Path, jars: list[Jar]) -> None:
        for jar in jars:
            (directory / jar.file).write_bytes(GOOD)

    monkeypatch.setenv("DBLOG_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DBLOG_SHIPPED_DIR", raising=False)
    monkeypatch.setattr(spark_jars, "_by_maven", fetch)
    monkeypatch.setattr(spark_jars, "_by_spark", fetch)
    return tmp_path


def test_a_jar_that_was_changed_in_the_cache_is_not_used(cache: Path) -> None:
    first, second = spark_jars.fetch_jars(JARS, "an example")
    assert spark_jars.fetch_jars(JARS, "an example") == [first, second]
    second.write_bytes(b"what was changed")
    with pytest.raises(LocalError, match=r"second-1\.0\.jar is not the jar that was fetched") as caught:
        spark_jars.fetch_jars(JARS, "an example")
    assert "remove the directory" in caught.value.fix
    second.write_bytes(GOOD)
    assert spark_jars.fetch_jars(JARS, "an example") == [first, second]


def test_a_jar_that_is_gone_from_the_cache_is_named(cache: Path) -> None:
    first, _ = spark_jars.fetch_jars(JARS, "an example")
    first.unlink()
    with pytest.raises(LocalError, match=r"first-1\.0\.jar"):
        spark_jars.fetch_jars(JARS, "an example")
