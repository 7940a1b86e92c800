"""What a term of a capture works with: its configuration, and all that is outside of it."""

from __future__ import annotations

from dataclasses import dataclass

from dblog_core.config.settings import Config
from dblog_core.interfaces import Clock, Source, Spawn, StateStore
from dblog_core.notifications.channels import Receiver
from dblog_core.staging import Staging

HOUSEKEEPING_SECONDS = 1.0
"""Between two looks at the horizon, the state store and the status."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One configuration, and what was opened for it."""

    config: Config
    source: Source
    staging: Staging
    state: StateStore
    clock: Clock
    spawn: Spawn
    receivers: tuple[Receiver, ...] = ()
    """Of notices, beside those of the configuration."""

    def now_us(self) -> int:
        """Microseconds since 1970 UTC."""
        return int(self.clock.time() * 1e6)
