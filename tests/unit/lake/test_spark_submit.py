"""The settings with which Spark is started."""

from __future__ import annotations

from typing import Any

import pytest

from dblog_core.config.settings import Config
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
