"""The rooms of the architecture: who may import whom (DESIGN, section 2)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = (
    "errors",
    "events",
    "schema",
    "values",
    "watermark",
    "window",
    "arrivals",
    "chunks",
    "dumps",
    "deliveries",
    "interfaces",
)
"""Vocabulary and logic: no input or output, no clock, no chance, no logging."""
EFFECTS = {
    *("asyncio", "datetime.datetime.now", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random"),
    *(
        "secrets",
        "select",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
    ),
    *("time", "urllib", "uuid", "pymysql", "pymysqlreplication", "psycopg2", "kazoo"),
}
DRIVERS = {
    *("numba", "pymysql", "pymysqlreplication", "psycopg2", "kazoo", "sqlite3", "airflow", "pyspark", "delta"),
    *("confluent_kafka", "urllib3"),
}
LONGEST_DAG_FILE = 60  # lines: wiring and parameters, no logic


def sources(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path, *, at_run_time: bool = False) -> set[str]:
    """What a file imports, as dotted names; `at_run_time` leaves out what is for type checkers only."""
    return set(_imported(ast.parse(file.read_text()), at_run_time=at_run_time))


def _imported(node: ast.AST, *, at_run_time: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if at_run_time and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute: a reader sees which room they come from"
            yield child.module or ""
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from _imported(child, at_run_time=at_run_time)


def offending(files: list[Path], forbidden: set[str], *, at_run_time: bool = False) -> dict[str, list[str]]:
    found = {module(f): [i for i in imports(f, at_run_time=at_run_time) if _within(i, forbidden)] for f in files}
    return {name: sorted(bad) for name, bad in found.items() if bad}


def _within(name: str, forbidden: set[str]) -> bool:
    return any(name == f or name.startswith(f + ".") for f in forbidden)


def test_only_the_airflow_room_imports_airflow() -> None:
    files = [f for f in sources("dblog_core", "spark_jobs") if ROOT / "dblog_core" / "airflow" not in f.parents]
    assert offending(files, {"airflow"}) == {}


def test_the_engine_does_not_import_spark() -> None:
    assert offending(sources("dblog_core", "dags"), {"pyspark", "delta"}) == {}
    demo = ROOT / "dblog_core" / "local"  # compares source and lake at its end, by a job of ours
    assert offending([f for f in sources("dblog_core", "dags") if demo not in f.parents], {"spark_jobs"}) == {}


def test_spark_jobs_reach_the_engine_only_for_dumps() -> None:
    """Staging and vocabulary, and control.py: the merge requests a dump of the keys that it had to withhold."""
    engine = {"capture", "dump", "relay", "sequencer", "sources", "outputs", "airflow"}
    found = offending(sources("spark_jobs"), {f"dblog_core.{room}" for room in engine})
    assert found == {"spark_jobs.dump": ["dblog_core.dumps.work_loop"]}, (
        "a worker on an executor is that of any other process"
    )


@pytest.mark.parametrize("room", ["sources", "outputs", "state"])
def test_sources_outputs_and_state_never_import_each_other(room: str) -> None:
    others = {f"dblog_core.{other}" for other in ("sources", "outputs", "state") if other != room}
    assert offending(sources(f"dblog_core/{room}"), others | {"dblog_core.local"}) == {}


def test_the_engine_knows_no_implementation() -> None:
    """Only wiring.py does; everything else asks the Protocols of interfaces.py."""
    files = [
        ROOT / "dblog_core" / f"{name}.py"
        for name in (
            "capture",
            "dump",
            "control",
            "requests",
            "ranges",
            "plans",
            "sequencer",
            "config",
            "leader",
            "beside",
            "relay",
            "relay_term",
        )
    ]
    rooms = {"dblog_core.sources", "dblog_core.outputs", "dblog_core.local", "dblog_core.airflow"}
    assert offending([f for f in files if f.exists()], rooms) == {}


def test_signals_and_notices_are_beside_the_path_of_a_row() -> None:
    """They file requests and look at the state store; what moves rows knows them only where a term begins, and
    hands it the receivers that Airflow has."""
    rows = {f"dblog_core.{room}" for room in ("sources", "outputs", "staging", "storage", "sequencer", "capture")}
    others = rows | {"dblog_core.state", "dblog_core.local", "dblog_core.airflow"}
    assert offending(sources("dblog_core/signals", "dblog_core/notices"), others) == {}
    begins = ("leader", "beside", "capture")
    files = [f for f in sources("dblog_core") if f.stem not in begins and f.parent.stem not in ("commands", "airflow")]
    ours = [f for f in files if f.parent.stem not in ("signals", "notices") and f.stem != "cli"]
    assert offending(ours, {"dblog_core.signals", "dblog_core.notifications"}) == {}


def test_what_is_told_is_found_without_effects() -> None:
    files = [ROOT / "dblog_core" / f"{name}.py" for name in ("notices/news", "signals/conditions", "signals/message")]
    assert offending(files, EFFECTS | {"dblog_core.state", "dblog_core.dumps.control"}, at_run_time=True) == {}


def test_the_writer_of_delta_tables_knows_tables_alone() -> None:
    """It could be a library of its own, but for errors, storage and the way to compile."""
    rooms = {"errors", "storage", "compiled", "delta"}
    engine = {
        name
        for file in sources("dblog_core/delta")
        for name in imports(file)
        if name.startswith("dblog_core.") and name.split(".")[1] not in rooms
    }
    assert engine == set()


def test_vocabulary_and_logic_are_pure() -> None:
    files = [ROOT / "dblog_core" / f"{name}.py" for name in PURE]
    rooms = {f"dblog_core.{room}" for room in ("staging", "sources", "outputs", "state", "local", "airflow", "capture")}
    assert offending([f for f in files if f.exists()], EFFECTS | rooms, at_run_time=True) == {}


def test_nothing_but_the_jars_is_used_of_the_local_stack() -> None:
    servers = {module(f) for f in sources("dblog_core/local")} - {"dblog_core.local", "dblog_core.lake.spark_jars"}
    files = [f for f in sources("dblog_core", "spark_jobs", "dags") if ROOT / "dblog_core" / "local" not in f.parents]
    assert offending(files, servers) == {}


def test_dags_are_thin() -> None:
    for file in sources("dags"):
        assert len(file.read_text().splitlines()) <= LONGEST_DAG_FILE, file
    assert (
        offending(
            sources("dags"),
            {"dblog_core.sources", "dblog_core.state", "dblog_core.capture.run_capture"} | DRIVERS - {"airflow"},
        )
        == {}
    )


@pytest.mark.parametrize("name", ["dblog_core", "dblog_core.config.settings", "dblog_core.cli", "dblog_core.wiring"])
def test_importing_loads_no_driver(name: str) -> None:
    """In a new process, since the one of the tests has loaded them long ago."""
    program = f"import sys, {name}; print(*sorted(m for m in {sorted(DRIVERS)!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
