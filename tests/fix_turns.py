"""What a run takes of the tests that come in turn: by the first seed, and none that would begin late."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

_ALIKE = ("mysql", "mariadb")
_TIME = pytest.StashKey[float]()
_WHOLE = pytest.StashKey[bool]()
"""Whether all tests were asked for, and not files or directories by name."""

_ON_SERVERS = "tests/integration/"
_ON_DATABASES = "tests/contract/"

_BEGAN = "DBLOG_TESTS_BEGAN"  # epoch seconds: `make` sets it before the set-up, whose time counts too


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turns", "tests that come in turn")
    group.addoption("--every-kind", action="store_true", help="every database for tests that take one of them in turn")
    group.addoption(
        "--smaller",
        action="store_true",
        help="a fifth of what a run takes of a large number, and no test marked `thorough`",
    )
    group.addoption(
        "--turn-minutes",
        type=float,
        default=0,
        help="begin no test marked one_of(N) later in a whole run; 0: no limit",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_WHOLE] = config.args_source is not pytest.Config.ArgsSource.ARGS
    config.stash[_TIME] = float(os.environ.get(_BEGAN) or time.time())
    if hasattr(config, "workerinput"):
        config.stash[_WHOLE] = config.workerinput["whole"]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["whole"] = node.config.stash[_WHOLE]


def has_turns_alone(text: str) -> bool:
    """Whether every test of a file, whose `text` this is, has the mark `one_of(N)`."""
    if re.search(r"^pytestmark = .*\bone_of\(", text, re.MULTILINE):
        return True
    marked = re.findall(r"^@pytest\.mark\.one_of\(", text, re.MULTILINE)
    return len(marked) == len(re.findall(r"^def test_", text, re.MULTILINE))


def _has_all(config: pytest.Config) -> bool:
    """Whether a run takes all that others take in turn."""
    return bool(config.option.every_kind or config.option.soak_seeds > 1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.option.turn_minutes
    takes_turns = item.config.stash[_WHOLE] and not _has_all(item.config)
    if not minutes or not takes_turns or item.get_closest_marker("one_of") is None:
        return
    if time.time() - item.config.stash[_TIME] > 60 * minutes:
        pytest.skip(f"comes in turn, and this run has taken more than {minutes:g} minutes: another run has it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    waiting: set[str] = set()
    if config.option.smaller:
        waiting |= {item.nodeid for item in items if item.get_closest_marker("thorough")}
    if not _has_all(config):
        waiting |= out_of_turn(items, config.option.soak_first, is_whole=config.stash[_WHOLE])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in waiting])
    items[:] = [item for item in items if item.nodeid not in waiting]


def out_of_turn(items: list[pytest.Item], first: int, *, is_whole: bool) -> set[str]:
    """Returns the ids of the tests whose turn it is not, by the first seed.

    Of tests marked `in_turn` each runs on one of its databases, at one of its moments if it has any, or with one value
    of what the mark names. In a whole run, of those marked `one_of(N)` one in N runs, of two that differ by MySQL and
    MariaDB alone one does, and of the values with which a test of the servers runs on a database every second one.
    """
    waiting = _of_another_kind(items, first)
    if is_whole:
        waiting |= _of_the_other_server((i for i in items if i.nodeid not in waiting), first)
        waiting |= _not_of_this_run((i for i in items if i.nodeid not in waiting), first)
        waiting |= _of_other_values((i for i in items if i.nodeid not in waiting), first)
    return waiting


def _of_another_kind(items: list[pytest.Item], first: int) -> set[str]:
    kinds: dict[tuple[str, str], set[str]] = {}
    for item in items:
        if (name := _function(item)) is not None:
            kinds.setdefault(name, set()).add(_kind(item))
    chosen = {name: sorted(kinds[name])[(first + place) % len(kinds[name])] for place, name in enumerate(sorted(kinds))}
    named = ((item, _function(item)) for item in items)
    return {item.nodeid for item, name in named if name is not None and _kind(item) != chosen[name]}


def _of_the_other_server(items: Iterable[pytest.Item], first: int) -> set[str]:
    """Both read the same log by the same code, but for what tests of either one alone show."""
    by_server: dict[tuple[str, str], dict[str, list[str]]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and (server := callspec.params.get("source_kind")) in _ALIKE:
            name = (str(item.path), getattr(item, "originalname", item.name))
            by_server.setdefault(name, {}).setdefault(server, []).append(item.nodeid)
    both = (by_server[name] for name in sorted(by_server) if len(by_server[name]) == len(_ALIKE))
    return {nodeid for place, servers in enumerate(both) for nodeid in servers[_ALIKE[(first + place) % len(_ALIKE)]]}


def _not_of_this_run(items: Iterable[pytest.Item], first: int) -> set[str]:
    """Neighbours come in different runs. The turn is not that of `in_turn`: with the same, a test that has both marks
    would run on the same database each time."""
    turn = random.Random(first).getrandbits(32)
    waiting: set[str] = set()
    places: Counter[int] = Counter()
    for item in sorted(items, key=lambda item: item.nodeid):
        if (mark := item.get_closest_marker("one_of")) is None:
            continue
        (count,) = mark.args
        if (turn + places[count]) % count:
            waiting.add(item.nodeid)
        places[count] += 1
    return waiting


def _of_other_values(items: Iterable[pytest.Item], first: int) -> set[str]:
    """At least one of each remains. The turn is none of the others, for the same reason."""
    turn = random.Random(f"values of {first}").getrandbits(32)
    by_function: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        if (callspec := getattr(item, "callspec", None)) is None:
            continue
        kind = str(callspec.params.get("source_kind"))
        is_of_contract = _ON_DATABASES in str(item.path) and "source_kind" in callspec.params
        if _ON_SERVERS in str(item.path) or is_of_contract:
            name = (str(item.path), getattr(item, "originalname", item.name), kind)
            by_function.setdefault(name, []).append(item.nodeid)
    waiting = set[str]()
    for place, name in enumerate(sorted(by_function)):
        values = sorted(by_function[name])
        if len(values) > 1:
            waiting.update(values[(turn + place) % 2 :: 2])
    return waiting


def _function(item: pytest.Item) -> tuple[str, str] | None:
    """What is marked `in_turn` and runs on several databases, or with several values of what the mark names: file and
    name."""
    if item.get_closest_marker("in_turn") is None or not _kind(item):
        return None
    return str(item.path), getattr(item, "originalname", item.name)


def _kind(item: pytest.Item) -> str:
    callspec, mark = getattr(item, "callspec", None), item.get_closest_marker("in_turn")
    params = {} if callspec is None else callspec.params
    names = (mark.args if mark is not None else ()) or ("source_kind", "moment")
    return " ".join(str(params[name]) for name in names if name in params)
