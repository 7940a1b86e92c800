"""A comparison of a table with a version of the lake, and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json, key_tuples
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.disk_spool import SpooledRows
from dblog_core.verify.pinned_version import Pin

MAX_KEYS_NAMED = 200_000
"""Keys of one table that a verdict names at most."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A reading of the source, and the version of the lake to compare it with (`pin` None: the lake has no copy).

    The source's SELECTs saw every event up to offset `since` and none above `upto`. `rows`: what they have read, in the
    shape `schema`. `for_chosen_keys`: these are chosen keys, those that the source lacks without a hash; otherwise they
    are all rows of the table, or of the ranges `within` (JSON keys: the key before the first, and the last key; None:
    open).
    """

    schema: TableSchema
    pin: Pin | None
    rows: Sequence[SpooledRows] = ()
    since: int = 0
    upto: int = 0
    for_chosen_keys: bool = False
    within: tuple[tuple[Any, Any], ...] = ()

    @property
    def merged_offset(self) -> int:
        """The offset up to which all is in the version."""
        return 0 if self.pin is None else self.pin.offset

    @property
    def first_offset(self) -> int:
        """The offset after which the comparison is about the log."""
        return self.since if self.pin is None else min(self.pin.offset, self.since)

    @property
    def follows_log(self) -> bool:
        """Whether staged rows will come into the lake: never into that of a stopped table."""
        return self.pin is not None and not self.pin.stopped


@dataclass(frozen=True, slots=True)
class Verdict:
    """Keys (JSON) by what was found. `rows`, `lake_rows`: how many were compared; `staged`: rows of the table on top of
    the pinned version; `undecided`: keys that changed while the source was read, in a way that does not show whether
    they are equal; `twice`: keys that several rows of the lake have; `more`: there are more keys than are named."""

    rows: int = 0
    lake_rows: int = 0
    staged: int = 0
    missing: tuple[Any, ...] = ()
    extra: tuple[Any, ...] = ()
    different: tuple[Any, ...] = ()
    undecided: tuple[Any, ...] = ()
    twice: tuple[Any, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Sum:
    """Rows and the exact sum of their hashes."""

    rows: int
    hash: int


class UnequalKeys:
    """The first keys in their order that are not equal: at most MAX_KEYS_NAMED of them."""

    def __init__(self, schema: TableSchema) -> None:
        details = [pa.field("kind", pa.string()), pa.field("columns that differ", pa.list_(pa.string()))]
        # By number: a key's column may have any name.
        self._key_names = [str(number) for number in range(len(schema.key))]
        key_fields = [pa.field(name, c.type) for name, c in zip(self._key_names, schema.key_columns, strict=True)]
        self._rows = pa.schema([*key_fields, *details]).empty_table()

    def add(
        self, keys: pa.Table, kinds: Sequence[str] | pa.Array, columns: Sequence[tuple[str, ...]] | None = None
    ) -> None:
        """Keys with what they are called, and in which columns they differ, where that is known."""
        if not len(keys):
            return
        named = pa.nulls(len(keys)) if columns is None else pa.array(map(list, columns))
        rows = pa.table([*keys.columns, pa.array(kinds), named], names=self._rows.column_names)
        every = pa.concat_tables([self._rows, rows.cast(self._rows.schema)])
        order = pc.sort_indices(every, sort_keys=[(name, "ascending") for name in self._key_names])
        self._rows = every.take(order[: MAX_KEYS_NAMED + 1]).combine_chunks()

    @property
    def more(self) -> bool:
        """Whether there are more than are named."""
        return len(self._rows) > MAX_KEYS_NAMED

    def by_kind(self) -> dict[str, list[tuple[Any, tuple[str, ...]]]]:
        """The keys (JSON), with the columns that differ, by what they are called."""
        rows = self._rows.slice(0, MAX_KEYS_NAMED)
        keys = json_keys(rows.select(self._key_names))
        kinds: dict[str, list[tuple[Any, tuple[str, ...]]]] = {}
        for key, kind, names in zip(keys, rows["kind"].to_pylist(), rows.column(-1).to_pylist(), strict=True):
            kinds.setdefault(kind, []).append((key, tuple(names or ())))
        return kinds


def json_keys(keys: pa.Table) -> list[Any]:
    """The keys as JSON."""
    return [key_to_json(key) for key in key_tuples([join_chunks(column) for column in keys.columns])]
