"""Column-wise work on row changes: key changes split, offsets and transactions joined on, keys read for the windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.algorithm.eviction import Touch, Touches
from dblog_core.model.events import THEN_DUMPED, LogBatch, Signal, TableChanges, Transaction, Unreadable
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_tuples
from dblog_core.rows import arrow_buffers, row_faults
from dblog_core.rows.column_rules import Rules
from dblog_core.staging.row_format import LOG_COLUMNS, log_schema

Int64s = np.ndarray[Any, np.dtype[np.int64]]
_TIME = pa.timestamp("us", tz="UTC")
_FIRST_INDEX = pa.scalar(0, pa.int32())
_NO_INDEX = pa.scalar(None, pa.int32())


@dataclass(frozen=True, slots=True)
class OrderedChanges:
    """Changes of one table version with no change of a key in them: such an update is a d and then a c.

    `sequence` has twice the numbers of the log batch, so that both halves find room. `moved_from` holds the old key of
    such a c, null elsewhere.
    """

    schema: TableSchema
    sequence: Int64s
    transaction: Int64s
    batch: pa.RecordBatch
    moved_from: pa.StructArray | None

    def slice(self, start: int, stop: int) -> OrderedChanges:
        length = stop - start
        moved = None if self.moved_from is None else self.moved_from.slice(start, length)
        return OrderedChanges(
            self.schema,
            self.sequence[start:stop],
            self.transaction[start:stop],
            self.batch.slice(start, length),
            moved,
        )

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last number, of at least one."""
        return self.sequence[0], self.sequence[-1]


def stretches(changes: Sequence[OrderedChanges], bounds: Sequence[int]) -> list[list[OrderedChanges]]:
    """What lies before each of the growing bounds (in doubled numbers), and after the last, where there is any row.

    One pass over each table, however many bounds there are: thousands of tables may be described again in one batch.
    """
    stretches_before: list[list[OrderedChanges]] = [[] for _ in range(len(bounds) + 1)]
    places = np.asarray(bounds, dtype=np.int64)
    ends = np.array([change.ends for change in changes if len(change)], dtype=np.int64).reshape(-1, 2)
    # Most lie whole between two bounds.
    firsts, lasts = np.searchsorted(places, ends, side="right").T.tolist()
    for change, first, last in zip([change for change in changes if len(change)], firsts, lasts, strict=True):
        if first == last:
            stretches_before[first].append(change)
            continue
        edges = np.r_[0, np.searchsorted(change.sequence, places), len(change)]
        for n in np.flatnonzero(np.diff(edges)).tolist():
            stretches_before[n].append(change.slice(int(edges[n]), int(edges[n + 1])))
    return stretches_before


def split_key_changes(changes: TableChanges) -> OrderedChanges:
    """Splits every update that changes the key into a delete of the old key and a create of the new one."""
    batch = changes.batch
    schema = changes.schema
    moved = _moves(batch, schema)
    # An update that changes the key becomes two events, and the second needs a number before the next row's.
    sequence = np.asarray(batch.column("sequence"), dtype=np.int64) * 2
    transaction = np.asarray(batch.column("transaction"), dtype=np.int64)
    if moved is None or not moved.any():
        return OrderedChanges(schema, sequence, transaction, batch, None)
    rows = np.repeat(np.arange(len(moved)), 1 + moved)
    second = np.r_[False, rows[1:] == rows[:-1]]
    first = moved[rows] & ~second
    doubled = batch.take(pa.array(rows))
    ops = np.asarray(doubled.column("op").to_pylist(), dtype=object)
    ops[first] = "d"
    ops[second] = "c"
    before = doubled.column("before")
    after = doubled.column("after")
    keys = [before.field(name) for name in schema.key]
    # The delete has no row after it, so nothing in it is unchanged; the create has no row before it: its old key stands
    # in `moved_from`.
    split = pa.RecordBatch.from_arrays(
        [
            doubled.column("sequence"),
            doubled.column("transaction"),
            pa.array(ops, pa.string()),
            pc.and_(doubled.column("key_only"), pa.array(~second)),
            pc.if_else(pa.array(first), pa.scalar(None, pa.list_(pa.string())), doubled.column("unchanged")),
            _without(before, second),
            _without(after, first),
        ],
        schema=batch.schema,
    )
    fields = [pa.field(c.name, c.type) for c in schema.key_columns]
    moved_from = pa.StructArray.from_arrays(keys, fields=fields, mask=pa.array(~second))
    return OrderedChanges(schema, sequence[rows] + second, transaction[rows], split, moved_from)


def _moves(batch: pa.RecordBatch, schema: TableSchema) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Which rows are updates whose key differs between the images; None where there can be none."""
    before = batch.column("before")
    after = batch.column("after")
    if not schema.key or before.null_count == len(batch):
        return None
    differs = None
    for name in schema.key:
        old = before.field(name)
        new = after.field(name)
        unlike = pc.fill_null(pc.not_equal(old, new), True)
        if pa.types.is_floating(old.type):  # one NaN is another, which Arrow denies
            unlike = pc.and_not(unlike, pc.fill_null(pc.and_(pc.is_nan(old), pc.is_nan(new)), False))
        differs = unlike if differs is None else pc.or_(differs, unlike)
    both = pc.and_(pc.is_valid(before), pc.is_valid(after))
    update = pc.equal(batch.column("op"), "u")
    return np.asarray(pc.and_(pc.and_(update, both), differs).to_numpy(zero_copy_only=False), dtype=bool)


def _without(images: pa.StructArray, removed: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.StructArray:
    """The images with those of `removed` rows made null."""
    null = np.asarray(images.is_null().to_numpy(zero_copy_only=False), dtype=bool) | removed
    return pa.StructArray.from_arrays(images.flatten(), fields=list(images.type), mask=pa.array(null))


def log_rows(changes: OrderedChanges, offsets: Int64s, transactions: Sequence[Transaction]) -> pa.RecordBatch:
    """The changes as rows of a log file (`staging.segment`), at `offsets`. What repeats is a dictionary array."""
    schema = changes.schema
    count = len(changes)
    transaction, position, commit_time = _describe_transactions(changes.transaction, transactions)
    moved = changes.moved_from
    if moved is None:
        moved = arrow_buffers.repeat_value(_find_no_move(schema), count)
    return log_batch(
        {
            "offset": pa.array(offsets),
            "op": changes.batch.column("op"),
            "origin": repeat_text("log", count),
            "transaction": transaction,
            "position": position,
            "commit_time": commit_time,
            "key_only": changes.batch.column("key_only"),
            "unchanged": changes.batch.column("unchanged"),
            "moved_from": moved,
            "before": changes.batch.column("before"),
            "after": changes.batch.column("after"),
        },
    )


@lru_cache(maxsize=4096)
def _find_no_move(schema: TableSchema) -> pa.Scalar:
    return pa.scalar(None, log_schema(schema).field("moved_from").type)


def _describe_transactions(numbers: Int64s, transactions: Sequence[Transaction]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Id, position and commit time of each row's transaction."""
    count = len(numbers)
    if count and (numbers == numbers[0]).all():  # as in each of many small pieces
        transaction = transactions[numbers[0]]
        times = np.full(count, transaction.commit_time, dtype=np.int64)
        commit_time = arrow_buffers.fixed_width_array(times, None, _TIME)
        return repeat_text(transaction.id, count), repeat_text(transaction.position, count), commit_time
    # A transaction's rows stand together in the log.
    begins = np.r_[True, numbers[1:] != numbers[:-1]]
    index = np.cumsum(begins, dtype=np.int32) - np.int32(1)
    used_transactions = [transactions[i] for i in numbers[begins].tolist()]
    times = np.array([t.commit_time for t in used_transactions], dtype=np.int64)[index]
    of = pa.array(index)
    ids = pa.array([t.id for t in used_transactions], pa.string())
    positions = pa.array([t.position for t in used_transactions], pa.string())
    return (
        pa.DictionaryArray.from_arrays(of, ids),
        pa.DictionaryArray.from_arrays(of, positions),
        arrow_buffers.fixed_width_array(times, None, _TIME),
    )


def repeat_text(value: str | None, count: int) -> pa.DictionaryArray:
    """One text, `count` times."""
    indices = arrow_buffers.repeat_value(_NO_INDEX if value is None else _FIRST_INDEX, count)
    return pa.DictionaryArray.from_arrays(indices, _one_text(value or ""))


@lru_cache(maxsize=1024)
def _one_text(value: str) -> pa.Array:
    """An array of the text alone: pieces of one transaction have the same."""
    return pa.array([value], pa.string())


def log_batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Rows of a log file from its columns: all batches of a table version have the same types."""
    return pa.RecordBatch.from_arrays([columns[name] for name in LOG_COLUMNS], names=LOG_COLUMNS)


class ChangeTouches:
    """The row events of a stretch of one table; holds the key columns alone, so that row values can go."""

    __slots__ = ("_after", "_before", "_moved_from", "_op", "_unchanged")

    def __init__(self, rows: pa.RecordBatch, moved_from: pa.StructArray | None, key: Sequence[str]) -> None:
        """`rows` has op, unchanged, and images before and after; `moved_from` is null except for changes of the key."""
        self._op = rows.column("op")
        self._before = [rows.column("before").field(name) for name in key]
        self._after = [rows.column("after").field(name) for name in key]
        self._unchanged = rows.column("unchanged")
        self._moved_from = moved_from

    @classmethod
    def of(cls, changes: OrderedChanges) -> ChangeTouches:
        return cls(changes.batch, changes.moved_from, changes.schema.key)

    def __len__(self) -> int:
        return len(self._op)

    @property
    def may_arrive(self) -> bool:
        """Whether a key may change in them while columns are left out."""
        return self._moved_from is not None and self._unchanged.null_count < len(self)

    def part(self, start: int, end: int) -> Touches:
        """The events of rows `start` to `end`, not looked at before somebody asks: most never are."""
        return _Part(self, start, end)

    def __iter__(self) -> Iterator[Touch]:
        return self.between(0, len(self))

    def between(self, start: int, end: int) -> Iterator[Touch]:
        ops = self._op.slice(start, end - start).to_pylist()
        before, after = (key_tuples([c.slice(start, len(ops)) for c in of]) for of in (self._before, self._after))
        left = self._unchanged.slice(start, len(ops))
        unchanged = left.to_pylist() if left.null_count < len(ops) else [None] * len(ops)
        moved = [None] * len(ops) if self._moved_from is None else self._moved_from.slice(start, len(ops)).to_pylist()
        for i, op in enumerate(ops):
            left_out = frozenset(unchanged[i] or ())
            old_key: dict[str, Any] | None = moved[i]
            if old_key is not None:
                yield Touch(tuple(old_key.values()), left_out, moved_to=after[i])
            elif op == "d" and i + 1 < len(ops) and moved[i + 1] is not None:
                continue  # the first half of a key change: yielded with the second
            else:
                yield Touch(before[i] if op == "d" else after[i], left_out)


class _Part:
    """Some rows of a stretch; that is one for every transaction, so it holds nothing of its own."""

    __slots__ = ("_end", "_start", "_whole")

    def __init__(self, whole: ChangeTouches, start: int, end: int) -> None:
        self._whole = whole
        self._start = start
        self._end = end

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[Touch]:
        return self._whole.between(self._start, self._end)


def runs(values: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """First and end index of every run of equal values; none for no values."""
    if not len(values):
        return []
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return list(pairwise(edges))


def convert(batch: LogBatch, rules: Rules) -> tuple[list[OrderedChanges], list[Signal]]:
    """The batch's changes as they are staged, and its signals with those of values that no form holds."""
    changes = []
    signals = list(batch.signals)
    for raw in batch.changes:
        if rules.misfit(raw.schema) is not None:
            continue  # passed over from the shape's signal on
        try:
            staged, unreadable = rules.changes(raw, batch.transactions)
            changes.append(split_key_changes(staged))
        except Exception as error:  # noqa: BLE001 - `row_faults` says which errors are of the rows
            unreadable = _stop_at_first_row(raw, batch.transactions, row_faults.explain(error, raw.schema.table))
        if unreadable is not None:
            signals.append(unreadable)
    return changes, sorted(signals, key=lambda signal: signal.sequence)


def _stop_at_first_row(
    raw: TableChanges, transactions: Sequence[Transaction], fault: row_faults.Refusal
) -> Unreadable | None:
    """The table stops where the first of these rows stands; None: there is none."""
    if not raw.batch.num_rows:
        return None
    sequence, number = (raw.batch.column(name)[0].as_py() for name in ("sequence", "transaction"))
    why = f"{raw.schema.table} at {transactions[number].position}: {fault.message}"
    return Unreadable(sequence, number, raw.schema.table, why, f"{fault.fix}; {THEN_DUMPED}")
