"""A share of a merge that executors carry, by buckets of keys, with one commit by the driver.

  parts of the staged rows, files of the table -> events and keys by buckets -> each bucket's plan (`tasks`)
  -> all plans on the driver -> one commit

An executor folds and plans as the driver does, by the same functions. It writes files of new rows that no version names
until the commit: so a task that is lost, or done twice, changes nothing.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.features import refusal
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.upserting.upsert_apart import commit_planned
from dblog_core.errors import DblogError
from dblog_core.lake.carrier_choice import Means
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.dump_ends import dumps_within
from dblog_core.lake_engine.events.key_chains import KeyHasher, find_staged_chains
from dblog_core.lake_engine.events.staged_events import has_left_out_values
from dblog_core.lake_engine.merging.deleted_rows import Ghosts
from dblog_core.lake_engine.merging.spreading import tasks
from dblog_core.lake_engine.merging.spreading.key_ranges import KeyRanges
from dblog_core.lake_engine.merging.spreading.tasks import PlannedBucket, SpreadWork
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile
from dblog_core.storage.location import Location

_ATTEMPTS = 3
"""At a table that others write meanwhile: each reads and plans all again."""
BUCKET_ROWS = 500_000
BUCKET_BYTES = 8 << 20
"""Of staged files, which are compressed."""
MOST_BUCKETS = 2048
_IMAGES = ("before", "after", "moved_from")
_MOST_READ = 100_000_000
"""Rows whose first key column the driver reads: of more, those of some files say where the others' keys are."""
_SAMPLED = 1_000
"""Values of a file's column that are in a sample."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How shares are spread. `run_tasks`: has the tasks of a share done, and gives what they hand over."""

    run_tasks: Callable[[SpreadWork], list[tuple[str, bytes]]]
    means: Means


@dataclass(frozen=True, slots=True)
class SpreadOutcome:
    """The counts of a share. `withheld`: how many rows are; `gone_keys`: those that waited for a dump, and are no
    longer in the source."""

    counts: Upserted
    withheld: int
    gone_keys: set[Key]


def write_spread(
    spread: Spread,
    staging: Staging,
    table: OpenTable,
    work: Work,
    schema: TableSchema,
    app: str,
    number: int,
    *,
    ghosts: Ghosts,
    merged: int,
    withhold: Callable[[list[Key]], None],
    waiting: Collection[Key] = (),
) -> SpreadOutcome:
    """Commits the work as merge `number` of `app`, once, whatever others commit meanwhile, as `upsert_rows.write`
    commits folded rows. `ghosts`: those that its dumps show, which go in the same commit; `waiting`: keys that wait for
    a dump.

    Raises TableRefused for a table that nobody of us writes, Overtaken where others leave no room, LeaseLost where
    another may merge, and what a task has failed with.
    """
    for attempt in range(_ATTEMPTS):
        shape = table.refresh()
        if (last_number := table.snapshot.txns.get(app, -1)) >= number:
            if attempt and last_number == number:
                return SpreadOutcome(Upserted(table.snapshot.version, already=True), 0, set())
            raise log.already_committed(table.files.root, number, last_number)
        if lacking := {c.name for c in schema.columns} - set(shape.names):
            raise refusal(str(table.files), f"it lacks the column {', '.join(sorted(lacking))}")
        table.check()
        job = _plan_job(spread, staging, table, shape, work, schema, merged=merged, waiting=waiting)
        buckets = list(_plans(spread, job))
        unknown = [key for bucket in buckets for key in bucket.unknown]
        # Before the commit: a crash in between has a dump requested too many, and never one too few.
        if unknown:
            withhold(unknown)
        readings = ghosts.readings([bucket.ghosts for bucket in buckets if len(bucket.ghosts)])
        plans = (bucket.keys for bucket in buckets)
        counts = commit_planned(table, plans, app, number, below=work.last_truncate, readings=readings)
        if counts is not None:
            return _outcome(counts, buckets, work, set(waiting))
    raise table.overtaken_error(_ATTEMPTS)


def _outcome(counts: Upserted, buckets: Iterable[PlannedBucket], work: Work, waiting: set[Key]) -> SpreadOutcome:
    withheld = counts.withheld
    deleted: set[Key] = set()
    living: set[Key] = set()
    for bucket in buckets:
        withheld += bucket.withheld
        deleted |= bucket.deleted
        living |= bucket.living
    return SpreadOutcome(counts, withheld, deleted if work.last_truncate is None else waiting - living)


def _plan_job(
    spread: Spread,
    staging: Staging,
    table: OpenTable,
    shape: Shape,
    work: Work,
    schema: TableSchema,
    *,
    merged: int,
    waiting: Collection[Key],
) -> SpreadWork:
    secret = secrets.token_bytes(16)
    cores = spread.means.executor_cores or 1
    count = min(MOST_BUCKETS, max(1 + work.rows // BUCKET_ROWS, 1 + work.bytes // BUCKET_BYTES, 2 * cores))
    first = _FirstColumn.of(staging, work, schema, shape[schema.key[0]].type)
    parts: list[Work | str] = [replace(work, files=(file,), chunks=()) for file in work.files]
    parts += [replace(work, files=(), chunks=(chunk,)) for chunk in work.chunks]
    return SpreadWork(
        schema=schema,
        version=table.snapshot.version,
        units=(*parts, *_files_to_scan(table, shape, first.ends)),
        may_leave_out=has_left_out_values(work),
        ends=tuple(dumps_within(work)),
        buckets=count,
        ranges=KeyRanges.of_sample(first.sample, count),
        secret=secret,
        chains=find_staged_chains(staging, work, schema, KeyHasher(secret, tuple(shape[n].type for n in table.keys))),
        merged=merged,
        begins=work.first_offset,
        below=work.last_truncate,
        waiting=frozenset(waiting),
    )


def _plans(spread: Spread, work: SpreadWork) -> Iterator[PlannedBucket]:
    """The plans of all buckets. Raises what a task has failed with."""
    for kind, content in spread.run_tasks(work):
        tasks.check_fault(kind, content)
        yield pickle.loads(content)  # noqa: S301  # by a task of this job


# Where keys are ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FirstColumn:
    """The first column of the work's keys: some of its values, and the ends of all (None: they are not known)."""

    sample: pa.Array
    ends: tuple[int, int] | None

    @classmethod
    def of(cls, staging: Staging, work: Work, schema: TableSchema, kind: pa.DataType) -> _FirstColumn:
        parts: list[DataFile | ChunkRef] = [*work.files, *work.chunks]
        step = -(-sum(part.rows for part in parts) // _MOST_READ)
        ends: list[tuple[int, int]] = []
        samples = [pa.array([], kind)]
        are_all = step == 1
        for part in parts[::step]:
            try:
                # A key may have been renamed since.
                columns = _first_column(staging, part, staging.schema(part.schema).key[0])
            except (pa.ArrowException, OSError, DblogError):
                are_all = False  # the task that reads the file whole says what is wrong with it
                continue
            for values in columns:
                if pa.types.is_integer(kind) and len(values):
                    both = pc.min_max(values).as_py()
                    ends.append((both["min"], both["max"]))
                stride = pa.array(range(0, len(values), 1 + len(values) // _SAMPLED), pa.int64())
                samples.append(join_chunks(values.take(stride).cast(kind)))
        both_ends = (min(low for low, _ in ends), max(high for _, high in ends)) if are_all and ends else None
        return cls(pa.concat_arrays(samples), both_ends)


def _first_column(staging: Staging, part: DataFile | ChunkRef, name: str) -> list[pa.ChunkedArray]:
    """The values of the column in a staged file: in each image of a row that the file has."""
    if not part.path:
        assert isinstance(part, DataFile), "rows of a dump are in files"
        return _in_images(pa.Table.from_batches(staging.log_batches(part)), name)
    files = TableFiles(Location(staging.storage))
    with files.open(part.path, part.bytes) as source, pq.ParquetFile(source) as file:
        if isinstance(part, ChunkRef):
            return [file.read([name])[name].drop_null()]
        return _in_images(file.read([f"{image}.{name}" for image in _IMAGES]), name)


def _in_images(lines: pa.Table, name: str) -> list[pa.ChunkedArray]:
    images = [lines[image] for image in _IMAGES if image in lines.column_names]
    at = [image.type.get_field_index(name) for image in images]
    return [pc.struct_field(image, place).drop_null() for image, place in zip(images, at, strict=True) if place >= 0]


def _files_to_scan(table: OpenTable, shape: Shape, ends: tuple[int, int] | None) -> list[str]:
    """The table's files that may have a key of the work, by their statistics."""
    live = table.snapshot.files
    if ends is None:
        return list(live)
    column = shape[table.keys[0]].physical
    chosen = []
    for path, file in live.items():
        stated = file.stated_values(column)
        is_stated = isinstance(stated.lowest, int) and isinstance(stated.highest, int)
        if not is_stated or (stated.highest >= ends[0] and stated.lowest <= ends[1]):
            chosen.append(path)
    return chosen
