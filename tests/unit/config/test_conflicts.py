"""Configurations side by side: what two of them must not share is told, and what they may share is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.config import conflicts
from dblog_core.config.loader import load
from dblog_core.monitoring.preflight import _file

TEXT = """
[source]
name = "{name}"
kind = "{kind}"
host = "{host}"
database = "shop"
tables = ["{schema}.*"]
{more}
[staging]
path = "/nowhere/staging"
[state]
url = "zookeeper://zk:2181/dblog"
[lake]
path = "/nowhere/lake/{lake}"
{signals}
"""


def write(
    directory: Path, name: str, *, source: str = "", kind: str = "mysql", more: str = "", **arguments: str
) -> Path:
    file = directory / f"{name}.toml"
    schema = "public" if kind == "postgres" else "shop"
    parts = {"host": "db.example", "lake": name, "signals": "", "schema": schema, "more": more, **arguments}
    file.write_text(TEXT.format(name=source or name, kind=kind, **parts))
    return file


def clash_messages(file: Path) -> list[str]:
    return [clash.message for clash in conflicts.beside(file, load(file))]


def test_fifty_sources_of_one_server_staging_and_state_store_do_not_clash(tmp_path: Path) -> None:
    files = [write(tmp_path, f"s{n}", kind=("mysql", "mariadb", "postgres")[n % 3]) for n in range(50)]
    assert conflicts.clashes({file: load(file) for file in files}) == {}


@pytest.mark.parametrize(
    ("own_settings", "other_settings", "expected_text"),
    [
        ({"source": "b"}, {}, "[source] name b"),
        ({"kind": "postgres"}, {"kind": "postgres", "more": 'slot = "dblog_a"'}, "[source] slot dblog_a"),
        ({"kind": "postgres"}, {"kind": "postgres", "more": 'publication = "dblog_a"'}, "[source] publication dblog_a"),
        ({"more": "server_id = 7"}, {"kind": "mariadb", "more": "server_id = 7"}, "[source] server_id 7"),
        ({"host": "127.0.0.1", "more": "server_id = 7"}, {"host": "localhost", "more": "server_id = 7"}, "server_id 7"),
        ({"lake": "one"}, {"lake": "one"}, "[lake] path /nowhere/lake/one"),
        ({"signals": '[signals]\nfile = "in"'}, {"signals": '[signals]\nfile = "in"'}, "[signals] file"),
    ],
)
def test_what_two_must_not_share_is_told_with_the_file_that_has_it_too(
    tmp_path: Path, own_settings: dict[str, str], other_settings: dict[str, str], expected_text: str
) -> None:
    first_file = write(tmp_path, "a", **own_settings)
    _other = write(tmp_path, "b", **other_settings)
    write(tmp_path, "c")
    (tmp_path / "broken.toml").write_text("[source]\nnme = 1\n")
    problems = [p for p in _file(first_file, load(first_file)) if expected_text in p.what]
    assert [p.what.partition(" is that of ")[2] for p in problems] == ["b.toml too"] and problems[0].fix
    assert problems[0].fatal == ("lake" not in expected_text and "signals" not in expected_text)
    assert all(line.endswith("is that of b.toml too") for line in clash_messages(first_file))


@pytest.mark.parametrize(
    "other_settings", [{"host": "other.example", "more": "server_id = 7"}, {"kind": "postgres"}], ids=str
)
def test_the_same_on_another_server_is_no_clash(tmp_path: Path, other_settings: dict[str, str]) -> None:
    first_file = write(tmp_path, "a", more="server_id = 7")
    write(tmp_path, "b", **other_settings)
    assert clash_messages(first_file) == []
