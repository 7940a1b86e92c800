"""What a merge applies: a span of segments, and each table's share of it. Plain Python on manifests; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dblog_core.errors import CorruptSegment
from dblog_core.model.events import FINISHED, SCHEMA, TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile, LogMark, Manifest, is_full

MAX_ROWS = 500_000
MAX_BYTES = 256 << 20
_MOST_KEPT = 10_000
"""Files, chunks and marks of manifests that stay in memory from the look for a span to the planning of its shares."""


@dataclass(frozen=True, slots=True)
class Span:
    """Segments `first` to `last`, ending between transactions; `offset`: the last one of it. `sealed_at`
    (microseconds): when segment `last` was sealed; None: nobody recorded it."""

    first: int
    last: int
    first_offset: int
    offset: int
    position: str
    commit_time: int | None
    sealed_at: int | None = None

    def to_json(self) -> dict[str, Any]:
        # What is new is left out where there is none: older versions know no such field.
        return {name: value for name, value in asdict(self).items() if name != "sealed_at" or value is not None}


@dataclass(frozen=True, slots=True)
class Work:
    """A table's share of a span. `schema`: the fingerprint of its newest shape at the end of it."""

    table: str
    schema: str
    files: tuple[DataFile, ...] = ()
    chunks: tuple[ChunkRef, ...] = ()
    truncates: tuple[LogMark, ...] = ()
    finished: tuple[LogMark, ...] = ()
    reshaped: tuple[LogMark, ...] = ()
    """New shapes of it, in order."""
    floor: int | None = None
    """Rows up to this offset are left out: a full dump that finished later says all about them (`from_dump`)."""

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files) + sum(c.rows - len(c.evicted) for c in self.chunks)

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files) + sum(c.bytes for c in self.chunks)

    @property
    def schemas(self) -> list[str]:
        """Fingerprints of all the versions that its rows were written with, newest last."""
        seen = dict.fromkeys([f.schema for f in self.files] + [c.schema for c in self.chunks])
        # The newest one goes last, wherever it was met.
        seen.pop(self.schema, None)
        return [*seen, self.schema]

    @property
    def renames(self) -> Renames:
        """The renames of columns that some of its rows lie before."""
        return Renames.of(self.reshaped)

    def with_nulls_alone(self) -> Work:
        """The work without the values of added columns, NULL apart: for a history, which takes them from a dump."""
        marks = (replace(m, filled={n: None for n, v in (m.filled or {}).items() if v is None}) for m in self.reshaped)
        return replace(self, reshaped=tuple(marks))

    def without_proofs(self) -> Work:
        """The work without what is proven of its shapes: for a lake that does not follow them."""
        return replace(self, reshaped=tuple(replace(m, renamed=None, filled=None) for m in self.reshaped))

    def shapes(self, schema: Callable[[str], TableSchema]) -> list[TableSchema]:
        """The shapes of all its rows, with the column names that they have by its end. `schema`: of a fingerprint."""
        renames = self.renames
        written = [(f.schema, part.first_offset) for f in self.files for part in split_at_renames(f, renames)]
        written += [(c.schema, c.first_offset) for c in self.chunks]
        shapes = [renames.after(offset).rename_columns(schema(fingerprint)) for fingerprint, offset in written]
        return list({shape.fingerprint: shape for shape in shapes}.values())

    @property
    def first_offset(self) -> int | None:
        """The first offset of its rows; None where it has none."""
        return min((part.first_offset for parts in (self.files, self.chunks) for part in parts), default=None)

    def reaches_below(self, offset: int) -> bool:
        """Whether it has a row up to this offset."""
        return self.first_offset is not None and self.first_offset <= offset

    @property
    def last_offset(self) -> int:
        """The last offset of its rows and marks."""
        rows = [f.last_offset for f in self.files] + [c.first_offset + c.rows - 1 for c in self.chunks]
        return max([0, *rows, *(m.offset for m in (*self.truncates, *self.finished, *self.reshaped))])

    @property
    def last_truncate(self) -> int | None:
        """The offset of the last TRUNCATE."""
        return max((m.offset for m in self.truncates), default=None)

    @property
    def ends_empty(self) -> bool:
        """Whether a TRUNCATE, or what counts as one, is the last thing that it has: all its rows vanish."""
        return self.last_truncate is not None and self.last_truncate >= self.last_offset

    def without_rows(self, schema: str) -> Work:
        """The work of a table that `ends_empty`, where the lake table keeps the shape `schema`."""
        return replace(self, schema=schema, files=(), chunks=(), reshaped=())

    @property
    def removed_upto(self) -> int:
        """Rows up to this offset vanish."""
        return max(self.last_truncate or 0, self.floor or 0)


def split_at_renames(file: DataFile, renames: Renames) -> list[DataFile]:
    """The parts of a file between the renames, so that all rows of each take part in the same ones."""
    ends = [s.offset for s in renames.steps if file.first_offset <= s.offset < file.last_offset]
    starts = [file.first_offset, *(end + 1 for end in ends)]
    return [file.cut(first, last) for first, last in zip(starts, [*ends, file.last_offset], strict=True)]


def next_span(manifests: Iterable[Manifest], *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> Span | None:
    """The longest span within the limits, at least to the first end of a transaction. None: nothing whole is sealed."""
    best: Span | None = None
    first: Manifest | None = None
    rows = size = 0
    for manifest in manifests:
        first = first or manifest
        rows += sum(f.rows for f in manifest.files) + sum(c.rows for c in manifest.chunks)
        size += sum(f.bytes for f in manifest.files) + sum(c.bytes for c in manifest.chunks)
        # The limits never cut a transaction: the first whole one is taken whatever its size.
        if best is not None and (rows > max_rows or size > max_bytes):
            break
        # Its last transaction ends in it, so a merge may stop here.
        if manifest.partial == 0:
            best = Span(
                first.first,
                manifest.segment,
                first.first_offset,
                manifest.last_offset,
                manifest.log_position,
                manifest.commit_time,
                manifest.sealed_at_of(manifest.segment),
            )
    return best


class KeptManifests:
    """The manifests that a look for a span has read, for the planning of its shares, if they are few."""

    def __init__(self) -> None:
        self._manifests: list[Manifest] = []
        self._entries = 0

    def add(self, manifest: Manifest) -> None:
        """Takes in the next one."""
        self._entries += len(manifest.files) + len(manifest.chunks) + len(manifest.marks)
        self._manifests = [*self._manifests, manifest] if self._entries <= _MOST_KEPT else []

    def take(self, after: int, upto: int) -> list[Manifest] | None:
        """Those of the segments behind `after` up to `upto`, once; None where they are not all here."""
        manifests = [manifest for manifest in self._manifests if manifest.segment <= upto]
        self._manifests = []
        is_whole = bool(manifests) and (manifests[0].first, manifests[-1].segment) == (after + 1, upto)
        return manifests if is_whole else None


def next_sound_span(
    staging: Staging,
    after: int,
    upto: int | None,
    *,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    kept: KeptManifests | None = None,
) -> Span | None:
    """What is sealed and whole behind segment `after`, up to a segment that is damaged; raises CorruptSegment where
    that is the next. `kept` gets the manifests that it reads."""
    damage: list[CorruptSegment] = []

    def sound() -> Iterator[Manifest]:
        try:
            for manifest in staging.manifests(after=after, upto=upto, comes_again=True):
                if kept is not None:
                    kept.add(manifest)
                yield manifest
        except CorruptSegment as error:
            damage.append(error)

    span = next_span(sound(), max_rows=max_rows, max_bytes=max_bytes)
    if span is None and damage:
        raise damage[0]
    return span


@dataclass(slots=True)
class _Share:
    files: list[DataFile] = field(default_factory=list)
    chunks: list[ChunkRef] = field(default_factory=list)
    marks: list[LogMark] = field(default_factory=list)
    schema: str = ""

    def add_manifest(self, table: str, manifest: Manifest) -> None:
        files = [f for f in manifest.files if f.table == table]
        chunks = [c for c in manifest.chunks if c.table == table]
        marks = [m for m in manifest.marks if m.table == table]
        self.files += files
        self.chunks += chunks
        self.marks += marks
        # The manifest's own schemas are those at its end; a cut piece of one may have marks or rows alone.
        marked = [m.schema for m in marks if m.schema]
        seen = [x.schema for part in (files, chunks) for x in part]
        newest = [manifest.schemas.get(table), *marked[-1:], self.schema, *seen]
        self.schema = next((schema for schema in newest if schema), "")


def plan_works(
    manifests: Iterable[Manifest], after: Callable[[str], int], upto: Callable[[str], int | None] = lambda table: None
) -> dict[str, Work]:
    """Each table's share. `after(table)`: the segment up to which the table is merged already; `upto(table)`: that with
    which its share ends; None: with the last one."""
    shares: dict[str, _Share] = {}
    for manifest in manifests:
        for table in _tables(manifest):
            start = after(table)
            end = upto(table)
            if manifest.segment <= start or (end is not None and manifest.first > end):
                continue
            # A compacted segment may begin before the table's place, or end behind its share: only its part counts.
            if table in _tables(part := manifest.cut(after=start, upto=end)):
                shares.setdefault(table, _Share()).add_manifest(table, part)
    # Of a table without a shape no row was ever staged: it was emptied, or dropped, before it had any.
    return {table: _make_work(table, share) for table, share in shares.items() if share.schema}


def _tables(manifest: Manifest) -> dict[str, None]:
    """Tables that it says something of, in order."""
    return dict.fromkeys(x.table for part in (manifest.files, manifest.chunks, manifest.marks) for x in part)


def _make_work(table: str, share: _Share) -> Work:
    return Work(
        table=table,
        schema=share.schema,
        files=tuple(share.files),
        chunks=tuple(share.chunks),
        truncates=tuple(m for m in share.marks if m.op == TRUNCATE),
        finished=tuple(m for m in share.marks if m.op == FINISHED),
        reshaped=tuple(m for m in share.marks if m.op == SCHEMA),
    )


def lacks_before(work: Work, lake_schema: str | None, columns: Callable[[str], Collection[str]]) -> int | None:
    """The offset before which rows lack values of columns that were added; None: of none that nobody brings.

    `lake_schema`: the fingerprint of what the lake had; `columns`: the names that a fingerprint stands for. What an
    added column holds in rows that are there, the log says only where it is proven. A full dump that began later brings
    it.
    """
    emptied = work.last_truncate or 0  # what the table had before, it does not have any more
    shapes = [(0, lake_schema)] if lake_schema is not None and not emptied else []
    shapes += [(max(f.first_offset, emptied), f.schema) for f in work.files if f.last_offset > emptied]
    shapes += [(c.first_offset, c.schema) for c in work.chunks if c.first_offset > emptied]
    shapes += [(m.offset, m.schema) for m in work.reshaped if m.schema is not None and m.offset > emptied]
    newest = set(columns(work.schema))
    added = None
    renames = work.renames

    def has_all_columns(offset: int, shape: str) -> bool:
        later = renames.after(offset)
        return newest.issubset({*map(later.current_name, columns(shape)), *later.columns_with_known_value})

    for offset, shape in sorted(shapes):
        if not has_all_columns(offset, shape):
            added = None
        elif added is None:
            added = offset
    if all(has_all_columns(offset, shape) for offset, shape in shapes):
        return None
    added = work.last_offset if added is None else added
    full = [m for m in work.finished if m.key_from is None and m.key_to is None]
    return None if any(m.since is not None and m.since >= added for m in full) else added


def last_unlogged_rewrite(work: Work) -> LogMark | None:
    """The last place where rows came or went without row events (an s mark that names the dump which brings the table
    as it is since), if that dump, or one that began later, has not ended within the work."""
    emptied = work.last_truncate or 0
    marks = [mark for mark in work.reshaped if mark.dump is not None and mark.offset > emptied]
    full = [m for m in work.finished if m.key_from is None and m.key_to is None]
    if not marks or any(m.dump == marks[-1].dump or (m.since or 0) >= marks[-1].offset for m in full):
        return None
    return marks[-1]


def lacks_since(work: Work, before: int | None) -> int | None:
    """The offset at or after which a full dump must begin that brings what the table lacks; None: it lacks nothing.

    `before`: the same before the work (0: nobody knows what the table held when its log began here). What was there is
    known where the table had no row at some place in the work, or where a full dump has ended in it.
    """
    lacks = before
    # In the log's order: each mark may make up for what one before it said.
    for mark in sorted((*work.truncates, *work.finished, *work.reshaped), key=lambda m: m.offset):
        if mark.op == SCHEMA and mark.whole is not None:
            lacks = None if mark.whole else mark.offset
        # An emptied table lacks nothing, whatever it lacked before.
        elif mark.op == TRUNCATE or (lacks is not None and is_full(mark) and (mark.since or 0) >= lacks):
            lacks = None
    return lacks


def from_dump(work: Work) -> Work:
    """The work of a table that the lake does not have: what a full dump covers, older shapes included, is left out.

    Every key that lives at the dump's end has a whole row after `since`, or one whose missing columns changed after it.
    """
    full = [m for m in work.finished if m.key_from is None and m.key_to is None]
    floor = max((m.since for m in full if m.since is not None), default=None)
    if floor is None:
        return work
    return replace(
        work,
        files=tuple(f for f in work.files if f.last_offset > floor),
        chunks=tuple(c for c in work.chunks if c.first_offset + c.rows - 1 > floor),
        floor=floor,
    )


def chunks_seen(manifests: Iterable[Manifest], mark: LogMark) -> list[ChunkRef]:
    """The chunks whose keys are no ghosts of the dump that `mark` ends: all of its own, and of other dumps those that
    were placed since it began. Where the lake had such a row already, it keeps the older offset."""
    chunks = (c for m in manifests for c in m.chunks if c.table == mark.table)
    return [c for c in chunks if c.dump == mark.dump or (mark.since is not None and c.first_offset > mark.since)]
