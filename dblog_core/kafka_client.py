"""What every client of Kafka is made with."""

from __future__ import annotations

from typing import Any, Protocol

from confluent_kafka import KafkaError
from pydantic import SecretStr

from dblog_core.tls import TlsSettings


class Brokers(TlsSettings, Protocol):
    """How brokers are reached, and as which user: part of a configuration."""

    @property
    def servers(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> SecretStr: ...
    @property
    def sasl(self) -> str: ...


class ConnectionErrors:
    """What a client says of its connections, which its calls leave out: they only tell that time is up."""

    def __init__(self) -> None:
        self.last_error = ""
        self.refused = False
        """Whether a broker does not know us, or we not the broker: waiting would not help."""

    def __call__(self, error: KafkaError) -> None:
        self.last_error = error.str()
        self.refused = error.code() == KafkaError._AUTHENTICATION or "certificate verify failed" in self.last_error

    def explain(self, error: KafkaError) -> str:
        """The error of a call, with what is behind it."""
        return "; ".join(filter(None, (error.str(), self.last_error)))


def librdkafka_settings(brokers: Brokers, client_id: str, ear: ConnectionErrors) -> dict[str, Any]:
    """Settings of librdkafka, which logs nothing without them."""
    tls = brokers.tls != "off"
    sasl = bool(brokers.user)
    files = {"ca": brokers.tls_ca, "certificate": brokers.tls_cert, "key": brokers.tls_key}
    options: dict[str, Any] = {
        "bootstrap.servers": brokers.servers,
        "security.protocol": ("sasl_" if sasl else "") + ("ssl" if tls else "plaintext"),
        "client.id": client_id,
        # librdkafka writes to stderr by default.
        "log_level": 0,
        "error_cb": ear,
    }
    options |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
    if tls:
        # librdkafka's default checks the host name always.
        options["ssl.endpoint.identification.algorithm"] = "https" if brokers.tls == "verify-full" else "none"
        options["enable.ssl.certificate.verification"] = brokers.tls != "require"
    if sasl:
        options |= {"sasl.mechanism": brokers.sasl.upper(), "sasl.username": brokers.user}
        options["sasl.password"] = brokers.password.get_secret_value()
    return options
