"""One table in several ranges, balanced by rows: the database chooses the boundaries, from the index of the key.

A whole-number key that counts up evenly needs few looks: the boundaries are computed, and at each of them it is looked
at how far the keys reach on from there. Otherwise every N-th key of the index is read. Where there are more than
expected (the server's estimate was too low), every other one is dropped and N doubled, so the sample stays small and
even; the boundaries are taken from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dblog_core.dumps.dump_records import DumpOptions
from dblog_core.interfaces import ChunkReader
from dblog_core.model.filters import Filter
from dblog_core.model.key_order import has_one_order
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json, key_to_json

MOST_RANGES = 64
RANGES_PER_WORKER = 4
SMALL = 20  # chunks up to which a table is one range
SMALLEST = 5  # chunks of a range
SAMPLE = 256  # keys that are kept of the index, at most
LOOK = 1_000  # rows: how far it is looked ahead from a computed boundary


@dataclass(frozen=True, slots=True)
class Range:
    """Keys (JSON) from `key_from` (included) or beyond `after` (not included) to `key_to` (included); None: open.

    `estimated`: its rows, None if unknown.
    """

    key_from: Any = None
    after: Any = None
    key_to: Any = None
    estimated: int | None = None


def count(rows: int, options: DumpOptions, number: int | None) -> int:
    """Into how many ranges so many rows are cut. `number`: what the user asked for."""
    chunk = options.chunk_size
    if number is not None:
        return max(1, min(number, rows))
    if rows <= SMALL * chunk:
        return 1
    return max(1, min(MOST_RANGES, RANGES_PER_WORKER * options.workers, rows // (SMALLEST * chunk)))


def cut(
    reader: ChunkReader,
    schema: TableSchema,
    filters: Sequence[Filter],
    ends: Range,
    options: DumpOptions,
    *,
    number: int | None = None,
    sparing: bool = False,
) -> list[Range]:
    """The range `ends` of a table in one or more ranges without a gap, in key order. Raises RequestError.

    It is left whole where it is small, where `number` is 1, and where no index serves the order of the key: reading
    boundaries would sort the table then, as every chunk does. `sparing`, for a whole table: a range for each worker,
    and the index is not read beyond the place where the last of them begins by the server's estimate, which may cost
    balance.
    """
    read = reader.explain(schema, filters=filters)
    open_ended = ends.key_from is None and ends.key_to is None
    few = number is None and bool(filters) and read.rows <= SMALL * options.chunk_size
    if number == 1 or read.index is None or few:
        return [Range(ends.key_from, None, ends.key_to, read.rows if open_ended else None)]
    rows_in_table = reader.estimated_rows(schema.table) if filters else read.rows
    if number is None and open_ended and not filters:
        even_ranges = _cut_evenly(reader, schema, rows_in_table, options)
        if even_ranges:
            return even_ranges
    stride = _stride(rows_in_table, options, number, whole=open_ended)
    few_ranges = min(count(read.rows, options, number), options.workers)
    if sparing and few_ranges > 1:
        enough = -(-read.rows * (few_ranges - 1) // few_ranges)
        keys, step = sample(reader, schema, ends, every=stride, enough=enough)
        return _balance(keys, step, ends, max(read.rows, len(keys) * step), few_ranges)
    keys, step = sample(reader, schema, ends, every=stride)
    rows = _rows(len(keys) * step, step, rows_in_table if open_ended else None)
    parts = _balance(keys, step, ends, rows, count(rows, options, number))
    return [_scale(part, read.rows, rows) for part in parts] if filters else parts


def _cut_evenly(reader: ChunkReader, schema: TableSchema, rows: int, options: DumpOptions) -> list[Range] | None:
    """The whole table in ranges of equal width; None where it is not as dense everywhere that this divides its rows.

    Ranges that differ after all (between the looks) cost balance, nothing else.
    """
    number = count(rows, options, None)
    if number == 1 or len(schema.key) != 1 or not pa.types.is_integer(schema.key_columns[0].type):
        return None
    first = next(reader.boundaries(schema, after=None, upto=None, every=1), None)
    last = reader.last_key(schema)
    if first is None or last is None:
        return None
    low = first[0]
    width = last[0] - low + 1
    looks = max(1, min(LOOK, rows // (4 * number)))
    places = [low + width * i // number for i in range(1, number)]
    for place in places:
        ahead = next(reader.boundaries(schema, after=(place,), upto=None, every=looks), None)
        if ahead is None or not 2 / 3 < (ahead[0] - place) * rows / (width * looks) < 3 / 2:
            return None
    return [
        Range(None, after, upto, rows // number) for after, upto in zip([None, *places], [*places, None], strict=True)
    ]


def _stride(rows: int, options: DumpOptions, number: int | None, *, whole: bool) -> int:
    """Every how many rows a key is read at first; `rows`: of the table, which tells little of a part of it."""
    finest = options.chunk_size
    if number is not None and rows:  # a small table may be asked for more ranges than it has chunks
        finest = min(finest, rows // (4 * number))
    return max(1, finest, -(-rows // SAMPLE) if whole else 0)


def ordered_alike(schema: TableSchema) -> bool:
    """Whether Spark orders the table's keys as every database does, so that the lake can tell which are in a range."""
    return all(map(has_one_order, schema.key_columns))


def as_json(keys: Sequence[Key]) -> list[Any]:
    """Keys as ranges have them."""
    return [key_to_json(key) for key in keys]


def sample(
    reader: ChunkReader, schema: TableSchema, ends: Range, *, every: int, enough: int | None = None
) -> tuple[list[Key], int]:
    """Evenly spaced keys of the range, at most SAMPLE, of its first `enough` rows; and how many rows lie from one to
    the next."""
    first = ends.key_from if ends.key_from is not None else ends.after
    after = None if first is None else key_from_json(first, schema)
    upto = None if ends.key_to is None else key_from_json(ends.key_to, schema)
    keys: list[Key] = []
    while True:
        for key in reader.boundaries(schema, after=keys[-1] if keys else after, upto=upto, every=every):
            keys.append(key)
            if enough is not None and len(keys) * every >= enough:
                return keys, every
            if len(keys) > SAMPLE:
                break
        else:
            return keys, every
        # Too many: it continues after the last that is kept, whose place is a multiple of the new step.
        keys = keys[1::2]
        every *= 2


def _rows(seen: int, step: int, estimate: int | None) -> int:
    """Rows of the range: what the sample has shown, and of its last step what the estimate says, or half."""
    return max(seen, min(seen + step - 1, seen + step // 2 if estimate is None else estimate))


def _balance(sample: Sequence[Key], step: int, ends: Range, rows: int, number: int) -> list[Range]:
    """`number` ranges that differ by less than a step, or fewer where the sample has fewer."""
    places = sorted({round(i * rows / number / step) - 1 for i in range(1, number)})
    places = [place for place in places if 0 <= place < len(sample)]
    keys = [key_to_json(sample[place]) for place in places]
    marks = [0, *((place + 1) * step for place in places), rows]
    firsts = [ends.after, *keys]
    lasts = [*keys, ends.key_to]
    return [
        Range(ends.key_from if i == 0 else None, firsts[i], lasts[i], marks[i + 1] - marks[i])
        for i in range(len(firsts))
    ]


def _scale(part: Range, passing: int, rows: int) -> Range:
    """A range's share of the rows that pass the filters."""
    share = (part.estimated or 0) * passing // max(rows, 1)
    return Range(part.key_from, part.after, part.key_to, share)
