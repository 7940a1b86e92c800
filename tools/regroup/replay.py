"""Gathers the modules into packages, one package a commit; then `small.py ROOT`, `fixes.py ROOT`, `imports_by_floors.py`.

    python tools/regroup/replay.py ROOT      ROOT: a clean clone with a .venv; about three minutes

Nothing else uses this folder, and it goes with the move.
"""
import subprocess, sys
from pathlib import Path
root = Path(sys.argv[1]); here = Path(__file__).parent
DOCS = {
 "dblog_core/model": "The vocabulary: tables, events, values, watermarks, filters. No input or output.",
 "dblog_core/config": "The configuration: its sections, how its file is read, and what is wrong with one.",
 "dblog_core/algorithm": "DBLog's algorithm without a server: windows, placed chunks, a task's progress. The checker explores it.",
 "dblog_core/rows": "Rows in Arrow's form: column rules, staged types, hashes, compiled kernels.",
 "dblog_core/dumps": "Dumps: requests, their state, and the workers that read chunks.",
 "dblog_core/schema_evolution": "How the shape of a table changes: compatibility, renames, versions.",
 "dblog_core/lake": "What is known of the lake without Spark: its status, cuts, plans and tasks.",
 "dblog_core/maintenance": "Upkeep: schedule, retention, disk usage.",
 "dblog_core/capture": "The log capture: leader, sequencer, recovery, configuration that changes.",
 "dblog_core/monitoring": "What people and systems watch: status, metrics, preflight checks.",
 "dblog_core/sources/mysql/sql": "Statements to MySQL and MariaDB: catalogue, chunks, watermarks.",
 "dblog_core/sources/mysql/values": "Values of MySQL and MariaDB, as the binlog and a SELECT give them.",
 "dblog_core/sources/mysql/binlog": "The binlog: stream, framing, events, rows, transactions.",
 "dblog_core/sources/mysql/row_events": "Row events of the binlog: table maps, images, decoding into Arrow.",
 "dblog_core/commands/terminal": "What a person sees: tables of text, progress.",
 "dblog_core/sources/mysql/ddl": "What statements in the binlog say of tables.",
 "dblog_core/sources/postgres/sql": "Statements to PostgreSQL: catalogue, chunks, slots, watermarks.",
 "dblog_core/sources/postgres/values": "Values of PostgreSQL, as text and in binary form.",
 "dblog_core/sources/postgres/logical": "The replication slot: stream, pgoutput, wal2json, streamed transactions.",
 "dblog_core/local/servers": "Real servers on this machine, for the demo, the stack and the tests.",
 "dblog_core/local/packages": "Packages that the local servers need, fetched and unpacked.",
 "dblog_core/local/demo": "The demo: the whole path on real servers.",
 "spark_jobs/delta": "Delta tables: log, types, alterations, compaction.",
 "spark_jobs/events": "Staged events, and how they fold to the newest row of each key.",
 "spark_jobs/history": "The history of rows beside the lake's tables.",
 "spark_jobs/merging": "The merge of staged events into lake tables, exactly once.",
 "spark_jobs/lake_tasks": "Tasks that change the lake beside merges: maintenance, replay, rebuild, reset.",
 "spark_jobs/verifying": "Spark's side of a verification.",
}
STEPS = [
 ("model",), ("config", ), ("algorithm",), ("rows",), ("storage",), ("state",), ("staging",),
 ("sources/mysql",), ("sources/postgres",), ("dumps",), ("outputs",), ("schema_evolution",), ("lake",), ("signals",), ("notifications",),
 ("verify",), ("maintenance",), ("capture",), ("monitoring",), ("airflow",), ("commands",), ("local",),
]
def run(*c, **k): return subprocess.run(c, cwd=root, check=True, **k)
py = sys.executable
moves = (here / "moves.tsv").read_text() + (here / "test_moves.tsv").read_text()
(here / "all.tsv").write_text(moves)
def step(prefixes, title, body):
    pkgs = {}
    for line in moves.splitlines():
        o, n = line.split("\t")
        if o != n and (root / o).exists() and any(n.startswith(p) for p in prefixes): pkgs[n] = o
    if not pkgs: print("nothing for", prefixes); return
    r = subprocess.run([py, here / "mv.py", root, here / "all.tsv", ",".join(prefixes)], check=True, capture_output=True, text=True)
    if r.stdout.strip(): print(title, r.stdout)
    for n in pkgs:
        d = (root / n).parent
        while d != root and d.name not in ("dblog_core", "tests") :
            if n.endswith(".py") and not (d / "__init__.py").exists():
                rel = str(d.relative_to(root))
                if rel.startswith("tests"): (d / "__init__.py").write_text("")
                else: (d / "__init__.py").write_text(f'"""{DOCS[rel]}"""\n')
            d = d.parent
    sub = [p for p in ("dblog_core", "spark_jobs", "tests", "dags", "tools") if (root / p).exists()]
    subprocess.run([root / ".venv/bin/ruff", "check", "-q", "--select", "I", "--fix", *sub], cwd=root)
    subprocess.run([root / ".venv/bin/ruff", "format", "-q", *sub], cwd=root)
    run("git", "add", "-A")
    run("git", "commit", "-q", "-m", title, "-m", body)
    print("done", title, flush=True)
BODY = "Only git mv, imports and paths in texts: behaviour stays as it is. The order of the packages stands in tests/unit/test_imports.py."
for (name,) in STEPS:
    step([f"dblog_core/{name}"], f"Move {name} into its place" if "." in name or name.startswith("tls") else f"Gather the package {name}", BODY)
for name in ("delta", "events", "history", "merging", "lake_tasks", "verifying"):
    step([f"spark_jobs/{name}"], f"Gather the package spark_jobs/{name}", BODY)
step(["spark_jobs/"], "Name the entry points of the Spark jobs", BODY)
step(["tests/"], "Let the unit tests mirror the packages", BODY)
