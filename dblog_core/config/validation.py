"""What is wrong with a configuration, in its writer's words: the place in the file, what is wrong there, and the fix.

No value of the file is ever repeated in a fault, so that a password in the wrong place stays where it is.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from dblog_core.config.fields import FromEnvironment, Unset
from dblog_core.config.secrets import SECRET_NAME
from dblog_core.model import durations, position_spec, table_names, table_patterns
from dblog_core.model.hosts import all_near, host_of, hosts_of

Place = tuple[str | int, ...]

_TYPES = {
    "int": "a whole number, such as 3306, without quotes",
    "float": "a number, such as 0.5, without quotes",
    "bool": "true or false, without quotes",
    "string": 'text in quotes, such as "shop"',
    "tuple": 'a list, such as ["shop.orders"]',
    "dict": "a table of its own",
    "model": "a section of its own",
    "path": "a path in quotes",
}
_OWN_TABLES: dict[Place, int] = {
    ("output",): 2,
    ("signals", "http"): 2,
    ("signals", "kafka"): 2,
    ("source", "keys"): 2,
    ("source", "columns"): 3,
    ("lake", "tables"): 3,
    ("spark", "conf"): 2,
}
_POSTGRES_ONLY = ("slot", "publication", "plugin", "read_replica")
_MYSQL_ONLY = ("server_id", "zero_dates")
_S3_PATH = re.compile(r"^s3://[a-z0-9][a-z0-9.-]+(/|$)")
_KAFKA_PAIRS = (("user", "password"), ("tls_cert", "tls_key"))
_IN_CONNECTION = ("host", "port", "user", "password")
NO_FILE = "names a file that does not exist"
"""Of a file that those alone need who have use for the section."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to mend. `place` is the path of keys in the file."""

    place: Place
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{show(self.place)}: {self.what}; {self.fix}"


def show(place: Place) -> str:
    """A place as it stands in the file: `[source.columns."shop.customers"] mask, entry 2`."""
    depth = next((n for table, n in _OWN_TABLES.items() if table == place[: len(table)]), 1)
    parts = [p for p in place if p != "[key]"]
    header = ".".join(_quoted(p) for p in parts[:depth])
    entries = [_quoted(p) if isinstance(p, str) else f"entry {p + 1}" for p in parts[depth:]]
    return f"[{header}] {', '.join(entries)}".rstrip()


def _quoted(part: str | int) -> str:
    text = str(part)
    return text if text.replace("_", "").replace("-", "").isalnum() else json.dumps(text, ensure_ascii=False)


def in_words(error: ErrorDetails, root: type[BaseModel]) -> Fault:
    """A validation error of `root`, told again."""
    place, kind, context = error["loc"], error["type"], error.get("ctx", {})
    model = _model_at(place[:-1], root)
    if kind == "extra_forbidden":
        return Fault(place, "is not known", _suggestion(str(place[-1]), model, root))
    description = _description(place, root)
    if kind == "missing":
        return Fault(place, "is missing", f"add it{description}")
    if kind == "literal_error":
        return Fault(place, "is none of the possible values", f"use {context['expected']}")
    if kind == "string_pattern_mismatch":
        form = description or (" ([a-z][a-z0-9_]*)" if place[0] == "output" else " (SCHEMA.TABLE)")
        return Fault(place, "does not have the right form", f"mend it{form}")
    if kind == "value_error":
        return Fault(place, str(context["error"]), f"mend it{description}")
    wanted = _TYPES.get(kind.split("_")[0])
    if wanted and not kind.startswith("string_too"):
        return Fault(place, "has the wrong type", f"it must be {wanted}")
    return Fault(place, re.sub(r"^\w+ should", "must", error["msg"]), f"mend it{description}")


def _model_at(place: Place, root: type[BaseModel]) -> type[BaseModel] | None:
    """The section that holds the keys at `place`; through the tables of a mapping too."""
    model: type[BaseModel] | None = root
    for part in place:
        field = model.model_fields.get(str(part)) if model else None
        if field is None:
            continue  # the name of a table, within the mapping that came before it
        candidates = [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return model


def _suggestion(key: str, model: type[BaseModel] | None, root: type[BaseModel]) -> str:
    here = list(model.model_fields) if model else []
    if close := difflib.get_close_matches(key, here, 1):
        return f"did you mean {close[0]}?"
    for name in root.model_fields:
        section = _model_at((name,), root)
        if section and key in section.model_fields:
            return f"it belongs in [{name}]"
    return f"remove it; known here are {', '.join(here)}"


def _description(place: Place, root: type[BaseModel]) -> str:
    model = _model_at(place[:-1], root)
    field = model.model_fields.get(str(place[-1])) if model else None
    return f" ({field.description})" if field and field.description else ""


class Text:
    """Read access to a raw configuration that may hold anything anywhere."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def section(self, *names: str) -> Mapping[str, Any]:
        value: Any = self._data
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    def text(self, section: str, key: str) -> str | None:
        value = self.section(section).get(key)
        return value if isinstance(value, str) else None

    def texts(self, value: Any) -> list[str]:
        return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def contradictions(data: Mapping[str, Any], *, files: bool = True) -> Iterator[Fault]:
    """Settings that are fine one by one and wrong together. `files`: look whether the files that are named exist."""
    text = Text(data)
    yield from _source(text)
    yield from _tls(text, "source", files=files)
    yield from _state(text, files=files)
    if files:  # otherwise a ${ENV} may stand there as it is
        yield from _hash_key(text)
    yield from _columns(text)
    yield from _keys(text)
    yield from _lake_tables(text)
    yield from _paths(text)
    yield from _ages(text)
    yield from _late(text)
    yield from _of_dumps(text)
    yield from _s3(text, files=files)
    yield from _signals(text, files=files)
    yield from _notify(text, files=files)


_LEAST = (
    *(("staging", "keep", 60.0), ("lake", "keep", 3600.0), ("lake", "maintain_every", 60.0)),
    *(("airflow", "verify_every", 60.0), ("airflow", "repair_every", 60.0), ("airflow", "merged_within", 1.0)),
)  # seconds


def _ages(text: Text) -> Iterator[Fault]:
    """Who reads something needs its files for as long as it reads."""
    for section, key, least in _LEAST:
        given = text.text(section, key)
        if given is not None and re.match(durations.PATTERN, given) and durations.parse(given) < least:
            yield Fault((section, key), "is too short", f"give {durations.text(least)} or more")


def _late(text: Text) -> Iterator[Fault]:
    """Lateness is told to somebody, and somebody is told of what has a limit."""
    airflow = text.section("airflow")
    notify, within = airflow.get("notify"), airflow.get("merged_within", "never")
    told = any(isinstance(one, dict) and one.get("when") == "late" for one in notify or () if isinstance(notify, list))
    if within != "never" and not told:
        yield Fault(("airflow", "merged_within"), "tells nobody", 'add [[airflow.notify]] with when = "late"')
    for i, one in enumerate(notify if isinstance(notify, list) else ()):
        if isinstance(one, dict) and one.get("when") == "late" and _has_secret(one.get("arguments")):
            what = "would lie in Airflow's database, where everybody reads them who may read DAGs"
            fix = "name an Airflow connection that holds the secret; a late run's arguments take nothing from ${ENV}"
            yield Fault(("airflow", "notify", i, "arguments"), what, fix)
    if told and within == "never":
        yield Fault(("airflow", "notify"), "waits for a limit", 'give [airflow] merged_within, such as "10m"')


def _has_secret(value: Any) -> bool:
    """Whether anything in it comes from the environment, or is a secret by its name."""
    if isinstance(value, Mapping):
        return any(SECRET_NAME.search(str(name)) or _has_secret(one) for name, one in value.items())
    if isinstance(value, list):
        return any(map(_has_secret, value))
    return isinstance(value, FromEnvironment)


def _of_dumps(text: Text) -> Iterator[Fault]:
    """Airflow's notifiers have places among the channels of `[[notify]]`."""
    channels, given = text.section().get("notify"), text.section("airflow").get("notify")
    named = channels if isinstance(channels, list) else ()
    names = [one.get("name") for one in named if isinstance(one, Mapping)]
    for i, one in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(one, Mapping):
            continue
        of_dumps = one.get("when") == "dump"
        for key in ("dags",) if of_dumps else ("events", "name"):
            if one.get(key):
                what = "has no meaning for dumps" if of_dumps else 'has a meaning for when = "dump" alone'
                yield Fault(("airflow", "notify", i, key), what, "remove it")
        name = one.get("name", "airflow")
        if of_dumps and name in names:
            what = f"{name} is the name of another receiver of notices"
            yield Fault(("airflow", "notify", i, "name"), what, "choose another name")
        if of_dumps:
            names.append(name)


def _source(text: Text) -> Iterator[Fault]:
    source = text.section("source")
    kind = source.get("kind")
    foreign = {"postgres": _MYSQL_ONLY, "mysql": _POSTGRES_ONLY, "mariadb": _POSTGRES_ONLY}.get(str(kind), ())
    for key in foreign:
        if key in source:
            yield Fault(("source", key), f"has no meaning for kind = {kind}", "remove it")
    if source.get("airflow_connection"):
        for key in _IN_CONNECTION:
            if key in source:
                yield Fault(("source", key), "is in airflow_connection too", "remove one of the two")
    yield from _start(text.text("source", "start"), str(kind))
    if kind == "postgres":
        yield from authority_of_postgres(("source",), source)
    for i, pattern in enumerate(tables := text.texts(source.get("tables"))):
        if pattern in tables[:i]:
            yield Fault(("source", "tables", i), "stands there twice", "remove one")


def authority_of_postgres(place: Place, given: Mapping[str, Any]) -> Iterator[Fault]:
    """libpq takes the system's authorities for verify-full alone."""
    if given.get("tls") == "verify-ca" and not given.get("tls_ca"):
        what = "is verify-ca, for which PostgreSQL's client library does not take the system's authorities"
        yield Fault((*place, "tls"), what, "give tls_ca, or use verify-full")


def _start(start: str | None, kind: str) -> Iterator[Fault]:
    if start in (None, position_spec.LATEST, position_spec.INITIAL) or kind not in position_spec.KINDS:
        return
    try:
        position_spec.parse(start, kind)
    except ValueError as error:
        yield Fault(("source", "start"), str(error), 'mend it, or use "latest", "initial" or "earliest"')


def _tls(text: Text, section: str, *, files: bool, usual: str | None = None) -> Iterator[Fault]:
    tls = text.text(section, "tls") or usual
    for key in ("tls_ca", "tls_cert", "tls_key"):
        path = text.text(section, key)
        if path is None:
            continue
        if tls == "off" or (tls == "require" and key == "tls_ca"):
            yield Fault((section, key), f"is never used with tls = {tls}", 'remove it, or use tls = "verify-full"')
        elif files and not Path(path).is_file():
            yield Fault((section, key), NO_FILE, "give the path of a PEM file")
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if text.text(section, one) and not text.text(section, other):
            yield Fault((section, one), f"is given without {other}", "give both, or none")


def _state(text: Text, *, files: bool) -> Iterator[Fault]:
    """What protects nodes of ZooKeeper; a file is protected by its mode."""
    given = text.section("state")
    for one, other in (("user", "password"), ("password", "user")):
        if given.get(one) and not given.get(other):
            yield Fault(("state", one), f"is given without {other}", "give both, or none")
    if ":" in str(given.get("user", "")):
        yield Fault(("state", "user"), "holds a colon, which ends a name in ZooKeeper", "choose another name")
    if given.get("login") == "sasl" and not given.get("user"):
        yield Fault(("state", "login"), "is sasl, and there is no user", "give user and password")
    if str(given.get("url", "")).startswith("sqlite:"):
        for key in ("user", "password", "login", "tls", "tls_ca", "tls_cert", "tls_key"):
            if key in given and (key, given[key]) != ("tls", "off"):
                yield Fault(("state", key), "has no meaning for sqlite", "remove it")
    else:
        usual = "off" if all_near(*hosts_of(given.get("url"))) else None
        yield from _tls(text, "state", usual=usual, files=files)


def _columns(text: Text) -> Iterator[Fault]:
    captured = text.texts(text.section("source").get("tables"))
    for table, rules in text.section("source", "columns").items():
        place = ("source", "columns", table)
        yield from _pattern(place, table)
        yield from _unwanted(place, table, captured)
        if not isinstance(rules, Mapping):
            continue
        seen: dict[str, str] = {}
        for rule in ("exclude", "mask", "hash"):
            for i, column in enumerate(text.texts(rules.get(rule))):
                if column in seen:
                    yield Fault((*place, rule, i), f"is under {seen[column]} too", "a column can have one rule")
                seen[column] = rule
        for column in text.section("source", "columns", table, "staged_as"):
            if column in seen:
                yield Fault((*place, "staged_as", column), f"is under {seen[column]} too", "a column can have one rule")


def _keys(text: Text) -> Iterator[Fault]:
    captured = text.texts(text.section("source").get("tables"))
    for table, key in text.section("source", "keys").items():
        place = ("source", "keys", table)
        yield from _pattern(place, table)
        yield from _unwanted(place, table, captured)
        if key == []:
            yield Fault(place, "names no column", "name the table's unique, never-null columns")
        rules = text.section("source", "columns", table)
        for i, column in enumerate(columns := text.texts(key)):
            if column in columns[:i]:
                yield Fault((*place, i), "stands there twice", "remove one")
            for rule in ("exclude", "mask", "hash"):
                if column in text.texts(rules.get(rule)):
                    yield key_rule(table, i, rule)
            if column in text.section("source", "columns", table, "staged_as"):
                yield key_rule(table, i, "staged_as")


def _lake_tables(text: Text) -> Iterator[Fault]:
    captured = text.texts(text.section("source").get("tables"))
    for table in text.section("lake", "tables"):
        if not set(table) & {"*", "?"}:  # whether two patterns can mean the same table is not asked
            yield from _unwanted(("lake", "tables", table), table, captured)


def key_rule(table: str, entry: int, rule: str) -> Fault:
    return Fault(
        ("source", "keys", table, entry),
        f"is a key column, and under {rule}",
        "rows are told apart by their key as it is: choose another key, or remove the rule",
    )


_KEY_CHARACTERS = 16
_RANDOM = "give a long random text, such as `openssl rand -hex 32` prints"


def _hash_key(text: Text) -> Iterator[Fault]:
    key = text.text("source", "hash_key")
    if key is not None and not isinstance(key, Unset) and len(key) < _KEY_CHARACTERS:
        what = f"is shorter than {_KEY_CHARACTERS} characters: whoever sees hashes could guess it"
        yield Fault(("source", "hash_key"), what, _RANDOM)


def _pattern(place: Place, table: str) -> Iterator[Fault]:
    """An entry is for one table: as a pattern it would be taken for a name, and meet none."""
    if set(table) & {"*", "?"}:
        yield Fault(place, "is a pattern, and an entry is for one table", "write an entry for each table by its name")


def _unwanted(place: Place, table: str, captured: Iterable[str]) -> Iterator[Fault]:
    """A rule that nothing captured meets is a slip of the pen, and would leave what it hides in the open."""
    if re.match(table_names.FORM, table) and captured and not table_patterns.match_text(table, captured):
        yield Fault(place, "is no table of this capture", "no pattern of [source] tables matches it")


def _paths(text: Text) -> Iterator[Fault]:
    staging, lake = text.text("staging", "path"), text.text("lake", "path")
    for section, path in (("staging", staging), ("lake", lake)):
        if path == "":
            yield Fault((section, "path"), "is empty", "give a directory")
        elif path and "://" in path and not _S3_PATH.match(path):
            yield Fault((section, "path"), "is a URL that is not supported", "give a directory, or s3://BUCKET/PREFIX")
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


def _s3(text: Text, *, files: bool) -> Iterator[Fault]:
    for one, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
        if text.text("s3", one) and not text.text("s3", other):
            yield Fault(("s3", one), f"is given without {other}", "give both, or none: then the environment's count")
    if text.text("s3", "kms_key") and text.text("s3", "encryption") not in ("aws:kms", "aws:kms:dsse"):
        yield Fault(("s3", "kms_key"), "is never used without aws:kms", 'set encryption = "aws:kms", or remove it')
    path, endpoint = text.text("s3", "tls_ca"), text.text("s3", "endpoint")
    if path is None:
        return
    if endpoint and endpoint.startswith("http://"):
        yield Fault(("s3", "tls_ca"), "is never used with an http:// endpoint", "remove it, or use https://")
    elif files and not Path(path).is_file():
        yield Fault(("s3", "tls_ca"), NO_FILE, "give the path of a PEM file")


def _signals(text: Text, *, files: bool) -> Iterator[Fault]:
    source, table = text.section("source"), text.text("signals", "table")
    if (table or source.get("signal_table")) and source.get("read_only") is True:
        yield Fault(
            ("signals", "table"), "is read from the log of a source that others write", "use file, http or kafka"
        )
    if table and source.get("signal_table") not in (None, table):
        yield Fault(("source", "signal_table"), "says another table than [signals] table", "remove it")
    if table and table == source.get("watermark_table"):
        yield Fault(("signals", "table"), "is the watermark table", "name a table of its own")
    yield from connection_faults(("signals", "kafka"), text.section("signals", "kafka"), _KAFKA_PAIRS, files=files)
    http = text.section("signals", "http")
    token = http.get("token")
    if isinstance(token, str) and not isinstance(token, Unset) and len(token) < _KEY_CHARACTERS:
        what = f"is shorter than {_KEY_CHARACTERS} characters: who tries long enough would find it"
        yield Fault(("signals", "http", "token"), what, _RANDOM)
    yield from _certificate(http, files=files)
    listen = http.get("listen")
    if isinstance(listen, str) and not all_near(host_of(listen)) and not http.get("tls_cert"):
        what = "would have the token sent in clear text over the network"
        yield Fault(("signals", "http", "listen"), what, "give tls_cert and tls_key, or listen at 127.0.0.1")


_RECEIVER = ("url", "secret", "tls_ca")


def _certificate(http: Mapping[str, Any], *, files: bool) -> Iterator[Fault]:
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")):
        path = http.get(one)
        if path and not http.get(other):
            yield Fault(("signals", "http", one), f"is given without {other}", "give both, or none")
        elif files and isinstance(path, str) and not Path(path).is_file():
            yield Fault(("signals", "http", one), NO_FILE, "give the path of a PEM file")


def connection_faults(
    place: Place, given: Mapping[str, Any], pairs: Iterable[tuple[str, str]], *, files: bool
) -> Iterator[Fault]:
    """What is wrong with credentials and TLS files; of each of `pairs` both are given, or none."""
    for one, other in (pair for first, second in pairs for pair in ((first, second), (second, first))):
        if given.get(one) and not given.get(other):
            yield Fault((*place, one), f"is given without {other}", "give both, or none")
    plain = given.get("tls") == "off" or str(given.get("url", "")).startswith("http://")
    for key in ("tls_ca", "tls_cert", "tls_key"):
        path = given.get(key)
        if not isinstance(path, str):
            continue
        if plain:
            yield Fault((*place, key), "is never used without TLS", "remove it, or use TLS")
        elif files and not Path(path).is_file():
            yield Fault((*place, key), NO_FILE, "give the path of a PEM file")


def _notify(text: Text, *, files: bool) -> Iterator[Fault]:
    given = text.section().get("notify")
    names: list[Any] = []
    for i, one in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(one, Mapping):
            continue
        if one.get("name") in names:
            yield Fault(("notify", i, "name"), "stands there twice", "choose another name")
        names.append(one.get("name"))
        if one.get("to") == "webhook" and not one.get("url"):
            yield Fault(("notify", i, "url"), "is missing", "give the receiver's https://… address")
        if one.get("to") == "kafka" and not one.get("kafka"):
            yield Fault(("notify", i, "kafka"), "is missing", "give servers and topic below [notify.kafka]")
        for key in {"log": (*_RECEIVER, "kafka"), "webhook": ("kafka",), "kafka": _RECEIVER}.get(
            str(one.get("to")), ()
        ):
            if one.get(key):
                yield Fault(("notify", i, key), f"has no meaning for a {one['to']}", "remove it")
        if isinstance(one.get("kafka"), Mapping):
            yield from connection_faults(("notify", i, "kafka"), one["kafka"], _KAFKA_PAIRS, files=files)
        path = one.get("tls_ca")
        if path and str(one.get("url", "")).startswith("http://"):
            yield Fault(("notify", i, "tls_ca"), "is never used with http://", "remove it, or use https://")
        elif files and isinstance(path, str) and not Path(path).is_file():
            yield Fault(("notify", i, "tls_ca"), NO_FILE, "give the path of a PEM file")
