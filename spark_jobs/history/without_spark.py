"""A history that is written without Spark: whether it has its shape already, and what the lake has of keys.

Its lines are made by `lines_on_driver`, and appended by `delta_writer.append`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.delta_writer.features import BatchRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.stored_rows import rows_at
from dblog_core.lake.merge_plan import Work
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import alter_table, delta_log_checkpoint
from spark_jobs.delta_tables.column_types import OFFSET, history_shape
from spark_jobs.delta_tables.delta_log_checkpoint import Checkpoints
from spark_jobs.events.fold_unchanged_toast import Ids
from spark_jobs.history import lines_on_driver
from spark_jobs.history.former_values import Before
from spark_jobs.history.lines_on_driver import Lines

_MOST_BYTES = 256 << 20
"""Of the lake's rows that lines take values from."""


@dataclass(frozen=True, slots=True)
class Tables:
    """A history and its lake table, to be read and written without Spark; `lake` opens the latter (None: there is
    none), and is used by the thread that has it alone."""

    history: AppendedTable
    lake: Callable[[], OpenTable] | None
    checkpoints: Checkpoints

    def has_shape(self, schema: TableSchema) -> bool:
        """Whether the history is that of the table, and has all columns in their types. Raises TableRefused."""
        self.history.refresh()
        have = {f.name: f.dataType.simpleString() for f in self._columns()}
        return alter_table.is_another(self.properties(), schema.table) is None and all(
            have.get(f.name) == f.dataType.simpleString() for f in history_shape(schema)
        )

    def properties(self) -> dict[str, str]:
        """Those that the history had at the last look."""
        return dict(self.history.snapshot.metadata.get("configuration") or {})

    def make_lines(
        self, staging: Staging, work: Work, schema: TableSchema, withheld: Sequence[Key], *, exists: bool
    ) -> Lines | None:
        """The work's lines; None for a work that is Spark's. `exists`: whether there is a lake table. Raises
        TableRefused, as well where the lake table is Spark's."""
        if not lines_on_driver.fits_driver(work):
            return None
        shape = self.history.shape()

        def rows_of(keys: Sequence[pa.Array]) -> tuple[pa.Table, Ids]:
            assert self.lake is not None, "a table without a key asks for no row"
            return find_rows(self.lake(), keys, schema)

        before = Before(rows_of if exists else None, withheld)
        return lines_on_driver.make_lines(staging, work, schema, shape, before)

    def append(self, spark: SparkSession, path: Location, lines: Lines, app: str, number: int) -> None:
        """Commits lines as transaction `number`; a checkpoint that is due then is made beside the merges."""
        done = self.history.append(lines, app, number)
        if not done.already and delta_log_checkpoint.is_due(done.version, self.properties()):
            self.checkpoints.ask(spark, path)

    def _columns(self) -> t.StructType:
        return t.StructType.fromJson(orjson.loads(self.history.snapshot.metadata["schemaString"]))


def find_rows(table: OpenTable, keys: Sequence[pa.Array], schema: TableSchema) -> tuple[pa.Table, Ids]:
    """The table's rows of these keys, which differ, and the number of each one's key; of several of one key the newest
    comes last. Raises TableRefused where they cannot be read so, or have another shape."""
    shape = table.refresh()
    kinds = {column.name: column.type for column in shape}
    if other := [c.name for c in schema.columns if kinds.get(c.name) != c.type]:
        what = f"the lake table has another column {', '.join(other)}"
        raise BatchRefused(what, where=str(table.files), fix="Spark writes it")
    names = list(dict.fromkeys([*(c.name for c in schema.columns), OFFSET]))
    parts = [pa.table({name: pa.array([], kinds[name]) for name in names})]
    numbers = [np.empty(0, np.int64)]
    for hit in table.hits(table.key_arrays(pa.table(list(keys), names=list(schema.key)), shape), shape):
        room = _MOST_BYTES - sum(part.nbytes for part in parts)
        parts.append(rows_at(table.files, hit.file, shape, names, hit.rows, most=room))
        numbers.append(hit.change_numbers)
    rows = pa.concat_tables(parts)
    order = np.argsort(np.asarray(pc.fill_null(rows[OFFSET], -1)), kind="stable")
    return rows.take(pa.array(order)), np.concatenate(numbers)[order]
