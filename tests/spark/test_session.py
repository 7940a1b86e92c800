"""What Java is told where a job of ours starts it."""

from __future__ import annotations

from pyspark.sql import SparkSession


def test_java_gives_back_what_its_heap_grew_by(spark: SparkSession) -> None:
    bean = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()  # type: ignore[union-attr]
    options = {"-XX:G1PeriodicGCInterval=30000", "-XX:-G1PeriodicGCInvokesConcurrent", "-XX:MaxHeapFreeRatio=30"}

    assert options <= set(bean.getInputArguments())
