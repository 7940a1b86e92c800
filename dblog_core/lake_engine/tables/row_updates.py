"""Rows of a lake table that get other values, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.update_rows import (
    RowUpdate,
    fill_variants,
    update_beyond,
    update_older,
    update_rows,
)
from dblog_core.lake.json_variants import variant_name
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.tables import delta_log_checkpoint, log
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model import column_defaults
from dblog_core.model.schema import Column, TableSchema
from dblog_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class RowUpdates:
    """Those of one table. `check` raises LeaseLost once another may write: it is asked right before each commit."""

    path: Location
    schema: TableSchema
    check: Callable[[], None]

    def fill(self, column: Column, value: Any, offset: int, app: str) -> None:
        """Rows from before an offset get a value, in its JSON form, as transaction `offset` of `app`."""
        update = update_older(OFFSET, offset, {column.name: column_defaults.scalar(value, column)})
        self._update(update, app, offset)

    def disown(self, merged: int, app: str, number: int) -> None:
        """Rows without an offset, or beyond `merged`, get the offset 0, as transaction `number` of `app`."""
        self._update(update_beyond(OFFSET, merged, {OFFSET: pa.scalar(0, pa.int64())}), app, number)

    def fill_variants(self, columns: Sequence[str]) -> None:
        """Rows get the VARIANTs of these JSON columns that they lack."""
        self.check()
        table = self._open()
        self._note(table, update_rows(table, fill_variants({name: variant_name(name) for name in columns})))

    def _update(self, update: RowUpdate, app: str, number: int) -> None:
        self.check()
        table = self._open()
        self._note(table, update_rows(table, update, app, number))

    def _open(self) -> OpenTable:
        return OpenTable(self.path, self.schema.key, order=OFFSET, mark=COMMIT_MARK, check=self.check)

    def _note(self, table: OpenTable, done: Upserted) -> None:
        if not done.already:
            log.note_commit(self.path, done.version, table.commit_info, table.snapshot.commit)
            if delta_log_checkpoint.is_due(done.version, table.snapshot.metadata.get("configuration") or {}):
                delta_log_checkpoint.write(self.path)
