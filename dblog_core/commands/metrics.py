"""`dblog metrics`: what `status` says about one source or many, for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog_core import early_signals
from dblog_core.commands.options import address
from dblog_core.commands.session import Session, note, session_of, stopping
from dblog_core.config.loader import load
from dblog_core.config.secret_settings import READER
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.installed_packages import require
from dblog_core.model.hosts import are_all_loopback

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_ListenOption = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Serve them there, until stopped.")]
_DirectoryOption = Annotated[
    Path | None, typer.Option("--directory", metavar="DIR", help="Of every TOML file in DIR, in place of --config.")
]
_CertificateOption = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="PEM file of the server's certificate.")
]
_KeyOption = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="PEM file of its key.")]
_AuthorityOption = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="Only for clients with a certificate signed by it."),
]
_InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Serve them without TLS to other machines: anyone may read them.")
]


def metrics(
    context: typer.Context,
    listen: _ListenOption = "",
    directory: _DirectoryOption = None,
    certificate: _CertificateOption = None,
    key: _KeyOption = None,
    authority: _AuthorityOption = None,
    insecure: _InsecureOption = False,
) -> None:
    """Print or serve what `status` tells, for Prometheus.

    \b
    Examples:
      dblog --config shop.toml metrics
      dblog metrics --directory sources --listen 127.0.0.1:9178
    """
    require("metrics")
    from prometheus_client import CollectorRegistry, generate_latest

    from dblog_core.monitoring.metrics import Sources

    registry = CollectorRegistry()
    registry.register(Sources(_configs(session_of(context), directory)))
    if not listen:
        early_signals.release()
        typer.echo(generate_latest(registry).decode(), nl=False)
        return
    host, _ = address(listen)
    if bool(certificate) != bool(key) or (authority and not certificate):
        raise ConfigError("TLS needs both --tls-cert and --tls-key", where="metrics", fix="give both files")
    if not are_all_loopback(host) and not certificate and not insecure:
        what = f"anybody who reaches {listen} could read names and sizes of tables, and everybody on the way"
        fix = (
            "give --tls-cert, --tls-key and --tls-client-ca, or --insecure where a proxy or a network keeps others out"
        )
        raise ConfigError(what, where="--listen", fix=fix)
    tls = {
        "certfile": str(certificate) if certificate else None,
        "keyfile": str(key) if key else None,
        "client_cafile": str(authority) if authority else None,
        "client_auth_required": authority is not None,
    }
    _serve(registry, listen, tls)


def _serve(registry: CollectorRegistry, listen: str, tls: dict[str, Any]) -> None:
    """Serves the metrics until stopped. `tls`: as `start_http_server` takes it."""
    from prometheus_client import start_http_server

    host, port = address(listen)
    try:
        server, thread = start_http_server(port, host, registry, **tls)
    except OSError as error:
        what = f"cannot listen at {listen}: {error}"
        raise ConfigError(what, where="--listen", fix="choose another address") from error
    try:
        with stopping() as stop:
            note(f"metrics at http{'s' if tls['certfile'] else ''}://{host}:{server.server_port}/metrics")
            stop.wait()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _configs(session: Session, directory: Path | None) -> list[Config]:
    """Raises ConfigError where one of them is wrong: a source that is left out in silence would look well."""
    if directory is None:
        return [session.config(READER)]
    files = sorted(directory.glob("*.toml"))
    if not files:
        raise ConfigError("there is no TOML file", where=str(directory), fix="name the directory of the sources' files")
    return [load(file, needs=READER) for file in files]
