"""Values of partition columns, which a table's log has as texts: one value for all rows of a file.

Source: PROTOCOL.md, "Partition Value Serialization". There is no text of an empty text: it is read as NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.features import refusal
from dblog_core.delta_writer.shape import DeltaColumn
from dblog_core.errors import LakeError
from dblog_core.rows.chunked_columns import join_chunks

Partition: TypeAlias = Mapping[str, str | None]
"""Texts by the physical names of columns; empty for a table without partitions."""


def split_rows(rows: pa.Table, columns: Sequence[DeltaColumn], where: str) -> Iterator[tuple[Partition, Rows]]:
    """The partitions that rows belong to, and the numbers of the rows of each, in their order. Raises LakeError for a
    value that a partition cannot have."""
    if not columns:
        yield {}, np.arange(len(rows))
        return
    texts = [print_values(rows[column.name], column, where) for column in columns]
    codes = [np.asarray(pc.fill_null(text.dictionary_encode().indices, -1)) for text in texts]
    _, firsts, groups = np.unique(np.stack(codes), axis=1, return_index=True, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(np.diff(groups[order])) + 1
    for first, numbers in zip(firsts.tolist(), np.split(order, edges), strict=True):
        yield {c.physical: text[first].as_py() for c, text in zip(columns, texts, strict=True)}, numbers


def print_values(values: pa.ChunkedArray, column: DeltaColumn, where: str) -> pa.Array:
    """The texts of a column's values; NULL stays NULL. Raises LakeError for a value that has none."""
    try:
        plain = join_chunks(values.cast(column.type))
    except pa.ArrowException as error:
        raise LakeError(
            f"the rows do not fit the table: {column.name} is {column.type} there: {error}",
            where=where,
            fix="undo what another program changed in the table, unless the next merge succeeds",
        ) from error
    if pa.types.is_string(column.type):
        if pc.any(pc.equal(plain, "")).as_py():
            raise _unprintable(f"an empty text in {column.name} would be read as NULL", where)
        return plain
    if pa.types.is_timestamp(column.type):
        # With its zone a time is the same for all readers, whatever theirs is.
        texts = pc.strftime(plain, "%Y-%m-%dT%H:%M:%SZ" if column.type.tz else "%Y-%m-%d %H:%M:%S")
    else:
        texts = plain.cast(pa.string())
    length = _DATED.get(_kind(column.type))
    if length and pc.any(pc.not_equal(pc.utf8_length(pc.utf8_rtrim(texts, "Z")), length)).as_py():
        raise _unprintable(f"a year in {column.name} has more than four digits", where)
    return texts


def _kind(kind: pa.DataType) -> str:
    return "timestamp" if pa.types.is_timestamp(kind) else str(kind)


_DATED = {"timestamp": len("2000-01-01 00:00:00.000000"), "date32[day]": len("2000-01-01")}
"""Characters of a text of days, without the Z of a zone: readers read years of four digits alike."""


def _unprintable(what: str, where: str) -> LakeError:
    return LakeError(
        f"a partition of the table cannot have a value of the source: {what}",
        where=where,
        fix="move the table's directory away, and run `dblog reset` for it: it is made again, without partitions",
    )


_RESET = "delete the rows of the partition in Spark, or run `dblog reset` for the table: it is built again by a dump"


def read_value(partition: Partition, column: DeltaColumn, where: str) -> pa.Scalar:
    """The value of a column in a file's partition. Raises TableRefused for a text that is none."""
    # NULL is the empty text too.
    if not (text := partition.get(column.physical)):
        return pa.scalar(None, column.type)
    try:
        if pa.types.is_binary(column.type):
            return pa.scalar(text.encode(), column.type)
        # A time without a zone is in that of the program that wrote it (PROTOCOL.md), which is not known.
        if pa.types.is_timestamp(column.type) and column.type.tz and not text.endswith("Z"):
            raise pa.ArrowInvalid("it names no zone")
        return pa.scalar(text).cast(column.type)
    except pa.ArrowException as error:
        raise refusal(where, f"the partition {column.name} = {text!r} cannot be read: {error}", _RESET) from error
