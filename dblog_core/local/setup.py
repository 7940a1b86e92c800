"""Fetches all that the local stack, or the demo of one database, runs from into the cache, and compiles the kernels
(`make setup`, `make demo`); instant where it is done."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import dblog_core
from dblog_core.errors import LocalError
from dblog_core.local.packages import fetch, kafka_jars, spark_jars
from dblog_core.rows import jit


def main(what: str = fetch.ALL) -> int:
    """`what`: `all`, or the database of a demo."""
    try:
        # A processor compiles while the network fetches.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            compiled = pool.submit(_compile)
            _fetch(what)
            compiled.result()
    except LocalError as error:
        print(f"dblog: {error}", file=sys.stderr)
        return 1
    return 0


def _fetch(what: str) -> None:
    if what == fetch.ALL:
        spark_jars.fetch_delta_jars()  # the tests read the lake by Spark too
        spark_jars.fetch_jars(kafka_jars.JARS, "Kafka")
    fetch.fetch(what)


def _compile() -> None:
    """Says so where it will take a while: in a checkout that has compiled nothing yet."""
    # The kernels' cache lies beside the code, so a new checkout compiles again.
    if not any(Path(dblog_core.__file__).parent.rglob("*.nbi")):
        print("dblog: compiling the kernels (about a minute, once)", file=sys.stderr)
    jit.warm()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
