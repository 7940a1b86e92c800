"""The change data feed of a commit that writes files again: rows that go and rows that come, in files of their own.

Readers derive a version's changes from whole files and vectors. Where a commit copies rows that stay, they would take
these for changes: then the commit names `_change_data` files, and readers take the changes from them alone. Source:
PROTOCOL.md, "Add CDC File".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.data_file import store_rows
from dblog_core.delta_writer.features import CHANGE_DATA_FEED, is_on
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.rewriting.touched_files import OldFiles, TouchedFile
from dblog_core.delta_writer.shape import DeltaColumn, Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import row_stretches
from dblog_core.delta_writer.upserting.new_rows import NewFile
from dblog_core.interfaces import Json

INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
_DIRECTORY = "_change_data"
_KIND = DeltaColumn("_change_type", "_change_type", None, pa.field("_change_type", pa.string()), nullable=False)
_FILE_BYTES = 64 << 20
"""Of rows, decoded, that become one file."""


class ChangeFiles:
    """The files of one commit."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        shape = table.shape()
        self._shape = replace(shape, columns=(*shape.columns, _KIND))
        self._waiting: list[pa.Table] = []
        self._actions: list[Json] = []

    def add(self, rows: pa.Table, kinds: pa.Array) -> None:
        """Takes rows in the table's columns, and what kind of change each of them is."""
        if not len(rows):
            return
        self._waiting.append(rows.append_column(_KIND.name, kinds))
        if sum(part.nbytes for part in self._waiting) > _FILE_BYTES:
            self._write()

    def actions(self) -> list[Json]:
        """Those that name the files."""
        if self._waiting:
            self._write()
        return self._actions

    def _write(self) -> None:
        table = self._table
        rows = pa.concat_tables(self._waiting)
        configuration = table.snapshot.configuration
        for file, _ in store_rows(
            table.files, rows, self._shape, configuration, table.new_id, directory=f"{_DIRECTORY}/"
        ):
            change = {"path": quote(file.name), "partitionValues": dict(file.partition), "size": file.size}
            self._actions.append({"cdc": {**change, "dataChange": False}})
        self._waiting.clear()


def is_fed(table: OpenTable) -> bool:
    """Whether the table has a change data feed."""
    return is_on(table.snapshot.metadata, CHANGE_DATA_FEED)


def write_changes(table: OpenTable, old: OldFiles, new_files: Iterable[NewFile]) -> list[Json]:
    """The actions of the files with all changes of a commit; none where readers derive them."""
    if not old.copies or not is_fed(table):
        return []
    files = ChangeFiles(table)
    for touched in old.touched:
        for rows, kinds in _rows_that_go(table, touched):
            files.add(rows, kinds)
    for new in new_files:
        live = LiveFile(new.file.name, new.file.addition(now_ms=0, data_change=True))
        for first, rows in _stretches(table, live):
            is_update = new.is_update[first : first + len(rows)]
            files.add(rows, _kinds(is_update, AFTER, INSERT))
    return files.actions()


def _rows_that_go(table: OpenTable, touched: TouchedFile) -> Iterator[tuple[pa.Table, pa.Array]]:
    dead = table.dead_rows(touched.file)
    for first, rows in _stretches(table, touched.file):
        numbers = np.arange(first, first + len(rows))
        goes = touched.dead.contains(numbers) & ~dead.contains(numbers)
        if goes.any():
            yield rows.filter(pa.array(goes)), _kinds(touched.updated.contains(numbers[goes]), BEFORE, DELETE)


def _stretches(table: OpenTable, live: LiveFile) -> Iterator[tuple[int, pa.Table]]:
    shape: Shape = table.shape()
    return row_stretches(table.files, live, shape, shape.names)


def _kinds(is_update: Flags, update: str, other: str) -> pa.Array:
    return pc.if_else(pa.array(is_update), update, other)
