"""A topic in Kafka, and how its brokers are reached: of `[signals.kafka]` and `[notify.kafka]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, model_validator

from dblog_core.config.fields import Number, Section
from dblog_core.model.hosts import are_all_loopback, hosts_of


class KafkaConfig(Section):
    """One topic."""

    servers: str = Field(pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$", description="HOST:PORT,HOST:PORT")
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$", description="its name; the topic must exist")
    user: str = Field(default="", description="the user of the brokers")
    password: SecretStr = Field(default=SecretStr(""), description='with user; "${ENV}" keeps it out of the file')
    sasl: Literal["plain", "scram-sha-256", "scram-sha-512"] = Field(
        default="scram-sha-512", description="how user and password are proven"
    )
    tls: Literal["verify-full", "verify-ca", "require", "off"] | None = Field(
        default=None, description="default: verify-full, off on loopback"
    )
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the brokers' certificates"
    )
    tls_cert: Path | None = Field(default=None, description="PEM file of our own certificate, with tls_key")
    tls_key: Path | None = Field(default=None, description="PEM file of our own key, with tls_cert")
    timeout: Number = Field(default=10.0, gt=0, le=300, description="seconds that a broker may take to answer")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("tls") is None:
            data = {**data, "tls": "off" if are_all_loopback(*hosts_of(data.get("servers"))) else "verify-full"}
        return data
