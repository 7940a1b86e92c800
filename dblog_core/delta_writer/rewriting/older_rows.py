"""Rows below a number of the order column: whole files by their statistics, others by reading that column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Hits
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import row_stretches


@dataclass(frozen=True, slots=True)
class GoneRows:
    """Rows of one version that go, whatever their keys are. `grown`: by path, the files that have some, and all rows
    that are dead there without them; `count`: how many they are."""

    grown: Mapping[str, tuple[LiveFile, RowSet]] = field(default_factory=dict)
    count: int = 0

    @classmethod
    def of(cls, table: OpenTable, grown: Iterable[tuple[LiveFile, RowSet]]) -> GoneRows:
        """Those of these files of the table's snapshot."""
        by_path = {live.path: (live, dead) for live, dead in grown}
        return cls(by_path, sum(len(dead) - len(table.dead_rows(live)) for live, dead in by_path.values()))

    def without(self, hits: Sequence[Hits]) -> list[Hits]:
        """The live rows that stay."""
        if not self.grown:
            return list(hits)
        staying: list[Hits] = []
        for hit in hits:
            if hit.file.path in self.grown:
                stays = ~self.grown[hit.file.path][1].contains(hit.rows)
                if not stays.any():
                    continue
                hit = Hits(hit.file, hit.change_numbers[stays], hit.rows[stays])
            staying.append(hit)
        return staying


def find_older(table: OpenTable, shape: Shape, below: int) -> GoneRows:
    """The rows of the table's snapshot whose order is below a number. Rows without an order stay."""
    grown = ((live, _with_older(table, live, shape, below)) for live in table.snapshot.files.values())
    return GoneRows.of(table, ((live, dead) for live, dead in grown if dead is not None))


def _with_older(table: OpenTable, live: LiveFile, shape: Shape, below: int) -> RowSet | None:
    """The file's dead rows with those whose order is below a number; None where that is none more."""
    stated = live.stated_values(shape[table.order].physical)
    if stated.lowest is not None and stated.lowest >= below:
        return None
    if stated.highest is not None and stated.highest < below and stated.nulls == 0 and live.rows:
        return RowSet.of_first(live.rows)
    dead = grown = table.dead_rows(live)
    for first, rows in row_stretches(table.files, live, shape, [table.order]):
        is_older = pc.fill_null(pc.less(rows.column(0), below), False)
        grown = grown.with_rows(first + np.flatnonzero(np.asarray(is_older)))
    return grown if len(grown) > len(dead) else None
