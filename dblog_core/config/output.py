"""`[output.NAME]`: where `dblog relay NAME` sends the super-changelog, and how it tolerates what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema, model_validator

from dblog_core.config.fields import (
    Duration,
    Flag,
    Number,
    Section,
    Size,
    TableNameText,
    Whole,
)
from dblog_core.model.hosts import are_all_loopback, hosts_of

_PORTS = {"postgres": 5432, "mysql": 3306}


def _start(value: Any) -> Any:
    if value in ("latest", "earliest") or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError("is no place in the super-changelog")


Start = Annotated[
    str | int,
    BeforeValidator(_start),
    WithJsonSchema({"anyOf": [{"enum": ["latest", "earliest"]}, {"type": "integer", "minimum": 1}]}),
]


class OutputConfig(Section):
    """One output. What a setting says before a colon is the kind that it is for."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    kind: Literal["files", "postgres", "mysql", "http", "kafka", "python"] = Field(
        description="files, postgres, mysql (MariaDB too), http, kafka or python"
    )
    tables: tuple[TableNameText, ...] = Field(
        default=("*.*",), min_length=1, description="lines of which tables: SCHEMA.TABLE patterns with * and ?"
    )
    start: Start = Field(default="latest", description="where it begins: latest, earliest, or the first offset")
    batch_rows: Whole = Field(
        default=1000, ge=1, le=100_000, description="lines that go together; files: 50000 by default"
    )
    every: Number = Field(default=0.0, ge=0, description="seconds between two deliveries; files: 10 by default")
    poison: Literal["stop", "dead_letter"] = Field(
        default="stop", description="a line that the target refuses: stop, or dead_letter: note it and continue"
    )
    dead_letter: Path | None = Field(default=None, description="file of the lines that the target refused")
    longest_wait: Number = Field(default=30.0, gt=0, description="seconds between two attempts, at most")
    give_up_after: Duration = Field(
        default="never", description='how long a target may be away: "10m", "1d", "never": it is waited for'
    )
    path: str = Field(default="", description="files: a directory, or s3://BUCKET/PREFIX")
    form: Literal["jsonl", "parquet", "json", "debezium", "avro"] | None = Field(
        default=None, description="files: jsonl (default) or parquet; kafka: json (default), debezium or avro"
    )
    host: str = Field(default="127.0.0.1", description="postgres, mysql: the server's name or address")
    port: Whole = Field(default=0, ge=0, le=65535, description="postgres, mysql: default: 5432, 3306")
    user: str = Field(default="", description="postgres, mysql, kafka: the user of the target")
    password: SecretStr = Field(default=SecretStr(""), description='with user; "${ENV}" keeps it out of the file')
    database: str = Field(default="", description="postgres, mysql: the database that the table lies in")
    table: str = Field(
        default="dblog_changes",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,54}(\.[A-Za-z_][A-Za-z0-9_]{0,54})?$",
        description="postgres, mysql: TABLE or SCHEMA.TABLE of the lines; its place lies in TABLE_place",
    )
    url: str = Field(default="", pattern=r"^(https?://[^\s/@]+(/\S*)?)?$", description="http: where batches are posted")
    secret: SecretStr = Field(default=SecretStr(""), description="http: the key that signs each request")
    token: SecretStr = Field(default=SecretStr(""), description="http: sent as Authorization: Bearer")
    timeout: Number = Field(default=30.0, gt=0, description="seconds that the target may take to answer")
    servers: str = Field(
        default="", pattern=r"^([^\s,:]+:\d+(,[^\s,:]+:\d+)*)?$", description="kafka: HOST:PORT,HOST:PORT"
    )
    topic_prefix: str = Field(
        default="", pattern=r"^[A-Za-z0-9._-]{0,100}$", description="kafka: stands before SCHEMA.TABLE in topics"
    )
    topics: dict[TableNameText, Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]] = Field(
        default={}, description="kafka: topics of single tables, by SCHEMA.TABLE"
    )
    partitions: Whole = Field(default=1, ge=1, le=1000, description="kafka: of topics that are made")
    replication: Whole = Field(default=1, ge=1, le=10, description="kafka: of topics that are made")
    transaction_timeout: Number = Field(
        default=600.0,
        ge=1,
        le=86_400,
        description="kafka: seconds that a delivery, and so a transaction of the source, may take; the brokers'"
        " `transaction.max.timeout.ms` (15 minutes by default) must allow it",
    )
    max_message: Size = Field(
        default=1_000_000, ge=1000, le=1_000_000_000, description="kafka: bytes of a message, as its topic allows"
    )
    registry: str = Field(
        default="",
        pattern=r"^(https?://[^\s/@?#]+(/[^\s?#]*)?)?$",
        description="kafka, form avro: the schema registry, http(s)://HOST:PORT, with what stands before /subjects",
    )
    registry_user: str = Field(default="", description="kafka, form avro: the user of the registry")
    registry_password: SecretStr = Field(
        default=SecretStr(""), description='with registry_user; "${ENV}" keeps it out of the file'
    )
    registry_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the registry's certificate"
    )
    tombstones: Flag = Field(default=True, description="kafka: after a delete, an empty message for its key")
    tls: Literal["verify-full", "verify-ca", "require", "off"] | None = Field(
        default=None, description="postgres, mysql, kafka: default: verify-full, off on loopback"
    )
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the target's certificate"
    )
    tls_cert: Path | None = Field(default=None, description="PEM file of our own certificate, with tls_key")
    tls_key: Path | None = Field(default=None, description="PEM file of our own key, with tls_cert")
    sasl: Literal["plain", "scram-sha-256", "scram-sha-512"] = Field(
        default="scram-sha-512", description="kafka: how user and password are proven"
    )
    implementation: str = Field(
        default="", alias="class", description="python: MODULE:CLASS, or a name of the entry points dblog.outputs"
    )
    options: dict[str, Any] = Field(default={}, description="python: what the class is made with")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """What follows from the kind and the host."""
        if not isinstance(data, dict):
            return data
        kind = data.get("kind")
        data = dict(data)
        data["port"] = data.get("port") or _PORTS.get(str(kind), 0)
        if kind == "files":
            data = {"every": 10.0, "batch_rows": 50_000, **data}
        if data.get("tls") is None:
            data["tls"] = "off" if _near(data) else "verify-full"
        if data.get("form") is None:
            data["form"] = {"files": "jsonl", "kafka": "json"}.get(str(kind))
        return data


def _near(data: dict[str, Any]) -> bool:
    """Whether nothing leaves this machine."""
    servers = data.get("servers")
    return are_all_loopback(*(hosts_of(servers) if servers else [data.get("host", "127.0.0.1")]))
