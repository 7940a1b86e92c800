"""Names say what they hold: a count of those that do not, with limits that may only fall.

`python -m tests.unit.test_names PATH...` lists what is counted in those files and folders, each with its place.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PARTICIPLE = re.compile(
    r"(?!(?:ex|pro|suc)ceed$|[a-z]*(?:need|feed|seed|speed|embed|shed)$)[a-z]+ed|"
    r"(?:un|re|over|with|for)?(?:known|seen|taken|given|written|drawn|held|told|kept|found|gone|done|got|gotten|begun)|"
    r"(?:made|left|lost|sent|said|heard|built|shown|sought|met|meant|born|sworn|torn|worn|grown|blown|thrown|hidden)|"
    r"(?:chosen|broken|spoken|driven|fallen|eaten|proven|shaken|frozen|laid|paid|caught|brought|bought|thought|taught)|"
    r"(?:led|fed|bred|spent|lent|dealt|swept|spun|wound|hung|won|stood|understood|came|went|took|began|withdrawn)|"
    r"(?:forgotten|overridden|undone|rewritten|mistaken|bound|whole|alike|unfit|wrong|odd|strange|late|dead|own|aware)"
)
"""A function that is called by one participle or adjective does not say what it does, nor to what."""
VAGUE = {
    *("found", "told", "known", "own", "held", "kept", "wanted", "one", "here", "said", "heard", "asked", "given"),
    *("taken", "made", "met", "gone", "shown", "came", "brought", "ours", "mine", "theirs", "there", "those", "again"),
}
"""A variable or an argument of such a name does not say what it holds."""
PUBLIC = {"dblog_core.signatures.verified"}
"""Functions that users script against."""
PUBLIC_ARGUMENTS = {("probe", "held")}
"""Function and argument, likewise: `dblog_core.interfaces.Probed`."""


class Counts(NamedTuple):
    """What is counted in one package: functions, names that are assigned (arguments too), and tuple assignments.

    `a, b = x, y` is a tuple assignment; what unpacks one value (`a, b = call()`) is none.
    """

    functions: int
    names: int
    assignments: int


GOAL = Counts(5, 5, 1)
"""For each thousand functions, names and lines: a package that has no more needs no limit."""
NONE = Counts(0, 0, 0)
LIMITS: dict[str, Counts] = {}
"""The counts of packages that are still above the goal. They only fall: lower them with every commit that renames."""
SLACK = 5
"""So many, or a fifth, may a count lie below its limit before the limit has to be lowered."""


class Finding(NamedTuple):
    kind: int  # an index of Counts
    place: str
    name: str


def package(file: Path) -> str:
    top, *inner = file.relative_to(ROOT).parts
    return f"{top}/{inner[0]}" if len(inner) > 1 and top != "tests" else top


def assigned_names(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Each name that an assignment, a loop, a `with`, a pattern or a parameter gives to a value, and its line."""
    public = {a for f in functions(module) for a in f.args.kwonlyargs if (f.name, a.arg) in PUBLIC_ARGUMENTS}
    for node in walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg) and node not in public:
            yield node.arg, node.lineno
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@lru_cache(maxsize=1)
def walk(module: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of it: it is asked for them several times."""
    return tuple(ast.walk(module))


def is_tuple_assignment(node: ast.Assign) -> bool:
    several = ast.Tuple | ast.List
    return isinstance(node.value, several) and any(isinstance(target, several) for target in node.targets)


@cache
def count_file(file: Path) -> tuple[tuple[Finding, ...], Counts]:
    """What is counted in a file, and out of how many functions, names and lines."""
    text = file.read_text()
    module = ast.parse(text)
    size = Counts(len(list(functions(module))), len(list(assigned_names(module))), len(text.splitlines()))
    return tuple(findings(module, file.relative_to(ROOT))), size


def findings(module: ast.Module, path: Path) -> Iterator[Finding]:
    dotted = ".".join(path.with_suffix("").parts)
    for function in functions(module):
        if PARTICIPLE.fullmatch(function.name.strip("_")) and f"{dotted}.{function.name}" not in PUBLIC:
            yield Finding(0, f"{path}:{function.lineno}", f"function {function.name}")
    for name, line in assigned_names(module):
        if name.strip("_") in VAGUE:
            yield Finding(1, f"{path}:{line}", f"name {name}")
    for node in walk(module):
        if isinstance(node, ast.Assign) and is_tuple_assignment(node):
            yield Finding(2, f"{path}:{node.lineno}", ast.unparse(node).partition("\n")[0])


def measure(files: list[Path]) -> tuple[Counts, Counts]:
    """The counts of these files together, and their sizes."""
    kinds = Counter(finding.kind for file in files for finding in count_file(file)[0])
    sizes = [count_file(file)[1] for file in files]
    return Counts(kinds[0], kinds[1], kinds[2]), Counts(*(sum(column) for column in zip(*sizes, strict=True)))


def python_files() -> list[Path]:
    return [
        file for top in ("dblog_core", "spark_jobs", "dags", "tests") for file in sorted((ROOT / top).rglob("*.py"))
    ]


def packages() -> dict[str, list[Path]]:
    files = defaultdict(list)
    for file in python_files():
        files[package(file)].append(file)
    return dict(files)


PACKAGES = packages()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_no_more_names_that_say_nothing(name: str) -> None:
    counts, size = measure(PACKAGES[name])
    limits = LIMITS.get(name, NONE)
    for kind, (label, count) in enumerate(counts._asdict().items()):
        goal = ceil(GOAL[kind] * size[kind] / 1000)
        listing = [f"{f.place}: {f.name}" for file in PACKAGES[name] for f in count_file(file)[0] if f.kind == kind]
        more = f"{label} of {name}: {count}, at most {max(limits[kind], goal)}; give these a name that says more:"
        assert count <= max(limits[kind], goal), "\n".join([more, *listing])
        needed = count if count > goal else 0
        fewer = f"{label} of {name}: lower the limit from {limits[kind]} to {needed}"
        assert limits[kind] - needed <= max(SLACK, limits[kind] // 5), fewer


def test_the_limits_are_for_packages_that_exist() -> None:
    assert set(LIMITS) <= set(PACKAGES)


@pytest.mark.parametrize("name", ["told", "_kept", "withheld", "placed", "unknown", "rewritten"])
def test_a_participle_is_no_name_for_a_function(name: str) -> None:
    assert PARTICIPLE.fullmatch(name.strip("_"))


@pytest.mark.parametrize("name", ["read", "open", "proceed", "embed", "record_placed_chunk", "is_held", "keys_left"])
def test_a_verb_is(name: str) -> None:
    assert not PARTICIPLE.fullmatch(name)


def main() -> None:
    chosen = [ROOT / path for path in sys.argv[1:]] or [ROOT]
    files = [file for file in python_files() if any(path == file or path in file.parents for path in chosen)]
    for file in files:
        for finding in count_file(file)[0]:
            print(f"{finding.place}: {finding.name}")
    for name, inside in PACKAGES.items():
        if chosen_inside := [file for file in inside if file in files]:
            counts, size = measure(chosen_inside)
            rates = (f"{1000 * count / max(1, total):.1f}" for count, total in zip(counts, size, strict=True))
            print(f'    "{name}": Counts({counts[0]}, {counts[1]}, {counts[2]}),  # a thousand: {", ".join(rates)}')


if __name__ == "__main__":
    main()
