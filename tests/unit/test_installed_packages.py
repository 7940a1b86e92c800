"""Extras that are not installed, or not as we need them: named with the line that installs them, before their use."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dblog_core import installed_packages
from dblog_core.errors import ConfigError

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: list(map(Requirement, texts)) for name, texts in PROJECT["optional-dependencies"].items()}
ENGINE = ("kafka", "metrics", "mysql", "postgres", "s3", "zookeeper")


@pytest.fixture(autouse=True)
def _asks_again() -> Iterator[None]:
    installed_packages.require.cache_clear()
    yield
    installed_packages.require.cache_clear()


@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "all"])
def test_an_extra_of_the_lock_is_as_needed(extra: str) -> None:
    assert list(installed_packages.find_faults(extra)) == []
    installed_packages.require(extra)


def test_what_every_command_needs_is_there_and_part_of_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(installed_packages.find_faults(None)) == []
    monkeypatch.setattr(installed_packages, "version", lambda name: "0.1")
    named = {fault.split()[2] for fault in installed_packages.find_faults(None)}
    assert named == {Requirement(text).name for text in PROJECT["dependencies"]}


def test_the_extra_all_is_all_of_them() -> None:
    (everything,) = EXTRAS["all"]
    assert everything.name == installed_packages.DISTRIBUTION and everything.extras == set(EXTRAS) - {"all"}


@pytest.mark.parametrize("extra", ENGINE)
def test_a_missing_package_is_named_with_the_line_that_installs_it(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {canonicalize_name(requirement.name) for requirement in EXTRAS[extra]}
    version = importlib.metadata.version

    def no_version(name: str) -> str:
        if canonicalize_name(name) in names or name == "psycopg2":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(installed_packages, "version", no_version)
    with pytest.raises(ConfigError) as caught:
        installed_packages.require(extra)
    program, *words = shlex.split(caught.value.fix)
    assert (program, words[:3]) == (sys.executable, ["-m", "pip", "install"])
    assert {canonicalize_name(Requirement(word).name) for word in words[3:]} == names
    assert all(f"the package {name} is not installed" in caught.value.message for name in names)


def test_a_version_out_of_range_is_named_as_found_and_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_packages, "version", {"kazoo": "2.2.1"}.__getitem__)
    with pytest.raises(ConfigError, match=r"kazoo has version 2\.2\.1 \(kazoo .*>=2\.10.* is needed\)"):
        installed_packages.require("zookeeper")


def test_a_sasl_login_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_packages.require_sasl()

    def no_version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installed_packages, "version", no_version)
    with pytest.raises(ConfigError, match="login = sasl needs it") as caught:
        installed_packages.require_sasl()
    assert shlex.split(caught.value.fix) == [sys.executable, "-m", "pip", "install", "pure-sasl"]


def test_a_driver_built_against_the_systems_libraries_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def built_version(name: str) -> str:
        if name == "psycopg2":
            return "2.9.10"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installed_packages, "version", built_version)
    installed_packages.require("postgres")


@pytest.mark.parametrize("extra", ENGINE)
def test_parts_without_the_extra_work_where_its_modules_are_not_there(extra: str, tmp_path: Path) -> None:
    """In a process that cannot import them: `check` of a source of the other kind, and of what needs the extra."""
    modules = _modules_of(extra)
    assert modules
    kind = "postgres" if extra == "mysql" else "mysql"
    source = f'[source]\nname = "shop"\nkind = "{kind}"\nhost = "127.0.0.1"\nport = 9\nuser = "a"\npassword = "b"\n'
    rest = f'database = "shop"\ntables = ["shop.*"]\n[staging]\npath = "{tmp_path}/s"\n[lake]\npath = "{tmp_path}/l"\n'
    (tmp_path / "shop.toml").write_text(f'{source}{rest}[state]\nurl = "sqlite://{tmp_path}/state.db"\n')
    program = _CHECK.format(modules=sorted(modules), file=str(tmp_path / "shop.toml"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    assert "ERROR: source: " in done.stdout and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert not re.search(rf"\b({'|'.join(modules)})\b", done.stdout + done.stderr)


_CHECK = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocked())
from dblog_core.cli import main
sys.argv = ["dblog", "--config", {file!r}, "check"]
main()
"""


def _modules_of(extra: str) -> set[str]:
    """The top-level modules of the extra's packages."""
    names = {canonicalize_name(requirement.name) for requirement in EXTRAS[extra]}
    packages = importlib.metadata.packages_distributions()
    found = {module for module, of in packages.items() if {canonicalize_name(each) for each in of} & names}
    return {module for module in found if module.isidentifier() and not module.startswith("_")}
