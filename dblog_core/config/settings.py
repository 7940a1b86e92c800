"""The sections of the configuration file, and the whole of it: `loader` reads one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SecretStr, model_validator

from dblog_core.config.airflow import AirflowConfig
from dblog_core.config.fields import (
    Duration,
    Flag,
    Number,
    Section,
    Size,
    TableNameText,
    Whole,
)
from dblog_core.config.kafka import KafkaConfig
from dblog_core.config.lake import LakeConfig
from dblog_core.config.notify import ChannelConfig
from dblog_core.config.output import OutputConfig
from dblog_core.config.source import SourceConfig
from dblog_core.model.hosts import are_all_loopback, hosts_of

if TYPE_CHECKING:
    pass

OutputName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
NORMAL_AGE = 0.1
LOW_AGE = 0.005
"""Seconds after which a segment is sealed at the earliest, by latency."""


class StagingConfig(Section):
    """Where the super-changelog lies, and when a segment ends."""

    path: str = Field(description="a directory, or s3://BUCKET/PREFIX")
    latency: Literal["normal", "low"] = Field(
        default="normal", description="low: changes are staged within milliseconds, at the price of CPU"
    )
    min_age: Number = Field(
        default=NORMAL_AGE,
        gt=0,
        description="seconds after which a segment is sealed while that costs little; 0.005 with latency low",
    )
    max_age: Number = Field(default=1.0, gt=0, description="seconds after which a segment is sealed in any case")
    max_bytes: Whole = Field(
        default=64 << 20, ge=1 << 16, description="bytes in memory after which a segment is sealed"
    )
    compact: Flag = Field(default=True, description="true: the capture joins small segments into large ones")
    keep: Duration = Field(
        default="7d", description='age from which segments that nobody needs are removed: "36h", "7d", "forever"'
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("latency") == "low":
            return {"min_age": LOW_AGE, **data}
        return data


class StateConfig(Section):
    """Leases, dump requests and their progress."""

    url: str = Field(
        pattern=r"^(zookeeper://[^/@]+(/.*)?|sqlite:///.+)$",
        description="zookeeper://HOST:PORT,HOST:PORT/PATH, or sqlite:/// and a path from the root",
    )
    ttl: Number = Field(
        default=10.0, ge=2, description="seconds without a sign of life after which a leader is replaced"
    )
    user: str = Field(
        default="", description="ZooKeeper: the user that owns our nodes; nobody else may read or write them"
    )
    password: SecretStr = Field(default=SecretStr(""), description='with user; "${ENV}" keeps it out of the file')
    login: Literal["digest", "sasl"] = Field(
        default="digest",
        description="ZooKeeper: how user logs in: digest, or sasl (DIGEST-MD5)",
    )
    tls: Literal["verify-full", "verify-ca", "require", "off"] | None = Field(
        default=None, description="ZooKeeper: default: verify-full, off on loopback"
    )
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the servers' certificates"
    )
    tls_cert: Path | None = Field(default=None, description="PEM file of our own certificate, with tls_key")
    tls_key: Path | None = Field(default=None, description="PEM file of our own key, with tls_cert")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """A file is reached by no connection."""
        if isinstance(data, dict) and data.get("tls") is None and str(data.get("url", "")).startswith("zookeeper:"):
            data = {**data, "tls": "off" if are_all_loopback(*hosts_of(data["url"])) else "verify-full"}
        return data


class DumpConfig(Section):
    """What a dump does unless its request says otherwise."""

    chunk_size: Whole = Field(default=10_000, ge=1, le=1_000_000, description="rows of one SELECT")
    chunk_bytes: Size = Field(
        default=32 << 20,
        ge=64 << 10,
        le=1 << 30,
        description='bytes of a chunk at most, or "64M": wide rows make smaller chunks; one row alone may have more',
    )
    workers: Whole = Field(default=2, ge=1, le=64, description="tables, or parts of them, read at the same time")
    delay: Number = Field(default=0.0, ge=0, description="seconds between two chunks of a worker")
    rate: Whole = Field(default=0, ge=0, description="rows a second of one worker; 0: no limit")
    in_flight: Whole = Field(default=16, ge=1, le=64, description="chunks of one worker that wait to be placed")
    adaptive: Flag = Field(default=False, description="true: workers slow down while the source suffers")
    max_retained: Size = Field(
        default=0,
        ge=0,
        le=2**63 - 1,
        description='bytes, or "10G": dumps stand still while the source keeps more log than that; 0: no ceiling',
    )
    keep: Duration = Field(
        default="7d", description='how long `dblog dumps` shows a dump that is over, 1h at least: "36h", "forever"'
    )


class SparkConfig(Section):
    """How `dblog merge` starts Spark."""

    master: str = Field(default="local[*]", description="what spark-submit takes as --master")
    driver_memory: str = Field(
        default="1g", pattern=r"^\d+[kmgtKMGT]?$", description="memory of the driver, such as 1g"
    )
    conf: dict[str, str] = Field(default={}, description="more Spark settings, each value in quotes")


CallerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$")]


class CallerConfig(Section):
    """A program that may send signals by HTTP."""

    token: SecretStr = Field(description="what it sends as Authorization: Bearer …")


class HttpConfig(Section):
    """What `dblog serve` does."""

    listen: str = Field(
        default="127.0.0.1:9179",
        pattern=r"^\[?[^\[\]]+\]?:\d{1,5}$",
        description="HOST:PORT; other than loopback needs tls_cert and tls_key",
    )
    token: SecretStr = Field(
        default=SecretStr(""),
        description='what callers send as Authorization: Bearer …; "${ENV}" keeps it out of the file',
    )
    callers: dict[CallerName, CallerConfig] = Field(
        default={}, description="by name, those with a token of their own; their signals show the name"
    )
    tls_cert: Path | None = Field(default=None, description="PEM file of the server's certificate, with tls_key")
    tls_key: Path | None = Field(default=None, description="PEM file of its key, with tls_cert")
    tls_client_ca: Path | None = Field(
        default=None, description="PEM file: only for callers with a certificate signed by this authority"
    )


class SignalsConfig(Section):
    """Where requests come from beside the command line and Airflow."""

    table: TableNameText | None = Field(
        default=None, description="SCHEMA.TABLE in the source, with the columns id, type and data: each new row is one"
    )
    file: Path | None = Field(default=None, description="a file to which lines of JSON are appended")
    http: HttpConfig | None = Field(default=None, description="an address that `dblog serve` listens at")
    kafka: KafkaConfig | None = Field(default=None, description="a topic: messages with the source's name as key")

    @property
    def any(self) -> bool:
        """Whether signals may come at all."""
        return bool(self.table or self.file or self.http or self.kafka)


class S3Config(Section):
    """The object store behind paths that begin with s3://."""

    endpoint: str = Field(
        default="",
        pattern=r"^(https?://[^/@]+/?)?$",
        description="http(s)://HOST:PORT; default: Amazon's of the region",
    )
    region: str = Field(default="", description="default: that of the environment")
    access_key: str = Field(default="", description="default: the environment's or the machine's credentials")
    secret_key: SecretStr = Field(
        default=SecretStr(""), description='with access_key; "${ENV}" keeps it out of the file'
    )
    path_style: Flag = Field(
        default=False,
        description="true: the bucket is part of the path, not of the host's name; default: true with an endpoint",
    )
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the endpoint's certificate"
    )
    encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        default=None, description="how the server encrypts new objects; default: as the bucket says"
    )
    kms_key: str = Field(default="", description="with aws:kms and aws:kms:dsse: the key's ARN; default: the bucket's")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        return {"path_style": bool(data.get("endpoint")), **data} if isinstance(data, dict) else data


class Config(Section):
    """One source, whole."""

    source: SourceConfig
    staging: StagingConfig
    state: StateConfig
    lake: LakeConfig
    dump: DumpConfig = DumpConfig()
    spark: SparkConfig = SparkConfig()
    airflow: AirflowConfig = AirflowConfig()
    signals: SignalsConfig = SignalsConfig()
    notify: tuple[ChannelConfig, ...] = Field(default=(), description="who gets a capture's notices of dumps")
    s3: S3Config = S3Config()
    output: dict[OutputName, OutputConfig] = Field(
        default={}, description="where `dblog relay NAME` sends the super-changelog, by NAME"
    )

    @model_validator(mode="before")
    @classmethod
    def _signal_table(cls, data: Any) -> Any:
        """Who reads the log knows [source] alone."""
        source, signals = (data.get(name) for name in ("source", "signals")) if isinstance(data, dict) else (None, None)
        if isinstance(source, dict) and isinstance(signals, dict) and isinstance(signals.get("table"), str):
            return {**data, "source": {"signal_table": signals["table"], **source}}
        return data


def uses_s3(config: Config) -> bool:
    """Whether staging or lake lie on an object store."""
    return any(path.startswith("s3://") for path in (config.staging.path, config.lake.path))
