"""sym.py ROOT old.module new.module "docstring" name,name...: moves top-level definitions, and rewrites who imports them.

Uses by attribute (`leader.LEASE`, `leader` bound by `from pkg import leader`) become `new_base.LEASE`.
"""
import ast
import re
import subprocess
import sys
from pathlib import Path

root, old, new, doc = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
names = set(sys.argv[5].split(","))


def path_of(module):
    p = root / (module.replace(".", "/") + ".py")
    return p


src = path_of(old)
text = src.read_text()
lines = text.split("\n")
tree = ast.parse(text)
moved, spans = [], []
for n in tree.body:
    defined = set()
    if isinstance(n, (ast.FunctionDef, ast.ClassDef)):
        defined = {n.name}
    elif isinstance(n, ast.Assign):
        defined = {t.id for t in n.targets if isinstance(t, ast.Name)}
    elif isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name):
        defined = {n.target.id}
    if defined & names:
        start = min([n.lineno] + [d.lineno for d in getattr(n, "decorator_list", [])])
        while lines[start - 2].startswith("#") and not lines[start - 2].startswith("# ---") and "----" not in lines[start - 2]:
            start -= 1
        spans.append((start, n.end_lineno))
        moved.append("\n".join(lines[start - 1 : n.end_lineno]))
        names -= set()
found = set()
for m in moved:
    for n in ast.parse(m).body:
        found |= {getattr(n, "name", None)} | {t.id for t in getattr(n, "targets", []) if isinstance(t, ast.Name)}
        if isinstance(n, ast.AnnAssign):
            found.add(n.target.id)
assert names <= found, names - found
imports = [
    "\n".join(lines[n.lineno - 1 : n.end_lineno])
    for n in tree.body
    if isinstance(n, (ast.Import, ast.ImportFrom)) and getattr(n, "module", "") != "__future__"
]
used_in_rest = []
rest_lines = lines[:]
for s, e in sorted(spans, reverse=True):
    del rest_lines[s - 1 : e]
rest = "\n".join(rest_lines)
uses = {n.id for n in ast.walk(ast.parse(rest)) if isinstance(n, ast.Name)} & names
last = max([n.end_lineno for n in ast.parse(rest).body if isinstance(n, (ast.Import, ast.ImportFrom))] + [1])
if uses:
    rl = rest.split("\n")
    rl.insert(last, f"from {new} import {', '.join(sorted(uses))}")
    rest = "\n".join(rl)
src.write_text(rest)
dst = path_of(new)
if dst.exists():
    t = dst.read_text()
    tl = t.split("\n")
    d = ast.parse(t)
    at = max([n.end_lineno for n in d.body if isinstance(n, (ast.Import, ast.ImportFrom))] + [1])
    tl[at:at] = imports
    dst.write_text("\n".join(tl).rstrip("\n") + "\n\n\n" + "\n\n\n".join(moved) + "\n")
else:
    dst.parent.mkdir(parents=True, exist_ok=True)
    dst.write_text(f'"""{doc}"""\n\nfrom __future__ import annotations\n\n' + "\n".join(imports) + "\n\n\n" + "\n\n\n".join(moved) + "\n")
subprocess.run(["git", "-C", root, "add", "-N", dst], check=True)

old_pkg, _, old_base = old.rpartition(".")
new_pkg, _, new_base = new.rpartition(".")
listed = subprocess.run(["git", "-C", root, "ls-files", "*.py"], capture_output=True, text=True).stdout.split()
for f in listed:
    p = root / f
    if p in (src, dst) or not p.exists():
        continue
    t = p.read_text()
    if old not in t and old_base not in t:
        continue
    tr = ast.parse(t)
    edits, base_names, add = [], set(), []
    tl = t.split("\n")
    offs, total = [], 0
    for ln in tl:
        offs.append(total)
        total += len(ln.encode()) + 1
    at = lambda l, c: offs[l - 1] + c
    raw = t.encode()
    for n in ast.walk(tr):
        if isinstance(n, ast.ImportFrom) and n.module == old:
            go = [a for a in n.names if a.name in names]
            stay = [a for a in n.names if a.name not in names]
            if go:
                show = lambda xs: ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in xs)
                ind = " " * n.col_offset
                parts = ([f"from {old} import {show(stay)}"] if stay else []) + [f"from {new} import {show(go)}"]
                edits.append((at(n.lineno, n.col_offset), at(n.end_lineno, n.end_col_offset), ("\n" + ind).join(parts)))
        if isinstance(n, ast.ImportFrom) and n.module == old_pkg:
            for a in n.names:
                if a.name == old_base:
                    base_names.add((a.asname or a.name, n))
    for name, imp in base_names:
        hit = [
            n for n in ast.walk(tr)
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == name and n.attr in names
        ]
        # monkeypatch.setattr(module, "name", ...)
        for n in ast.walk(tr):
            if isinstance(n, ast.Call) and len(n.args) > 1 and isinstance(n.args[0], ast.Name) and n.args[0].id == name and isinstance(n.args[1], ast.Constant) and n.args[1].value in names:
                hit.append(n.args[0])
        for n in hit:
            v = n.value if isinstance(n, ast.Attribute) else n
            edits.append((at(v.lineno, v.col_offset), at(v.end_lineno, v.end_col_offset), new_base))
        if hit:
            e = at(imp.end_lineno, imp.end_col_offset)
            edits.append((e, e, "\n" + " " * imp.col_offset + f"from {new_pkg} import {new_base}"))
    out, lastp = [], 0
    for s, e, x in sorted(set(edits)):
        if s < lastp:
            print("overlap", f, s)
            continue
        out += [raw[lastp:s], x.encode()]
        lastp = e
    out.append(raw[lastp:])
    nt = b"".join(out).decode()
    for nm in names:
        nt = nt.replace(f'"{old}.{nm}', f'"{new}.{nm}')
    if nt != t:
        p.write_text(nt)
