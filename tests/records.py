"""What is known of tables, read and changed beside a capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.staging import table_records
from dblog_core.staging.table_records import NODES, TableRecords


def read_records(config: Config) -> TableRecords:
    """As the newest manifest carries them."""
    return table_records.read_newest(wiring.open_staging(config), *NODES)


def change_records(config: Config, change: Callable[[TableRecords], object]) -> None:
    """Publishes a segment without rows that carries them changed, as a capture would."""
    staging = wiring.open_staging(config)
    head = staging.head()
    assert head is not None
    records = TableRecords.load(staging, head)
    change(records)
    number = head.segment + 1
    staging.publish(
        replace(
            head,
            segment=number,
            first_offset=head.last_offset + 1,
            files=(),
            chunks=(),
            marks=(),
            probes=(),
            records=records.write(staging.storage, segment=number, epoch=head.epoch),
        )
    )
