"""TLS to servers, the same for sources, outputs, state and storage: how it is asked for, which of its errors last."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Protocol

_BROKEN = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_LIBPQ_BROKEN = ("SSL SYSCALL error", "SSL connection has been closed", "unexpected eof")
_LIBPQ = ("certificate", "private key", "SSL", "TLS")
_LIBPQ_WITH_SYSTEM = 160000  # the first libpq that knows the machine's own authorities
_CLEAR_PASSWORD = ("mysql_clear_password", "dialog")  # plugins that answer a server with the password itself


class TlsSettings(Protocol):
    """How a server is reached: part of a configuration. `tls`: verify-full, verify-ca, require, off; files are PEM."""

    @property
    def tls(self) -> str | None: ...
    @property
    def tls_ca(self) -> Path | None: ...
    @property
    def tls_cert(self) -> Path | None: ...
    @property
    def tls_key(self) -> Path | None: ...


def verifying_context(authority: Path | None) -> ssl.SSLContext:
    """Of a client without a certificate; None: the machine's own authorities. Raises OSError, ssl.SSLError too."""
    return ssl.create_default_context(cafile=str(authority) if authority else None)


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Of a client. Raises OSError, ssl.SSLError too, where a file is no good."""
    context = verifying_context(settings.tls_ca)
    if settings.tls_cert:
        context.load_cert_chain(str(settings.tls_cert), str(settings.tls_key) if settings.tls_key else None)
    # Before the mode: Python refuses CERT_NONE while check_hostname is set.
    context.check_hostname = settings.tls == "verify-full"
    context.verify_mode = ssl.CERT_NONE if settings.tls == "require" else ssl.CERT_REQUIRED
    return context


def libpq_options(settings: TlsSettings) -> dict[str, Any]:
    """The same in psycopg2's arguments."""
    import psycopg2.extensions

    mode = settings.tls or "verify-full"
    files = {"sslrootcert": settings.tls_ca, "sslcert": settings.tls_cert, "sslkey": settings.tls_key}
    options: dict[str, Any] = {name: str(path) for name, path in files.items() if path is not None}
    if mode == "verify-full" and not settings.tls_ca and psycopg2.extensions.libpq_version() >= _LIBPQ_WITH_SYSTEM:
        options["sslrootcert"] = "system"  # older ones look in ~/.postgresql, and so do all for verify-ca
    return {**options, "sslmode": "disable" if mode == "off" else mode}


def pymysql_options(settings: TlsSettings) -> dict[str, Any]:
    """The same in PyMySQL's arguments. To a server that has not proven who it is, no password goes as it is, whatever
    plugin it asks for. Raises OSError, ssl.SSLError too, where a file is no good."""
    options: dict[str, Any] = {"ssl_disabled": True} if settings.tls == "off" else {"ssl": client_context(settings)}
    if settings.tls not in ("verify-full", "verify-ca"):
        options["auth_plugin_map"] = dict.fromkeys(_CLEAR_PASSWORD, _refusing_plugin())
    return options


def _refusing_plugin() -> type:
    import pymysql
    from pymysql.constants import CR

    class Refusing:
        """A plugin of PyMySQL that gives nothing away."""

        def __init__(self, _connection: object) -> None:
            """PyMySQL makes one for each login."""

        def authenticate(self, _packet: object) -> None:
            what = "the server asks for the password in clear text, and has not proven who it is"
            raise pymysql.err.OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, what)

    return Refusing


def is_lasting(error: object) -> bool:
    """Whether it is an error of Python's `ssl` that lasts until somebody changes something (certificates, versions),
    and not a connection that broke while it was made."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _BROKEN)


def is_lasting_in_libpq(message: str) -> bool:
    """The same by libpq's message, which is all that it tells."""
    return any(word in message for word in _LIBPQ) and not any(words in message for words in _LIBPQ_BROKEN)
