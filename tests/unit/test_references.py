"""Names that tests hold in strings exist: what they patch, and what programs in strings import.

mypy follows every other name of the tests (`make lint`). Both together find what a rename in the product breaks in
tests that run on servers only.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("dblog_core", "spark_jobs", "tests")
DOTTED = re.compile(rf"(?:{'|'.join(TOPS)})(?:\.[A-Za-z_]\w*)+")
PATCHERS = {"setattr", "delattr", "getattr", "object"}
"""Functions and methods whose first two arguments are an object and the name of one of its attributes."""
EXTERNAL = object()
"""What is not ours, or what cannot be told from the text alone: anything may be its attribute."""


class Module(NamedTuple):
    name: str


class Class(NamedTuple):
    module: str
    node: ast.ClassDef


@cache
def tree(module: str) -> ast.Module | None:
    """The module or package of this name; None if there is none."""
    path = ROOT.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text())
    return ast.Module([], []) if path.is_dir() and module.startswith(TOPS) else None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module or a class, also under `if`, `try`, `with` and loops."""
    for statement in body:
        yield statement
        for inner in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from statements(getattr(statement, inner, []))
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body)


@cache
def names(module: str) -> dict[str, object]:
    """What each name of a module stands for: a Module, a Class, or EXTERNAL."""
    parsed = tree(module)
    return {} if parsed is None else bound_names(parsed.body, module)


def bound_names(body: list[ast.stmt], module: str) -> dict[str, object]:
    bound: dict[str, object] = {}
    for statement in statements(body):
        if isinstance(statement, ast.ClassDef):
            bound[statement.name] = Class(module, statement)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            bound[statement.name] = EXTERNAL
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            bound.update(imported_names(statement))
        else:
            bound.update((name, EXTERNAL) for each in ast.walk(statement) for name in stored_names(each))
    return bound


def stored_names(node: ast.AST) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []


def imported_names(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, object]]:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, ("lazily", statement.module or "", alias.name)
        elif alias.asname:
            yield alias.asname, Module(alias.name)
        else:
            yield alias.name.partition(".")[0], Module(alias.name.partition(".")[0])


def attribute(owner: object, name: str) -> object:
    """What `owner.name` stands for; None if our text has no such name."""
    owner = settle(owner)
    if isinstance(owner, Module):
        if owner.name.split(".")[0] not in TOPS:
            return EXTERNAL
        if tree(f"{owner.name}.{name}") is not None:
            return names(owner.name).get(name) or Module(f"{owner.name}.{name}")
        bound = names(owner.name)
        return bound.get(name, EXTERNAL if "__getattr__" in bound or name.startswith("__") else None)
    if isinstance(owner, Class):
        return member(owner, name)
    return owner and EXTERNAL  # None stays None: a name of what does not exist


def settle(value: object) -> object:
    """What an import names, once somebody asks."""
    while isinstance(value, tuple) and not isinstance(value, Module | Class):
        _, module, name = value
        value = attribute(Module(module), name)
    return value


def member(owner: Class, name: str) -> object:
    """An attribute of a class: of its body, of `self` in its methods, or of its bases."""
    if name.startswith("__"):
        return EXTERNAL
    body = bound_names(owner.node.body, owner.module)
    if name in body:
        return EXTERNAL if not isinstance(body[name], Class) else body[name]
    for node in ast.walk(owner.node):
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store):
            return EXTERNAL
    bases = (resolve(base, names(owner.module)) for base in owner.node.bases if not is_plain(base))
    inherited = (attribute(base, name) for base in bases)
    return next((value for value in inherited if value is not None), None)


def is_plain(base: ast.expr) -> bool:
    """A base outside of our code that brings no attributes."""
    return ast.unparse(base).partition("[")[0] in {"Protocol", "Generic", "ABC", "object"}


def resolve(node: ast.expr, bound: dict[str, object]) -> object:
    """What `a.b.c` stands for; EXTERNAL for anything that is not made of imported names."""
    if isinstance(node, ast.Name):
        return settle(bound.get(node.id, EXTERNAL))
    if isinstance(node, ast.Attribute):
        return settle(attribute(resolve(node.value, bound), node.attr))
    return EXTERNAL


def exists(dotted: str) -> bool:
    """Whether `dblog_core.x.y.Z` is a module, or a name in one."""
    first, *rest = dotted.split(".")
    value: object = Module(first)
    for part in rest:
        value = settle(attribute(value, part))
    return value is not None


def missing_names(text: str) -> Iterator[str]:
    """What is wrong in a module of tests: `line: name`."""
    parsed = ast.parse(text)
    bound = bound_names(parsed.body, "")
    for function in ast.walk(parsed):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = {name: value for name, value in bound_names(function.body, "").items() if value is not EXTERNAL}
            bound = {**inner, **bound}
    parts = {part for node in ast.walk(parsed) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Call | ast.Tuple | ast.List):
            yield from missing_attributes(node, bound)
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node not in parts:
            literal = text_of(node)
            if DOTTED.fullmatch(literal) and not literal.endswith((".py", ".md", ".toml")) and not exists(literal):
                yield f"{node.lineno}: {literal}"
            elif re.search(rf"\b(?:import|from) +(?:{'|'.join(TOPS)})\b", literal):
                yield from (f"{node.lineno}: {name}" for name in missing_in_program(literal))


def missing_attributes(node: ast.Call | ast.Tuple | ast.List, bound: dict[str, object]) -> Iterator[str]:
    """Objects of ours beside strings that name no attribute of theirs: `setattr(Class, "name")`, `(module, "name")`."""
    pair = node.args[:2] if isinstance(node, ast.Call) else node.elts[:2]
    if len(pair) < 2 or (isinstance(node, ast.Call) and callee(node) not in PATCHERS):
        return
    owner, name = pair
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isidentifier():
        target = resolve(owner, bound)
        # A tuple of a class and a word may be anything.
        certain = isinstance(node, ast.Call) or isinstance(target, Module)
        if certain and attribute(target, name.value) is None:
            yield f"{node.lineno}: {ast.unparse(owner)}.{name.value}"


def callee(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """A literal's text, with `0` for what is put into it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(part.value if isinstance(part, ast.Constant) else "0" for part in node.values)


def missing_in_program(program: str) -> Iterator[str]:
    """Names of ours that a program in a string imports or uses, and that do not exist."""
    try:
        parsed = ast.parse(textwrap.dedent(program))
    except SyntaxError:  # a part of a program, or a sentence that speaks of an import
        for module, imported in re.findall(rf"from ((?:{'|'.join(TOPS)})[\w.]*) import (\w+(?:, \w+)*)", program):
            yield from (f"{module}.{name}" for name in imported.split(", ") if not exists(f"{module}.{name}"))
        return
    bound = bound_names(parsed.body, "")
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in TOPS and not exists(a.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in TOPS:
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in dotted if not exists(name))
        elif isinstance(node, ast.Attribute) and resolve(node, bound) is None:
            yield ast.unparse(node)


@pytest.mark.parametrize("folder", sorted(each.name for each in (ROOT / "tests").iterdir() if any(each.glob("*.py"))))
def test_names_in_strings_exist(folder: str) -> None:
    files = sorted((ROOT / "tests" / folder).rglob("*.py"))
    assert not list_missing(files)


def test_names_in_strings_of_fixtures_exist() -> None:
    assert not list_missing(sorted((ROOT / "tests").glob("*.py")))


def list_missing(files: list[Path]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{each}"
        for file in files
        if file != Path(__file__)
        for each in missing_names(file.read_text())
    ]


class Sample:
    """A class of ours, for the tests of this test: nobody renames its method."""

    def method(self) -> None: ...


HEAD = """
from unittest import mock
from dblog_core import cli
from tests.unit.test_references import Sample as Renamed
import dblog_core.cli as module
"""


@pytest.mark.parametrize(
    "good",
    [
        'monkeypatch.setattr(cli, "main", None)',
        'monkeypatch.setattr(cli.main, "anything", None)',
        'monkeypatch.setattr(Renamed, "method", None)',
        'mock.patch.object(module, "main")',
        'monkeypatch.setattr("dblog_core.cli.main", None)',
        'program = "import dblog_core.errors as r; print(r.ConfigError)"',
        'program = f"from dblog_core.cli import main; main({1})"',
        'monkeypatch.setattr(os, "anything", None)',
        'monkeypatch.setattr(value, "anything", None)',
    ],
)
def test_a_name_that_exists_is_no_fault(good: str) -> None:
    assert not list(missing_names(HEAD + good))


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        ('monkeypatch.setattr(cli, "former", None)', "cli.former"),
        ('monkeypatch.setattr(Renamed, "former", None)', "Renamed.former"),
        ('mock.patch.object(module, "former")', "module.former"),
        ('mock.patch("dblog_core.errors.former")', "dblog_core.errors.former"),
        ('command = ["-m", "dblog_core.former"]', "dblog_core.former"),
        ('getattr(cli, "former")', "cli.former"),
        ('cases = [(module, "former"), (module, "main")]', "module.former"),
        ('program = "import dblog_core.errors as r; print(r.former)"', "r.former"),
        ('program = f"from dblog_core.cli import former; former({1})"', "dblog_core.cli.former"),
        ('program = "    from dblog_core.former import main\\n    main()\\n"', "dblog_core.former.main"),
    ],
)
def test_a_name_that_is_gone_is_found(bad: str, name: str) -> None:
    assert [each.partition(": ")[2] for each in missing_names(HEAD + bad)] == [name]
