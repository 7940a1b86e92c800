"""Files of lines in a directory or on S3, as JSON lines or Parquet: exactly once, and only whole files.

    PATH/SOURCE/OUTPUT/00000000000000000017.jsonl      lines from offset 17 or later, up to the next file's name

A file's name is the first offset that the files before it do not hold, and it is created if absent. So the newest
file tells the place (its own last line), and of two relays that stand at one place a single one gets the name.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dblog_core.errors import OutputRefused, OutputTaken, OutputUnavailable, PoisonLine, StagingError
from dblog_core.interfaces import Json

if TYPE_CHECKING:
    from dblog_core.storage import Storage

_NAME = re.compile(r"(\d{20})\.(jsonl|parquet)")
_TEXT = ("op", "table", "key", "before", "after", "position", "transaction", "commit_time", "origin")
_NESTED = {"key", "before", "after"}
_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        *(pa.field(name, pa.string()) for name in _TEXT),
        pa.field("line", pa.string(), nullable=False),
    ]
)
"""Of a Parquet file: objects as JSON text; `line` is the whole line."""


class FilesOutput:
    """Lines that are committed together are a file. `form`: jsonl or parquet."""

    exactly_once = True

    def __init__(self, storage: Storage, *, form: str) -> None:
        self._storage = storage
        self._form = form
        self._where = storage.url("")
        self._place: int | None = None
        self._spool: _Spool | None = None

    def open(self, epoch: int) -> int | None:
        """The names exclude others: an epoch adds nothing."""
        self.close()
        with _translate_errors(self._where):
            names = [m[0] for name in self._storage.names("") if (m := _NAME.fullmatch(name))]
            self._place = self._last_offset(max(names)) if names else None
        return self._place

    def write(self, lines: Sequence[Json]) -> None:
        if self._spool is None:
            self._spool = _Spool(self._form)
        try:
            self._spool.add(lines)
        except (TypeError, ValueError) as error:  # orjson and Arrow: text that is no UTF-8
            raise PoisonLine(f"cannot be written: {error}", where=self._where) from error
        except OSError as error:
            raise _unavailable(error, self._where) from error

    def commit(self, offset: int) -> None:
        assert self._spool is not None
        # The name follows from the place, so a relay that was replaced asks for a name that is taken.
        name = f"{(self._place or 0) + 1:020d}.{self._form}"
        with _translate_errors(self._where), self._spool.finished_file() as data:
            # Create if absent, on S3 by a conditional put: this is what excludes the other relay.
            created = self._storage.create(name, data)
        if not created:
            raise OutputTaken("another relay has written this file", where=self._storage.url(name))
        self._place = offset
        self.close()

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _last_offset(self, name: str) -> int:
        """Of the newest file. Raises OutputRefused for one that is not ours, or was altered."""
        # The file's name tells where it begins, and only its last line where it ends.
        data = self._storage.read(name)
        assert data is not None, "nobody removes files while a relay runs"
        try:
            return _last_of_parquet(data) if name.endswith(".parquet") else _last_of_lines(data)
        except (ValueError, KeyError, IndexError, TypeError, pa.ArrowException) as error:
            raise OutputRefused(
                f"the newest file does not tell how far it goes: {error}",
                where=self._storage.url(name),
                fix="restore it from a backup, or remove it: its lines come again",
            ) from error


def _last_of_lines(data: bytes) -> int:
    # Our own files are published whole; this one was altered by somebody.
    if not data.endswith(b"\n"):
        raise ValueError("it is cut short")
    return int(orjson.loads(data[:-1].rpartition(b"\n")[2])["offset"])


def _last_of_parquet(data: bytes) -> int:
    offsets = pq.read_table(pa.BufferReader(data), columns=["offset"]).column("offset")
    return int(offsets[-1].as_py())


class _Spool:
    """Our file that grows on this machine until it goes to its place: a transaction may be larger than memory."""

    def __init__(self, form: str) -> None:
        # Without a name: a relay that is killed leaves nothing behind.
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        self._parquet = pq.ParquetWriter(self._file, _SCHEMA, compression="zstd") if form == "parquet" else None

    def add(self, lines: Sequence[Json]) -> None:
        if self._parquet is None:
            self._file.writelines(orjson.dumps(line) + b"\n" for line in lines)
        else:
            self._parquet.write_batch(pa.RecordBatch.from_pylist([_row(line) for line in lines], schema=_SCHEMA))

    @contextmanager
    def finished_file(self) -> Iterator[pa.Buffer]:
        """All that was added, in the file's form."""
        self._finish()
        # Mapped, not read: the file may be larger than memory.
        yield pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):  # its rest cannot be written, and nobody wants it
            self._finish()
        with contextlib.suppress(OSError):
            self._file.close()

    def _finish(self) -> None:
        if self._parquet is not None:
            self._parquet.close()
        self._file.flush()


def _row(line: Json) -> Json:
    row = {name: _text(line[name]) if name in _NESTED else line[name] for name in _TEXT}
    return {"offset": line["offset"], **row, "line": orjson.dumps(line).decode()}


def _text(value: Json | None) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


@contextmanager
def _translate_errors(where: str) -> Iterator[None]:
    try:
        yield
    except StagingError as error:
        kind: Callable[..., Exception] = OutputUnavailable if error.transient else OutputRefused
        raise kind(error.message, where=error.where, fix=error.fix) from error
    except OSError as error:
        raise _unavailable(error, where) from error


def _unavailable(error: OSError, where: str) -> OutputUnavailable:
    return OutputUnavailable(
        f"the file that is being written cannot continue: {error.strerror}", where=where, fix="make room in TMPDIR"
    )
