"""Where notices go."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from dblog_core.config.notify import ChannelConfig
from dblog_core.installed_packages import require
from dblog_core.notifications.changes import NoticeMessage

log = logging.getLogger("dblog.notices")
log.setLevel(logging.INFO)  # who asks for notices sees them, however quiet the engine is


class Channel(Protocol):
    """A receiver of notices."""

    def tell(self, message: NoticeMessage) -> None:
        """Hands a notice over; when it returns, the receiver has it. Raises NotToldYet."""


class LogChannel:
    """The log of the process that captures: one JSON object a notice."""

    def tell(self, message: NoticeMessage) -> None:
        log.info("%s", message.encode().decode())


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who gets notices, and of which events (none: of all); `name`: of its place."""

    name: str
    channel: Channel
    events: tuple[str, ...] = ()


def receiver(config: ChannelConfig) -> Receiver:
    """The receiver of a `[[notify]]`; no connection is made yet."""
    return Receiver(config.name, open_channel(config), config.events)


def open_channel(config: ChannelConfig) -> Channel:
    """The channel of a `[[notify]]`; no connection is made yet."""
    if config.to == "webhook":
        from dblog_core.notifications.webhook import Webhook

        return Webhook(config)
    if config.kafka is not None:
        require("kafka")
        from dblog_core.notifications.kafka import KafkaChannel

        return KafkaChannel(config.kafka, config.name)
    return LogChannel()
