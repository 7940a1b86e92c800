"""What `check` says of a configuration before it asks any server, and how it joins the problems of several parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.config.loader import load
from dblog_core.interfaces import Problem
from dblog_core.monitoring import preflight

FILE = """
[source]
name = "shop"
kind = "mysql"
host = "db.example"
tls = "off"
database = "shop"
tables = ["shop.*"]
password = "in the open"
columns = { "shop.people" = { hash = ["email"] }, "shop.orders" = { mask = ["note"] } }
[staging]
path = "staging"
[state]
url = "sqlite:////nowhere/state.db"
[lake]
path = "lake"
"""
KEY = 'hash_key = "a text that is long enough"\n[staging]'


def warnings(file: Path) -> str:
    problems = list(preflight._configuration(file, load(file)))
    assert not any(problem.fatal for problem in problems) and all(problem.fix for problem in problems)
    return "\n".join(problem.what for problem in problems)


def test_what_a_configuration_leaves_open_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(FILE)
    file.chmod(0o644)
    text = warnings(file)
    assert "hash_key is missing: hashed values of shop.people can be found" in text
    assert "[source] tls is off: rows of db.example travel in clear text" in text
    assert "holds a password, and other users may read it" in text and "in the open" not in text
    file.chmod(0o600)
    file.write_text(FILE.replace("[staging]", KEY).replace('tls = "off"\n', ""))
    assert warnings(file) == ""


def test_what_prevents_the_capture_of_a_table_is_one_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(FILE)
    no_rules = Problem("shop.old has no rules", "give it an entry", table="shop.old")
    held = Problem("shop.old is held", "accept it", table="shop.old")
    others = [
        Problem("shop.t has no key", "add one", table="shop.t"),
        Problem("shop.old is large", "wait", fatal=False, table="shop.old"),
        Problem("the log is off", "turn it on"),
        Problem("the log is short", "have it longer"),
    ]
    for part in ("_configuration", "_state", "_lake", "_spark"):
        monkeypatch.setattr(preflight, part, lambda *_: iter(()))
    monkeypatch.setattr(preflight, "_source", lambda _: iter([no_rules, *others]))
    monkeypatch.setattr(preflight, "_staging", lambda _: iter([held]))
    both = Problem("shop.old has no rules; shop.old is held", "give it an entry; accept it", table="shop.old")
    found = preflight.findings(load(file))
    assert [(each.area, each.problem) for each in found] == [("source", problem) for problem in (both, *others)]
