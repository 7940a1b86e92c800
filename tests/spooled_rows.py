"""Rows of a source on the local disk, as a reading has them."""

from __future__ import annotations

import pyarrow as pa

from dblog_core.rows.disk_spool import SpooledRows, TableSpool


def spool_rows(batch: pa.RecordBatch) -> SpooledRows:
    spool = TableSpool()
    return SpooledRows(spool, spool.write(pa.Table.from_batches([batch])))
