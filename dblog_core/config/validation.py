"""Settings that are fine one by one and wrong together: what no section says of itself alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dblog_core.config.connection_validation import (
    FEWEST_SECRET_CHARACTERS,
    KAFKA_PAIRS,
    RANDOM_TEXT,
    check_certificate,
    check_connection,
    check_file,
    check_location,
    check_pair,
    check_tls,
)
from dblog_core.config.faults import Fault
from dblog_core.config.fields import Unset
from dblog_core.config.notice_validation import check_channels, check_dump_notices, check_late_notices
from dblog_core.config.raw_config import RawConfig
from dblog_core.config.source_validation import (
    check_columns,
    check_hash_key,
    check_is_captured,
    check_keys,
    check_source,
)
from dblog_core.model import durations
from dblog_core.model.hosts import are_all_loopback, host_of, hosts_of

_LEAST_SECONDS = (
    *(("staging", "keep", 60.0), ("lake", "keep", 3600.0), ("lake", "maintain_every", 60.0)),
    *(("airflow", "verify_every", 60.0), ("airflow", "repair_every", 60.0), ("airflow", "merged_within", 1.0)),
)

_S3_KEYS = ("access_key", "secret_key")


def contradictions(data: Mapping[str, Any], *, files: bool = True) -> Iterator[Fault]:
    """Settings that are fine one by one and wrong together. `files`: look whether the files that are named exist."""
    raw = RawConfig(data)
    yield from check_source(raw)
    yield from check_tls(raw, "source", files=files)
    yield from _check_state(raw, files=files)
    if files:  # otherwise a ${ENV} may stand there as it is
        yield from check_hash_key(raw)
    yield from check_columns(raw)
    yield from check_keys(raw)
    yield from _check_lake_tables(raw)
    yield from _check_paths(raw)
    yield from _check_ages(raw)
    yield from check_late_notices(raw)
    yield from check_dump_notices(raw)
    yield from _check_s3(raw, files=files)
    yield from _check_signals(raw, files=files)
    yield from check_channels(raw, files=files)


def _check_ages(raw: RawConfig) -> Iterator[Fault]:
    """Who reads something needs its files for as long as it reads."""
    for section, key, least in _LEAST_SECONDS:
        age = raw.text(section, key)
        if age is not None and re.match(durations.PATTERN, age) and durations.parse(age) < least:
            yield Fault((section, key), "is too short", f"give {durations.text(least)} or more")


def _check_state(raw: RawConfig, *, files: bool) -> Iterator[Fault]:
    """What protects nodes of ZooKeeper; a file is protected by its mode."""
    settings = raw.section("state")
    yield from check_pair(("state",), settings, ("user", "password"))
    if ":" in str(settings.get("user", "")):
        yield Fault(("state", "user"), "holds a colon, which ends a name in ZooKeeper", "choose another name")
    if settings.get("login") == "sasl" and not settings.get("user"):
        yield Fault(("state", "login"), "is sasl, and there is no user", "give user and password")
    if str(settings.get("url", "")).startswith("sqlite:"):
        for key in ("user", "password", "login", "tls", "tls_ca", "tls_cert", "tls_key"):
            if key in settings and (key, settings[key]) != ("tls", "off"):
                yield Fault(("state", key), "has no meaning for sqlite", "remove it")
    else:
        usual = "off" if are_all_loopback(*hosts_of(settings.get("url"))) else None
        yield from check_tls(raw, "state", usual=usual, files=files)


def _check_lake_tables(raw: RawConfig) -> Iterator[Fault]:
    captured = raw.texts(raw.section("source").get("tables"))
    for table in raw.section("lake", "tables"):
        if not set(table) & {"*", "?"}:  # whether two patterns can mean the same table is not asked
            yield from check_is_captured(("lake", "tables", table), table, captured)


def _check_paths(raw: RawConfig) -> Iterator[Fault]:
    staging = raw.text("staging", "path")
    lake = raw.text("lake", "path")
    for section, path in (("staging", staging), ("lake", lake)):
        if path == "":
            yield Fault((section, "path"), "is empty", "give a directory")
        yield from check_location((section, "path"), path)
    if not staging or not lake or ("://" in staging) != ("://" in lake):
        return
    # A bucket and its prefixes lie in each other as directories do.
    inner, outer = (Path("/", p.partition("://")[2]) if "://" in p else Path(p).absolute() for p in (lake, staging))
    if inner == outer:
        yield Fault(("lake", "path"), "is the staging directory", "give the lake a directory of its own")
    elif outer in inner.parents:
        yield Fault(("lake", "path"), "lies inside the staging directory", "give the lake a directory of its own")
    elif inner in outer.parents:
        yield Fault(("staging", "path"), "lies inside the lake", "give staging a directory of its own")


def _check_s3(raw: RawConfig, *, files: bool) -> Iterator[Fault]:
    texts = {key: raw.text("s3", key) for key in _S3_KEYS}
    yield from check_pair(("s3",), texts, _S3_KEYS, "give both, or none: then the environment's count")
    if raw.text("s3", "kms_key") and raw.text("s3", "encryption") not in ("aws:kms", "aws:kms:dsse"):
        yield Fault(("s3", "kms_key"), "is never used without aws:kms", 'set encryption = "aws:kms", or remove it')
    path = raw.text("s3", "tls_ca")
    endpoint = raw.text("s3", "endpoint")
    if path is None:
        return
    if endpoint and endpoint.startswith("http://"):
        yield Fault(("s3", "tls_ca"), "is never used with an http:// endpoint", "remove it, or use https://")
    elif files:
        yield from check_file(("s3", "tls_ca"), path)


def _check_signals(raw: RawConfig, *, files: bool) -> Iterator[Fault]:
    source = raw.section("source")
    table = raw.text("signals", "table")
    if (table or source.get("signal_table")) and source.get("read_only") is True:
        yield Fault(
            ("signals", "table"), "is read from the log of a source that others write", "use file, http or kafka"
        )
    if table and source.get("signal_table") not in (None, table):
        yield Fault(("source", "signal_table"), "says another table than [signals] table", "remove it")
    if table and table == source.get("watermark_table"):
        yield Fault(("signals", "table"), "is the watermark table", "name a table of its own")
    yield from check_connection(("signals", "kafka"), raw.section("signals", "kafka"), KAFKA_PAIRS, files=files)
    yield from _check_http(raw, files=files)


def _check_http(raw: RawConfig, *, files: bool) -> Iterator[Fault]:
    place = ("signals", "http")
    http = raw.section(*place)
    if "http" in raw.section("signals") and "token" not in http and not http.get("callers"):
        fix = 'add token = "${ENV}", or [signals.http.callers.NAME] with a token for each'
        yield Fault((*place, "token"), "is missing", fix)
    callers: dict[str, str] = {}
    tokens: list[tuple[tuple[str, ...], Any]] = [(("token",), http.get("token"))]
    tokens += [
        (("callers", name, "token"), raw.section(*place, "callers", name).get("token"))
        for name in raw.section(*place, "callers")
    ]
    for key, token in tokens:
        if not isinstance(token, str) or isinstance(token, Unset):
            continue
        if len(token) < FEWEST_SECRET_CHARACTERS:
            what = f"is shorter than {FEWEST_SECRET_CHARACTERS} characters: who tries long enough would find it"
            yield Fault((*place, *key), what, RANDOM_TEXT)
        elif token in callers:
            yield Fault((*place, *key), f"is that of {callers[token]} too", "give each caller a token of its own")
        callers.setdefault(token, ".".join(key))
    yield from check_certificate(http, files=files)
    listen = http.get("listen")
    if isinstance(listen, str) and not are_all_loopback(host_of(listen)) and not http.get("tls_cert"):
        what = "would have the token sent in clear text over the network"
        yield Fault(("signals", "http", "listen"), what, "give tls_cert and tls_key, or listen at 127.0.0.1")
