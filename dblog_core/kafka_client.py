"""What every client of Kafka is made with."""

from __future__ import annotations

from typing import Any, Protocol

from confluent_kafka import KafkaError
from pydantic import SecretStr

from dblog_core.tls import Asked


class Brokers(Asked, Protocol):
    """How brokers are reached, and as whom: part of a configuration."""

    @property
    def servers(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> SecretStr: ...
    @property
    def sasl(self) -> str: ...


class Ear:
    """What a client says of its connections, which its calls leave out: they only tell that time is up."""

    def __init__(self) -> None:
        self.heard = ""
        self.refused = False
        """Whether a broker does not know us, or we not the broker: waiting would not help."""

    def __call__(self, error: KafkaError) -> None:
        self.heard = error.str()
        self.refused = error.code() == KafkaError._AUTHENTICATION or "certificate verify failed" in self.heard

    def told(self, error: KafkaError) -> str:
        """The error of a call, with what is behind it."""
        return "; ".join(filter(None, (error.str(), self.heard)))


def settings(given: Brokers, client_id: str, ear: Ear) -> dict[str, Any]:
    """Settings of librdkafka, which says nothing by itself."""
    tls, sasl = given.tls != "off", bool(given.user)
    files = {"ca": given.tls_ca, "certificate": given.tls_cert, "key": given.tls_key}
    found: dict[str, Any] = {
        "bootstrap.servers": given.servers,
        "security.protocol": ("sasl_" if sasl else "") + ("ssl" if tls else "plaintext"),
        "client.id": client_id,
        "log_level": 0,
        "error_cb": ear,
    }
    found |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
    if tls:
        found["ssl.endpoint.identification.algorithm"] = "https" if given.tls == "verify-full" else "none"
        found["enable.ssl.certificate.verification"] = given.tls != "require"
    if sasl:
        found |= {"sasl.mechanism": given.sasl.upper(), "sasl.username": given.user}
        found["sasl.password"] = given.password.get_secret_value()
    return found
