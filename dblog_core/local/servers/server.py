"""What every server of the local stack offers, and what the databases among them offer beside that."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Server(Protocol):
    """A server process (or an ensemble of them) on loopback, whose data and port outlive it."""

    name: str

    def start(self) -> None:
        """Makes the data where missing, starts, and returns when it answers. Raises LocalError."""

    def ready(self) -> bool:
        """Whether it answers."""

    def stop(self) -> None:
        """Stops it in order; returns when it has ended."""

    def kill(self) -> None:
        """`kill -9`; `start` then brings it back on the same data and port."""

    def address(self) -> str:
        """Where it listens, as shown to a person."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of a database server."""

    user: str
    password: str


class DatabaseServer(Server, Protocol):
    """A source database."""

    kind: str
    host: str
    options: Mapping[str, str | None]
    """Server settings beside or in place of the usual ones (None leaves one out); read at every start."""

    @property
    def port(self) -> int: ...

    @property
    def admin(self) -> Account: ...

    @property
    def pid(self) -> int | None:
        """The server process while it runs."""

    def connect(self, database: str = "", *, account: Account | None = None) -> Any:
        """A driver connection in autocommit mode, as the administrator by default."""

    def execute(self, *statements: str, database: str = "") -> None:
        """Runs statements as the administrator, each in a transaction of its own."""

    def create_database(self, name: str) -> None: ...

    def drop_database(self, name: str) -> None: ...

    def create_capture_user(self, database: str, *, user: str = "dblog", password: str | None = None) -> Account:
        """A user that may do just what a capture and its dumps need in that database."""

    def drop_user(self, user: str) -> None: ...

    def tool(self, name: str) -> Path:
        """The server's own client program: mysqlbinlog, psql, pg_recvlogical, …"""


def remembered_password(file: Path) -> str:
    """The password in the file; chosen and written where the file is missing."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # Before the content, so that nobody else can read it in between.
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(12))
    return file.read_text()


def merge_options(defaults: Mapping[str, str | None], options: Mapping[str, str | None]) -> dict[str, str]:
    """The settings to start with: defaults, overridden or (None) left out by options."""
    return {name: value for name, value in {**defaults, **options}.items() if value is not None}
