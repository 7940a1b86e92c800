import re, subprocess, sys
from pathlib import Path
R = Path(sys.argv[1]); HERE = Path(__file__).parent
def sym(*a): subprocess.run([sys.executable, HERE / "sym.py", R, *a], check=True)
def fix():
    subprocess.run([R / ".venv/bin/ruff", "check", "-q", "--select", "I,F401,F811", "--fix", "dblog_core", "spark_jobs", "tests", "dags"], cwd=R, capture_output=True)
    subprocess.run([R / ".venv/bin/ruff", "format", "-q", "dblog_core", "spark_jobs", "tests", "dags"], cwd=R)
def commit(t, b):
    subprocess.run(["git", "add", "-A"], cwd=R, check=True); subprocess.run(["git", "commit", "-q", "-m", t, "-m", b], cwd=R, check=True)
def edit(path, *pairs):
    p = R / path; s = p.read_text()
    for a, b in pairs:
        if a not in s: print("MISSING", path, repr(a)[:80]); continue
        s = s.replace(a, b)
    p.write_text(s)
def files(): return [R / f for f in subprocess.run(["git", "ls-files", "*.py"], cwd=R, capture_output=True, text=True).stdout.split()]
sym("dblog_core.dumps.control", "dblog_core.state.leases", "x", "CAPTURE")
sym("dblog_core.capture.leader", "dblog_core.state.leases", "", "LEASE")
sym("dblog_core.capture.run_capture", "dblog_core.state.leases", "", "holder_name")
sym("dblog_core.dumps.task_lease", "dblog_core.state.leases", "", "random_id,give_back")
(R / "dblog_core/state/leases.py").write_text((HERE / "leases.py").read_text())
fix()
for p in files():
    s = p.read_text()
    if re.search(r"state\.leases import|state import .*leases", s): p.write_text(re.sub(r"\bLEASE\b", "CAPTURE", s))
fix()
commit("Keep what all processes know of leases in state/leases", "The relay and a verification looked into the capture for it: now every arrow goes down the floors.")
# news
c = R / "dblog_core/dumps/control.py"; s = c.read_text()
i = s.index("def _put(state"); j = s.index("\n\n\n", i)
body = s[i:j].replace("def _put(", "def put_news(").replace("value: Json", "value: Any")
s = (s[:i].rstrip("\n") + s[j:]).replace("_put(", "put_news(")
s = s.replace("put_news(state: ", "_put(state: ")
s = re.sub(r"^from dblog_core.state import (.*)$", r"from dblog_core.state import \1\nfrom dblog_core.state.compare_and_set import put_news", s, count=1, flags=re.M)
if "import put_news" not in s: s = s.replace("from dblog_core.interfaces", "from dblog_core.state.compare_and_set import put_news\nfrom dblog_core.interfaces", 1)
c.write_text(s)
n = R / "dblog_core/state/compare_and_set.py"; n.write_text(n.read_text().rstrip("\n") + "\n\n\n" + body + "\n")
sym("dblog_core.capture.leader", "dblog_core.state.capture_status", "x", "CaptureStatus")
sym("dblog_core.dumps.control", "dblog_core.state.capture_status", "", "put_status,read_status")
(R / "dblog_core/state/capture_status.py").write_text((HERE / "capture_status.py").read_text())
fix()
commit("Keep the capture's status in state/capture_status", "Whoever asks for it needs neither the leader nor the dumps.")
sym("dblog_core.capture.config_reload", "dblog_core.state.settings_in_force", "What of the configuration the capture goes by, in the state store, and what is new in another one.",
    "live,with_live,in_force,put_in_force,shown,put_shown,taken_in,is_new,stops_alone,same_rules,is_captured,_NODE,_SHOWN,_LIVE,_put,_same_key")
p = R / "dblog_core/state/settings_in_force.py"; s = p.read_text()
p.write_text(re.sub(r'(_[A-Z]+ = [^\n]*)\n\n\n(?=_[A-Z]+ = )', r"\1\n", s))
fix()
commit("Keep the settings in force in state/settings_in_force", "Workers of a dump compare their rules with them; the capture's reload is above them.")
# LocalError, java
e = R / "dblog_core/errors.py"; s = e.read_text().rstrip("\n")
e.write_text(s + '\n\n\nclass LocalError(DblogError):\n    """A server of the local stack, or what it is made from, that cannot be had, started or stopped."""\n')
subprocess.run(["git", "rm", "-q", "dblog_core/local/errors.py"], cwd=R, check=True)
for p in files():
    if p.exists():
        s = p.read_text(); t = s.replace("from dblog_core.local.errors import LocalError", "from dblog_core.errors import LocalError").replace("dblog_core.local.errors.LocalError", "dblog_core.errors.LocalError")
        if s != t: p.write_text(t)
z = R / "dblog_core/local/servers/zookeeper.py"; s = z.read_text()
i = s.index("def java() -> str:"); j = s.index("\n\n\n", i)
body = s[i:j]; z.write_text((s[:i] + s[j:].lstrip("\n")).replace("from dblog_core.local", "from dblog_core.lake.spark_jars import java\nfrom dblog_core.local", 1))
k = R / "dblog_core/lake/spark_jars.py"; s = k.read_text().replace("from dblog_core.local.servers.zookeeper import java\n", "").rstrip("\n")
k.write_text(s + "\n\n\n" + body + "\n")
for p in files():
    if p.exists() and p != z:
        s = p.read_text(); t = re.sub(r"from dblog_core\.local\.servers\.zookeeper import (.*)", lambda m: m.group() if "java" not in m.group(1).split(", ") else "from dblog_core.lake.spark_jars import java" + ("\nfrom dblog_core.local.servers.zookeeper import " + ", ".join(x for x in m.group(1).split(", ") if x != "java") if m.group(1) != "java" else ""), s)
        if s != t: p.write_text(t)
fix()
commit("Fetch Spark's jars without the local stack", "What production needs no longer imports the servers of the demo and the tests.")
