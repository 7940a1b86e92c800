"""A private apt: fetches Debian packages as any user, without installing them and without touching the system's apt.

Everything that apt writes (lists, archives, locks) lies in one temporary directory, and its package status is an empty
file: so the closure of dependencies is complete whatever the machine has installed. Mirror, keyrings, proxies and
credentials are the machine's own, read from its apt configuration.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dblog_core.errors import LocalError

_ETC = Path("/etc/apt")
_LONG_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}
_UBUNTU_PACKAGES = ("debootstrap", "ubuntu-keyring")
_INSTALLS = re.compile(r"^Inst (\S+) \((\S+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Repository:
    """One entry of the machine's apt sources that serves the distribution itself."""

    uri: str
    suites: tuple[str, ...]
    fields: Mapping[str, str]
    """What else is said of it (`Signed-By`, `Trusted`, …); a value may have several lines."""

    def stanza(self, suites: Sequence[str], components: str = "main") -> str:
        lines = ["Types: deb", f"URIs: {self.uri}", f"Suites: {' '.join(suites)}", f"Components: {components}"]
        return "\n".join([*lines, *(f"{name}: {value}" for name, value in self.fields.items())]) + "\n"


def repositories(etc: Path = _ETC, codename: str | None = None) -> list[Repository]:
    """The machine's entries for its own distribution, third parties' left out; the plain archive comes first."""
    release = codename or platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    entries: list[Repository] = []
    for file in sorted([etc / "sources.list", *(etc / "sources.list.d").glob("*")]):
        if file.suffix == ".sources":
            entries += [r for stanza in re.split(r"\n\s*\n", file.read_text()) for r in _from_stanza(stanza, release)]
        elif file.suffix == ".list" and file.exists():
            entries += [r for line in file.read_text().splitlines() for r in _from_line(line, release)]
    # The security archive has only some of the packages: it must not come first.
    return sorted(entries, key=lambda r: (release not in r.suites, not r.uri.rstrip("/").endswith("/debian")))


def _from_stanza(text: str, release: str) -> Iterable[Repository]:
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace() and name:
            # A line that begins with a space continues the field before: keys are given so.
            fields[name] += "\n" + line
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().title()
            fields[name] = value.strip()
    if fields.get("Enabled", "yes") == "no" or "deb" not in fields.pop("Types", "").split():
        return
    suites = _own_suites(fields.pop("Suites", "").split(), release)
    uris = fields.pop("Uris", "").split()
    if suites and "main" in fields.pop("Components", "").split():
        yield from (Repository(uri, suites, fields) for uri in uris)


def _from_line(line: str, release: str) -> Iterable[Repository]:
    # The one-line form: `deb [options] URI suite components`.
    match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)", line.strip())
    if not match or "main" not in match[4].split():
        return
    options = dict(pair.split("=", 1) for pair in (match[1] or "").split() if "=" in pair)
    fields = {_LONG_NAMES.get(name, name.title()): value.replace(",", " ") for name, value in options.items()}
    suites = _own_suites([match[3]], release)
    if suites:
        yield Repository(match[2], suites, fields)


def _own_suites(suites: Sequence[str], release: str) -> tuple[str, ...]:
    """`bookworm`, `bookworm-updates`, `bookworm-security`: not a third party's `bookworm-something`."""
    return tuple(s for s in suites if s in (release, f"{release}-updates", f"{release}-security"))


class PrivateApt:
    """apt-get on its own directories; `suite` None means the machine's own."""

    def __init__(self, directory: Path, *, suite: str | None = None) -> None:
        self._dir = directory
        self._suite = suite
        self._env = {**os.environ, "APT_CONFIG": str(directory / "apt.conf"), "LC_ALL": "C.UTF-8"}

    def prepare(self) -> None:
        """Writes the private configuration and fetches the package lists."""
        for part in ("state/lists/partial", "cache/archives/partial", "sources", "debs"):
            (self._dir / part).mkdir(parents=True)
        # Nothing counts as installed, so that all dependencies are fetched.
        (self._dir / "status").touch()
        (self._dir / "sources" / "distribution.sources").write_text(self._sources())
        (self._dir / "apt.conf").write_text(self._configuration())
        self._run("update", "-qq")

    def closure(self, packages: Sequence[str]) -> dict[str, str]:
        """Name and version of all that an installation on an empty machine would bring (no recommendations)."""
        return dict(_INSTALLS.findall(self._run("install", "-s", "-qq", "--no-install-recommends", *packages)))

    def download(self, packages: Mapping[str, str]) -> list[Path]:
        """Fetches the packages, their digests checked by apt."""
        # `download` resolves nothing: names and versions are those of the simulated installation.
        self._run("download", "-qq", *(f"{name}={version}" for name, version in packages.items()))
        return sorted((self._dir / "debs").glob("*.deb"))

    def _sources(self) -> str:
        entries = repositories()
        if not entries:
            raise LocalError(
                "no entry of the machine's apt sources serves its own distribution", where=str(_ETC), fix="add one"
            )
        if self._suite is None:
            return "\n".join(r.stanza(r.suites) for r in entries)
        return entries[0].stanza([self._suite])

    def _configuration(self) -> str:
        """The machine's own ways to reach its mirror, and nothing else of it: no hooks, no extra indexes."""
        dump = _run_command(["apt-config", "dump"], env=dict(os.environ))
        machine_settings = [s for s in dump.splitlines() if s.startswith("Acquire::") and "::IndexTargets" not in s]
        # Translations are many files and of no use here.
        machine_settings = [s for s in machine_settings if not s.startswith("Acquire::Languages")]
        architecture = _run_command(["dpkg", "--print-architecture"], env=dict(os.environ)).strip()
        private_settings = {
            "Dir::State": self._dir / "state",
            "Dir::State::status": self._dir / "status",
            "Dir::Cache": self._dir / "cache",
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self._dir / "sources",
            "Debug::NoLocking": "true",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "",  # the directory is ours alone, also when we are root
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        return (
            "\n".join([*machine_settings, *(f'{name} "{value}";' for name, value in private_settings.items())]) + "\n"
        )

    def _run(self, *arguments: str) -> str:
        return _run_command(["apt-get", "-y", *arguments], env=self._env, cwd=self._dir / "debs")


class UbuntuApt(PrivateApt):
    """The same on Ubuntu's archive. Debian has packages that know its address and its keys."""

    def _sources(self) -> str:
        assert self._suite is not None
        debian = PrivateApt(self._dir / "debian", suite="sid")
        debian.prepare()
        versions = debian.closure(_UBUNTU_PACKAGES)
        for package in debian.download({name: versions[name] for name in _UBUNTU_PACKAGES}):
            unpack(package, self._dir)
        # Its first mirror is that of amd64, the second that of all other machines.
        script = (self._dir / "usr/share/debootstrap/scripts/gutsy").read_text()
        mirrors = re.findall(r"default_mirror (\S+)", script)
        architecture = _run_command(["dpkg", "--print-architecture"], env=dict(os.environ)).strip()
        keyring = self._dir / "usr/share/keyrings/ubuntu-archive-keyring.gpg"
        suites = (self._suite, f"{self._suite}-updates", f"{self._suite}-security")
        fields = {"Signed-By": str(keyring)}
        repository = Repository(mirrors[0 if architecture == "amd64" else 1], suites, fields)
        return repository.stanza(suites, "main universe")


def unpack(package: Path, tree: Path) -> None:
    """Extracts a package's files, and runs no script of it."""
    _run_command(["dpkg-deb", "-x", str(package), str(tree)], env=dict(os.environ))


def _run_command(command: list[str], *, env: dict[str, str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, check=False, env=env, cwd=cwd, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise LocalError(
            f"{command[0]} is not on this machine",
            fix="the local stack needs Debian 12 or a relative of it (apt, dpkg)",
        ) from error
    if done.returncode:
        output = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise LocalError(
            f"`{' '.join(command[:3])}` failed:\n{output}",
            fix="is the apt mirror of this machine in reach? `apt-get update` tells",
        )
    return done.stdout
