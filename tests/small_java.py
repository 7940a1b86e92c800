"""Spark's driver as docs/configuration.md has it for a machine with few cores: a job over small tables ends before
Java's second compiler pays, which takes half of them."""

SMALL_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}
