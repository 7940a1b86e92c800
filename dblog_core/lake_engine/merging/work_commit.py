"""One work's rows committed to its lake table, with the keys that wait for a dump."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.dump_ends import dumps_within, keys_of_ghosts
from dblog_core.lake_engine.events.fold import FoldedRows
from dblog_core.lake_engine.merging import deleted_rows, upsert_rows
from dblog_core.lake_engine.merging.deleted_rows import Ghosts
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.merging.spreading.write_spread import SpreadOutcome, write_spread
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.staging import Staging


class WorkCommit:
    """Commits works of one table."""

    def __init__(self, lake: Lake, withheld: Withheld, *, step: Callable[[str], None]) -> None:
        """`step`: as for `TableMerge`."""
        self._step = step
        self._lake = lake
        self._withheld = withheld

    def commit(
        self,
        work: Work,
        rows: FoldedRows | None,
        schema: TableSchema,
        lake: LakeTable,
        number: int,
        *,
        ghosts: Ghosts,
        merged: int,
        is_left: bool,
    ) -> int:
        """Commits the work's rows, its last TRUNCATE, and the ghosts that its dumps show, as one version; how many rows
        are withheld. `is_left`: as for `upsert_rows.write`.

        Raises TableRefused for a table that has what is not written here.
        """
        table = work.table
        before = self._withheld.keys(table, schema)
        withheld = 0
        if rows is not None and len(rows):
            readings = ghosts.readings(_ghosts_of_batch(rows, schema) if dumps_within(work) else ())

            def withhold(keys: list[Key]) -> None:
                self._withheld.add(table, keys)

            def write(table: OpenTable, app: str) -> Upserted:
                return upsert_rows.write(
                    table,
                    rows,
                    schema,
                    app,
                    number,
                    merged=merged,
                    begins=work.first_offset,
                    below=work.last_truncate,
                    readings=readings,
                    withhold=withhold,
                    is_left=is_left,
                )

            done = lake.commit(write)
            assert done is not None, "a merge of rows commits"
            withheld = done.withheld + rows.withheld
        elif work.last_truncate is not None or work.finished:
            deleted_rows.remove(lake, work.last_offset, below=work.last_truncate, readings=ghosts.readings())
            if work.last_truncate is not None:
                self._step(f"truncated {table}")
        # Behind the commit: should that fail, the rows that the table then still lacks are still waited for.
        self._withheld.forget(table, _find_gone(work, rows, before, schema), schema)
        return withheld

    def spread(
        self,
        staging: Staging,
        work: Work,
        schema: TableSchema,
        lake: LakeTable,
        number: int,
        *,
        ghosts: Ghosts,
        merged: int,
    ) -> int:
        """As `commit`, of a work that executors carry."""
        spread = self._lake.spread
        assert spread is not None, "the work is spread"
        waiting = self._withheld.keys(work.table, schema)
        withhold = partial(self._withheld.add, work.table)
        outcomes: list[SpreadOutcome] = []

        def write(table: OpenTable, app: str) -> Upserted:
            outcomes.append(
                write_spread(
                    spread,
                    staging,
                    table,
                    work,
                    schema,
                    app,
                    number,
                    ghosts=ghosts,
                    merged=merged,
                    withhold=withhold,
                    waiting=waiting,
                )
            )
            return outcomes[-1].counts

        lake.commit(write)
        (outcome,) = outcomes
        self._withheld.forget(work.table, outcome.gone_keys, schema)
        return outcome.withheld

    def forget_gone(self, work: Work, rows: FoldedRows | None, schema: TableSchema) -> None:
        """Forgets the withheld keys that a work which is committed has removed."""
        before = self._withheld.keys(work.table, schema)
        self._withheld.forget(work.table, _find_gone(work, rows, before, schema), schema)

    def settle(self, lake: LakeTable, schema: TableSchema) -> None:
        """Forgets the withheld keys that the lake now has."""
        table = str(schema.table)
        if not self._withheld.waits(table):
            return
        waiting = self._withheld.keys(table, schema)
        open_table = lake.open()
        self._withheld.forget(table, upsert_rows.find_keys(open_table, waiting, schema), schema)


def _ghosts_of_batch(rows: FoldedRows, schema: TableSchema) -> list[pa.Table]:
    """The keys of the batch's rows that are ghosts of its dumps."""
    with rows.lock():
        return [keys for part in rows if len(keys := keys_of_ghosts(part, schema))]


def _find_gone(work: Work, rows: FoldedRows | None, before: list[Key], schema: TableSchema) -> set[Key]:
    """Those of the withheld keys that are no longer in the source at the end of the work: deleted, or not put again
    after its last TRUNCATE."""
    if not before:
        return set()
    if work.last_truncate is None:
        return set() if rows is None else upsert_rows.deleted_keys(rows, before, schema)
    return set(before) - (set() if rows is None else upsert_rows.living_keys(rows, before, schema))
