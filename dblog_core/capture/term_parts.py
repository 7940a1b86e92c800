"""What a term of a capture works with: its configuration, and all that is outside of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dblog_core.capture.healing.witness import Witness
from dblog_core.config.settings import Config
from dblog_core.interfaces import Clock, Source, Spawn, StateStore
from dblog_core.notifications.channels import Receiver
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import state_age

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
    records: TableRecords = field(default_factory=TableRecords)
    """What is known of tables, from the newest manifest on; a term has its own."""
    witness: Witness | None = None
    """What the server must have from now on; a term has its own."""

    def now_us(self) -> int:
        """Microseconds since 1970 UTC."""
        return int(self.clock.time() * 1e6)

    def with_records(self, manifest: Manifest) -> Manifest:
        """The manifest with what is known of tables now, whose files are durable then."""
        records = self.records.write(self.staging.storage, segment=manifest.segment, epoch=manifest.epoch)
        witness = ""
        if self.witness is not None:
            witness = self.witness.staged_at(manifest.position, is_whole=not manifest.partial)
        return replace(manifest, records=records, state_age=state_age.read_age(self.state), witness=witness)

    def publish(self, manifest: Manifest) -> Manifest:
        """Publishes a segment, with what is known of tables; returns its manifest. Raises SegmentTaken."""
        published = self.with_records(manifest)
        self.staging.publish(published)
        return published
