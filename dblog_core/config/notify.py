"""`[[notify]]`: the receivers of a capture's notices of dumps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr

from dblog_core.config.fields import (
    Number,
    Section,
)
from dblog_core.config.kafka import KafkaConfig

if TYPE_CHECKING:
    pass


DumpEvent = Literal[
    "requested", "started", "chunk", "table", "completed", "paused", "resumed", "failed", "aborted", "refused"
]
"""What is reported of a dump; refused: of a signal."""


class ChannelConfig(Section):
    """Who gets a capture's notices of dumps."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        max_length=40,
        description="names the place up to which notices were sent: [a-z][a-z0-9_]*",
    )
    to: Literal["log", "webhook", "kafka"] = Field(description="log, webhook or kafka")
    events: tuple[DumpEvent, ...] = Field(default=(), description='which, such as ["completed", "failed"]; empty: all')
    url: str = Field(default="", pattern=r"^(https?://[^\s/@?#]+([/?#]\S*)?)?$", description="webhook: where to POST")
    secret: SecretStr = Field(default=SecretStr(""), description="webhook: signs each notice (HMAC-SHA256)")
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the receiver's certificate"
    )
    timeout: Number = Field(default=10.0, gt=0, le=300, description="seconds to wait for the receiver")
    kafka: KafkaConfig | None = Field(default=None, description="kafka: the topic")
