"""The configuration: one TOML file per source, checked whole; every fault is told at once, with its place and fix.

Loading imports no driver and opens no connection: Airflow does it at every parse of its DAG files.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator

from dblog_core.config import output_validation
from dblog_core.config.fields import (
    Duration,
    Flag,
    FromEnvironment,
    Number,
    Section,
    Size,
    Unset,
    Whole,
    Withheld,
)
from dblog_core.config.kafka import KafkaConfig
from dblog_core.config.output import OutputConfig
from dblog_core.config.secrets import Needs, is_needed
from dblog_core.config.validation import NO_FILE, Fault, Place, contradictions, in_words
from dblog_core.errors import ConfigError
from dblog_core.model import position_spec, table_names, table_patterns
from dblog_core.model.hosts import all_near, host_of, hosts_of
from dblog_core.model.position_spec import Place as LogPlace

if TYPE_CHECKING:
    from dblog_core.model.schema import TableName

OutputName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
TableNameText = Annotated[
    str, Field(pattern=table_names.FORM, description="SCHEMA.TABLE"), AfterValidator(table_names.checked)
]
SchemaChanges = Literal["evolve", "ignore", "fail"]
"""What the lake does when a table's shape changes: follow, keep its own columns, or stop that table."""

Dag = Literal["capture", "capture_standby", "dump", "merge", "replay", "verify", "repair", "maintenance"]
"""What Airflow runs for each source."""
DumpEvent = Literal[
    "requested", "started", "chunk", "table", "completed", "paused", "resumed", "failed", "aborted", "refused"
]
"""What is told of a dump; refused: of a signal."""

JsonAs = Literal["text", "variant"]
"""What a JSON column is in the lake: its text alone, or beside that Delta's VARIANT."""

NORMAL_AGE, LOW_AGE = 0.1, 0.005
"""Seconds after which a segment is sealed at the earliest."""

_ENV = re.compile(r"\$\{(\w*)([^}]*)(\}?)")
_PATHS = {
    "source": ("tls_ca", "tls_cert", "tls_key"),
    "state": ("tls_ca", "tls_cert", "tls_key"),
    "staging": ("path",),
    "lake": ("path",),
    "spark": ("jars",),
    "s3": ("tls_ca",),
    "signals": ("file",),
    "signals.http": ("tls_cert", "tls_key", "tls_client_ca"),
    "signals.kafka": ("tls_ca", "tls_cert", "tls_key"),
    "notify": ("tls_ca",),
}
_OUTPUT_PATHS = ("path", "dead_letter", "registry_ca", "tls_ca", "tls_cert", "tls_key")


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
        description="where the first capture begins: latest, initial (and dumps all tables by itself), earliest, a "
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
        name, kind = data.get("name", ""), data.get("kind")
        data["port"] = data.get("port") or (5432 if kind == "postgres" else 3306)
        data.setdefault("slot", f"dblog_{name}" if isinstance(name, str) and name else "dblog")
        data.setdefault("publication", f"dblog_{name}")
        schema = "public" if kind == "postgres" else data.get("database") or "dblog"
        data.setdefault("watermark_table", f"{schema}.dblog_watermark")
        if data.get("tls") is None and not data.get("airflow_connection"):
            hosts = (data.get("host", "127.0.0.1"), host_of(data.get("read_replica")) or "127.0.0.1")
            data["tls"] = "off" if all_near(*hosts) else "verify-full"
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

    def hashed_by_server(self, table: TableName) -> ColumnRules:
        """The rules of a table as its server computes row hashes: it is told no key, so that it leaves out what is
        keyed."""
        rules = self.columns.get(str(table), ColumnRules())
        if not self.hash_key.get_secret_value():
            return rules
        return rules.model_copy(update={"exclude": (*rules.exclude, *rules.hash), "hash": ()})

    def connected(
        self, *, host: str, port: int | None, user: str, password: str, tls: Mapping[str, str] = MappingProxyType({})
    ) -> SourceConfig:
        """The same source with what `airflow_connection` stood for; `tls`: settings of that name that it has too."""
        given = self.model_dump(exclude={"airflow_connection"})
        return SourceConfig.model_validate(
            {**given, **tls, "host": host, "port": port or 0, "user": user, "password": SecretStr(password)}
        )


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
        pattern=r"^(zookeeper://[^/]+(/.*)?|sqlite:///.+)$",
        description="zookeeper://HOST:PORT,HOST:PORT/PATH, or sqlite:/// and a path from the root",
    )
    ttl: Number = Field(
        default=10.0, ge=2, description="seconds without a sign of life after which a leader is replaced"
    )
    user: str = Field(default="", description="ZooKeeper: whom our nodes belong to, and nobody else may read or write")
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
            data = {**data, "tls": "off" if all_near(*hosts_of(data["url"])) else "verify-full"}
        return data


class LakeTableConfig(Section):
    """What the lake does with some tables unlike with the others."""

    schema_changes: SchemaChanges | None = Field(default=None, description="as in [lake]; default: what stands there")
    json_as: JsonAs | None = Field(default=None, description="as in [lake]; default: what stands there")


class LakeConfig(Section):
    """The Delta tables."""

    path: str = Field(description="a directory, or s3://BUCKET/PREFIX")
    history: Flag = Field(default=False, description="true: an append-only table of every change beside each table")
    drop_columns: Flag = Field(
        default=False, description="true: a column that the source drops is dropped; false: its old values stay"
    )
    schema_changes: SchemaChanges = Field(
        default="evolve",
        description="when a table's shape changes: evolve follows it, ignore keeps the lake's columns, fail stops it",
    )
    json_as: JsonAs = Field(
        default="text", description="JSON columns: text alone, or variant: beside NAME its VARIANT, as NAME_variant"
    )
    tables: dict[TableNameText, LakeTableConfig] = Field(
        default={}, description="settings of single tables, by SCHEMA.TABLE patterns; the first that matches counts"
    )
    compact_after: Whole = Field(
        default=100, ge=0, description="commits of a table after which the merge joins its small files; 0: never"
    )
    mark_and_append: Flag = Field(default=False, description="true: small batches are written without a Spark job")
    deletion_vectors: Flag = Field(
        default=True,
        description="false: tables without deletion vectors, for readers that know none; merges write files anew",
    )
    keep: Duration = Field(
        default="7d", description='age up to which cuts can be read, 1h at least: "36h", "30d", "forever"'
    )
    purge_after: Duration | None = Field(
        default=None, description='age up to which rows may be marked as deleted only: "1d", "forever"; default: `keep`'
    )
    maintain_every: Duration = Field(
        default="1d", description='how often a merge that goes on maintains the lake: "12h", "1d", "never"'
    )

    def schema_changes_of(self, table: TableName) -> SchemaChanges:
        """The policy of a table: that of the first entry of `tables` which matches and says one, or the lake's."""
        return next((policy for one in self._of(table) if (policy := one.schema_changes)), self.schema_changes)

    def json_as_of(self, table: TableName) -> JsonAs:
        """What the JSON columns of a table are, told alike."""
        return next((form for one in self._of(table) if (form := one.json_as)), self.json_as)

    def _of(self, table: TableName) -> Iterator[LakeTableConfig]:
        return (one for pattern, one in self.tables.items() if table_patterns.matches(table, [pattern]))


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
    jars: str = Field(default="", description="directory of the Delta jars; default: where `make setup` puts them")
    conf: dict[str, str] = Field(default={}, description="more Spark settings, each value in quotes")


class NotifyConfig(Section):
    """Whom Airflow tells of ended runs, and of dumps."""

    notifier: str = Field(
        pattern=r"^[A-Za-z_][\w.]*\.[A-Za-z_]\w*$",
        description="a class of Airflow's notifiers, such as airflow.providers.smtp.notifications.smtp.SmtpNotifier",
    )
    when: Literal["failure", "success", "late", "dump"] = Field(
        default="failure",
        description="failure or success of a run; late: a merge that is not over within merged_within; dump: what "
        "happens to dumps, whoever asked for them",
    )
    name: str = Field(
        default="airflow",
        pattern=r"^[a-z][a-z0-9_]*$",
        max_length=40,
        description='when = "dump": names the place up to which it was told: [a-z][a-z0-9_]*',
    )
    events: tuple[DumpEvent, ...] = Field(
        default=(), description='when = "dump": which, such as ["completed", "failed"]; empty: all'
    )
    dags: tuple[Dag, ...] = Field(default=(), description='of which DAGs, such as ["dump", "verify"]; empty: of all')
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="what the class is made with; its templates may name a connection"
    )


class AirflowConfig(Section):
    """When Airflow's DAGs run by themselves, and what they heed."""

    capture: Literal["run", "watch"] = Field(
        default="run", description="run: dblog_NAME_capture captures; watch: it watches a capture that runs elsewhere"
    )
    verify_every: Duration = Field(
        default="7d", description='how often dblog_NAME_verify compares all tables, once it is unpaused; or "never"'
    )
    verify_repair: Flag = Field(default=False, description="true: what it finds is mended at once")
    repair_every: Duration = Field(
        default="1d", description='how often dblog_NAME_repair mends a slice, once it is unpaused; or "never"'
    )
    repair_slices: Whole = Field(default=30, ge=1, le=200, description="slices that are the full state together")
    approve_rows: Whole = Field(
        default=0, ge=0, description="a dump of about more rows waits until somebody approves it; 0: none waits"
    )
    merged_within: Duration = Field(
        default="never", description="a merge that is not over so long after it was called for is told as late"
    )
    pool: str = Field(
        default="default_pool", min_length=1, description="the Airflow pool of all tasks that read the source"
    )
    notify: tuple[NotifyConfig, ...] = Field(default=(), description="whom Airflow tells of ended and late runs")


class HttpConfig(Section):
    """What `dblog serve` does."""

    listen: str = Field(
        default="127.0.0.1:9179",
        pattern=r"^\[?[^\[\]]+\]?:\d{1,5}$",
        description="HOST:PORT; other than loopback needs tls_cert and tls_key",
    )
    token: SecretStr = Field(
        description='what callers send as Authorization: Bearer …; "${ENV}" keeps it out of the file'
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


class ChannelConfig(Section):
    """Whom a capture tells of dumps."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        max_length=40,
        description="names the place up to which it was told: [a-z][a-z0-9_]*",
    )
    to: Literal["log", "webhook", "kafka"] = Field(description="log, webhook or kafka")
    events: tuple[DumpEvent, ...] = Field(default=(), description='which, such as ["completed", "failed"]; empty: all')
    url: str = Field(default="", pattern=r"^(https?://[^/\s]+(/\S*)?)?$", description="webhook: where to POST")
    secret: SecretStr = Field(default=SecretStr(""), description="webhook: signs each notice (HMAC-SHA256)")
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the receiver's certificate"
    )
    timeout: Number = Field(default=10.0, gt=0, le=300, description="seconds to wait for the receiver")
    kafka: KafkaConfig | None = Field(default=None, description="kafka: the topic")


class S3Config(Section):
    """The object store behind paths that begin with s3://."""

    endpoint: str = Field(
        default="", pattern=r"^(https?://[^/]+/?)?$", description="http(s)://HOST:PORT; default: Amazon's of the region"
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
    notify: tuple[ChannelConfig, ...] = Field(default=(), description="whom a capture tells of dumps")
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


def load(path: Path | str, *, secrets: bool = True, needs: Needs = None) -> Config:
    """Reads and checks the file; paths in it that are not absolute are meant from its own directory.

    `needs`: the sections (`config_secrets`) that the caller has use for: in others a ${ENV} may be unset, and files
    that are named need not exist. `secrets=False`: so in all, for who needs no connection (Airflow's parsing of DAG
    files). Raises ConfigError with every fault; no value of the file is in the message.
    """
    file = Path(path)
    data = _read(file)
    faults: list[Fault] = []
    expanded = _expand(data, (), faults, needs if secrets else NOTHING)
    _anchor(expanded, file.absolute().parent)
    config: Config | None = None
    try:
        config = Config.model_validate(expanded)
    except ValidationError as error:
        faults += [in_words(e, Config) for e in error.errors(include_input=False, include_url=False)]
    faults += contradictions(expanded, files=secrets)
    faults += output_validation.contradictions(expanded, files=secrets)
    faults = [fault for fault in faults if fault.what != NO_FILE or is_needed(fault.place, needs)]
    if config is None or faults:
        order = list(Config.model_fields)
        faults.sort(key=lambda f: order.index(str(f.place[0])) if f.place[0] in order else len(order))
        lines = list(dict.fromkeys(f"  - {fault}" for fault in faults))
        raise ConfigError(
            "\n".join(["one fault" if len(lines) == 1 else f"{len(lines)} faults", *lines]),
            where=str(file),
            fix="mend them; docs/configuration.md explains every key, `dblog config schema` prints the JSON schema",
        )
    return config


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors and other checkers."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(),
        "title": "dblog configuration",
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}",
            where=str(file),
            fix="give an existing file by --config or DBLOG_CONFIG",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"is not TOML: {error}", where=str(file), fix="mend that line; docs/configuration.md shows a whole file"
        ) from error


NOTHING = object()
"""What a parser of DAG files needs."""


def _expand(value: Any, place: Place, faults: list[Fault], needs: Any) -> Any:
    if isinstance(value, dict):
        return {k: _expand(v, (*place, k), faults, needs) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, (*place, i), faults, needs) for i, v in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    for name, rest, end in _ENV.findall(value):
        if rest or not (name and end):
            faults.append(
                Fault(place, "holds a ${ that is not ${NAME}", "put the whole value into an environment variable")
            )
        elif name not in os.environ:
            if needs is NOTHING:
                return Unset(value)
            if not is_needed(place, needs):
                return Withheld(value)
            faults.append(Fault(place, f"the environment variable {name} is not set", f"set it: export {name}=…"))
    if any(f.place == place for f in faults):
        return Unset(value)
    return FromEnvironment(_ENV.sub(lambda match: os.environ[match[1]], value))


def _anchor(data: Mapping[str, Any], directory: Path) -> None:
    """A relative path would mean another place for each process that is started elsewhere."""
    for section, keys in _PATHS.items():
        found: Any = data
        for name in section.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        for settings in found if isinstance(found, list) else [found]:
            if isinstance(settings, dict):
                _anchor_all(settings, keys, directory)
                if section == "notify" and isinstance(settings.get("kafka"), dict):
                    _anchor_all(settings["kafka"], _PATHS["signals.kafka"], directory)
    outputs = data.get("output")
    for settings in outputs.values() if isinstance(outputs, dict) else ():
        if isinstance(settings, dict):
            _anchor_all(settings, _OUTPUT_PATHS, directory)


def _anchor_all(settings: dict[str, Any], keys: tuple[str, ...], directory: Path) -> None:
    for key in keys:
        path = settings.get(key)
        if isinstance(path, str) and path and "://" not in path and not isinstance(path, Unset):
            settings[key] = str(directory / Path(path).expanduser())
