"""Key -> file and row of a table: a cache, ruled by the snapshot's list of files.

An entry may be out of date: its row is dead, or its file is gone from the table. A look-up checks that. A
live row without an entry must not be: so the files of a snapshot that the index does not cover are read first.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from dblog_core.delta_writer.keys import key_runs
from dblog_core.delta_writer.keys.key_hash import KeyHashes, hash_keys, is_exact
from dblog_core.delta_writer.keys.key_runs import ROW_BITS, ROW_MASK, Numbers, Run, RunBuilder, StoredRuns
from dblog_core.errors import LakeError
from dblog_core.model import sizes

log = logging.getLogger(__name__)

MEMORY = 32 << 20
"""Bytes of entries beyond which runs go to the disk, where there is a directory for them: of each table at work."""
_LEFT_FREE = 1 << 30
"""Bytes of the local disk that an index leaves to others."""
_RECORD = "index.json"
_HEADS = "index.heads"
_FORM = 3


@dataclass(frozen=True, slots=True)
class Found:
    """Entries of keys that were asked for: the number of the key, the file's path, and the row in it; by file."""

    key_numbers: Numbers
    rows: Numbers
    files: list[tuple[str, slice]]
    """Each file with its stretch of the two."""


@dataclass(slots=True)
class KeyIndex:
    """The index of one table. `keys`: the names that its key columns have in files; `kinds`: their types; `directory`:
    where runs go that memory has no room for, and where `save` keeps it."""

    table: str
    keys: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    directory: Path | None = None
    memory: int = MEMORY
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _files: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Path and size by number: of files that count. A process sees any number of others come and go."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _next: int = 0
    """The number that no file has had yet: entries in the runs may still have those of files that are gone."""
    _runs: list[Run] = field(default_factory=list)

    def __len__(self) -> int:
        """Entries, those out of date too."""
        return sum(map(len, self._runs))

    @property
    def bytes_in_memory(self) -> int:
        return sum(run.bytes_in_memory for run in self._runs)

    def check_room(self, rows: int) -> None:
        """Raises LakeError where the local disk has no room for the entries of so many rows more."""
        size = rows * (16 if is_exact(self.kinds) else 24)
        if self.directory is None or self.bytes_in_memory + size <= self.memory:
            return
        place = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        free = shutil.disk_usage(place).free
        # Runs that are joined stay on the disk beside their new one for a while.
        needed = size + size // 4 + _LEFT_FREE
        if needed > free:
            raise LakeError(
                f"the index of the table's keys has no room on the local disk: it needs {sizes.text(needed)}, and "
                f"{sizes.text(free)} are free",
                where=str(place),
                fix="make room, or let DBLOG_CACHE_DIR name a directory with more of it; the next merge tries again",
            )

    def covers(self, path: str, size: int) -> bool:
        """Whether every row of the file, which has `size` bytes, has its entry."""
        number = self._numbers.get(path)
        return number is not None and self._files.get(number) == (path, size)

    def add(self, path: str, size: int, columns: Iterable[tuple[int, Sequence[pa.Array]]]) -> None:
        """Takes in all rows of a file: the number of a stretch's first row, and its key columns.

        A row without a key (NULL in one of its columns) is equal to no other, and gets no entry. Stretches become runs
        while the file is read, so that a file of any size takes the memory of one run.
        """
        number = self._next
        # A place holds 32 bits of the file's number.
        if number >> 32:
            raise LakeError("the index has seen too many files", where=self.table, fix="remove it: it is made again")
        self._next += 1
        self._files[number] = path, size  # so that its entries stay where runs are joined meanwhile
        try:
            builder = RunBuilder()
            for first, arrays in columns:
                keys, rows = self._entries(first, arrays)
                self.add_run(builder.add(keys, rows | np.uint64(number) << ROW_BITS))
            self.add_run(builder.finish())
        except BaseException:
            # Some rows of the file have no entry: those that exist count for nothing, and the file is read again.
            del self._files[number]
            raise
        self._numbers[path] = number

    def add_run(self, run: Run | None) -> None:
        """Takes in a run of entries of files that are known."""
        if run is not None:
            self._runs.append(run)
            self._tidy()

    def _entries(self, first: int, arrays: Sequence[pa.Array]) -> tuple[KeyHashes, npt.NDArray[np.uint64]]:
        rows = np.arange(first, first + len(arrays[0]), dtype=np.uint64)
        if len(rows) and int(rows[-1]) >> 32:
            raise LakeError("a data file has too many rows for the index", where=self.table, fix="run OPTIMIZE")
        if any(array.null_count for array in arrays):
            whole = np.logical_and.reduce([np.asarray(array.is_valid()) for array in arrays])
            arrays = [array.filter(pa.array(whole)) for array in arrays]
            rows = rows[whole]
        return hash_keys(arrays, self.secret), rows

    def add_some(self, path: str, size: int, rows: Numbers, arrays: Sequence[pa.Array], builder: RunBuilder) -> None:
        """Takes in these rows of a file, whose other rows have keys that are not asked for. `builder`: holds entries
        of several files until `add_run` has its run: a run for a few rows of each file would be slow."""
        number = self._next
        self._next += 1
        self._files[number] = path, size
        self._numbers[path] = number
        if len(rows):
            keys = hash_keys(arrays, self.secret)
            self.add_run(builder.add(keys, rows.astype(np.uint64) | np.uint64(number) << ROW_BITS))

    def keep(self, files: dict[str, int]) -> None:
        """Forgets all files but these (sizes by path)."""
        forgotten = [path for path in self._numbers if not self.covers(path, files.get(path, -1))]
        for path in forgotten:
            self._files.pop(self._numbers.pop(path), None)
        if forgotten:
            self._shed()

    def find(self, columns: Sequence[pa.Array], *, distinct: bool = True) -> Found:
        """All entries of these keys, none of which has a NULL; nor is one there twice, if they are `distinct`. Raises
        IndexDamaged."""
        keys = hash_keys(columns, self.secret)
        order = np.argsort(keys.first)  # as the runs are: neighbours lie on one page
        ordered = keys.take(order)
        if distinct:
            _check_distinct(ordered, self.table)
        entries = [run.find(ordered) for run in self._runs]
        key_numbers = order[np.concatenate([a for a, _ in entries])] if entries else np.empty(0, np.int64)
        places = np.concatenate([p for _, p in entries]) if entries else np.empty(0, np.uint64)
        numbers = (places >> ROW_BITS).astype(np.int64)
        rows = (places & ROW_MASK).astype(np.int64)
        by_file = np.argsort(numbers, kind="stable")
        numbers = numbers[by_file]
        rows = rows[by_file]
        key_numbers = key_numbers[by_file]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        files = []
        for begin, end in pairwise(edges):
            if begin < end and (file := self._files.get(int(numbers[begin]))) is not None:
                files.append((file[0], slice(begin, end)))
        return Found(key_numbers, rows, files)

    def _live(self) -> Numbers:
        return np.fromiter(self._files, np.int64, len(self._files))

    def _tidy(self) -> None:
        """Joins runs of like size, so that there are few: as many as the logarithm of the rows says."""
        self._runs.sort(key=len, reverse=True)
        while (at := self._find_like_runs()) is not None:
            self._runs[at : at + 2] = [key_runs.join_runs(self._runs[at : at + 2], self._live())]
            self._runs.sort(key=len, reverse=True)
        self._spill()

    def _find_like_runs(self) -> int | None:
        """Where two runs of like size stand, the smallest ones first."""
        sizes = [len(run) for run in self._runs]
        pairs = enumerate(pairwise(sizes))
        alike = [i for i, (large, small) in pairs if 4 * small > large and small + large <= key_runs.LARGE]
        return alike[-1] if alike else None

    def _shed(self) -> None:
        """Writes runs again that are half out of date."""
        live = self._live()
        for i, run in enumerate(self._runs):
            numbers = (np.asarray(run.entries[:: max(1, len(run) // 4096), 1]) >> ROW_BITS).astype(np.int64)  # a sample
            if len(numbers) and 2 * np.count_nonzero(np.isin(numbers, live)) < len(numbers):
                self._runs[i] = key_runs.join_runs([run], live)
        self._runs = [run for run in self._runs if len(run)]
        self._tidy()

    def _spill(self) -> None:
        """Moves runs to the disk, large ones first, until the others fit into memory."""
        if self.directory is None:
            return
        for i, run in enumerate(self._runs):
            if self.bytes_in_memory <= self.memory:
                return
            if not run.name:
                try:
                    self._runs[i] = key_runs.write_run(run, self.directory)
                except OSError as error:
                    log.warning("%s: the index of keys stays in memory: %s", self.directory, error)
                    return

    def save(self) -> None:
        """Keeps the index for the next process; where the disk has no room, that one makes it again."""
        if self.directory is None:
            return
        try:
            self._runs = [run if run.name else key_runs.write_run(run, self.directory) for run in self._runs]
            stored = StoredRuns.of(self._runs)
            heads = f"{secrets.token_hex(8)}.{_HEADS}"
            record = {
                "form": _FORM,
                "table": self.table,
                "keys": self.keys,
                "kinds": [str(kind) for kind in self.kinds],
                "secret": self.secret.hex(),
                "files": [[number, *file] for number, file in self._files.items()],
                "next": self._next,
                "runs": stored.runs,
                "heads": heads,
                "sum": zlib.crc32(stored.heads),
            }
            self.directory.mkdir(parents=True, exist_ok=True)
            # The record comes last, and names its heads: after a crash it is the old one with its own files, or the new
            # one.
            (self.directory / heads).write_bytes(stored.heads)
            data = orjson.dumps(record)
            temporary = self.directory / f"{secrets.token_hex(8)}.tmp"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it holds the secret
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"%08x\n" % zlib.crc32(data) + data)
            # Without fsync: a record that was torn by a loss of power fails its checksum, and costs a new index.
            temporary.replace(self.directory / _RECORD)
            self._sweep({_RECORD, heads, *(run.name for run in self._runs)})
        except OSError as error:
            log.warning("%s: the index of keys is not kept: %s", self.directory, error)

    def _sweep(self, used: set[str]) -> None:
        assert self.directory is not None
        for path in self.directory.iterdir():
            if path.name not in used and path.suffix in (".run", ".heads", ".tmp"):
                path.unlink(missing_ok=True)


def load(
    directory: Path, table: str, keys: Sequence[str], kinds: Sequence[pa.DataType], *, memory: int = MEMORY
) -> KeyIndex:
    """The saved index of this table and key; an empty one where there is none that can be used."""
    new = KeyIndex(table, tuple(keys), tuple(kinds), directory, memory)
    try:
        head, _, data = (directory / _RECORD).read_bytes().partition(b"\n")
        if int(head, 16) != zlib.crc32(data):
            raise ValueError("its record is damaged")
        record = orjson.loads(data)
        same = (record["form"], record["table"], record["keys"], record["kinds"])
        if same != (_FORM, table, list(keys), [str(kind) for kind in kinds]):
            raise ValueError("it is that of another table, or of another key")
        heads = (directory / Path(record["heads"]).name).read_bytes()
        if record["sum"] != zlib.crc32(heads):
            raise ValueError("its heads are damaged")
        runs = StoredRuns(record["runs"], heads).open(directory)
        files = {int(number): (str(path), int(size)) for number, path, size in record["files"]}
        next_number = int(record["next"])
    except FileNotFoundError:
        return new
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: the index of keys is made again: %s", directory, error)
        return new
    new.secret = bytes.fromhex(record["secret"])
    new._files = files
    new._next = next_number
    new._runs = runs
    new._numbers = {path: number for number, (path, _) in files.items()}
    return new


def _check_distinct(ordered: KeyHashes, table: str) -> None:
    same = ordered.first[1:] == ordered.first[:-1]
    if ordered.second is not None:
        same &= ordered.second[1:] == ordered.second[:-1]
    if same.any():
        raise LakeError("a key has two changes in one commit", where=table, fix="this is a defect: report it")
