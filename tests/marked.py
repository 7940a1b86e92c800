"""A configuration with a marked secret of its own in every setting that is one, found by the configuration's model: a
setting that is added is covered without a word here, or a test says that no section of BASE may have it."""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr

from dblog_core.config.fields import Section
from dblog_core.config.loader import load
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError

MARK = "qZx7"
"""What every marked secret begins with."""
Place = tuple[str | int, ...]
NOWHERE = "127.0.0.1:9"
"""An address of this machine at which nobody answers."""
BASE: dict[str, Any] = {
    "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
    "staging": {"path": "staging"},
    "state": {"url": f"zookeeper://{NOWHERE}/dblog", "user": "dblog"},
    "lake": {"path": "lake"},
    "s3": {"access_key": "an id"},
    "signals": {"http": {}, "kafka": {"servers": NOWHERE, "topic": "signals", "user": "dblog", "timeout": 1.0}},
    "notify": [
        {"name": "hook", "to": "webhook", "url": f"http://{NOWHERE}/hook/{{}}"},
        {
            "name": "topic",
            "to": "kafka",
            "kafka": {"servers": NOWHERE, "topic": "notices", "user": "dblog", "timeout": 1.0},
        },
    ],
    "output": {
        "db": {
            "kind": "postgres",
            "database": "copy",
            "user": "dblog",
            "port": 9,
            "timeout": 1.0,
            "give_up_after": "1s",
            "start": "earliest",
        },
        "post": {
            "kind": "http",
            "url": f"http://{NOWHERE}/lines/{{}}",
            "timeout": 1.0,
            "give_up_after": "1s",
            "start": "earliest",
        },
        "avro": {
            "kind": "kafka",
            "servers": NOWHERE,
            "form": "avro",
            "registry": f"http://{NOWHERE}",
            "registry_user": "dblog",
            "user": "dblog",
            "timeout": 1.0,
            "give_up_after": "1s",
            "start": "earliest",
        },
        "own": {"kind": "python", "class": "nowhere:Class", "options": {"api": {"api_token": "{}"}}},
    },
    "spark": {"conf": {"spark.hadoop.javax.net.ssl.trustStorePassword": "{}"}},
}
"""Every section that may hold a secret; `{}`: where one stands that is no SecretStr by its type."""


@dataclass(frozen=True)
class Marked:
    """The data of a configuration, and its secrets by their places."""

    data: dict[str, Any]
    secrets: dict[Place, str] = field(default_factory=dict)

    def write(self, file: Path) -> Path:
        file.touch(mode=0o600)
        file.write_text("".join(_section(name, keys) for name, keys in self.data.items()))
        return file

    def shown_in(self, text: str | bytes) -> list[Place]:
        """The places whose secrets are in a text."""
        data = text.encode() if isinstance(text, str) else text
        return [place for place, secret in self.secrets.items() if secret.encode() in data]


def marked(directory: Path, **sections: dict[str, Any]) -> Marked:
    """BASE with `sections` added or changed, and a secret in every place that the configuration takes one at; what is
    given already, and is a SecretStr, is one too."""
    data = copy.deepcopy(BASE)
    for name, keys in sections.items():
        data[name] = {**data.get(name, {}), **keys}
    made = Marked(data)
    _fill(data, (), made.secrets)
    file = directory / "marked.toml"
    for place, _ in secret_places(Config, data):
        at = _at(data, place[:-1])
        made.secrets[place] = at.setdefault(place[-1], _secret())
    while True:  # of an output, most are for other kinds
        try:
            load(made.write(file))
            break
        except ConfigError as error:
            unwanted = [place for place in made.secrets if _told(place) in str(error)]
            if not unwanted:
                raise
            for place in unwanted:
                del _at(data, place[:-1])[place[-1]], made.secrets[place]
    file.unlink()
    return made


def secret_fields(model: type[BaseModel] = Config) -> set[tuple[str, str]]:
    """Class and name of every SecretStr of the configuration."""
    found: set[tuple[str, str]] = set()
    for name, one in model.model_fields.items():
        if SecretStr in (one.annotation, *get_args(one.annotation)):
            found.add((model.__name__, name))
        for inner in _models(one.annotation):
            found |= secret_fields(inner)
    return found


def secret_places(model: type[BaseModel], data: Mapping[str, Any], at: Place = ()) -> Iterator[tuple[Place, str]]:
    """Each place of a SecretStr in sections that are there, and the name of the section's class."""
    for name, one in model.model_fields.items():
        if SecretStr in (one.annotation, *get_args(one.annotation)):
            yield (*at, name), model.__name__
        for inner in _models(one.annotation):
            given = data.get(name)
            if isinstance(given, list):
                for number, entry in enumerate(given):
                    yield from secret_places(inner, entry, (*at, name, number))
            elif isinstance(given, Mapping) and "dict" in str(one.annotation):
                for key, entry in given.items():
                    yield from secret_places(inner, entry, (*at, name, key))
            elif isinstance(given, Mapping):
                yield from secret_places(inner, given, (*at, name))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _fill(data: Any, at: Place, made: dict[Place, str]) -> None:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        if isinstance(value, dict | list):
            _fill(value, (*at, key), made)
        elif isinstance(value, str) and "{}" in value:
            made[(*at, key)] = _secret()
            data[key] = value.format(made[(*at, key)])


def _secret() -> str:
    return f"{MARK}{secrets.token_hex(12)}"


def _at(data: Any, place: Place) -> Any:
    for part in place:
        data = data[part]
    return data


def _told(place: Place) -> str:
    """A place as a fault names it."""
    depth = 2 if place[0] == "output" or place[:2] in (("signals", "http"), ("signals", "kafka")) else 1
    entries = [f"entry {part + 1}" if isinstance(part, int) else part for part in place[depth:]]
    return f"[{'.'.join(map(str, place[:depth]))}] {', '.join(entries)}:"


def _section(name: str, keys: Any) -> str:
    return f"{name} = {_toml(keys)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
