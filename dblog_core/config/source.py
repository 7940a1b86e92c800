"""`[source]`: the database, what is captured from it, and what happens to its columns."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from dblog_core.config.fields import (
    Flag,
    Number,
    Section,
    TableNameText,
    Whole,
)
from dblog_core.errors import ConfigError
from dblog_core.model import position_spec
from dblog_core.model.hosts import are_all_loopback, host_of
from dblog_core.model.position_spec import Place as LogPlace

if TYPE_CHECKING:
    from dblog_core.model.schema import TableName


def _as_text(value: Any) -> Any:
    """A time may stand without quotes: TOML has a form of its own for it."""
    if isinstance(value, dt.date) and getattr(value, "tzinfo", None) is None:
        raise ValueError(position_spec.WITHOUT_ZONE)
    return value.isoformat() if isinstance(value, dt.datetime) else value


class ColumnRules(Section):
    """What happens to columns before staging, in log and dump alike."""

    exclude: tuple[str, ...] = Field(default=(), description="columns that never reach staging")
    mask: tuple[str, ...] = Field(default=(), description="columns whose values become ***** (text) or the type's zero")
    hash: tuple[str, ...] = Field(
        default=(), description="columns whose values become their SHA-256 in hex, keyed with [source] hash_key"
    )
    staged_as: dict[str, Literal["double", "text", "or_null", "bigint", "microseconds", "base64", "hex"]] = Field(
        default={}, description='another form than the usual one, by column: { price = "double" }'
    )


class SourceConfig(Section):
    """The database, and what is captured from it."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$", max_length=40, description="names leases, slot, DAGs and staging: [a-z][a-z0-9_]*"
    )
    kind: Literal["mysql", "mariadb", "postgres"] = Field(description="mysql, mariadb or postgres")
    host: str = Field(default="127.0.0.1", description="the server's name or address")
    port: Whole = Field(default=0, ge=0, le=65535, description="default: 3306, or 5432 for postgres")
    user: str = Field(default="dblog", description="the user of the database")
    password: SecretStr = Field(default=SecretStr(""), description='"${ENV}" keeps it out of the file')
    airflow_connection: str | None = Field(
        default=None, description="id of an Airflow connection, in place of host, port, user and password"
    )
    database: str = Field(min_length=1, description="the database to connect to")
    tables: tuple[TableNameText, ...] = Field(
        min_length=1, description='what to capture: SCHEMA.TABLE patterns with * and ?, such as ["shop.*"]'
    )
    tls: Literal["verify-full", "verify-ca", "require", "off"] | None = Field(
        default=None, description="default: verify-full, off on loopback"
    )
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the server's certificate"
    )
    tls_cert: Path | None = Field(default=None, description="PEM file of our own certificate, with tls_key")
    tls_key: Path | None = Field(default=None, description="PEM file of our own key, with tls_cert")
    start: Annotated[str, BeforeValidator(_as_text)] = Field(
        default=position_spec.LATEST,
        description="where the first capture begins: latest, initial (and dumps all tables), earliest, a "
        "position, a GTID set, or a time",
    )
    read_only: Flag = Field(
        default=False,
        description="true: nothing is ever written to the source; windows of dumps are announced in the state store",
    )
    read_replica: str | None = Field(
        default=None,
        pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(:[0-9]{1,5})?$",
        description="PostgreSQL: HOST or HOST:PORT of a hot standby of the server, which chunks are read from",
    )
    slot: str = Field(
        default="",
        pattern=r"^[a-z0-9_]{1,63}$",
        description="PostgreSQL: replication slot, [a-z0-9_]; default: dblog_NAME",
    )
    publication: str = Field(default="", min_length=1, max_length=63, description="PostgreSQL: default: dblog_NAME")
    plugin: Literal["pgoutput", "wal2json"] = Field(
        default="pgoutput", description="PostgreSQL: logical decoding plugin"
    )
    server_id: Whole = Field(
        default=0, ge=0, le=2**32 - 1, description="MySQL, MariaDB: our id as a replica; default: made from the name"
    )
    watermark_table: TableNameText = Field(
        default="", description="SCHEMA.TABLE; default: dblog_watermark in the database (PostgreSQL: in public)"
    )
    signal_table: TableNameText | None = Field(
        default=None, description="SCHEMA.TABLE whose new rows are signals; as [signals] table, which says it too"
    )
    zero_dates: Literal["error", "null"] = Field(
        default="error", description="MySQL, MariaDB: what a date with a zero part becomes: error stops its table"
    )
    connect_timeout: Number = Field(default=10.0, gt=0, description="seconds")
    columns: dict[TableNameText, ColumnRules] = Field(
        default={}, description="rules for the columns of a table, by SCHEMA.TABLE"
    )
    hash_key: SecretStr = Field(
        default=SecretStr(""), description='what `hash` is keyed with (HMAC-SHA256); "${ENV}" keeps it out of the file'
    )
    keys: dict[TableNameText, tuple[str, ...]] = Field(
        default={}, description="for a table without a primary key: its unique, never-null columns, by SCHEMA.TABLE"
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """What follows from other settings. `tls` stays open while the host is known to Airflow alone."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        name = data.get("name", "")
        kind = data.get("kind")
        data["port"] = data.get("port") or (5432 if kind == "postgres" else 3306)
        data.setdefault("slot", f"dblog_{name}" if isinstance(name, str) and name else "dblog")
        data.setdefault("publication", f"dblog_{name}")
        schema = "public" if kind == "postgres" else data.get("database") or "dblog"
        data.setdefault("watermark_table", f"{schema}.dblog_watermark")
        if data.get("tls") is None and not data.get("airflow_connection"):
            hosts = (data.get("host", "127.0.0.1"), host_of(data.get("read_replica")) or "127.0.0.1")
            data["tls"] = "off" if are_all_loopback(*hosts) else "verify-full"
        return data

    @property
    def replica(self) -> SourceConfig | None:
        """The same source on the server that chunks are read from, where that is another one."""
        if self.read_replica is None:
            return None
        host = host_of(self.read_replica)
        port = self.read_replica.removeprefix("[").removeprefix(host).removeprefix("]").removeprefix(":")
        return self.model_copy(update={"host": host, "port": int(port or self.port), "read_replica": None})

    @property
    def start_place(self) -> LogPlace:
        """Where the first capture begins, where that is neither latest nor initial. Raises ConfigError."""
        try:
            return position_spec.parse(self.start, self.kind)
        except ValueError as error:
            raise ConfigError(
                f"start {error}", where="[source] start", fix='or "latest", "initial", "earliest"'
            ) from None

    @property
    def replica_id(self) -> int:
        """Our id as a replica of MySQL and MariaDB. By default the same for every capture of a source, from its name:
        when a new leader connects, the server then ends the connection of the old one itself, should that one still
        hang on it."""
        return self.server_id or 1_000_001 + zlib.crc32(self.name.encode()) % 4_000_000_000

    def rules_of(self, table: TableName) -> ColumnRules:
        """The rules of a table; those of one without an entry change nothing."""
        return self.columns.get(str(table), ColumnRules())

    @property
    def has_hash_key(self) -> bool:
        """Whether the values of the rule `hash` are keyed, so that no server can compute them."""
        return bool(self.hash_key.get_secret_value())

    def with_connection(
        self, *, host: str, port: int | None, user: str, password: str, tls: Mapping[str, str] = MappingProxyType({})
    ) -> SourceConfig:
        """The same source with what `airflow_connection` stood for; `tls`: settings of that name that it has too."""
        settings = self.model_dump(exclude={"airflow_connection"})
        return SourceConfig.model_validate(
            {**settings, **tls, "host": host, "port": port or 0, "user": user, "password": SecretStr(password)}
        )
