"""The packages that an extra of this distribution needs: which are missing, and which have a version out of range.

The extras and their ranges are read from the installed metadata, where `pyproject.toml` has put them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from dblog_core.errors import ConfigError

DISTRIBUTION = "dblog-cdc"
_OTHER_BUILDS = {"psycopg2-binary": "psycopg2"}
"""The same modules under another distribution's name: what a person builds against the system's libraries."""


@cache
def require(extra: str) -> None:
    """Raises ConfigError if a package of the extra is missing or has a version out of range; the fix installs it."""
    faults = list(find_faults(extra))
    if faults:
        raise ConfigError("; ".join(faults), where=f"extra {extra}", fix=install_line(extra))


def require_sasl() -> None:
    """Raises ConfigError without the package for ZooKeeper's SASL logins, which no extra has: it exists only as a
    source archive, and few installations need it."""
    if _find_version("pure-sasl") is None:
        raise ConfigError(
            "the package pure-sasl is not installed, and login = sasl needs it",
            where="[state] login",
            fix=f"{shlex.quote(sys.executable)} -m pip install pure-sasl",
        )


def find_faults(extra: str | None) -> Iterator[str]:
    """The missing packages of the extra, and those whose version is out of range: the package, found and needed.

    `extra`: None for the packages that every command needs. Nothing where the metadata of this distribution is not
    installed: a source tree has none.
    """
    for requirement in _requirements(extra):
        found = _find_version(requirement.name)
        needed = f"{requirement.name} {requirement.specifier} is needed"
        if found is None:
            yield f"the package {requirement.name} is not installed ({needed})"
        elif not requirement.specifier.contains(found, prereleases=True):
            yield f"the package {requirement.name} has version {found} ({needed})"


def install_line(extra: str | None) -> str:
    """The command that installs these packages into the environment of this process."""
    packages = [shlex.quote(f"{each.name}{each.specifier}") for each in _requirements(extra)]
    if not packages:
        return f"install the extra `{extra}` of {DISTRIBUTION}" if extra else f"install {DISTRIBUTION}"
    return " ".join([shlex.quote(sys.executable), "-m", "pip", "install", *packages])


def _requirements(extra: str | None) -> list[Requirement]:
    try:
        texts = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    all_of_them = [Requirement(text) for text in texts]
    always = [each for each in all_of_them if each.marker is None or each.marker.evaluate({"extra": ""})]
    if extra is None:
        return always
    return [each for each in all_of_them if each.marker is not None and each.marker.evaluate({"extra": extra})]


def _find_version(name: str) -> str | None:
    for distribution in (name, _OTHER_BUILDS.get(name)):
        if distribution is not None:
            try:
                return version(distribution)
            except PackageNotFoundError:
                continue
    return None
