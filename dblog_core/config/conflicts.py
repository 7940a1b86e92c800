"""Configurations of one deployment beside each other: what two of them must not share.

Sources may share a staging root, a state store, a watermark table and a server: what is theirs there lies under their
names. Nothing is connected to, so two names of one host count as two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dblog_core.config.loader import load
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.model.hosts import are_all_loopback


@dataclass(frozen=True, slots=True)
class Claim:
    """What a configuration wants for itself alone; `place`: what else makes it the same thing. `fatal`: where two have
    it, neither can be captured rightly."""

    what: str
    fix: str
    place: tuple[str, ...] = ()
    fatal: bool = True


@dataclass(frozen=True, slots=True)
class Clash:
    """A claim that the files `others` have too."""

    claim: Claim
    others: tuple[str, ...]

    @property
    def message(self) -> str:
        return f"{self.claim.what} is that of {', '.join(self.others)} too"


def clashes(configs: Mapping[Path, Config]) -> dict[Path, list[Clash]]:
    """What each file has in common with another one and must not; files with nothing such are left out."""
    users: dict[Claim, list[Path]] = {}
    for file, config in configs.items():
        for claim in _claims(config):
            users.setdefault(claim, []).append(file)
    clashes_of: dict[Path, list[Clash]] = {}
    for claim, files in users.items():
        for file in files if len(files) > 1 else ():
            others = tuple(other.name for other in files if other != file)
            clashes_of.setdefault(file, []).append(Clash(claim, others))
    return clashes_of


def beside(file: Path, config: Config) -> list[Clash]:
    """What the configuration of a file has in common with others in its directory; what is wrong in those is theirs."""
    configs = {file: config}
    for other in sorted(file.parent.glob("*.toml")):
        if not other.samefile(file):
            try:
                configs[other] = load(other, secrets=False)
            except ConfigError:
                continue  # its own check tells it
    return clashes(configs).get(file, [])


def _claims(config: Config) -> Iterator[Claim]:
    source = config.source
    server = _server(config)
    yield Claim(f"[source] name {source.name}", "give each source its own name")
    if source.kind == "postgres":
        yield Claim(f"[source] slot {source.slot} on that server", "leave slot out, or give each its own", server)
        of = (*server, source.database)
        fix = "leave publication out, or give each its own"
        yield Claim(f"[source] publication {source.publication} in that database", fix, of)
    else:
        yield Claim(
            f"[source] server_id {source.replica_id} on that server", "give each a server_id of its own", server
        )
    yield Claim(f"[lake] path {config.lake.path}", "give each source a lake of its own", fatal=False)
    if config.signals.file is not None:
        yield Claim(f"[signals] file {config.signals.file}", "give each source a file of its own", fatal=False)
    if config.signals.http is not None:
        listen = f"[signals.http] listen {config.signals.http.listen}"
        yield Claim(listen, "give each `dblog serve` of one machine an address of its own", fatal=False)


def _server(config: Config) -> tuple[str, ...]:
    source = config.source
    if source.airflow_connection:
        return ("connection", source.airflow_connection)
    return ("127.0.0.1" if are_all_loopback(source.host) else source.host.lower(), str(source.port))
