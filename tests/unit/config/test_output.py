"""`[output.NAME]`: faults in their places, defaults by kind, secrets, and a page that has every setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dblog_core.config.loader import load
from dblog_core.config.output import OutputConfig
from dblog_core.config.secret_settings import secrets_of
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
BASE = """
[source]
name = "shop"
kind = "mysql"
database = "shop"
tables = ["shop.*"]
[staging]
path = "staging"
[state]
url = "sqlite:///var/lib/dblog/state.db"
[lake]
path = "lake"
"""
KAFKA = '[output.a]\nkind = "kafka"\nservers = "h:1"\n'
AVRO = KAFKA + 'form = "avro"\n'
FILES = '[output.a]\nkind = "files"\npath = "x"\n'


def _load(directory: Path, outputs: str) -> Config:
    file = directory / "shop.toml"
    file.write_text(BASE + outputs)
    return load(file)


def _faults(directory: Path, outputs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        _load(directory, outputs)
    assert "hunter2secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ('[output.a]\nkind = "ftp"', "[output.a] kind: is none of the possible values"),
        ('[output.a]\npath = "x"', "[output.a] kind: is missing"),
        ('[output.A-b]\nkind = "files"\npath = "x"', "does not have the right form; correct it ([a-z][a-z0-9_]*)"),
        ('[output.a]\nkind = "files"', "[output.a] path: is missing; give a directory"),
        (FILES + 'urll = "y"', "[output.a] urll: is not known; did you mean url?"),
        (
            '[output.a]\nkind = "files"\npath = "x"\nurl = "http://h/"',
            "[output.a] url: has no meaning for kind = files",
        ),
        (FILES + 'form = "csv"', "[output.a] form: is none of the possible values"),
        (FILES + 'start = "now"', "[output.a] start: is no place"),
        (FILES + "start = 0", "[output.a] start: is no place"),
        (
            '[output.a]\nkind = "files"\npath = "x"\ntables = ["a"]',
            "[output.a] tables, entry 1: does not have the right",
        ),
        (FILES + 'poison = "dead_letter"', "[output.a] dead_letter: is missing"),
        (FILES + 'dead_letter = "y"', "[output.a] dead_letter: is never used"),
        ('[output.a]\nkind = "http"\nurl = "http://h/"', "[output.a] secret: is missing"),
        (
            '[output.a]\nkind = "http"\nurl = "http://u:hunter2secret@h/"',
            "[output.a] url: does not have the right form",
        ),
        (
            '[output.a]\nkind = "http"\nurl = "https://h/"\nsecret = "hunter2secret"\ntls_ca = "no.pem"',
            "[output.a] tls_ca: names a file that does not exist",
        ),
        (
            '[output.a]\nkind = "http"\nurl = "http://h/"\nsecret = "hunter2secret"\ntls_ca = "no.pem"',
            "[output.a] tls_ca: is never used without TLS",
        ),
        ('[output.a]\nkind = "postgres"\nhost = "h"', "[output.a] database: is missing"),
        ('[output.a]\nkind = "mysql"\ndatabase = "d"\ntable = "a;b"', "[output.a] table: does not have the right form"),
        (
            '[output.a]\nkind = "mysql"\ndatabase = "d"\ntls_cert = "no.pem"\ntls = "verify-ca"',
            "[output.a] tls_cert: is given without tls_key",
        ),
        (
            '[output.a]\nkind = "postgres"\ndatabase = "d"\ntls = "verify-ca"',
            "[output.a] tls: is verify-ca, for which PostgreSQL's client",
        ),
        ('[output.a]\nkind = "python"', "[output.a] class: is missing"),
        ('[output.a]\nkind = "kafka"', "[output.a] servers: is missing; give HOST:PORT"),
        ('[output.a]\nkind = "kafka"\nservers = "h"', "[output.a] servers: does not have the right form"),
        ('[output.a]\nkind = "kafka"\nservers = "h:1"\nform = "jsonl"', "[output.a] form: is no form of kafka"),
        ('[output.a]\nkind = "kafka"\nservers = "h:1"\nuser = "u"', "[output.a] user: is given without password"),
        (KAFKA + 'form = "avro"', "[output.a] registry: is missing; give http(s)://HOST:PORT"),
        (KAFKA + 'registry = "http://r"', "[output.a] registry: is never used without form = avro"),
        (AVRO + 'registry = "http://u:hunter2secret@r"', "[output.a] registry: does not have the right form"),
        (AVRO + 'registry = "http://r"\nregistry_ca = "no.pem"', "[output.a] registry_ca: is never used without TLS"),
        (AVRO + 'registry = "https://r"\nregistry_ca = "no.pem"', "[output.a] registry_ca: names a file that does not"),
        (AVRO + 'registry = "https://r"\nregistry_user = "u"', "registry_user: is given without registry_password"),
        ('[output.a]\nkind = "kafka"\nservers = "h:1"\nmax_message = "x"', "[output.a] max_message: is no size"),
    ],
)
def test_a_fault_is_told_in_its_place_with_its_fix(tmp_path: Path, text: str, expected_text: str) -> None:
    assert expected_text in _faults(tmp_path, text)


def test_all_faults_of_all_outputs_are_told_at_once(tmp_path: Path) -> None:
    text = '[output.a]\nkind = "files"\n[output.b]\nkind = "http"\nbatch_rows = 0\npassword = "hunter2secret"\n'
    message = _faults(tmp_path, text)
    for place in (
        "[output.a] path",
        "[output.b] batch_rows",
        "[output.b] url",
        "[output.b] secret",
        "[output.b] password",
    ):
        assert f"  - {place}: " in message


def test_defaults_follow_kind_and_host(tmp_path: Path) -> None:
    text = """
[output.files]
kind = "files"
path = "out"
[output.near]
kind = "mysql"
database = "d"
[output.bus]
kind = "kafka"
servers = "127.0.0.1:9092,kafka.example:9092"
[output.local]
kind = "kafka"
servers = "127.0.0.1:9092"
[output.far]
kind = "postgres"
database = "d"
host = "db.example"
"""
    outputs = _load(tmp_path, text).output
    assert (outputs["files"].path, outputs["files"].every) == (str(tmp_path / "out"), 10.0)
    assert (outputs["files"].batch_rows, outputs["near"].batch_rows) == (50_000, 1000)
    assert (outputs["near"].port, outputs["near"].tls) == (3306, "off")
    assert (outputs["far"].port, outputs["far"].tls) == (5432, "verify-full")
    assert (outputs["bus"].form, outputs["bus"].tls, outputs["local"].tls) == ("json", "verify-full", "off")


def test_secrets_come_from_the_environment_and_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2secret")
    text = '[output.a]\nkind = "http"\nurl = "https://h/x"\nsecret = "${SECRET}"\ntoken = "${SECRET}"\n'
    config = _load(tmp_path, text)
    assert secrets_of(config.output["a"]) == ("hunter2secret",)
    assert "hunter2secret" not in repr(config)
    text = AVRO + 'registry = "https://r"\nregistry_user = "u"\nregistry_password = "${SECRET}"\n'
    config = _load(tmp_path, text)
    assert secrets_of(config) == ("hunter2secret",) and "hunter2secret" not in repr(config)


def test_every_setting_is_on_the_page() -> None:
    page = PAGE.read_text()
    part = page[page.index("## `[output.NAME]`") :]
    explained = {
        name for row in re.findall(r"^\| (`.*?) \|", part, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert explained == {field.alias or name for name, field in OutputConfig.model_fields.items()}
