"""What is wrong with `[output.NAME]` beyond single settings: what a kind needs, and what means nothing to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dblog_core.config.validation import NO_FILE, Fault, Text, authority_of_postgres, connection_faults
from dblog_core.model.hosts import in_the_clear

_TLS = ("tls_ca", "tls_cert", "tls_key")
_TABLES = ("host", "port", "user", "password", "database", "table", "tls", *_TLS)
_OWN: dict[str, tuple[str, ...]] = {
    "files": ("path", "form"),
    "postgres": _TABLES,
    "mysql": _TABLES,
    "http": ("url", "secret", "token", *_TLS),
    "kafka": (
        *("servers", "topic_prefix", "topics", "partitions", "replication", "max_message", "tombstones", "form"),
        *("registry", "registry_user", "registry_password", "registry_ca", "timeout"),
        *("user", "password", "sasl", "tls", *_TLS),
    ),
    "python": ("class", "options"),
}
_TIMED = ("postgres", "mysql", "http", "kafka")
_NEEDED = {
    "files": {"path": "give a directory, or s3://BUCKET/PREFIX"},
    "postgres": {"database": "name the database"},
    "mysql": {"database": "name the database"},
    "http": {"url": "give https://HOST/PATH", "secret": 'give secret = "${ENV}": receivers check signatures with it'},
    "kafka": {"servers": "give HOST:PORT"},
    "python": {"class": 'give class = "MODULE:CLASS"'},
}
_CERTIFICATE = ("tls_cert", "tls_key")
_PAIRS = {"kafka": (_CERTIFICATE, ("user", "password"), ("registry_user", "registry_password"))}
_FORMS = {"files": ("jsonl", "parquet"), "kafka": ("json", "debezium", "avro")}


def contradictions(data: Mapping[str, Any], *, files: bool = True) -> Iterator[Fault]:
    """Faults of all outputs. `files`: look whether the files that are named exist."""
    for name, given in Text(data).section("output").items():
        if isinstance(given, Mapping) and str(given.get("kind")) in _OWN:
            yield from _one(name, given, files=files)


def _one(name: str, given: Mapping[str, Any], *, files: bool) -> Iterator[Fault]:
    kind = str(given["kind"])
    own = {*_OWN[kind], *(("timeout",) if kind in _TIMED else ())}
    foreign = {key for keys in _OWN.values() for key in keys} | {"timeout"}
    for key in given:
        if key in foreign - own:
            yield Fault(("output", name, key), f"has no meaning for kind = {kind}", "remove it")
    for key, fix in _NEEDED[kind].items():
        if not given.get(key):
            yield Fault(("output", name, key), "is missing", fix)
    if kind in _FORMS and given.get("form", _FORMS[kind][0]) not in _FORMS[kind]:
        yield Fault(("output", name, "form"), f"is no form of {kind}", f"use {' or '.join(_FORMS[kind])}")
    yield from _registry(name, given, files=files)
    yield from _shown(name, given)
    if kind == "postgres":
        yield from authority_of_postgres(("output", name), given)
    yield from _poison(name, given)
    yield from connection_faults(("output", name), given, _PAIRS.get(kind, (_CERTIFICATE,)), files=files)


def _registry(name: str, given: Mapping[str, Any], *, files: bool) -> Iterator[Fault]:
    if given.get("kind") != "kafka":
        return
    url, authority = str(given.get("registry", "")), given.get("registry_ca")
    if given.get("form") == "avro" and not url:
        yield Fault(("output", name, "registry"), "is missing", "give http(s)://HOST:PORT of the schema registry")
    if given.get("form") != "avro":
        for key in (key for key in given if key.startswith("registry")):
            yield Fault(("output", name, key), "is never used without form = avro", 'set form = "avro", or remove it')
    elif isinstance(authority, str) and url.startswith("http://"):
        yield Fault(("output", name, "registry_ca"), "is never used without TLS", "remove it, or use https://")
    elif isinstance(authority, str) and files and not Path(authority).is_file():
        yield Fault(("output", name, "registry_ca"), NO_FILE, "give the path of a PEM file")


def _shown(name: str, given: Mapping[str, Any]) -> Iterator[Fault]:
    """What lets somebody in, and would be sent over a network for everybody on the way to read."""
    for secret, url in (("token", "url"), ("registry_password", "registry")):
        if given.get(secret) and in_the_clear(given.get(url)):
            what = f"would be sent in clear text to an {url} of another machine"
            yield Fault(("output", name, secret), what, f"give {url} as https://…, or leave {secret} out")


def _poison(name: str, given: Mapping[str, Any]) -> Iterator[Fault]:
    noted = given.get("poison") == "dead_letter"
    if noted and not given.get("dead_letter"):
        yield Fault(("output", name, "dead_letter"), "is missing", "name the file of what is refused")
    if given.get("dead_letter") and not noted:
        yield Fault(("output", name, "dead_letter"), "is never used with poison = stop", 'set poison = "dead_letter"')
