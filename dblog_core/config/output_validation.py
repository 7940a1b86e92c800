"""What is wrong with `[output.NAME]` beyond single settings: what a kind needs, and what means nothing to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dblog_core.config.connection_validation import (
    CERTIFICATE_PAIR,
    check_authority_of_postgres,
    check_connection,
    check_file,
    check_location,
)
from dblog_core.config.faults import Fault
from dblog_core.config.raw_config import RawConfig
from dblog_core.model.hosts import in_the_clear

_TLS = ("tls_ca", "tls_cert", "tls_key")
_TABLES = ("host", "port", "user", "password", "database", "table", "tls", *_TLS)
_SETTINGS_OF_KIND: dict[str, tuple[str, ...]] = {
    "files": ("path", "form"),
    "postgres": _TABLES,
    "mysql": _TABLES,
    "http": ("url", "secret", "token", *_TLS),
    "kafka": (
        *("servers", "topic_prefix", "topics", "partitions", "replication", "max_message", "tombstones", "form"),
        "transaction_timeout",
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
_PAIRS = {"kafka": (CERTIFICATE_PAIR, ("user", "password"), ("registry_user", "registry_password"))}
_FORMS = {"files": ("jsonl", "parquet"), "kafka": ("json", "debezium", "avro")}


def contradictions(data: Mapping[str, Any], *, files: bool = True) -> Iterator[Fault]:
    """Faults of all outputs. `files`: look whether the files that are named exist."""
    for name, settings in RawConfig(data).section("output").items():
        if isinstance(settings, Mapping) and str(settings.get("kind")) in _SETTINGS_OF_KIND:
            yield from _check_output(name, settings, files=files)


def _check_output(name: str, settings: Mapping[str, Any], *, files: bool) -> Iterator[Fault]:
    kind = str(settings["kind"])
    of_this_kind = {*_SETTINGS_OF_KIND[kind], *(("timeout",) if kind in _TIMED else ())}
    foreign = {key for keys in _SETTINGS_OF_KIND.values() for key in keys} | {"timeout"}
    for key in settings:
        if key in foreign - of_this_kind:
            yield Fault(("output", name, key), f"has no meaning for kind = {kind}", "remove it")
    for key, fix in _NEEDED[kind].items():
        if not settings.get(key):
            yield Fault(("output", name, key), "is missing", fix)
    if kind in _FORMS and settings.get("form", _FORMS[kind][0]) not in _FORMS[kind]:
        yield Fault(("output", name, "form"), f"is no form of {kind}", f"use {' or '.join(_FORMS[kind])}")
    yield from _check_registry(name, settings, files=files)
    yield from _check_clear_text(name, settings)
    yield from check_location(("output", name, "path"), settings.get("path"))
    if kind == "postgres":
        yield from check_authority_of_postgres(("output", name), settings)
    yield from _check_dead_letter(name, settings)
    yield from check_connection(("output", name), settings, _PAIRS.get(kind, (CERTIFICATE_PAIR,)), files=files)


def _check_registry(name: str, settings: Mapping[str, Any], *, files: bool) -> Iterator[Fault]:
    if settings.get("kind") != "kafka":
        return
    url = str(settings.get("registry", ""))
    authority = settings.get("registry_ca")
    if settings.get("form") == "avro" and not url:
        yield Fault(("output", name, "registry"), "is missing", "give http(s)://HOST:PORT of the schema registry")
    if settings.get("form") != "avro":
        for key in (key for key in settings if key.startswith("registry")):
            yield Fault(("output", name, key), "is never used without form = avro", 'set form = "avro", or remove it')
    elif isinstance(authority, str) and url.startswith("http://"):
        yield Fault(("output", name, "registry_ca"), "is never used without TLS", "remove it, or use https://")
    elif files:
        yield from check_file(("output", name, "registry_ca"), authority)


def _check_clear_text(name: str, settings: Mapping[str, Any]) -> Iterator[Fault]:
    """What lets somebody in, and would be sent over a network for everybody on the way to read."""
    for secret, url in (("token", "url"), ("registry_password", "registry")):
        if settings.get(secret) and in_the_clear(settings.get(url)):
            what = f"would be sent in clear text to an {url} of another machine"
            yield Fault(("output", name, secret), what, f"give {url} as https://…, or leave {secret} out")


def _check_dead_letter(name: str, settings: Mapping[str, Any]) -> Iterator[Fault]:
    noted = settings.get("poison") == "dead_letter"
    if noted and not settings.get("dead_letter"):
        yield Fault(("output", name, "dead_letter"), "is missing", "name the file of what is refused")
    if settings.get("dead_letter") and not noted:
        yield Fault(("output", name, "dead_letter"), "is never used with poison = stop", 'set poison = "dead_letter"')
