"""Debezium's engine in a process of its own, its records dropped: what arrived when, and what it cost.

Run by the Python of `.venv-bench`, which has no `dblog_core`. It reads one JSON object from its input, `properties` of
the engine and `expect`, the records after which it ends; without that it ends when its input is closed. It prints one
JSON object: a list of batches (seconds, CPU seconds of the process, records) and the most memory it had.

This is Debezium's best case: Connect records, so nothing is serialised, and a consumer that looks at none of them: one
call from Java into Python a batch.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import jpype
from pydbzengine.engine.jvm import ensure_jvm_started

from tests.benchmarks.peak import peak_memory


def main() -> None:
    request = json.loads(sys.stdin.readline())
    ensure_jvm_started(jvm_opts=[f"-Dlog4j2.configurationFile={request['log_settings']}"])
    batches: list[tuple[float, float, int]] = []
    done = threading.Event()
    engine = _build(request["properties"], _consumer(batches, request.get("expect"), done))
    runner = threading.Thread(target=_run, args=(engine, done), daemon=True)
    runner.start()
    threading.Thread(target=_until_input_ends, args=(done,), daemon=True).start()
    done.wait()
    engine.close()
    peak = peak_memory()
    print(json.dumps({"batches": batches, "peak": peak, "cpu": time.process_time()}), flush=True)
    os._exit(0)  # the JVM's own threads would hold the process


def _build(properties: dict[str, str], consumer: Any) -> Any:
    settings = jpype.JClass("java.util.Properties")()
    for key, value in properties.items():
        settings.setProperty(key, value)
    connect = jpype.JClass("io.debezium.embedded.Connect")
    return jpype.JClass("io.debezium.engine.DebeziumEngine").create(connect).using(settings).notifying(consumer).build()


def _consumer(batches: list[tuple[float, float, int]], expect: int | None, done: threading.Event) -> Any:
    seen = 0

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Dropped:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802 - the name in Java
            nonlocal seen
            size = records.size()
            committer.markProcessed(records.get(size - 1))
            committer.markBatchFinished()
            batches.append((time.monotonic(), time.process_time(), size))
            seen += size
            if expect is not None and seen >= expect:
                done.set()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    return Dropped()


def _run(engine: Any, done: threading.Event) -> None:
    try:
        engine.run()
    finally:
        done.set()


def _until_input_ends(done: threading.Event) -> None:
    sys.stdin.read()
    done.set()


if __name__ == "__main__":
    main()
