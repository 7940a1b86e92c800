"""The settings with which Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.lake import spark_submit
from dblog_core.lake.spark_submit import spark_conf

OPTIONS = "spark.driver.defaultJavaOptions"


def make_config(**spark: Any) -> Config:
    source = {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]}
    places = {"staging": {"path": "/staging"}, "lake": {"path": "/lake"}, "state": {"url": "sqlite:////state.db"}}
    return Config.model_validate({"source": source, **places, "spark": spark})


@pytest.fixture(autouse=True)
def no_java_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("memory", ["512m", "1g", "2g", "2G", "2048M", "2097152k"])
def test_a_driver_with_a_small_heap_has_the_serial_collector(memory: str) -> None:
    executors = {"spark.executor.extraJavaOptions": "-XX:+UseG1GC"}  # whose collector is their own
    conf = {"spark.driver.extraJavaOptions": "-XX:ReservedCodeCacheSize=240m", **executors}
    settings = spark_conf(make_config(driver_memory=memory, conf=conf))
    assert settings[OPTIONS] == "-XX:+UseSerialGC"
    assert settings.items() >= conf.items()


@pytest.mark.parametrize("memory", ["2049m", "4g", "1t"])
def test_a_driver_with_a_large_heap_has_the_collector_of_java(memory: str) -> None:
    assert OPTIONS not in spark_conf(make_config(driver_memory=memory))


@pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"])
def test_who_has_named_a_collector_keeps_it(name: str) -> None:
    options = "-Xss4m -XX:+UseG1GC -XX:G1HeapRegionSize=4m"
    settings = spark_conf(make_config(conf={name: options}))
    assert settings[name] == options
    assert "-XX:+UseSerialGC" not in settings.values()


@pytest.mark.parametrize("variable", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_who_has_named_a_collector_for_all_of_java_keeps_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "-XX:+UseParallelGC")
    assert OPTIONS not in spark_conf(make_config())


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, None),
        ('openjdk version "21" 2023-09-19', 0, None),
        ('openjdk version "11.0.20" 2023-07-18', 0, "is Java 11, and Spark needs 17 or newer"),
        ('java version "1.8.0_402"', 0, "is Java 8, and Spark needs 17 or newer"),
        ("cannot execute", 126, "does not say which Java it is"),
    ],
)
def test_check_names_a_java_that_spark_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int, expected: str | None
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    texts = [problem.what for problem in spark_submit.check()]
    assert texts == ([] if expected is None else [f"{program} {expected}"])


def test_check_names_a_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    (problem,) = spark_submit.check()
    assert "no Java can be run" in problem.what and "JAVA_HOME" in problem.fix
