"""What is wrong with how something is reached: credentials and TLS files that go together, or mean nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dblog_core.config.faults import NO_FILE, Fault, Place
from dblog_core.config.raw_config import RawConfig

CERTIFICATE_PAIR = ("tls_cert", "tls_key")
KAFKA_PAIRS = (("user", "password"), CERTIFICATE_PAIR)
FEWEST_SECRET_CHARACTERS = 16
RANDOM_TEXT = "give a long random text, such as `openssl rand -hex 32` prints"
_TLS_FILES = ("tls_ca", *CERTIFICATE_PAIR)
_S3_PATH = re.compile(r"^s3://[a-z0-9][a-z0-9.-]+(/|$)")


def check_pair(
    place: Place, settings: Mapping[str, Any], pair: tuple[str, str], fix: str = "give both, or none"
) -> Iterator[Fault]:
    """Of a pair of settings both are given, or none."""
    for key, partner in (pair, pair[::-1]):
        if settings.get(key) and not settings.get(partner):
            yield Fault((*place, key), f"is given without {partner}", fix)


def check_location(place: Place, path: Any) -> Iterator[Fault]:
    """What is written to is a directory, or a prefix of a bucket; what is no text is another fault."""
    if isinstance(path, str) and "://" in path and not _S3_PATH.match(path):
        yield Fault(place, "is a URL that is not supported", "give a directory, or s3://BUCKET/PREFIX")


def check_file(place: Place, path: Any) -> Iterator[Fault]:
    """A file of certificates or keys exists; what is no text is another fault."""
    if isinstance(path, str) and not Path(path).is_file():
        yield Fault(place, NO_FILE, "give the path of a PEM file")


def check_tls(raw: RawConfig, section: str, *, files: bool, usual: str | None = None) -> Iterator[Fault]:
    """TLS of a section with a setting `tls`, which is `usual` where none is given."""
    tls = raw.text(section, "tls") or usual
    for key in _TLS_FILES:
        path = raw.text(section, key)
        if path is None:
            continue
        if tls == "off" or (tls == "require" and key == "tls_ca"):
            yield Fault((section, key), f"is never used with tls = {tls}", 'remove it, or use tls = "verify-full"')
        elif files:
            yield from check_file((section, key), path)
    texts = {key: raw.text(section, key) for key in CERTIFICATE_PAIR}
    yield from check_pair((section,), texts, CERTIFICATE_PAIR)


def check_authority_of_postgres(place: Place, settings: Mapping[str, Any]) -> Iterator[Fault]:
    """libpq takes the system's authorities for verify-full alone."""
    if settings.get("tls") == "verify-ca" and not settings.get("tls_ca"):
        what = "is verify-ca, for which PostgreSQL's client library does not take the system's authorities"
        yield Fault((*place, "tls"), what, "give tls_ca, or use verify-full")


def check_certificate(http: Mapping[str, Any], *, files: bool) -> Iterator[Fault]:
    """The certificate of `[signals.http]`, and the authority of its callers."""
    for key, partner in (CERTIFICATE_PAIR, CERTIFICATE_PAIR[::-1], ("tls_client_ca", "tls_cert")):
        path = http.get(key)
        if path and not http.get(partner):
            yield Fault(("signals", "http", key), f"is given without {partner}", "give both, or none")
        elif files:
            yield from check_file(("signals", "http", key), path)


def check_connection(
    place: Place, settings: Mapping[str, Any], pairs: Iterable[tuple[str, str]], *, files: bool
) -> Iterator[Fault]:
    """What is wrong with credentials and TLS files; of each of `pairs` both are given, or none."""
    for pair in pairs:
        yield from check_pair(place, settings, pair)
    plain = settings.get("tls") == "off" or str(settings.get("url", "")).startswith("http://")
    for key in _TLS_FILES:
        path = settings.get(key)
        if plain and isinstance(path, str):
            yield Fault((*place, key), "is never used without TLS", "remove it, or use TLS")
        elif files:
            yield from check_file((*place, key), path)
