"""Folded rows brought into a table: old rows marked in deletion vectors, new ones appended.

The driver has the rows, all at once or in parts, and an index of the table's keys says where the old ones are
(`delta_writer`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.altering.altered_table import Described
from dblog_core.delta_writer.append import AppendedTable
from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.changes import Changes, Upserted
from dblog_core.delta_writer.features import refusal
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.unseen_rows import Reading
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.stored_rows import stored_count
from dblog_core.delta_writer.table_log import TableLog
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.errors import LakeError
from dblog_core.lake.json_variants import variant_name
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.events.fold import PUT, WITHHOLD, FoldedRows
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tables.checkpoints import Checkpoints, follow_commit
from dblog_core.lake_engine.tables.column_types import COMMIT_TIME, OFFSET, ORIGIN, POSITION
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_tuples
from dblog_core.rows.chunked_columns import join_chunks, mask_named
from dblog_core.rows.variant_encoding import VARIANT, encode_texts
from dblog_core.storage.location import Location

MEMORY = 512 << 20
"""Bytes that the indexes of all tables take; what a table has beyond its own share lies on disk (`KeyIndex`)."""
_SHARES = 16
"""Tables that have a whole share of it; those that were not used for longest are closed for others."""
_KEPT_ROWS = 100_000  # of an index that is worth a place on disk when its table is closed
_SHAPES = 3  # shapes that somebody may give the table while one commit is made

_PROVENANCE = {OFFSET: "offset", POSITION: "position", COMMIT_TIME: "commit_time", ORIGIN: "origin"}


class OpenTables:
    """A lake's tables that are open for writing; each is used by one thread at a time."""

    def __init__(self, directory: Path | None = None, *, memory: int = MEMORY) -> None:
        """`directory`: of this machine, for indexes of keys; the folder is a cache. `memory`: bytes of the indexes that
        stay in memory."""
        self._directory = directory
        self._memory = memory
        self._open: dict[Location, OpenTable] = {}
        self._rewritten_bytes = 0  # of tables that are closed
        self._histories: dict[Location, AppendedTable] = {}
        self.checkpoints = Checkpoints()

    def table(self, path: Location, schema: TableSchema, check: Callable[[], None]) -> OpenTable:
        """The table of that key; `check` is asked right before each of its commits."""
        table = self._open.pop(path, None)
        if table is None or table.keys != schema.key:
            self._rewritten_bytes += table.rewritten_bytes if table is not None else 0
            share = self._memory // _SHARES
            place = self._place(path)
            table = OpenTable(path, schema.key, order=OFFSET, mark=COMMIT_MARK, index=place, index_memory=share)
        table.check = check
        self._open[path] = table  # the last one used is the last in order
        return table

    def describe(
        self, path: Location, schema: TableSchema, check: Callable[[], None], *, is_left: bool = False
    ) -> Described:
        """What the table is by its log, whatever its key is. `is_left`: it `is_as_left`, and is not read again. Raises
        TableRefused.

        A Spark that has just started takes seconds for its first look at a table, and no row comes in meanwhile.
        """
        table = self._open.get(path) or self.table(path, schema, check)
        if not is_left:
            table.look()
        table.snapshot.shape(str(table.files))
        return Described.of(table.snapshot.metadata)

    @property
    def rewritten_bytes(self) -> int:
        """Bytes of all deletion vectors, and copies of files, that were written."""
        return self._rewritten_bytes + sum(table.rewritten_bytes for table in list(self._open.values()))

    def history(self, path: Location, check: Callable[[], None]) -> AppendedTable:
        """The history there; `check` is asked right before each of its commits."""
        opened = AppendedTable(path, order=OFFSET, mark=COMMIT_MARK, committed=self.follow_commit)
        history = self._histories.setdefault(path, opened)
        history.check = check
        return history

    def follow_commit(self, table: TableLog) -> None:
        """As `checkpoints.follow_commit`; no merge waits for the checkpoint."""
        follow_commit(table, self.checkpoints.ask)

    def _place(self, path: Location) -> Path | None:
        name = hashlib.sha256(str(path).encode()).hexdigest()[:32]
        return None if self._directory is None else self._directory / name

    def shed(self, in_use: Collection[Location] = ()) -> None:
        """Closes what was not used for longest, until the rest has room in memory. Between merges only tables
        that are named are in use."""
        unused = [path for path in list(self._open) if path not in in_use]
        while unused and sum(table.memory for table in list(self._open.values())) > self._memory:
            self._close(unused.pop(0))

    def close(self) -> None:
        """Keeps the indexes that took long to make for the next process. `checkpoints` has a close of its own: the next
        process takes the lake meanwhile."""
        while self._open:
            self._close(next(iter(self._open)))

    def _close(self, path: Location) -> None:
        table = self._open.pop(path)
        self._rewritten_bytes += table.rewritten_bytes
        if table.index_entries >= _KEPT_ROWS:
            table.save()


def write(
    table: OpenTable,
    rows: FoldedRows,
    schema: TableSchema,
    app: str,
    number: int,
    *,
    merged: int,
    withhold: Callable[[list[Key]], None],
    is_left: bool = False,
    begins: int | None = None,
    below: int | None = None,
    readings: Sequence[Reading] = (),
    mends: Collection[str] = (),
) -> Upserted:
    """Commits folded rows (`fold`) as merge `number` of `app`, once, whatever others commit meanwhile.

    `merged`: the highest offset that one of our rows can have in the table; rows beyond it are newer than all rows in
    it, and nothing is compared. `begins`: the first offset of the work that was folded. `below`: the offset of the last
    TRUNCATE before these rows: older rows of the table go in the same commit. `readings`: of dumps, whose ghosts go in
    it too. `withhold` gets, before the commit, the keys of rows with an unknown value. `mends`: columns in which a row
    of the table that has the offset of the folded row is compared with it (none: such a row is trusted).
    `is_left`: the table `is_as_left`, and is not read again; raises Overtaken where others have committed since.
    Raises TableRefused for a table that has what is not written here, LeaseLost where another may merge.
    """
    write_rows = partial(
        _write,
        table,
        schema,
        app,
        number,
        merged=merged,
        is_left=is_left,
        begins=begins,
        below=below,
        readings=readings,
        mends=mends,
    )
    if rows.withheld:
        for part in rows:
            withhold(keys_of(part.filter(pc.equal(part["op"], WITHHOLD)), schema))

    def withhold_rows(at: Rows) -> None:
        first = 0
        for part in rows:
            within = at[(at >= first) & (at < first + len(part))] - first
            withhold(keys_of(part.take(pa.array(within)), schema))
            first += len(part)

    with rows.lock():
        return write_rows(rows, withhold=withhold_rows)


def _write(
    table: OpenTable,
    schema: TableSchema,
    app: str,
    number: int,
    parts: Iterable[pa.Table],
    *,
    merged: int,
    withhold: Callable[[Rows], None],
    is_left: bool,
    begins: int | None,
    below: int | None,
    readings: Sequence[Reading],
    mends: Collection[str],
) -> Upserted:
    for _ in range(_SHAPES):
        shape = table.check_shape() if is_left else table.refresh()
        if (last_number := table.snapshot.txns.get(app, -1)) >= number:
            raise log.already_committed(table.files.root, number, last_number)
        metadata = table.snapshot.metadata
        change = partial(
            changes_of, schema=schema, shape=shape, where=str(table.files), merged=merged, begins=begins, mends=mends
        )
        changes = _Parts(parts, change)
        try:
            done = upsert(
                table,
                changes,
                app,
                number,
                withhold=withhold,
                below=below,
                readings=readings,
                is_fresh=True,
                gives_up=is_left,
            )
        except LakeError:
            if table.snapshot.metadata == metadata:
                raise
            continue  # somebody has given the table another shape
        if (last_number := table.snapshot.txns.get(app, -1)) != number:
            raise log.already_committed(table.files.root, number, last_number)
        return done
    raise LakeError(
        "the table's shape changes all the time", where=str(table.files), fix="see who alters it; it is tried again"
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The changes that folded rows are, part by part, each time that they are gone through."""

    rows: Iterable[pa.Table]
    change: Callable[[pa.Table], Changes]

    def __iter__(self) -> Iterator[Changes]:
        return map(self.change, self.rows)


def changes_of(
    rows: pa.Table,
    schema: TableSchema,
    shape: Shape,
    where: str,
    *,
    merged: int,
    begins: int | None = None,
    mends: Collection[str] = (),
) -> Changes:
    """The changes that folded rows are, in the table's columns: NULL in those that the source has dropped.

    `merged`, `begins` and `mends`: as for `write`.
    """
    names = {c.name for c in schema.columns}
    if lacking := {*names, *_PROVENANCE} - set(shape.names):
        raise refusal(
            where,
            f"it lacks the column {', '.join(sorted(lacking))}",
            "give it the column again, or run `dblog reset` for the table: it is built again by a dump",
        )
    image = join_chunks(rows["row"])
    key = join_chunks(rows["key"])
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    texts = _texts_of_variants(schema, shape)
    for column in shape:
        if column.name in schema.key:
            columns[column.name] = pc.struct_field(key, key.type.get_field_index(column.name))
        elif column.name in names:
            columns[column.name] = pc.struct_field(image, image.type.get_field_index(column.name))
        elif column.name in _PROVENANCE:
            columns[column.name] = rows[_PROVENANCE[column.name]]
        elif column.name in texts:
            text = texts[column.name]
            columns[column.name] = encode_texts(pc.struct_field(image, image.type.get_field_index(text)))
        else:
            columns[column.name] = pa.nulls(len(rows), column.type)
    dumped = pc.or_(pc.equal(rows["origin"], "dump"), pc.less_equal(rows["offset"], merged))
    return Changes(
        pa.table(columns),
        deleted=np.asarray(pc.not_equal(rows["op"], PUT)),
        guarded=np.asarray(dumped),
        same=[*(c.name for c in schema.columns if not mends or c.name in mends), *texts],
        unchanged_toast=_masks_of_unchanged(rows["unchanged_toast"], schema, texts),
        origins=_origins(rows, schema),
        origins_before=begins,
        born=np.asarray(rows["inserted"]),
        born_at=np.asarray(rows["born_at"]) if "born_at" in rows.column_names else None,
        mends=bool(mends),
    )


def _texts_of_variants(schema: TableSchema, shape: Shape) -> dict[str, str]:
    """By each VARIANT of the table the column of the JSON text that it is made of."""
    names = {variant_name(c.name): c.name for c in schema.columns}
    return {c.name: names[c.name] for c in shape if c.type == VARIANT and c.name in names}


def _masks_of_unchanged(
    unchanged: pa.ChunkedArray, schema: TableSchema, texts: Mapping[str, str]
) -> dict[str, npt.NDArray[np.bool_]]:
    """By column the rows that keep their value in it; a VARIANT (`texts`) is kept with its text."""
    masks = {c.name: mask for c in schema.columns if (mask := mask_named(unchanged, c.name)).any()}
    return masks | {variant: masks[text] for variant, text in texts.items() if text in masks}


def _origins(rows: pa.Table, schema: TableSchema) -> pa.Table | None:
    """The keys whose rows have what the changes keep; None where those are the changes' own."""
    if "origin_key" not in rows.column_names:
        return None
    origin = join_chunks(rows["origin_key"])
    key = join_chunks(rows["key"])
    is_kept = rows["unchanged_toast"].is_valid().combine_chunks()
    parts = [key.type.get_field_index(name) for name in schema.key]
    pairs = [(pc.struct_field(origin, part), pc.struct_field(key, part)) for part in parts]
    return pa.table([pc.if_else(is_kept, old, new) for old, new in pairs], names=list(schema.key))


def is_empty(table: OpenTable) -> bool:
    """Whether the table has no row, by its log and the metadata of its files."""
    table.refresh()
    for live in table.snapshot.files.values():
        dead = table.dead_rows(live)
        if len(dead) < stored_count(table.files, live, dead):
            return False
    return True


def find_keys(table: OpenTable, keys: Sequence[Key], schema: TableSchema) -> list[Key]:
    """Those of the keys that the table has, by its index."""
    shape = table.refresh()
    columns = zip(schema.key_columns, zip(*keys, strict=True), strict=True)
    asked = pa.table({column.name: pa.array(values, column.type) for column, values in columns})
    hits = table.hits(table.key_arrays(asked, shape), shape, distinct=False)
    return [keys[number] for number in sorted({number for hit in hits for number in hit.change_numbers.tolist()})]


def keys_of(rows: pa.Table, schema: TableSchema) -> list[Key]:
    """The keys of folded rows."""
    key = join_chunks(rows["key"])
    return key_tuples([pc.struct_field(key, key.type.get_field_index(name)) for name in schema.key])


def deleted_keys(rows: FoldedRows, among: Collection[Key], schema: TableSchema) -> set[Key]:
    """Those of these keys that go."""
    return _find_among(rows, among, schema, pc.equal)


def living_keys(rows: FoldedRows, among: Collection[Key], schema: TableSchema) -> set[Key]:
    """Those of these keys that have a row at the end, withheld ones too."""
    return _find_among(rows, among, schema, pc.not_equal)


def _find_among(
    rows: FoldedRows, among: Collection[Key], schema: TableSchema, compare_to_delete: Callable[..., pa.ChunkedArray]
) -> set[Key]:
    found_keys: set[Key] = set()
    for part in rows:  # of the keys of a part only those asked for stay in memory
        found_keys |= set(among).intersection(keys_of(part.filter(compare_to_delete(part["op"], DELETE)), schema))
    return found_keys
