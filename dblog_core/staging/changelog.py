"""The super-changelog on storage: manifests published in order, schema versions, chunk files, segments to fill."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson
import pyarrow as pa

from dblog_core.errors import CorruptSegment, SegmentReplaced, SegmentTaken, StagingError
from dblog_core.model.schema import TableSchema
from dblog_core.staging import compaction_blocks, inline_rows, parquet
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.inline_rows import OPTIONAL
from dblog_core.staging.log_start import Beginning
from dblog_core.staging.manifest import DataFile, Manifest
from dblog_core.staging.segment import SegmentWriter, log_schema, safe_name
from dblog_core.storage import Storage
from dblog_core.storage.factory import open_storage

_MANIFEST = re.compile(r"(\d{20})\.json")
_LOG_FILE = re.compile(r"log/(\d{20})-")
_SEAL = re.compile(rb',"checksum":"([0-9a-f]{32})"\}\n')
_SEAL_SIZE = len(b',"checksum":""}\n') + 32
_BEGINNING = "beginning.json"


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
        self._head = 0  # the newest segment that we know of: where the next search begins
        self._durable = 0  # manifests up to this number are known to survive a loss of power
        self._schemas: dict[str, TableSchema] = {}

    def handle(self) -> Staging:
        """The same super-changelog for another thread."""
        return Staging(source=self.source, storage=self.storage)

    def publish(self, manifest: Manifest) -> None:
        """Makes the segment part of the super-changelog; its files are durable already.

        Raises SegmentTaken if the number is another capture's. After StagingUnavailable it is right to call it again
        with the same manifest, whether or not the first call got through.
        """
        number = manifest.segment
        self._check_predecessor(number)
        path, data = _manifest_path(number), encoded(manifest)
        created = self.storage.create(path, data)
        if not created and self.storage.read(path) != data:
            raise self._taken(number)
        if self._block_over(number) is not None or number < self.beginning().segment:
            # Published long ago, and removed since it was joined with others, or has grown old: this one is nobody's.
            if created:
                self.storage.remove(path)
            raise self._taken(number)
        if not created:
            self.storage.settle(path)
        self._head = max(self._head, number)
        self._durable = max(self._durable, number)

    def _taken(self, number: int) -> SegmentTaken:
        return SegmentTaken(
            f"segment {number} has been published by another capture",
            where=self.storage.url(""),
        )

    def _check_predecessor(self, number: int) -> None:
        if number > 1 and not self.published(number - 1):
            if number <= self.beginning().segment:
                raise self._taken(number)
            raise StagingError(
                f"segment {number} cannot be published: segment {number - 1} is missing",
                where=self.storage.url(""),
                fix="restore the manifests from a backup; or begin a fresh staging directory and dump all tables",
            )
        if number == 1 and not self.published(1) and (first := self.first_number()):
            raise SegmentTaken(
                f"the super-changelog begins at segment {first} by now",
                where=self.storage.url(""),
                fix="start the capture again",
            )

    def head(self) -> Manifest | None:
        """The newest manifest; None before the first."""
        number = self.head_number()
        return self.manifest(number) if number else None

    def head_number(self) -> int:
        """The newest segment's number (0: none): few probes, since numbers have no gap and we know one that existed."""
        if not (low := self._known()):
            return 0
        step = 1
        while self.published(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.published(middle) else (low, middle)
        self._head = low
        return low

    def _known(self) -> int:
        """A segment that is there (0: none). Never one from before the beginning: what a loss of power has brought
        back there has gaps."""
        if self._head and self.published(self._head):
            return self._head
        begins = self.beginning().segment
        return begins if self.published(begins) else max(self._listed(), default=0)

    def beginning(self) -> Beginning:
        """Where the super-changelog begins, as retention has recorded it. Raises CorruptSegment if that is altered."""
        if (data := self.storage.read(_BEGINNING)) is None:
            return Beginning()
        where = self.storage.url(_BEGINNING)
        try:
            return Beginning.from_json(orjson.loads(_unsealed(data, where)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSegment(
                f"does not tell where the super-changelog begins: {error}",
                where=where,
                fix="upgrade dblog, or restore the file from a backup",
            ) from error

    def begin_at(self, beginning: Beginning) -> None:
        """Records what retention has decided, durably: from now on nothing before it counts."""
        self.storage.replace(_BEGINNING, _sealed(orjson.dumps(beginning.to_json())))

    def first_number(self) -> int:
        """The oldest segment's number that retention has left (0: none); numbers have no gap above it."""
        begins = self.beginning().segment
        low, high = begins - 1, begins if self.published(begins) else self.head_number()
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.published(middle) else (middle, high)
        return high

    def published(self, number: int) -> bool:
        """Whether there is a segment of that number: a few probes."""
        return self.storage.exists(_manifest_path(number)) or self._block_over(number) is not None

    def _block_over(self, number: int) -> Block | None:
        """The largest block that stands for the segment; in this order of looking none is missed (`blocks`)."""
        found = None
        for block in compaction_blocks.over(number):
            if self.storage.exists(block.path):
                found = block
        return found

    def _listed(self) -> list[int]:
        """Numbers that are there, from the directories: where nothing is known, and retention has removed the first."""
        compacted = [block.last for name in self.storage.names("compacted") if (block := compaction_blocks.named(name))]
        return compacted or [int(m[1]) for name in self.storage.names("manifests") if (m := _MANIFEST.fullmatch(name))]

    def manifest(self, number: int) -> Manifest:
        """The segment's manifest, or the one of the block that it lies in.

        Raises CorruptSegment if it is missing, cut short, altered or of a newer format.
        """
        if (found := self._read(number)) is None:
            self._check_segment(number, self._where(number))
            raise CorruptSegment(
                f"segment {number} is missing",
                where=self._where(number),
                fix="restore it from a backup",
            )
        return found

    def check_begun(self, offset: int) -> None:
        """Raises CorruptSegment if retention has removed what stood at the offset."""
        if offset < (begins := self.beginning()).offset:
            raise _removed(f"what stood at offset {offset}", begins, self.storage.url(""))

    def _check_segment(self, number: int, where: str) -> None:
        if number < (begins := self.beginning()).segment:
            raise _removed(f"segment {number}", begins, where)

    def manifests(self, after: int = 0, upto: int | None = None) -> Iterator[Manifest]:
        """Segments after `after` up to `upto` (None: the newest), in order, also while more are published.

        One manifest may stand for several; it is cut to what was asked for. Raises CorruptSegment where a segment is
        missing and later ones are there: nothing is skipped.
        """
        number = after + 1
        while upto is None or number <= upto:
            found = self._read(number)
            if found is None:
                self._head = max(self._head, number - 1)
                if self.head_number() < number:
                    return
                found = self.manifest(number)  # published since, or lost
            self._head = max(self._head, found.segment)
            last = found.segment
            yield found.cut(after=number - 1, upto=upto)
            number = last + 1

    def segment_of(self, offset: int, head: Manifest) -> int:
        """The first segment that reaches up to `offset`: last offsets never fall from one segment to the next."""
        low, high = self.first_number(), head.segment
        while low < high:
            found = self.manifest((low + high) // 2)
            if found.last_offset < offset:
                low = found.segment + 1
            elif found.first <= low or found.first_offset <= offset:
                return next(n for n in range(max(low, found.first), found.segment + 1) if found.end_of(n) >= offset)
            else:
                high = found.first - 1 if found.first_offset > offset else found.first
        return low

    def _read(self, number: int) -> Manifest | None:
        """Of a block if one stands for the segment. What is read again is what was joined in between."""
        while True:
            data = self.storage.read(_manifest_path(number))
            if (block := self._block_over(number)) is not None:
                data = self.storage.read(block.path)
            if data is not None or block is None:
                break
        if data is None:
            return None
        if block is None and number > self._durable:
            # Its capture may stand still right before it makes the name durable: if power fails then, another segment
            # gets this number, and whoever has acted on this one has acted on what never was.
            self.storage.settle(_manifest_path(number))
            self._durable = number
        return self._decoded(block or Block(number, number), data)

    def part(self, block: Block) -> Manifest | None:
        """The manifest of just this block, whatever it is joined into; None if it is not there."""
        data = self.storage.read(block.path)
        return None if data is None else self._decoded(block, data)

    def _decoded(self, block: Block, data: bytes) -> Manifest:
        where = self.storage.url(block.path)
        body, end, tail = data.partition(b"\n")
        try:
            manifest = Manifest.from_json(orjson.loads(_unsealed(body + end, where)), tail)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptSegment(
                f"is no manifest that this version can read: {error}",
                where=where,
                fix="upgrade dblog, or restore the file from a backup",
            ) from error
        if (manifest.first, manifest.segment, manifest.source) != (block.first, block.last, self.source):
            raise CorruptSegment(
                f"holds segment {manifest.segment} of source {manifest.source}",
                where=where,
                fix="restore the file from a backup",
            )
        return manifest

    def _where(self, number: int) -> str:
        return self.storage.url(_manifest_path(number))

    def put_schema(self, schema: TableSchema) -> None:
        """Stores the table version, durable when it returns; the same again is no error."""
        fingerprint = schema.fingerprint
        if fingerprint not in self._schemas:
            path = _schema_path(fingerprint)
            if not self.storage.create(path, _sealed(orjson.dumps(schema.to_json()))):
                self.storage.settle(path)
            self._schemas[fingerprint] = schema

    def schema(self, fingerprint: str) -> TableSchema:
        """The stored table version. Raises CorruptSegment if it is missing or altered."""
        if (known := self._schemas.get(fingerprint)) is not None:
            return known
        where = self.storage.url(_schema_path(fingerprint))
        if (data := self.storage.read(_schema_path(fingerprint))) is None:
            raise CorruptSegment("the table version is missing", where=where, fix="restore the file from a backup")
        try:
            schema = TableSchema.from_json(orjson.loads(_unsealed(data, where)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSegment(
                f"is no table version: {error}", where=where, fix="restore the file from a backup"
            ) from error
        if schema.fingerprint != fingerprint:
            raise CorruptSegment(
                f"holds the table version {schema.fingerprint}", where=where, fix="restore the file from a backup"
            )
        self._schemas[fingerprint] = schema
        return schema

    def holds(self, fingerprint: str, chunk: str | None) -> bool:
        """Whether the table version is stored, and the chunk file (None: there is none to look for)."""
        known = fingerprint in self._schemas or self.storage.exists(_schema_path(fingerprint))
        return known and (chunk is None or self.storage.exists(chunk))

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
        file = parquet.opened(self.read_file(path), expected=checksum, where=where)
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
        opened = parquet.opened(self.read_file(file.path), expected=file.checksum, where=where)
        have = set(opened.schema_arrow.names)
        if not opened.schema_arrow.equals(pa.schema([f for f in whole if f.name in have or f.name not in OPTIONAL])):
            raise CorruptSegment(
                "has other columns than its table version", where=where, fix="restore it from a backup"
            )
        for batch in parquet.batches(opened, where=where):
            yield inline_rows.complete(batch, whole)

    def spilled(self, files: Sequence[DataFile]) -> list[DataFile]:
        """The same rows with a path for each file: those that lie in manifests, as one Parquet file a table version.

        For readers that know nothing but paths. The new files are the caller's to remove (`remove_spilled`).
        """
        return [f for f in files if f.path] + [self._spill(group) for group in _small(files).values()]

    def remove_spilled(self, files: Sequence[DataFile]) -> None:
        """Removes what `spilled` has made of these files."""
        for group in _small(files).values():
            self.storage.remove(_spill_path(group))

    def _spill(self, files: Sequence[DataFile]) -> DataFile:
        rows = [batch for file in files for batch in self.log_batches(file)]
        data = parquet.encode(log_schema(self.schema(files[0].schema)), rows)
        path = _spill_path(files)
        self.storage.replace(path, data)
        return replace(
            files[0],
            path=path,
            inline=b"",
            part=False,
            rows=sum(len(batch) for batch in rows),
            bytes=data.size,
            checksum=parquet.checksum(data),
            last_offset=files[-1].last_offset,
            has_unchanged=any(f.has_unchanged for f in files),
            has_moves=any(f.has_moves for f in files),
        )

    def read_file(self, path: str) -> bytes:
        """The bytes of a file that a manifest names.

        Raises CorruptSegment if it is missing, SegmentReplaced if that is so since its segment was joined with others.
        """
        if (data := self.storage.read(path)) is not None:
            return data
        where = self.storage.url(path)
        found = _LOG_FILE.match(path)
        if found:
            self._check_segment(int(found[1]), where)
        now = self._read(int(found[1])) if found else None
        if now is not None and path not in {file.path for file in now.files}:
            raise SegmentReplaced(
                f"segment {now.segment} was joined with others while it was read",
                where=where,
            )
        raise CorruptSegment("the file is missing", where=where, fix="restore it from a backup")

    def open_segment(self, number: int, epoch: int) -> SegmentWriter:
        return SegmentWriter(self.storage, number, epoch)


def _manifest_path(number: int) -> str:
    return f"manifests/{number:020d}.json"


def _removed(what: str, begins: Beginning, where: str) -> CorruptSegment:
    return CorruptSegment(
        f"{what} has been removed by retention: the super-changelog begins at segment {begins.segment}, "
        f"offset {begins.offset}",
        where=where,
        fix=f"read from offset {begins.offset} on; a lake that stands before it takes a dump of all tables",
    )


def _small(files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    """Those that lie in manifests, by table version."""
    found: dict[str, list[DataFile]] = {}
    for file in files:
        if not file.path:
            found.setdefault(file.schema, []).append(file)
    return found


def _spill_path(files: Sequence[DataFile]) -> str:
    name = hashlib.blake2b("".join(f.checksum for f in files).encode(), digest_size=16).hexdigest()
    return f"tmp/{name}-{files[0].first_offset}-{files[-1].last_offset}.parquet"


def _schema_path(fingerprint: str) -> str:
    return f"schemas/{fingerprint}.json"


def encoded(manifest: Manifest) -> bytes:
    """The manifest's file."""
    return _sealed(orjson.dumps(manifest.to_json())) + manifest.tail


def _sealed(body: bytes) -> bytes:
    """A JSON object with a checksum over all before it as its last member, so that a cut or flipped bit shows."""
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return body[:-1] + f',"checksum":"{digest}"}}\n'.encode()


def _unsealed(data: bytes, where: str) -> bytes:
    body, seal = data[:-_SEAL_SIZE] + b"}", _SEAL.fullmatch(data[-_SEAL_SIZE:])
    if seal is None or hashlib.blake2b(body, digest_size=16).hexdigest().encode() != seal[1]:
        raise CorruptSegment("was cut short or altered", where=where, fix="restore the file from a backup")
    return body
