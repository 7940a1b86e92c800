"""Which settings are secrets, and of which sections a process needs them: it may lack the others, and gives them to
nobody.

A need is a section's name: `source` (how the database is reached, and `hash_key`), `state`, `s3`, `spark`, `airflow`,
`notify`, `signals.http`, `signals.kafka`, `output.NAME`, or `output` for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from dblog_core.errors import ConfigError

if TYPE_CHECKING:
    from dblog_core.config.settings import Config

Needs = Collection[str] | None
"""Of which sections; None: of all."""
Place = tuple[str | int, ...]

STATE = frozenset({"state"})
STORAGE = frozenset({"s3"})
READER = frozenset({"state", "s3"})
"""Staging, lake and state are read, or lake tasks are filed."""
LAKE = READER | {"spark"}
"""A Spark job is started, or is one."""
SOURCE = READER | {"source"}
CAPTURE = SOURCE | {"signals.kafka", "notify"}

_CONNECTION = (
    *("host", "port", "user", "password", "airflow_connection", "read_replica", "hash_key"),
    *("tls", "tls_ca", "tls_cert", "tls_key"),
)
"""Of [source]: what only those need who ask the database. The rest says what the source is."""
_OPTIONAL = ("state", "s3", "spark", "airflow", "notify", "signals", "output")
_SECRET_PATH = 16  # characters of an address' path from which on it may be a secret
SECRET_NAME = re.compile(
    r"password|passwd|secret|token|credential|hash_key|account.?key|private.?key|\bsas\b", re.IGNORECASE
)
"""Names of settings whose values are secrets, of others' settings too."""
FREE = ("conf", "arguments", "options")
"""Tables of settings of others, whose names tell what is a secret."""
_HIDDEN = "**********"


class Absent(SecretStr):
    """A secret whose ${ENV} is not set, in a section that this process has no need of: who asks for it all the same
    learns which."""

    def __init__(self, text: str) -> None:
        """`text`: with the ${ENV}, as it stands in the file."""
        super().__init__("")
        self._variables = " ".join(re.findall(r"\w+", text))

    def get_secret_value(self) -> str:
        """Raises ConfigError."""
        what = f"the environment variable {self._variables} is not set, and a secret of it is needed here"
        raise ConfigError(what, fix=f"set it: export {self._variables}=…")


class NotGiven(SecretStr):
    """A secret of a section that this process has no need of, and did not get from the process that started it."""

    def __init__(self) -> None:
        super().__init__("")

    def get_secret_value(self) -> str:
        """Raises ConfigError."""
        raise ConfigError(
            "this process has no access to the section of the configuration that this secret belongs to",
            fix="this is a defect of dblog: report it, with the command and its messages",
        )


def is_needed(place: Place, needs: Needs) -> bool:
    """Whether a setting has to be there for a process with such needs."""
    if needs is None:
        return True
    first, second = (*map(str, place), "")[:2]
    if first == "source":
        return second not in _CONNECTION or "source" in needs
    if first not in _OPTIONAL or (first, second) == ("signals", "table"):
        return True
    return first in needs or f"{first}.{second}" in needs


def secrets_of(config: BaseModel) -> tuple[str, ...]:
    """Every secret of the configuration, or of a section: what no message may show."""
    return tuple(dict.fromkeys(filter(None, _values(config))))


def _values(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Absent | NotGiven):
        return
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _values(getattr(value, field), field)
    elif isinstance(value, Mapping):
        if name in FREE:
            yield from (secret for _, secret in named_secrets(value))
        else:
            for inner in value.values():
                yield from _values(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _values(inner)
    elif name == "url" and isinstance(value, str):
        yield from _in_address(value)


def _in_address(url: str) -> Iterator[str]:
    """What of an address may be what lets callers in: a long path, as receivers of webhooks have it, and its query."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        path = parts.path.strip("/")
        texts = dict.fromkeys((path, *path.split("/"), parts.query))
        yield from (text for text in texts if len(text) >= _SECRET_PATH)


def named_secrets(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and value, at any depth, of settings that are secrets by their names."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from named_secrets(value)
        elif isinstance(value, list | tuple):
            for inner in value:
                if isinstance(inner, Mapping):
                    yield from named_secrets(inner)
        elif isinstance(value, str) and SECRET_NAME.search(name):
            yield name, str(value)


def redact_setting(value: Any, name: str) -> Any:
    """A setting as `repr` may have it: secrets that are plain text by their type are hidden."""
    if name in FREE and isinstance(value, Mapping):
        return _redact(value)
    return without_secrets(value) if name == "url" and isinstance(value, str) else value


def without_secrets(url: str) -> str:
    """An address as messages may have it."""
    for secret in _in_address(url):
        url = url.replace(secret, _HIDDEN)
    return url


def _redact(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _HIDDEN if isinstance(inner, str) and SECRET_NAME.search(str(key)) else _redact(inner)
            for key, inner in value.items()
        }
    return [_redact(inner) for inner in value] if isinstance(value, list | tuple) else value


def given_to(config: Config, needs: Collection[str]) -> Config:
    """The configuration as a process with these needs gets it: without the secrets of other sections, and without what
    of them may hold some."""
    default = {name: field.get_default(call_default_factory=True) for name, field in type(config).model_fields.items()}
    update: dict[str, Any] = {
        name: _without_secrets(getattr(config, name)) for name in ("state", "s3") if name not in needs
    }
    update |= {name: default[name] for name in ("spark", "airflow", "notify") if name not in needs}
    unasked = {name: None for name in ("http", "kafka") if not {"signals", f"signals.{name}"} & set(needs)}
    update["signals"] = config.signals.model_copy(update=unasked)
    if "source" not in needs:
        update["source"] = _without_secrets(config.source)
    update["output"] = {
        name: output if {"output", f"output.{name}"} & set(needs) else _without_secrets(output)
        for name, output in config.output.items()
    }
    return config.model_copy(update=update)


def _without_secrets(section: Any) -> Any:
    fields = {name: getattr(section, name) for name in type(section).model_fields}
    emptied: dict[str, Any] = {name: NotGiven() for name, value in fields.items() if isinstance(value, SecretStr)}
    emptied |= {name: {} for name in FREE if name in fields}
    emptied |= {name: "" for name in ("url",) if list(_in_address(fields.get(name, "")))}
    return section.model_copy(update=emptied)
