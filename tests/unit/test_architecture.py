"""ARCHITECTURE.md says what the tree and its imports say: the floors, and the walks of a row, a chunk and a failure."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from dblog_core import interfaces
from tests.unit.test_imports import BESIDE, FLOORS, MODULES, imports

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
WALKS = ("row", "chunk", "failure")
MEDIA = {"staging", "the source's log", "the state store"}
MOST_LINES = 300
NOT_OURS = {"docker/.env", "airflow_local_settings.py"}
"""Files that documents name and that a user or Airflow makes."""
FILES = [
    f"/{file.relative_to(ROOT)}"
    for top in ("dblog_core", "spark_jobs", "dags", "tests")
    for file in (ROOT / top).rglob("*.py")
]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def _table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = section[section.index("|") :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _module(path: str) -> str:
    """`capture/term` as `dblog_core.capture.term`; paths of `spark_jobs` begin with it."""
    name = path.strip("`").replace("/", ".")
    return name if name.startswith("spark_jobs.") else f"dblog_core.{name}"


def _package(module: str) -> str:
    return module.rpartition(".")[0]


def _walk(name: str) -> list[tuple[str, list[str]]]:
    """The modules of a walk, each with what joins it to the one before: modules, protocols and media."""
    rows = _table(f"The walk of a {name}")
    return [(_module(module), [] if not by else by.split(", ")) for module, by, *_ in rows]


def _are_joined(first: str, other: str) -> bool:
    """Whether one of two modules imports the other."""
    return other in imports(MODULES[first]) or first in imports(MODULES[other])


def test_the_floors_are_those_that_the_imports_are_checked_by() -> None:
    floors = [re.findall(r"`(\w+)`", cell)[0] for cell, _ in _table("Floors")]
    assert floors == list(FLOORS)
    section = PAGE.partition("## Floors")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in section for name in BESIDE - {"__init__"})


@pytest.mark.parametrize("name", WALKS)
def test_every_step_of_a_walk_is_joined_to_the_one_before_by_imports(name: str) -> None:
    walk = _walk(name)
    assert len(walk) > 5 and walk[0][1] == [] and all(by for _, by in walk[1:])
    for (before, _), (module, joints) in pairwise(walk):
        assert module in MODULES, module
        medium = [joint.strip("*") for joint in joints if joint.startswith("*")]
        assert set(medium) <= MEDIA
        if medium:  # two processes, or two times: what comes before knows nothing of what comes after
            assert not any(module == each for each in imports(MODULES[before])), (before, module)
        chain = [] if joints == ["directly"] else [joint for joint in joints if not joint.startswith("*")]
        _check_chain([*([] if medium else [before]), *chain, module])


def _check_chain(chain: list[str]) -> None:
    names = [each if each in MODULES else each.strip("`") for each in chain]
    for first, other in pairwise(names):
        protocols = [each.removeprefix("interfaces.") for each in (first, other) if each.startswith("interfaces.")]
        if protocols:
            assert hasattr(interfaces, protocols[0]), protocols
            user = other if first.startswith("interfaces.") else first
            package = [module for module in MODULES if module.startswith(_package(_package(_as_module(user))))]
            assert any("dblog_core.interfaces" in imports(MODULES[module]) for module in package), user
        else:
            assert _are_joined(_as_module(first), _as_module(other)), f"{first} and {other} do not import each other"


def _as_module(name: str) -> str:
    return name if name in MODULES else _module(name)


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_goes_forward(name: str) -> None:
    """It meets no module twice, and never returns to a package that it has left."""
    modules = [module for module, _ in _walk(name)]
    assert len(set(modules)) == len(modules)
    packages = [_package(module) for module in modules]
    stays = [package for package, before in zip(packages, [None, *packages], strict=False) if package != before]
    assert len(set(stays)) == len(stays), stays


def test_all_walks_agree_on_what_comes_after_what() -> None:
    """No walk passes two packages the other way round: there is one way from a source to the lake."""
    after: dict[str, set[str]] = {}
    for name in WALKS:
        packages = list(dict.fromkeys(_package(module) for module, _ in _walk(name)))
        for number, package in enumerate(packages):
            after.setdefault(package, set()).update(packages[number + 1 :])
    reversed_ = [(first, other) for first in after for other in after[first] if first in after.get(other, ())]
    assert not reversed_


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_file_that_a_document_names_is_there(page: Path) -> None:
    """Paths in backticks that begin with a directory of ours, and links to files."""
    text = page.read_text()
    tops = "dblog_core|spark_jobs|tests|tools|docs|docker|dags"
    named = re.findall(rf"`((?:{tops})/[\w./*-]+)`", text)
    if page.name == "ARCHITECTURE.md":
        rooms = "|".join(FLOORS)
        named += [f"dblog_core/{path}" for path in re.findall(rf"`((?:{rooms})/[\w/]+(?:\.py)?)`", text)]
        named += re.findall(r"`(spark_jobs/[\w/]+)`", text)
    missing = [path for path in named if not (list(ROOT.glob(path.rstrip("/"))) or list(ROOT.glob(f"{path}.py")))]
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    missing += [link for link in links if not (page.parent / link).exists()]
    files = re.findall(r"`([\w/]+\.py)`", text)
    missing += [file for file in files if not any(each.endswith(f"/{file}") for each in FILES)]
    modules = re.findall(r"`((?:dblog_core|spark_jobs)\.[a-z_.]+)`", text)
    missing += [name for name in modules if not _is_there(name)]
    assert set(missing) - NOT_OURS == set()


def _is_there(name: str) -> bool:
    """A module, or a name in one."""
    parent, _, attribute = name.rpartition(".")
    return name in MODULES or (
        parent in MODULES and re.search(rf"\b{attribute}\b", MODULES[parent].read_text()) is not None
    )


def test_every_method_that_the_map_of_the_paper_names_is_there() -> None:
    classes: dict[str, str] = {}
    for file in MODULES.values():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = classes.get(node.name, "") + ast.unparse(node)
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)", (ROOT / "PAPER_MAP.md").read_text()))
    absent = {f"{name}.{member}" for name, member in named if not re.search(rf"\b{member}\b", classes.get(name, ""))}
    assert named and not absent
