"""Reads the configuration: one TOML file per source. It checks all of it, and reports each fault with place and fix.

Loading imports no driver and opens no connection: Airflow does it at every parse of its DAG files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dblog_core.config import output_validation
from dblog_core.config.faults import NO_FILE, Fault
from dblog_core.config.fields import Unset
from dblog_core.config.secret_settings import Needs, is_needed
from dblog_core.config.secrets import NOTHING, expand
from dblog_core.config.settings import Config
from dblog_core.config.validation import contradictions
from dblog_core.config.validation_errors import to_fault
from dblog_core.errors import ConfigError

_PATHS = {
    "source": ("tls_ca", "tls_cert", "tls_key"),
    "state": ("tls_ca", "tls_cert", "tls_key"),
    "staging": ("path",),
    "lake": ("path",),
    "s3": ("tls_ca",),
    "signals": ("file",),
    "signals.http": ("tls_cert", "tls_key", "tls_client_ca"),
    "signals.kafka": ("tls_ca", "tls_cert", "tls_key"),
    "notify": ("tls_ca",),
}
_OUTPUT_PATHS = ("path", "dead_letter", "registry_ca", "tls_ca", "tls_cert", "tls_key")


def load(path: Path | str, *, secrets: bool = True, needs: Needs = None) -> Config:
    """Reads and checks the file; paths in it that are not absolute are meant from its own directory.

    `needs`: the sections (`config.secret_settings`) that the caller has use for: in others a ${ENV} may be unset,
    and files that are named need not exist. `secrets=False`: so in all, for who needs no connection (Airflow's
    parsing of DAG files). Raises ConfigError with every fault; no value of the file is in the message."""
    file = Path(path)
    data = _read(file)
    faults: list[Fault] = []
    expanded = expand(data, (), faults, needs if secrets else NOTHING)
    _anchor(expanded, file.absolute().parent)
    config: Config | None = None
    try:
        config = Config.model_validate(expanded)
    except ValidationError as error:
        faults += [to_fault(e, Config) for e in error.errors(include_input=False, include_url=False)]
    faults += contradictions(expanded, files=secrets)
    faults += output_validation.contradictions(expanded, files=secrets)
    faults = [fault for fault in faults if fault.what != NO_FILE or is_needed(fault.place, needs)]
    if config is None or faults:
        order = list(Config.model_fields)
        faults.sort(key=lambda f: order.index(str(f.place[0])) if f.place[0] in order else len(order))
        lines = list(dict.fromkeys(f"  - {fault}" for fault in faults))
        raise ConfigError(
            "\n".join(["one fault" if len(lines) == 1 else f"{len(lines)} faults", *lines]),
            where=str(file),
            fix="correct them; docs/configuration.md explains every key, `dblog config schema` prints the JSON schema",
        )
    return config


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors and other checkers."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(),
        "title": "dblog configuration",
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}",
            where=str(file),
            fix="give an existing file by --config or DBLOG_CONFIG",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"is not TOML: {error}", where=str(file), fix="correct that line; docs/configuration.md shows a whole file"
        ) from error


def _anchor(data: Mapping[str, Any], directory: Path) -> None:
    """A relative path would mean another place for each process that is started elsewhere."""
    for section, keys in _PATHS.items():
        part: Any = data
        for name in section.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        for settings in part if isinstance(part, list) else [part]:
            if isinstance(settings, dict):
                _anchor_all(settings, keys, directory)
                if section == "notify" and isinstance(settings.get("kafka"), dict):
                    _anchor_all(settings["kafka"], _PATHS["signals.kafka"], directory)
    outputs = data.get("output")
    for settings in outputs.values() if isinstance(outputs, dict) else ():
        if isinstance(settings, dict):
            _anchor_all(settings, _OUTPUT_PATHS, directory)


def _anchor_all(settings: dict[str, Any], keys: tuple[str, ...], directory: Path) -> None:
    for key in keys:
        path = settings.get(key)
        if isinstance(path, str) and path and "://" not in path and not isinstance(path, Unset):
            settings[key] = str(directory / Path(path).expanduser())
