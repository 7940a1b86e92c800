"""Files below a directory of a file system: durable when a call returns, created if absent, errors translated."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeVar

from dblog_core.errors import CorruptSegment, StagingError, StagingUnavailable
from dblog_core.storage import Bytes, Stored

Name = TypeVar("Name", str, Path)

_DIRECTORIES = ("log", "chunks")  # below these, a directory goes with its last file
_TOGETHER = 64  # files that are written before the first of them is flushed
_FLUSHING = 8  # threads that flush them: a file system's journal takes at once what is flushed at the same time
_LEFTOVER_SECONDS = 3600.0  # a temporary file lives for milliseconds; one this old has lost its process
_LEFTOVER_DIRECTORY_SECONDS = 86_400.0  # a verification's, which adds files to it for as long as it lives
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_AWAY = {
    errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EROFS, errno.ENOMEM, errno.EMFILE,
    errno.ENFILE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.EREMOTEIO, errno.EINTR,
}  # fmt: skip


class LocalStorage:
    """The files below `root`. Directories are made when first needed, for their owner alone.

    `temporary`: the directory of files that are being written. `private`: files and directories are their owner's
    alone; else whose the process's umask says.
    """

    def __init__(self, root: Path, *, temporary: str = "tmp", private: bool = True) -> None:
        self.root = root
        self._folder = root / temporary
        self._private = private
        self._made: set[Path] = set()
        self._swept = False

    def readable_by_others(self) -> LocalStorage:
        """The same files; those that it makes are for others to read too."""
        return LocalStorage(self.root, temporary=self._folder.relative_to(self.root).as_posix(), private=False)

    def path(self, relative: str) -> Path:
        """The file's place. Raises CorruptSegment for a name that would lead out of the root."""
        pure = PurePosixPath(relative)
        if pure.is_absolute() or ".." in pure.parts or "\0" in relative:
            raise CorruptSegment(f"{relative!r} is not a file below this directory", where=str(self.root))
        return self.root / pure

    def url(self, relative: str) -> str:
        """The absolute path."""
        return str(self.path(relative))

    def exists(self, relative: str) -> bool:
        path = self.path(relative)
        with translate_errors(path):
            try:
                path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def read(self, relative: str) -> bytes | None:
        """The file's bytes; None if there is no such file."""
        path = self.path(relative)
        with translate_errors(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def read_part(self, relative: str, start: int, size: int) -> bytes | None:
        """`size` bytes from `start` on, fewer where the file ends before; None if there is no such file."""
        path = self.path(relative)
        with translate_errors(path):
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(size)
            except FileNotFoundError:
                return None

    def names(self, directory: str) -> Iterator[str]:
        """Names in a directory, in no order; none if it is missing."""
        path = self.path(directory)
        with translate_errors(path):
            try:
                with os.scandir(path) as entries:
                    yield from (entry.name for entry in entries)
            except FileNotFoundError:
                return

    def files(self, directory: str) -> Iterator[Stored]:
        """All files below a directory, at any depth, in no order; none if it is missing."""
        for path in _below(self.path(directory)):
            with translate_errors(path):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # removed meanwhile
            yield Stored(path.relative_to(self.root).as_posix(), status.st_size, status.st_mtime)

    def create(self, relative: str, data: Bytes) -> bool:
        """Makes the file whole, or not at all; False if the name is taken already."""
        path = self.path(relative)
        with translate_errors(path), self._temporary(data) as temporary:
            self._make_directory(path.parent)
            try:
                os.link(temporary, path)
            except FileExistsError:
                # By NFS our own link, whose answer was lost, is found by the request that repeats it.
                if temporary.stat().st_nlink == 1:
                    return False
            _sync_directory(path.parent)
            return True

    def create_missing(self, files: Mapping[str, Bytes]) -> None:
        """Makes those of the files whose names are not taken, each whole or not at all. Under every name a file is
        durable then."""
        paths = {self.path(relative): data for relative, data in files.items()}
        for group in _groups(paths.items()):
            with translate_errors(group[0][0]), self._temporaries([data for _, data in group]) as temporaries:
                for (path, _), temporary in zip(group, temporaries, strict=True):
                    self._make_directory(path.parent)
                    with contextlib.suppress(FileExistsError):
                        os.link(temporary, path)
                for directory in {path.parent for path, _ in group}:
                    _sync_directory(directory)

    def settle(self, relative: str) -> None:
        """Makes durable that the file has its name: a `create` may have failed between the two."""
        path = self.path(relative)
        with translate_errors(path):
            _sync_directory(path.parent)

    def replace(self, relative: str, data: Bytes) -> None:
        """Writes the file, whole at any moment, over an older one of the name."""
        path = self.path(relative)
        with translate_errors(path), self._temporary(data) as temporary:
            self._make_directory(path.parent)
            temporary.replace(path)
            _sync_directory(path.parent)

    def write_directory(self, directory: str, files: Mapping[str, Bytes]) -> None:
        """Makes a new directory with these files. Where that fails, what was written is removed again."""
        path = self.path(directory)
        with translate_errors(path):
            try:
                self._make_directory(path)
                for group in _groups(files.items()):
                    _write_together({path / name: data for name, data in group}, 0o600)
                _sync_directory(path)
            except OSError:
                # A full disk needs the room back; what cannot be removed is named by no manifest and harms nobody.
                shutil.rmtree(path, ignore_errors=True)
                self._made.discard(path)
                raise
        self._made.discard(path)  # never written to again: nothing to remember

    def remove(self, relative: str) -> None:
        """Removes the file, and directories below `log` and `chunks` that are empty then; no error if it is gone
        already. A loss of power may bring it back."""
        path = self.path(relative)
        with translate_errors(path):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            self._prune(path)

    def _prune(self, path: Path) -> None:
        """Nobody writes there now: what `log` and `chunks` hold is removed when it is old, or when it failed."""
        first = path.relative_to(self.root).parts[0]
        if first not in _DIRECTORIES:
            return
        with contextlib.suppress(OSError):  # others are in it still; an empty one is harmless
            for parent in path.parents:
                if parent == self.root / first:
                    return
                parent.rmdir()
                self._made.discard(parent)

    @contextlib.contextmanager
    def _temporary(self, data: Bytes) -> Iterator[Path]:
        with self._temporaries([data]) as (path,):
            yield path

    @contextlib.contextmanager
    def _temporaries(self, contents: Sequence[Bytes]) -> Iterator[list[Path]]:
        folder = self._folder
        self._make_directory(folder)
        self._sweep(folder)
        paths = [folder / uuid.uuid4().hex for _ in contents]
        try:
            _write_together(dict(zip(paths, contents, strict=True)), 0o600 if self._private else 0o666)
            yield paths
        finally:
            for path in paths:
                # Gone already after a replace; and a leftover is harmless: the next process sweeps it.
                with contextlib.suppress(OSError):
                    path.unlink()

    def _sweep(self, folder: Path) -> None:
        """Removes what processes that died left behind, once."""
        if self._swept:
            return
        self._swept = True
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process sweeps too
                if path.is_dir():
                    _sweep_directory(path)
                elif time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    path.unlink()

    def _make_directory(self, path: Path) -> None:
        """The directory and those above it, durably."""
        if path in self._made:
            return
        missing: list[Path] = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process was faster; a file there fails the next step
                directory.mkdir(mode=0o700 if self._private else 0o777)
            _sync_directory(directory.parent)
            self._made.add(directory)


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turns the system's errors into ours, with the file and the way on."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or path)
        what = error.strerror or str(error)
        if error.errno in _FULL:
            raise StagingUnavailable(
                f"there is no room: {what}", where=where, fix="free or add disk space; dblog then tries again"
            ) from error
        if error.errno in _AWAY or isinstance(error, FileNotFoundError):
            raise StagingUnavailable(
                f"storage does not answer: {what}", where=where, fix="see that the file system is mounted and healthy"
            ) from error
        raise StagingError(
            f"cannot be used: {what}", where=where, fix="give this user read and write rights on it"
        ) from error


def _below(directory: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    with translate_errors(directory):
        for parent, _, names in os.walk(directory, onerror=fail):
            yield from (Path(parent, name) for name in names)


def _groups(files: Iterable[tuple[Name, Bytes]]) -> Iterator[list[tuple[Name, Bytes]]]:
    iterator = iter(files)
    while group := list(islice(iterator, _TOGETHER)):
        yield group


def _write_together(files: Mapping[Path, Bytes], mode: int) -> None:
    with contextlib.ExitStack() as stack:
        descriptors = []
        for path, data in files.items():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            file = stack.enter_context(os.fdopen(descriptor, "wb"))
            file.write(data)
            file.flush()
            descriptors.append(descriptor)
        _sync_files(descriptors)


def _sync_files(descriptors: Sequence[int]) -> None:
    """All of them, whose bytes the system has; raises what the first that failed has raised."""
    if len(descriptors) == 1:
        os.fsync(descriptors[0])
        return
    with ThreadPoolExecutor(_FLUSHING, thread_name_prefix="fsync") as pool:
        flushes = [pool.submit(os.fsync, descriptor) for descriptor in descriptors]
    for flush in flushes:
        flush.result()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep_directory(directory: Path) -> None:
    """Removes a directory that nobody has touched for long. It may go, or be added to, at the same time."""
    touched = [path.stat().st_mtime for path in (directory, *directory.rglob("*"))]
    if time.time() - max(touched) > _LEFTOVER_DIRECTORY_SECONDS:
        shutil.rmtree(directory, ignore_errors=True)
