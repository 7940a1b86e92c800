"""Keys that are not equal, as far as an answer names them: the first ones in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json, keys_of
from dblog_core.verify.direct.key_numbers import key_schema
from dblog_core.verify.exchange import Answer

Kinds = npt.NDArray[np.str_]
_COLUMNS = "columns that differ"


class UnequalKeys:
    """`most`: keys that are named."""

    def __init__(self, schema: TableSchema, most: int) -> None:
        self._schema = schema
        self._most = most
        shape = key_schema(schema).append(pa.field(_COLUMNS, pa.list_(pa.string())))
        self._keys = shape.empty_table()
        self._kinds: Kinds = np.empty(0, np.str_)

    def add(self, keys: pa.Table, kinds: Kinds, columns: Sequence[tuple[str, ...]] | None = None) -> None:
        """Keys with what they are called, and in which columns they differ, where that is known."""
        if not len(kinds):
            return
        named = pa.nulls(len(keys), pa.list_(pa.string())) if columns is None else pa.array(map(list, columns))
        every = pa.concat_tables([self._keys, keys.append_column(_COLUMNS, named.cast(pa.list_(pa.string())))])
        every_kind = np.concatenate([self._kinds, kinds])
        names = [(name, "ascending") for name in keys.column_names]
        order = pc.sort_indices(every, sort_keys=names)[: self._most + 1]
        self._keys = every.take(order).combine_chunks()
        self._kinds = every_kind[np.asarray(order)]

    def name_keys(self, answer: Answer) -> Answer:
        """The answer with these keys."""
        rows = self._keys.slice(0, self._most)
        keys = keys_of(one_batch(rows.select(list(self._schema.key))), self._schema)
        columns = rows[_COLUMNS].to_pylist()
        by_kind: dict[str, list[Any]] = {}
        different: list[tuple[Any, tuple[str, ...]]] = []
        for key, kind, names in zip(map(key_to_json, keys), self._kinds.tolist(), columns, strict=False):
            if kind == "different":
                different.append((key, tuple(names or ())))
            else:
                by_kind.setdefault(kind, []).append(key)
        return replace(
            answer,
            missing=tuple(by_kind.get("missing", ())),
            extra=tuple(by_kind.get("extra", ())),
            undecided=tuple(by_kind.get("undecided", ())),
            twice=tuple(by_kind.get("twice", ())),
            different=tuple(different),
            more=len(self._kinds) > self._most,
        )


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """All rows in one batch."""
    arrays = [pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)]) for column in rows.columns]
    return pa.RecordBatch.from_arrays(arrays, names=rows.column_names)
