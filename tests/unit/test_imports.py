"""The floors of the house: a package imports only from floors below its own. Checked from the tree itself."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = (
    *(
        "errors",
        "model",
        "clock",
        "config",
        "interfaces",
        "algorithm",
        "rows",
        "storage",
        "delta_writer",
        "state",
        "staging",
    ),
    *("sources", "dumps", "outputs", "schema_evolution", "lake", "signals", "notifications", "verify"),
    *("maintenance", "lake_engine", "local", "capture", "monitoring", "airflow", "commands"),
)
"""Packages and modules in the root of `dblog_core`, the lowest first: each imports only from what stands before it."""
BESIDE = {"retry", "tls", "user_cache", "signatures", "kafka_client", "early_signals", "installed_packages", "__init__"}
"""Small tools in the root that any floor may use; they use nothing above `interfaces`."""
HOLLOW = {"wiring", "cli"}
"""Load what a configuration or a command names, and only when it is needed."""
ENGINE_FLOORS = (
    "commit_pace",
    "tables",
    "events",
    "history",
    "merging",
    "tasks",
    "merge_rounds",
    "lake_job",
    "merge_job",
)
"""Packages and modules in the root of `dblog_core.lake_engine`, in the same way."""
PURE = ("errors", "interfaces", "model", "algorithm", "outputs.batching", "notifications.changes", "signals.message")
"""Vocabulary and logic: no input or output, no clock, no chance, no logging."""
NOT_PURE = {"model.durations", "model.sizes"}
EFFECTS = {
    *("asyncio", "datetime.datetime.now", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random"),
    *("secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile"),
    *("threading", "time", "urllib.request", "uuid", "pymysql", "pymysqlreplication", "psycopg2", "kazoo"),
}
DRIVERS = {
    *("numba", "pymysql", "pymysqlreplication", "psycopg2", "kazoo", "sqlite3", "airflow", "pyspark", "delta"),
    *("confluent_kafka", "urllib3"),
}
LONGEST_DAG_FILE = 60  # lines: wiring and parameters, no logic
MOST_MODULES = 20  # of a package beside its sub-packages
FORMER_NAMES = {ROOT / "dblog_core/airflow/doorbell.py"}
"""Modules under a name that users, or Airflow's database, still have: an import and nothing else."""


def sources(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(file): file for file in sources("dblog_core", "spark_jobs")}


@functools.cache
def imports(file: Path, *, at_run_time: bool = False) -> frozenset[str]:
    """What a file imports, as dotted names; `at_run_time` leaves out what is for type checkers only."""
    return frozenset(_imported_names(ast.parse(file.read_text()), at_run_time=at_run_time))


def _imported_names(node: ast.AST, *, at_run_time: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if at_run_time and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute: a reader sees which package they come from"
            yield child.module or ""
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from _imported_names(child, at_run_time=at_run_time)


def offending(files: list[Path], forbidden: set[str], *, at_run_time: bool = False) -> dict[str, list[str]]:
    forbidden_imports = {
        module(f): [i for i in imports(f, at_run_time=at_run_time) if _within(i, forbidden)] for f in files
    }
    return {name: sorted(bad) for name, bad in forbidden_imports.items() if bad}


def _within(name: str, forbidden: set[str]) -> bool:
    return any(name == f or name.startswith(f + ".") for f in forbidden)


def _room(name: str) -> str:
    """The package below the top one, or the module in its root."""
    return name.split(".")[1] if "." in name else "__init__"


def _edges(top: str) -> Iterator[tuple[str, str]]:
    """Who imports which module of the same top package."""
    for name, file in MODULES.items():
        if name.split(".")[0] == top:
            for imported in imports(file):
                if imported in MODULES and imported.split(".")[0] == top and imported != top:
                    yield name, imported


def test_every_package_has_its_floor() -> None:
    rooms = {_room(name) for name in MODULES if name.startswith("dblog_core")}
    assert rooms == {*FLOORS, *BESIDE, *HOLLOW}
    engine = {name.split(".")[2] for name in MODULES if name.startswith("dblog_core.lake_engine.")}
    assert engine == set(ENGINE_FLOORS)
    assert [name for name in MODULES if name.startswith("spark_jobs.") and name.count(".") > 1] == []


def test_no_package_imports_from_a_floor_above_it() -> None:
    above = [
        f"{name} imports {imported}"
        for name, imported in _edges("dblog_core")
        if (a := _room(name)) not in HOLLOW and (b := _room(imported)) not in BESIDE | HOLLOW
        if FLOORS.index(b) > (FLOORS.index(a) if a not in BESIDE else FLOORS.index("interfaces"))
    ]
    assert not above, "\n".join(above)


def test_no_package_of_the_lake_engine_imports_from_a_floor_above_it() -> None:
    engine = "dblog_core.lake_engine."
    above = [
        f"{name} imports {imported}"
        for name, imported in _edges("dblog_core")
        if name.startswith(engine) and imported.startswith(engine)
        if ENGINE_FLOORS.index(imported.split(".")[2]) > ENGINE_FLOORS.index(name.split(".")[2])
    ]
    assert not above, "\n".join(above)


def test_no_package_of_the_jobs_hides_a_library() -> None:
    """Spark runs `spark_jobs/merge.py` as a script, so that this folder comes first in its path."""
    our_packages = {file.stem for file in (ROOT / "spark_jobs").glob("[!_]*")}
    imported = {name.split(".")[0] for file in sources("dblog_core", "spark_jobs") for name in imports(file)}
    assert not our_packages & (imported | sys.stdlib_module_names)


def test_the_product_imports_nothing_of_its_tests() -> None:
    """Users have a wheel without them; here `tests` is found, so that no other test would see it."""
    assert offending(sources("dblog_core", "spark_jobs", "dags"), {"tests"}) == {}


def test_a_package_has_few_modules() -> None:
    folders = {file.parent for file in MODULES.values()}
    modules = {folder: set(folder.glob("[!_]*.py")) - FORMER_NAMES for folder in folders}
    assert not {str(folder): len(files) for folder, files in modules.items() if len(files) > MOST_MODULES}


def test_a_former_name_holds_an_import_alone() -> None:
    for file in FORMER_NAMES:
        docstring, *statements = ast.parse(file.read_text()).body
        assert isinstance(docstring, ast.Expr) and [type(each) for each in statements] == [ast.ImportFrom]


def test_only_the_airflow_package_imports_airflow() -> None:
    files = [f for f in sources("dblog_core", "spark_jobs") if ROOT / "dblog_core" / "airflow" not in f.parents]
    assert offending(files, {"airflow"}) == {}


def test_the_engine_does_not_import_spark() -> None:
    assert offending(sources("dblog_core", "dags"), {"pyspark", "delta"}) == {}
    demo = ROOT / "dblog_core" / "local"  # compares source and lake at its end, by a job of ours
    assert offending([f for f in sources("dblog_core", "dags") if demo not in f.parents], {"spark_jobs"}) == {}


def test_a_merge_by_one_process_imports_no_spark() -> None:
    """`[lake] engine = "local"` is for machines without it too."""
    block = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'py4j', 'delta')))"
    code = f"{block}; from dblog_core.lake_engine import merge_job; from dblog_core.lake_engine.tasks import registry"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_spark_jobs_reach_the_engine_only_for_dumps() -> None:
    """A worker on an executor is that of any other process. Nothing else of theirs captures, reads or sends a row."""
    engine = {"capture", "dumps.work_loop", "dumps.worker", "outputs", "sources", "airflow"}
    offenders = offending(sources("spark_jobs"), {f"dblog_core.{room}" for room in engine})
    assert offenders == {"spark_jobs.dump": ["dblog_core.dumps.work_loop"]}


def test_no_spark_job_opens_the_source_but_that_of_dumps() -> None:
    """The others have neither its password nor a network path to it: what they want of it they file as a dump."""
    planning = {f"dblog_core.dumps.{name}" for name in ("filing", "requests", "dry_run", "deferred_planning")}
    files = [file for file in sources("spark_jobs") if module(file) != "spark_jobs.dump"]
    assert offending(files, planning | {"dblog_core.wiring.open_source"}) == {}
    assert [module(file) for file in files if "open_source" in file.read_text()] == []


@pytest.mark.parametrize("package", ["sources", "outputs", "state"])
def test_sources_outputs_and_the_local_stack_never_meet(package: str) -> None:
    others = {f"dblog_core.{other}" for other in ("sources", "outputs") if other != package} | {"dblog_core.local"}
    relay = {"dblog_core.outputs.relay", "dblog_core.outputs.relay_term"}
    files = [file for file in sources(f"dblog_core/{package}") if module(file) not in relay]
    assert files and offending(files, others) == {}


def test_the_engine_knows_no_implementation() -> None:
    """Only `wiring` does; everything else asks the Protocols of `interfaces`."""
    files = sources("dblog_core/dumps", "dblog_core/capture", "dblog_core/config", "dblog_core/algorithm")
    rooms = {"dblog_core.sources", "dblog_core.outputs", "dblog_core.local", "dblog_core.airflow"}
    assert files and offending(files, rooms) == {}


def test_vocabulary_and_logic_are_pure() -> None:
    names = {f"dblog_core.{name}" for name in PURE}
    left_out = {f"dblog_core.{name}" for name in NOT_PURE}
    files = [file for name, file in MODULES.items() if _within(name, names) and name not in left_out]
    assert len(files) > len(PURE)
    assert offending(files, EFFECTS, at_run_time=True) == {}


def test_the_local_stack_is_for_demo_and_tests() -> None:
    files = [f for f in sources("dblog_core", "spark_jobs", "dags") if ROOT / "dblog_core" / "local" not in f.parents]
    assert offending(files, {"dblog_core.local"}) == {}


def test_dags_are_thin() -> None:
    for file in sources("dags"):
        assert len(file.read_text().splitlines()) <= LONGEST_DAG_FILE, file
    not_for_dags = {"dblog_core.sources", "dblog_core.state", "dblog_core.capture"} | DRIVERS - {"airflow"}
    assert offending(sources("dags"), not_for_dags) == {}


@pytest.mark.parametrize("name", ["dblog_core", "dblog_core.config.loader", "dblog_core.cli", "dblog_core.wiring"])
def test_importing_loads_no_driver(name: str) -> None:
    """In a new process, since the one of the tests has loaded them long ago."""
    program = f"import sys, {name}; print(*sorted(m for m in {sorted(DRIVERS)!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
