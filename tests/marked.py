"""A configuration with a marked secret of its own in every setting that is one, found by the configuration's model: a
setting that is added is covered without a word here, or a test says that no section of BASE may have it."""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from kazoo.client import KazooClient
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

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
    "signals": {
        "http": {"callers": {"app": {}}},
        "kafka": {"servers": NOWHERE, "topic": "signals", "user": "dblog", "timeout": 1.0},
    },
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
        file.write_text(self.text())
        return file

    def text(self) -> str:
        return "".join(_section(name, keys) for name, keys in self.data.items())

    def with_variables(self) -> tuple[str, dict[str, str]]:
        """The text with a variable in the place of each secret, and these variables."""
        variables = {f"DBLOG_TEST_SECRET_{number}": secret for number, secret in enumerate(self.secrets.values())}
        text = self.text()
        for name, secret in variables.items():
            text = text.replace(secret, f"${{{name}}}")
        return text, variables

    def planted_fields(self) -> set[tuple[str, str]]:
        """Class and name of each SecretStr that has a secret here."""
        places = secret_places(self.data)
        return {(model, str(place[-1])) for place, model in places if place in self.secrets}

    def shown_in(self, text: str | bytes) -> list[Place]:
        """The places whose secrets are in a text."""
        data = text.encode() if isinstance(text, str) else text
        return [place for place, secret in self.secrets.items() if secret.encode() in data]


def mark_config(directory: Path, *, base: Mapping[str, Any] = BASE, **sections: dict[str, Any]) -> Marked:
    """`base` with `sections` added or changed, and a secret in every place that the configuration takes one at; what is
    given already, and is a SecretStr, is one too."""
    data = copy.deepcopy(dict(base))
    for name, keys in sections.items():
        data[name] = {**data.get(name, {}), **keys}
    marked_config = Marked(data)
    _fill(data, (), marked_config.secrets)
    file = directory / "marked.toml"
    for place, _ in secret_places(data):
        section = value_at(data, place[:-1])
        marked_config.secrets[place] = section.setdefault(place[-1], _secret())
    while True:  # of an output, most are for other kinds
        try:
            load(marked_config.write(file))
            break
        except ConfigError as error:
            unwanted = [place for place in marked_config.secrets if _name_place(place) in str(error)]
            if not unwanted:
                raise
            for place in unwanted:
                del value_at(data, place[:-1])[place[-1]], marked_config.secrets[place]
    file.unlink()
    return marked_config


def read_nodes(url: str, *, login: str = "") -> Iterator[tuple[str, bytes]]:
    """Path and content of every node of a state store on ZooKeeper. `login`: USER:PASSWORD."""
    servers, _, root = url.removeprefix("zookeeper://").partition("/")
    client = KazooClient(servers, auth_data=[("digest", login)] if login else [])
    client.start()

    def below(path: str) -> Iterator[tuple[str, bytes]]:
        data, _ = client.get(path)
        yield path, data
        for child in client.get_children(path):
            yield from below(f"{path}/{child}")

    try:
        yield from below(f"/{root}")
    finally:
        client.stop()
        client.close()


def secret_fields() -> set[tuple[str, str]]:
    """Class and name of every SecretStr of the configuration."""
    return _fields(Config, _is_secret)


def address_fields() -> set[tuple[str, str]]:
    """Class and name of every setting of the configuration that may be an address, with a scheme."""
    return _fields(Config, _is_address)


def secret_places(data: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Each place of a SecretStr in sections that are there, and the name of the section's class."""
    return _places(Config, data, _is_secret)


def addresses(data: Mapping[str, Any]) -> list[tuple[Place, str]]:
    """Each place of an address that is there, and the name of the section's class."""
    places = _places(Config, data, _is_address)
    return [(place, model) for place, model in places if "://" in str(value_at(data, place[:-1]).get(place[-1]))]


def _is_secret(setting: FieldInfo) -> bool:
    return SecretStr in (setting.annotation, *get_args(setting.annotation))


def _is_address(setting: FieldInfo) -> bool:
    forms = [str(getattr(limit, "pattern", "")) for limit in setting.metadata]
    return any("://" in text for text in (setting.description or "", *forms))


def _fields(model: type[BaseModel], is_one: Callable[[FieldInfo], bool]) -> set[tuple[str, str]]:
    fields_found: set[tuple[str, str]] = set()
    for name, field_info in model.model_fields.items():
        if is_one(field_info):
            fields_found.add((model.__name__, name))
        for inner in _models(field_info.annotation):
            fields_found |= _fields(inner, is_one)
    return fields_found


def _places(
    model: type[BaseModel], data: Mapping[str, Any], is_one: Callable[[FieldInfo], bool], at: Place = ()
) -> Iterator[tuple[Place, str]]:
    for name, field_info in model.model_fields.items():
        if is_one(field_info):
            yield (*at, name), model.__name__
        for inner in _models(field_info.annotation):
            section = data.get(name)
            if isinstance(section, list):
                for number, entry in enumerate(section):
                    yield from _places(inner, entry, is_one, (*at, name, number))
            elif isinstance(section, Mapping) and "dict" in str(field_info.annotation):
                for key, entry in section.items():
                    yield from _places(inner, entry, is_one, (*at, name, key))
            elif isinstance(section, Mapping):
                yield from _places(inner, section, is_one, (*at, name))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _fill(data: Any, at: Place, values_by_place: dict[Place, str]) -> None:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        if isinstance(value, dict | list):
            _fill(value, (*at, key), values_by_place)
        elif isinstance(value, str) and "{}" in value:
            values_by_place[(*at, key)] = _secret()
            data[key] = value.format(values_by_place[(*at, key)])


def _secret() -> str:
    return f"{MARK}{secrets.token_hex(12)}"


def value_at(data: Any, place: Place) -> Any:
    for part in place:
        data = data[part]
    return data


def _name_place(place: Place) -> str:
    """A place as a fault names it."""
    depth = 2 if place[0] == "output" or place[:2] in (("signals", "http"), ("signals", "kafka")) else 1
    entries = [f"entry {part + 1}" if isinstance(part, int) else part for part in place[depth:]]
    return f"[{'.'.join(map(str, place[:depth]))}] {', '.join(entries)}:"


def _section(name: str, keys: Any) -> str:
    return f"{name} = {_toml(keys)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
