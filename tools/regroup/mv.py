"""mv.py ROOT MOVES.tsv [NEW_PREFIX,...]: git mv of modules, with imports, uses of module names, dotted strings and paths rewritten."""

import ast
import re
import subprocess
import sys
from pathlib import Path

root = Path(sys.argv[1])
only = sys.argv[3].split(",") if len(sys.argv) > 3 else None
moves = {}  # old path -> new path
for line in Path(sys.argv[2]).read_text().splitlines():
    old, new, *_ = line.split("\t")
    if old == new or not (root / old).exists():
        continue
    if only and not any(new.startswith(p) or old in only for p in only):
        continue
    moves[old] = new


def module_of(path):
    parts = path[:-3].split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


modules = {module_of(o): module_of(n) for o, n in moves.items() if o.endswith(".py")}
files = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True).stdout.split("\n")
files = [f for f in files if f and (root / f).is_file()]
FUNCS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
warnings = []


class Scope:
    def __init__(self, node, parent):
        self.node, self.parent, self.bound, self.globals = node, parent, set(), set()

    def find(self, name, from_inner=False):
        s, inner = self, from_inner
        while s:
            if not (inner and isinstance(s.node, ast.ClassDef)) and name in s.bound and name not in s.globals:
                return s
            s, inner = s.parent, True
        return None


class Binder(ast.NodeVisitor):
    """First pass: scopes and what they bind; second: uses."""

    def __init__(self, tree):
        self.scopes, self.uses, self.imports = {}, [], []
        self.top = Scope(tree, None)
        self.scopes[tree] = self.top
        self.walk(tree.body, self.top)

    def walk(self, nodes, scope):
        for n in nodes:
            self.one(n, scope)

    def func_scope(self, scope):
        while isinstance(scope.node, COMPS):
            scope = scope.parent
        return scope

    def one(self, n, scope):
        if isinstance(n, FUNCS):
            if not isinstance(n, ast.Lambda):
                scope.bound.add(n.name)
                self.walk(n.decorator_list, scope)
                if n.returns:
                    self.one(n.returns, scope)
            a = n.args
            self.walk([d for d in a.defaults + a.kw_defaults if d], scope)
            inner = Scope(n, scope)
            self.scopes[n] = inner
            for arg in a.posonlyargs + a.args + a.kwonlyargs + [x for x in (a.vararg, a.kwarg) if x]:
                inner.bound.add(arg.arg)
                if arg.annotation:
                    self.one(arg.annotation, scope)
            self.walk([n.body] if isinstance(n, ast.Lambda) else n.body, inner)
            return
        if isinstance(n, ast.ClassDef):
            scope.bound.add(n.name)
            self.walk(n.decorator_list + n.bases + [k.value for k in n.keywords], scope)
            inner = Scope(n, scope)
            self.scopes[n] = inner
            self.walk(n.body, inner)
            return
        if isinstance(n, COMPS):
            inner = Scope(n, scope)
            self.scopes[n] = inner
            for i, g in enumerate(n.generators):
                self.one(g.iter, scope if i == 0 else inner)
                self.one(g.target, inner)
                self.walk(g.ifs, inner)
            self.walk([n.key, n.value] if isinstance(n, ast.DictComp) else [n.elt], inner)
            return
        if isinstance(n, ast.NamedExpr):
            self.func_scope(scope).bound.add(n.target.id)
            self.uses.append((n.target, scope))
            self.one(n.value, scope)
            return
        if isinstance(n, ast.Name):
            if not isinstance(n.ctx, ast.Load):
                scope.bound.add(n.id)
            self.uses.append((n, scope))
            return
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            self.imports.append((n, scope))
            for al in n.names:
                scope.bound.add(al.asname or al.name.split(".")[0])
            return
        if isinstance(n, ast.Global):
            scope.globals.update(n.names)
        if isinstance(n, ast.ExceptHandler) and n.name:
            scope.bound.add(n.name)
        if isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name:
            scope.bound.add(n.name)
        if isinstance(n, ast.MatchMapping) and n.rest:
            scope.bound.add(n.rest)
        for c in ast.iter_child_nodes(n):
            self.one(c, scope)


def split_new(module):
    parent, _, base = module.rpartition(".")
    return parent, base


DOTTED = re.compile(r"\b(?:dblog_core|spark_jobs|tests)(?:\.[A-Za-z_][A-Za-z_0-9]*)+")
PATHS = re.compile(r"\b(?:dblog_core|spark_jobs|tests)(?:/[A-Za-z_0-9.]+)+")


def redot(m):
    parts = m.group().split(".")
    for k in range(len(parts), 1, -1):
        new = modules.get(".".join(parts[:k]))
        if new:
            return ".".join([new, *parts[k:]])
    return m.group()


def repath(m):
    text = m.group()
    tail = ""
    while text.endswith("."):
        text, tail = text[:-1], "." + tail
    return moves.get(text, text) + tail


def plain(text):
    return PATHS.sub(repath, DOTTED.sub(redot, text))


def rewrite_python(path, text):
    tree = ast.parse(text)
    b = Binder(tree)
    lines = text.encode().split(b"\n")
    offsets, total = [], 0
    for ln in lines:
        offsets.append(total)
        total += len(ln) + 1
    at = lambda line, col: offsets[line - 1] + col
    edits = []
    raw = text.encode()
    all_bound = set().union(*(s.bound for s in b.scopes.values()))
    renames = {}
    for node, scope in b.imports:
        changed, out = False, []
        if isinstance(node, ast.Import):
            for al in node.names:
                new = modules.get(al.name)
                if new:
                    changed = True
                    if not al.asname:
                        warnings.append(f"{path}:{node.lineno} import {al.name} without as")
                out.append(f"import {new or al.name}" + (f" as {al.asname}" if al.asname else ""))
        else:
            groups = {}
            for al in node.names:
                full = f"{node.module}.{al.name}"
                if full in modules and node.level == 0:
                    parent, base = split_new(modules[full])
                    changed = True
                    asname = al.asname
                    if not asname and base != al.name:
                        if base in all_bound:
                            asname = al.name
                            warnings.append(f"{path}:{node.lineno} {base} is bound already: kept as {al.name}")
                        else:
                            renames[(scope, al.name)] = base
                    if asname == base:
                        asname = None
                    groups.setdefault(parent, []).append(base + (f" as {asname}" if asname else ""))
                else:
                    m = modules.get(node.module, node.module)
                    changed |= m != node.module
                    groups.setdefault(m, []).append(al.name + (f" as {al.asname}" if al.asname else ""))
            out = [f"from {m} import {', '.join(ns)}" if len(ns) < 6 else f"from {m} import (\n{', '.join(ns)},\n)" for m, ns in groups.items()]
        if changed:
            start, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
            if b"#" in raw[start:end]:
                warnings.append(f"{path}:{node.lineno} comment inside an import")
            indent = " " * node.col_offset
            edits.append((start, end, ("\n" + indent).join(out)))
    for n, scope in b.uses:
        owner = scope.find(n.id)
        new = renames.get((owner, n.id)) if owner else None
        if new:
            edits.append((at(n.lineno, n.col_offset), at(n.end_lineno, n.end_col_offset), new))
    # strings
    import_spans = [(s, e) for s, e, _ in edits]
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            s, e = at(n.lineno, n.col_offset), at(n.end_lineno, n.end_col_offset)
            old = raw[s:e].decode()
            new = plain(old)
            if new != old and not any(s < b2 and a2 < e for a2, b2 in import_spans):
                edits.append((s, e, new))
    # comments
    import io, tokenize
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type == tokenize.COMMENT:
            new = plain(t.string)
            if new != t.string:
                line = lines[t.start[0] - 1].decode()
                s = at(t.start[0], len(line[: t.start[1]].encode()))
                edits.append((s, s + len(t.string.encode()), new))
    out, last = [], 0
    for s, e, new in sorted(set(edits)):
        if s < last:
            continue
        out.append(raw[last:s])
        out.append(new.encode())
        last = e
    out.append(raw[last:])
    return b"".join(out).decode()


for f in files:
    p = root / f
    if f in ("CHANGELOG.md", "requirements.txt") or f.startswith("docs/images") or p.suffix in (".png", ".svg", ".json", ".txt"):
        continue
    try:
        text = p.read_text()
    except UnicodeDecodeError:
        continue
    new = rewrite_python(f, text) if f.endswith(".py") else plain(text)
    if new != text:
        p.write_text(new)
for old, new in moves.items():
    (root / new).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "-C", root, "mv", old, new], check=True)
print("\n".join(warnings))
