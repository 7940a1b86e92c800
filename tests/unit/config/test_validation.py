"""Faults of a configuration: each in its place, with its fix, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.config_files import REST, SOURCE, SQLITE, faults, file

__all__ = ["file"]


_ZOOKEEPER = 'url = "zookeeper://zk:2181/dblog"'


@pytest.mark.parametrize(
    ("change", "expected_texts"),
    [
        (("kind =", "kindd ="), ["[source] kindd: is not known; did you mean kind?", "[source] kind: is missing"]),
        (
            ('"mysql"', '"oracle"'),
            ["[source] kind: is none of the possible values; use 'mysql', 'mariadb' or 'postgres'"],
        ),
        (('name = "shop"', 'name = "My Shop"'), ["[source] name: does not have the right form"]),
        (("[staging]", "[stagging]"), ["[stagging]: is not known; did you mean staging?", "[staging]: is missing"]),
        (("database =", "chunk_size = 5\ndatabase ="), ["[source] chunk_size: is not known; it belongs in [dump]"]),
        (("database =", 'port = "3306"\ndatabase ='), ["[source] port: has the wrong type; it must be a whole number"]),
        (("database =", "port = true\ndatabase ="), ["[source] port: has the wrong type"]),
        (("database =", "port = 70000\ndatabase ="), ["[source] port: must be less than or equal to 65535"]),
        (
            ("database =", 'read_only = "no"\ndatabase ='),
            ["[source] read_only: has the wrong type; it must be true or false"],
        ),
        (('["shop.*"]', '"shop.*"'), ["[source] tables: has the wrong type; it must be a list"]),
        (('["shop.*"]', "[]"), ["[source] tables"]),
        (('["shop.*"]', '["shop"]'), ["[source] tables, entry 1: does not have the right form"]),
        (('["shop.*"]', '["shop.a", "shop.a"]'), ["[source] tables, entry 2: stands there twice"]),
        (("database =", 'slot = "s"\ndatabase ='), ["[source] slot: has no meaning for kind = mysql"]),
        (("database =", 'read_replica = "r"\ndatabase ='), ["[source] read_replica: has no meaning for kind = mysql"]),
        (("database =", 'tls_ca = "no.pem"\ndatabase ='), ["[source] tls_ca: names a file that does not exist"]),
        (
            ("database =", 'tls = "off"\ntls_ca = "no.pem"\ndatabase ='),
            ["[source] tls_ca: is never used with tls = off"],
        ),
        (("database =", 'tls_cert = "no.pem"\ndatabase ='), ["[source] tls_cert: is given without tls_key"]),
        (('"mysql"', '"postgres"\ntls = "verify-ca"'), ["[source] tls: is verify-ca, for which PostgreSQL's client"]),
        (("database =", 'start = "newest"\ndatabase ='), ["[source] start: is no place in the log of mysql"]),
        (("database =", 'start = "0/16B3748"\ndatabase ='), ["[source] start: is no place in the log of mysql"]),
        (("database =", 'start = "2026-11-20T10:00"\ndatabase ='), ["[source] start: is a time without its zone"]),
        (("database =", "start = 2026-11-20T10:00:00\ndatabase ="), ["[source] start: is a time without its zone"]),
        (("database =", "start = 2026-11-20\ndatabase ="), ["[source] start: is a time without its zone"]),
        (("database =", 'airflow_connection = "db"\ndatabase ='), ["[source] password: is in airflow_connection too"]),
        (('path = "lake"', 'path = "staging/lake"'), ["[lake] path: lies inside the staging directory"]),
        (('path = "lake"', 'path = "staging"'), ["[lake] path: is the staging directory"]),
        (('path = "staging"', 'path = "lake/staging"'), ["[staging] path: lies inside the lake"]),
        (('path = "staging"', 'path = "gs://bucket/x"'), ["[staging] path: is a URL that is not supported"]),
        (('path = "staging"', 'path = "s3://"'), ["[staging] path: is a URL that is not supported"]),
        (
            (REST, REST.replace('"staging"', '"s3://b-1/lake/x"').replace('"lake"', '"s3://b-1/lake"')),
            ["[staging] path: lies inside the lake"],
        ),
        (('path = "lake"', 'path = "lake"\n[s3]\naccess_key = "a"'), ["[s3] access_key: is given without secret_key"]),
        (
            ('path = "lake"', 'path = "lake"\n[s3]\nendpoint = "b.example"'),
            ["[s3] endpoint: does not have the right form"],
        ),
        (
            ('path = "lake"', 'path = "lake"\n[dump]\nworkers = 0'),
            ["[dump] workers: must be greater than or equal to 1"],
        ),
        (
            ('path = "lake"', 'path = "lake"\n[dump]\nmax_retained = "lots"\nadaptive = 1'),
            ["[dump] max_retained: is no size", "[dump] adaptive: has the wrong type; it must be true or false"],
        ),
        (('path = "lake"', 'path = "lake"\n[s3]\nkms_key = "a"'), ["[s3] kms_key: is never used without aws:kms"]),
        (("sqlite:///var", "sqlite://var"), ["[state] url: does not have the right form"]),
        (
            (SQLITE, f'{SQLITE}\nuser = "u"\ntls = "require"'),
            [f"[state] {k}: has no meaning" for k in ("user", "tls")],
        ),
        (
            (SQLITE, f'{_ZOOKEEPER}\nuser = "a:b"\ntls = "off"\ntls_ca = "no.pem"\ntls_key = "no.pem"'),
            [
                "[state] user: is given without password",
                "[state] user: holds a colon",
                "[state] tls_ca: is never used with tls = off",
                "[state] tls_key: is given without tls_cert",
            ],
        ),
        (
            (SQLITE, f'{_ZOOKEEPER}\ntls_ca = "no.pem"'),
            ["[state] tls_ca: names a file that does not exist"],
        ),
        (
            ("hunter2secret", "${NOT_SET_ANYWHERE}"),
            ["[source] password: the environment variable NOT_SET_ANYWHERE is not set"],
        ),
        (("hunter2secret", "hunter2secret${A:-b}"), ["[source] password: holds a ${ that is not ${NAME}"]),
    ],
)
def test_a_fault_is_told_in_its_place_with_its_fix(
    file: Path, change: tuple[str, str], expected_texts: list[str]
) -> None:
    text = SOURCE + REST
    assert change[0] in text
    message = faults(file, text.replace(*change))
    for line in expected_texts:
        assert line in message


@pytest.mark.parametrize(
    ("rules", "expected_text"),
    [
        (
            '[source.columns."shop.a"]\nmaskk = ["x"]',
            '[source.columns."shop.a"] maskk: is not known; did you mean mask?',
        ),
        ('[source.columns."other.a"]\nmask = ["x"]', '[source.columns."other.a"]: is no table of this capture'),
        (
            '[source.columns."shop.a"]\nmask = ["x"]\nhash = ["x"]',
            '[source.columns."shop.a"] hash, entry 1: is under mask too',
        ),
        (
            '[source.columns."shop.a"]\nexclude = ["id"]\n[source.keys]\n"shop.a" = ["id"]',
            '[source.keys] "shop.a", entry 1: is a key column, and under exclude',
        ),
        (
            '[source.columns."shop.a"]\nstaged_as = { x = "float" }',
            "[source.columns.\"shop.a\"] staged_as, x: is none of the possible values; use 'double', 'text'",
        ),
        (
            '[source.columns."shop.a"]\nmask = ["x"]\nstaged_as = { x = "double" }',
            '[source.columns."shop.a"] staged_as, x: is under mask too',
        ),
        (
            '[source.columns."shop.a"]\nstaged_as = { id = "bigint" }\n[source.keys]\n"shop.a" = ["id"]',
            '[source.keys] "shop.a", entry 1: is a key column, and under staged_as',
        ),
        ('[source.keys]\n"shop.a" = []', '[source.keys] "shop.a": names no column'),
        ('[source.keys]\n"shop.a" = ["id", "id"]', '[source.keys] "shop.a", entry 2: stands there twice'),
    ],
)
def test_faults_of_column_rules_and_keys(file: Path, rules: str, expected_text: str) -> None:
    assert expected_text in faults(file, f"{SOURCE}\n{rules}\n{REST}")


def test_all_faults_are_told_at_once(file: Path) -> None:
    text = SOURCE.replace("mysql", "oracle").replace("database", "databse") + REST.replace('"lake"', '"staging/lake"')
    message = faults(file, text)
    assert "4 faults" in message
    for place in ("[source] kind", "[source] databse", "[source] database", "[lake] path"):
        assert f"  - {place}: " in message


@pytest.mark.parametrize("text", ["[source\n", 'password = "hunter2secret\n', "a = 1\na = 2"])
def test_what_is_not_toml_is_told_with_its_line(file: Path, text: str) -> None:
    assert "is not TOML" in faults(file, text)
