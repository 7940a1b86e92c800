"""floors.py ROOT: upward imports between the packages of dblog_core in the order of ORDER."""
import ast, sys
from pathlib import Path
root = Path(sys.argv[1])
ORDER = "errors model clock config interfaces algorithm rows storage delta state staging sources dumps outputs schema_evolution lake signals notifications verify maintenance local capture monitoring airflow commands".split()
FREE = {"wiring", "retry", "tls", "signatures", "kafka_client", "cli", "__init__"}
def pkg(mod):
    parts = mod.split(".")
    return parts[1] if len(parts) > 1 else "__init__"
bad = {}
for p in sorted((root / "dblog_core").rglob("*.py")):
    me = ".".join(p.relative_to(root).with_suffix("").parts)
    a = pkg(me)
    for n in ast.walk(ast.parse(p.read_text())):
        names = []
        if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("dblog_core"):
            names = [f"{n.module}.{x.name}" if n.module == "dblog_core" else n.module for x in n.names]
        for t in set(names):
            b = pkg(t)
            if a in FREE or b in FREE: continue
            if a not in ORDER or b not in ORDER:
                bad.setdefault((a, b, "?"), []).append(me); continue
            if ORDER.index(b) > ORDER.index(a):
                bad.setdefault((a, b), []).append(f"{me} -> {t}")
for k, v in bad.items():
    print(k, *sorted(set(v)), sep="\n    ")
