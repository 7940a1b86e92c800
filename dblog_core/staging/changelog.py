"""The super-changelog on storage: manifests published in order, schema versions, chunk files, segments to fill."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dblog_core.errors import CorruptSegment, SegmentReplaced, SegmentTaken, StagingError
from dblog_core.model.schema import TableSchema
from dblog_core.rows.disk_spool import SpoolFile
from dblog_core.staging import inline_rows, log_start, manifest_runs, parquet
from dblog_core.staging.compaction_blocks import Block, manifest_path
from dblog_core.staging.inline_rows import OPTIONAL
from dblog_core.staging.log_start import Beginning
from dblog_core.staging.manifest import ChunkRef, DataFile, Manifest
from dblog_core.staging.manifest_file import decode_manifest, encode_manifest
from dblog_core.staging.manifest_runs import Run
from dblog_core.staging.published_segments import PublishedSegments
from dblog_core.staging.row_format import log_schema
from dblog_core.staging.schema_history import TableVersions
from dblog_core.staging.segment import SegmentWriter, safe_name
from dblog_core.storage import Storage
from dblog_core.storage.factory import open_storage

_LOG_FILE = re.compile(r"log/(\d{20})-")
_WHOLE_BYTES = 64 << 20
"""Of a staged file that is read into memory as it is."""
_PART_BYTES = 8 << 20
"""Of a larger one, which are read at once."""


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A durable chunk file: `path` relative to the staging root, `checksum` over its bytes."""

    path: str
    rows: int
    bytes: int
    checksum: str


class Staging:
    """The super-changelog of one source, in the directory ROOT/SOURCE, so that sources can share a ROOT.

    `root`: a directory; or `storage`, whose root is ROOT/SOURCE.
    """

    def __init__(self, root: str = "", *, source: str, storage: Storage | None = None) -> None:
        self.source = source
        self.storage: Storage = storage or open_storage(root, source)
        self._segments = PublishedSegments(self.storage)
        self._versions = TableVersions(self.storage)
        self._durable = 0  # manifests up to this number are known to survive a loss of power

    def handle(self) -> Staging:
        """The same super-changelog for another thread."""
        return Staging(source=self.source, storage=self.storage)

    def publish(self, manifest: Manifest) -> None:
        """Makes the segment part of the super-changelog; its files are durable already.

        Raises SegmentTaken if the number is another capture's. After StagingUnavailable it is right to call it again
        with the same manifest, even if the first call got through.
        """
        number = manifest.segment
        self._check_predecessor(number)
        path = manifest_path(number)
        data = encode_manifest(manifest)
        created = self.storage.create(path, data)
        if not created and self.storage.read(path) != data:
            raise self._taken_error(number)
        if self._segments.find_block_over(number) is not None or number < self.beginning().segment:
            # Published long ago, and removed since it was joined with others, or has grown old: this one is nobody's.
            if created:
                self.storage.remove(path)
            raise self._taken_error(number)
        if not created:
            self.storage.settle(path)
        self._segments.note(number)
        self._durable = max(self._durable, number)

    def _taken_error(self, number: int) -> SegmentTaken:
        return SegmentTaken(
            f"segment {number} has been published by another capture",
            where=self.storage.url(""),
        )

    def _check_predecessor(self, number: int) -> None:
        if number > 1 and not self.is_published(number - 1):
            if number <= self.beginning().segment:
                raise self._taken_error(number)
            raise StagingError(
                f"segment {number} cannot be published: segment {number - 1} is missing",
                where=self.storage.url(""),
                fix="restore the manifests from a backup; or begin a fresh staging directory and dump all tables",
            )
        if number == 1 and not self.is_published(1) and (first := self.first_number()):
            raise SegmentTaken(
                f"the super-changelog now begins at segment {first}",
                where=self.storage.url(""),
                fix="start the capture again",
            )

    def head(self) -> Manifest | None:
        """The newest manifest; None before the first."""
        number = self.head_number()
        return self.manifest(number) if number else None

    def head_number(self) -> int:
        """The newest segment's number (0: none): few probes, since numbers have no gap and we know one that existed."""
        return self._segments.find_newest()

    def first_number(self) -> int:
        """The oldest segment's number that retention has left (0: none); numbers have no gap above it."""
        return self._segments.find_oldest()

    def is_published(self, number: int) -> bool:
        """Whether there is a segment of that number: a few probes."""
        return self._segments.has(number)

    def beginning(self) -> Beginning:
        """Where the super-changelog begins, as retention has recorded it. Raises CorruptSegment if that is altered."""
        return log_start.read_beginning(self.storage)

    def identity(self) -> str | None:
        """Its random name, which a copy has too; None: no capture has given it one yet. Raises CorruptSegment."""
        return log_start.read_identity(self.storage)

    def create_identity(self) -> str:
        """Its random name, durably; it gets one if it has none."""
        return log_start.create_identity(self.storage)

    def begin_at(self, beginning: Beginning) -> None:
        """Records what retention has decided, durably: from now on nothing before it counts."""
        log_start.write_beginning(self.storage, beginning)

    def manifest(self, number: int) -> Manifest:
        """The segment's manifest, or the one of the block that it lies in.

        Raises CorruptSegment if it is missing, cut short, altered or of a newer format.
        """
        if (manifest := self._read(number)) is None:
            where = self.storage.url(manifest_path(number))
            self._check_segment(number, where)
            raise CorruptSegment(f"segment {number} is missing", where=where, fix="restore it from a backup")
        return manifest

    def check_begun(self, offset: int) -> None:
        """Raises CorruptSegment if retention has removed what stood at the offset."""
        if offset < (begins := self.beginning()).offset:
            raise begins.removal_error(f"what stood at offset {offset}", self.storage.url(""))

    def _check_segment(self, number: int, where: str) -> None:
        if number < (begins := self.beginning()).segment:
            raise begins.removal_error(f"segment {number}", where)

    def manifests(self, after: int = 0, upto: int | None = None, *, comes_again: bool = False) -> Iterator[Manifest]:
        """Segments after `after` up to `upto` (None: the newest), in order, also while more are published.

        One manifest may stand for several; it is cut to what was asked for. Some are read ahead: those that were
        published when this was called are all there. Raises CorruptSegment where a segment is missing and later ones
        are known to be there, or where retention has removed what comes next: nothing is skipped.

        `comes_again`: the caller will ask for what follows. So once it has got the end of a transaction, this may end
        at a segment that is not there by a single look.
        """
        number = after + 1
        is_served = False
        width = manifest_runs.FIRST_WIDTH
        while upto is None or number <= upto:
            end = manifest_runs.end_of_run(number, width)
            run = self._read_run(number, end if upto is None else min(end, upto), asks_end=not comes_again)
            for block, data in run.parts:
                manifest = self._decode(block, data)
                self._segments.note(manifest.segment)
                yield manifest.cut(after=number - 1, upto=upto)
                number = block.last + 1
                is_served = is_served or (comes_again and not manifest.partial)
            width = min(2 * width, manifest_runs.MOST_WIDTH)
            if run.is_cut_off and is_served:
                return
            if run.is_cut_off and not (comes_again and run.parts):
                if self._is_end(number, has_read=number > after + 1):
                    return
                manifest = self.manifest(number)  # published since, or lost
                self._segments.note(manifest.segment)
                yield manifest.cut(after=number - 1, upto=upto)
                number = manifest.segment + 1

    def _is_end(self, number: int, *, has_read: bool) -> bool:
        """Whether the super-changelog ends before a segment that was not there a moment ago. `has_read`: its
        predecessor was there. Raises CorruptSegment where retention has removed it."""
        is_next = has_read or (number > 1 and self.storage.exists(manifest_path(number - 1)))
        self._segments.note(number - 1)
        if (not is_next or self._segments.newest_known >= number) and self.head_number() >= number:
            return False
        self._check_segment(number, self.storage.url(manifest_path(number)))
        return True

    def segment_of(self, offset: int, head: Manifest) -> int:
        """The first segment that reaches up to `offset`: last offsets never fall from one segment to the next."""
        low = self.first_number()
        high = head.segment
        while low < high:
            manifest = self.manifest((low + high) // 2)
            if manifest.last_offset < offset:
                low = manifest.segment + 1
            elif manifest.first <= low or manifest.first_offset <= offset:
                candidates = range(max(low, manifest.first), manifest.segment + 1)
                return next(number for number in candidates if manifest.end_of(number) >= offset)
            else:
                high = manifest.first - 1 if manifest.first_offset > offset else manifest.first
        return low

    def _read(self, number: int) -> Manifest | None:
        """Of a block if one stands for the segment. What is read again is what was joined in between."""
        parts = self._read_run(number, number).parts
        return self._decode(*parts[0]) if parts else None

    def _read_run(self, first: int, last: int, *, asks_end: bool = True) -> Run:
        """The manifests from segment `first` on, up to `last` or before it, each known to stay."""
        run = manifest_runs.read_run(self.storage, self._segments, first, last, asks_end=asks_end)
        for place, (block, _) in enumerate(run.parts):
            if block.level or block.last <= self._durable:
                continue
            # Its capture may stand still right before it makes the name durable: if power fails then, another segment
            # gets this number, and a reader that has acted on this one has acted on what never was.
            try:
                self.storage.settle(block.path)
            except StagingError:
                if not place:
                    raise
                return Run(run.parts[:place])
            self._durable = block.last
        return run

    def part(self, block: Block) -> Manifest | None:
        """The manifest of just this block, whatever it is joined into; None if it is not there."""
        data = self.storage.read(block.path)
        return None if data is None else self._decode(block, data)

    def _decode(self, block: Block, data: bytes) -> Manifest:
        return decode_manifest(data, block, source=self.source, where=self.storage.url(block.path))

    def put_schema(self, *schemas: TableSchema) -> None:
        """Stores table versions, durable when it returns; the same again is no error. Many at once take the time of
        few."""
        self._versions.put(schemas)

    def schema(self, fingerprint: str) -> TableSchema:
        """The stored table version. Raises CorruptSegment if it is missing or altered."""
        return self._versions.read(fingerprint)

    def holds(self, fingerprint: str, chunk: str | None) -> bool:
        """Whether the table version is stored, and the chunk file (None: there is none to look for)."""
        return self._versions.has(fingerprint) and (chunk is None or self.storage.exists(chunk))

    def write_chunk(self, directory: str, name: str, rows: pa.RecordBatch) -> ChunkFile:
        """Writes chunks/DIRECTORY/NAME.parquet; durable when it returns. `directory`: parts divided by /."""
        if not rows.num_columns:
            raise StagingError(
                "a chunk has no column to stage", where=directory, fix="exclude fewer columns of the table"
            )
        parts = [safe_name(part) for part in directory.removeprefix("chunks/").split("/")]
        path = "/".join(["chunks", *parts, f"{safe_name(name.removesuffix('.parquet'))}.parquet"])
        data = parquet.encode(rows.schema, [rows])
        self.storage.replace(path, data)
        return ChunkFile(path, len(rows), data.size, parquet.checksum(data))

    def read_chunk(self, path: str, *, checksum: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a chunk or log file. Raises CorruptSegment if it is missing, or not what `checksum` says."""
        where = self.storage.url(path)
        file = parquet.open_file(self.read_file(path), expected=checksum, where=where)
        return pa.Table.from_batches(
            list(parquet.batches(file, where=where, columns=columns)),
            schema=file.schema_arrow if columns is None else pa.schema([file.schema_arrow.field(c) for c in columns]),
        )

    def log_batches(
        self, file: DataFile, *, columns: Sequence[str] | None = None, after: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """The log rows that the file stands for, with offsets above `after`, in batches with all columns of a log file.

        Raises CorruptSegment if it is missing, altered, or of another table version.
        """
        first = max(file.first_offset, after + 1)
        for batch in self._log_rows(file):
            start, stop = np.searchsorted(batch.column("offset").to_numpy(), [first, file.last_offset + 1])
            if stop > start:
                rows = batch.slice(int(start), int(stop - start))
                yield rows if columns is None else rows.select(list(columns))

    def rows(self, file: DataFile) -> pa.Table:
        """All the log rows that the file stands for, as `log_batches` gives them."""
        return pa.Table.from_batches(list(self.log_batches(file)), log_schema(self.schema(file.schema)))

    def _log_rows(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """All rows of the file."""
        whole = log_schema(self.schema(file.schema))
        if not file.path:
            yield inline_rows.decode(file.inline, whole, where=f"rows {file.first_offset} to {file.last_offset}")
            return
        where = self.storage.url(file.path)
        with self.open_file(file) as opened:
            have = set(opened.schema_arrow.names)
            if not opened.schema_arrow.equals(
                pa.schema([f for f in whole if f.name in have or f.name not in OPTIONAL])
            ):
                raise CorruptSegment(
                    "has other columns than its table version", where=where, fix="restore it from a backup"
                )
            for batch in parquet.batches(opened, where=where):
                yield inline_rows.complete(batch, whole)

    @contextmanager
    def open_file(self, file: DataFile | ChunkRef) -> Iterator[pq.ParquetFile]:
        """A log file or a chunk, its bytes compared with the manifest's checksum. A large one waits on the local disk.

        Raises as `read_file`, CorruptSegment where the file was changed, LakeError where the disk has no room.
        """
        where = self.storage.url(file.path)
        if file.bytes <= _WHOLE_BYTES:
            yield parquet.open_file(self.read_file(file.path), expected=file.checksum, where=where)
            return
        spool = SpoolFile()
        while data := self.storage.read_part(file.path, spool.size, _PART_BYTES):
            spool.append(data)
        if data is None:
            raise self._missing_error(file.path)
        yield parquet.open_large_file(spool.file, expected=file.checksum, where=where)

    def read_file(self, path: str) -> bytes:
        """The bytes of a file that a manifest names.

        Raises CorruptSegment if it is missing, SegmentReplaced if that is so since its segment was joined with others.
        """
        if (data := self.storage.read(path)) is not None:
            return data
        raise self._missing_error(path)

    def _missing_error(self, path: str) -> CorruptSegment | SegmentReplaced:
        """What has become of a file that a manifest names."""
        where = self.storage.url(path)
        name = _LOG_FILE.match(path)
        if name:
            self._check_segment(int(name[1]), where)
        now = self._read(int(name[1])) if name else None
        if now is not None and path not in {file.path for file in now.files}:
            return SegmentReplaced(
                f"segment {now.segment} was joined with others while it was read",
                where=where,
            )
        return CorruptSegment("the file is missing", where=where, fix="restore it from a backup")

    def open_segment(self, number: int, epoch: int) -> SegmentWriter:
        return SegmentWriter(self.storage, number, epoch)
