"""`dblog serve` and `dblog signals`: take signals by HTTP; what has become of signals."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from dblog_core.commands.options import address
from dblog_core.commands.session import JsonFlag, note, session_of, stopping
from dblog_core.commands.terminal.text_tables import align
from dblog_core.config.secret_settings import STATE
from dblog_core.errors import ConfigError
from dblog_core.model.hosts import are_all_loopback

if TYPE_CHECKING:
    from dblog_core.config.settings import HttpConfig
    from dblog_core.signals.http import Endpoint, Signals
    from dblog_core.signals.signal_record import SignalRecord

_SHOWN = ("id", "type", "channel", "caller", "state", "dump", "what", "error", "fix", "at")


def serve(
    context: typer.Context,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="In place of the configuration's.")] = "",
) -> None:
    """Take signals by HTTP, until stopped.

    `[signals.http]` of the configuration says where, and for which tokens. POST /signals files a signal, which the
    capture carries out; GET /signals/ID tells what has become of it.

    \b
    Examples:
      dblog --config shop.toml serve
      dblog --config shop.toml serve --listen 127.0.0.1:9180
    """
    from dblog_core.clock import SystemClock
    from dblog_core.signals.http import Signals
    from dblog_core.wiring import open_state

    config = session_of(context).config(STATE | {"signals.http"})
    if (http := config.signals.http) is None:
        raise ConfigError("there is no token", where="[signals.http]", fix='add [signals.http] with token = "${ENV}"')
    host, port = address(listen or http.listen)
    if not are_all_loopback(host) and not http.tls_cert:
        what = f"{host} is reached over the network, where the token would go in clear text"
        raise ConfigError(what, where="--listen", fix="give tls_cert and tls_key in [signals.http]")
    with closing(open_state(config)) as state:
        endpoint = _open_endpoint(Signals(config, state, SystemClock()), host, port, http)
        with closing(endpoint), stopping() as stop:
            url_host = f"[{host}]" if ":" in host else host
            note(f"signals at http{'s' if http.tls_cert else ''}://{url_host}:{endpoint.port}/signals")
            stop.wait()


def _open_endpoint(signals: Signals, host: str, port: int, http: HttpConfig) -> Endpoint:
    from dblog_core.signals.http import Endpoint

    certificate, key, clients = (str(path or "") for path in (http.tls_cert, http.tls_key, http.tls_client_ca))
    tokens: dict[str | None, str] = {name: caller.token.get_secret_value() for name, caller in http.callers.items()}
    tokens |= {None: token} if (token := http.token.get_secret_value()) else {}
    try:
        return Endpoint(signals, host, port, tokens=tokens, certificate=certificate, key=key, clients=clients)
    except OSError as error:
        what = f"cannot listen at {host}:{port}: {error}"
        raise ConfigError(what, where="[signals.http]", fix="choose another address, or right files") from error


def signals(context: typer.Context, json: JsonFlag = False) -> None:
    """List signals and what has become of them, oldest first.

    \b
    Example:
      dblog --config shop.toml signals --json
    """
    from dblog_core.signals import inbox
    from dblog_core.wiring import open_state

    session = session_of(context, json)
    with closing(open_state(session.config(STATE))) as state:
        records = inbox.list_signals(state)
    header = ("AT", "ID", "TYPE", "CHANNEL", "STATE", "WHAT")
    lines = [align(header, [*map(_row, records)]) if records else "no signal has come yet"]
    lines += [f"{record.id}: {record.error}\n  fix: {record.fix}" for record in records if record.error]
    objects = [record.to_json() for record in records]
    session.result([{name: each[name] for name in _SHOWN if name in each} for each in objects], "\n".join(lines))


def _row(record: SignalRecord) -> tuple[str, ...]:
    at = dt.datetime.fromtimestamp(record.at_us / 1e6, dt.UTC)
    what = record.dump or record.what or ""
    channel = f"{record.channel}: {record.caller}" if record.caller else record.channel
    return (f"{at:%Y-%m-%d %H:%M:%S}Z", record.id, record.type, channel, record.state.value, what)
