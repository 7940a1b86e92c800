"""Files in memory behind `dblog_core.storage.Storage`, as processes of one machine share a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from dblog_core.errors import CorruptSegment, StagingUnavailable
from dblog_core.storage import Bytes, Stored
from tests.simulation.scheduler import Simulation

LIES = 5
"""How much likelier a file comes late, or is denied by who has made it, than any answer is lost: files are few."""


@dataclass(slots=True)
class Disk:
    """Every file by its path, and what lay under each name that is not durable yet (None: nothing): a loss of power
    may bring that back. `created` hears of each new file."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: dict[str, set[str]] = field(default_factory=dict)
    unsettled: dict[str, bytes | None] = field(default_factory=dict)
    created: Callable[[str, bytes], None] = lambda path, data: None

    def put(self, path: str, data: bytes, *, durable: bool) -> None:
        if not durable:
            self.unsettled.setdefault(path, self.files.get(path))
        self._place(path, data)
        self.created(path, data)

    def _place(self, path: str, data: bytes) -> None:
        self.files[path] = data
        folder, _, name = path.rpartition("/")
        self.folders.setdefault(folder, set()).add(name)

    def settle(self, folder: str) -> None:
        """What fsync of a directory does: all names in it are durable."""
        self.unsettled = {path: old for path, old in self.unsettled.items() if path.rpartition("/")[0] != folder}

    def remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        del self.files[path]
        self.folders[folder].discard(name)
        self.unsettled.pop(path, None)

    def power_cut(self, lose: Callable[[], bool]) -> int:
        """Names that were not made durable have their new file or the old one, as chance has it."""
        lost = {path: old for path, old in sorted(self.unsettled.items()) if lose()}
        for path, old in lost.items():
            if old is None:
                self.remove(path)
            else:
                self._place(path, old)
        self.unsettled.clear()
        return len(lost)


def away() -> StagingUnavailable:
    return StagingUnavailable("storage does not answer", where="the simulated disk", fix="it is tried again")


class MemoryStorage:
    """One process' handle of a disk. Without a simulation nothing fails."""

    def __init__(self, disk: Disk, simulation: Simulation | None = None) -> None:
        self.root = Path("/simulated")
        self.disk = disk
        self._simulation = simulation
        self._named = set[str]()  # relative paths that are known to lie below the root

    def path(self, relative: str) -> Path:
        pure = PurePosixPath(relative)
        if pure.is_absolute() or ".." in pure.parts or "\0" in relative:
            raise CorruptSegment(f"{relative!r} is not a file below this directory", where=str(self.root))
        return self.root / pure

    def url(self, relative: str) -> str:
        return str(self.path(relative))

    def exists(self, relative: str) -> bool:
        self._before("exists", relative)
        return relative in self.disk.files

    def read(self, relative: str) -> bytes | None:
        self._before("read", relative)
        return self.disk.files.get(relative)

    def read_part(self, relative: str, start: int, size: int) -> bytes | None:
        data = self.read(relative)
        return None if data is None else data[start : start + size]

    def names(self, directory: str) -> Iterator[str]:
        self._before("names", directory)
        yield from sorted(self.disk.folders.get(directory, ()))

    def files(self, directory: str) -> Iterator[Stored]:
        self._before("files", directory)
        for path in sorted(self.disk.files):
            data = self.disk.files.get(path)  # removed meanwhile: left out
            if data is not None and path.startswith(f"{directory}/" if directory else ""):
                yield Stored(path, len(data), 1.0)

    def create(self, relative: str, data: Bytes) -> bool:
        self._before("create", relative)
        if self._has_bad_luck():
            self._make_later(relative, bytes(data))
            raise away()
        if relative in self.disk.files:
            if self._simulation is not None and relative.startswith("manifests/") and self.disk.files[relative] != data:
                self._simulation.count("zombies fenced")
            return False
        self.disk.put(relative, bytes(data), durable=False)
        if self._simulation is not None and relative.startswith("manifests/"):
            self._simulation.stall()  # others see the file, and it is not durable: the moment that matters most
        self._after("create", relative)
        self.disk.settle(relative.rpartition("/")[0])
        return not self._is_denied(relative)

    def _is_denied(self, relative: str) -> bool:
        """Whether the storage says of a file that it has just made: it was there already. An S3 server that meets the
        client's second request does, and so does NFS."""
        if not self._has_bad_luck():
            return False
        assert self._simulation is not None
        self._simulation.count("creates denied")
        self._simulation.trace.append(f"{relative} was made, and the answer is that it was there")
        return True

    def _has_bad_luck(self) -> bool:
        simulation = self._simulation
        return simulation is not None and simulation.dice.random() < LIES * simulation.chances.lost

    def _make_later(self, relative: str, data: bytes) -> None:
        """A server that has not answered may still do what it was asked for, whatever its caller does meanwhile."""
        simulation = self._simulation
        assert simulation is not None
        simulation.at(simulation.now + simulation.dice.uniform(0, 20), lambda: self._land(relative, data))

    def _land(self, relative: str, data: bytes) -> None:
        assert self._simulation is not None
        if relative not in self.disk.files:
            self._simulation.count("files made late")
            self.disk.put(relative, data, durable=True)

    def create_missing(self, files: Mapping[str, Bytes]) -> None:
        for relative, data in files.items():
            if not self.create(relative, data):
                self.settle(relative)

    def settle(self, relative: str) -> None:
        self._before("settle", relative)
        self.disk.settle(relative.rpartition("/")[0])

    def replace(self, relative: str, data: Bytes) -> None:
        self._before("replace", relative)
        self.disk.put(relative, bytes(data), durable=False)
        self._after("replace", relative)
        self.disk.settle(relative.rpartition("/")[0])

    def write_directory(self, directory: str, files: Mapping[str, Bytes]) -> None:
        """Where a file fails, those before it are removed; where the process dies, they stay behind."""
        self._before("write", directory)
        try:
            for name, data in files.items():
                self.disk.put(f"{directory}/{name}", bytes(data), durable=False)
                self._after("write", f"{directory}/{name}")
        except StagingUnavailable:
            for name in sorted(self.disk.folders.get(directory, ())):
                self.disk.remove(f"{directory}/{name}")
            raise
        self.disk.settle(directory)

    def remove(self, relative: str) -> None:
        self._before("remove", relative)
        if relative in self.disk.files:
            self.disk.remove(relative)
        self._after("remove", relative)

    def _before(self, what: str, relative: str) -> None:
        if relative not in self._named:
            self.path(relative)
            self._named.add(relative)
        if self._simulation is not None:
            self._simulation.step(f"storage {what} {relative}", away)

    def _after(self, what: str, relative: str) -> None:
        if self._simulation is not None:
            self._simulation.after(f"storage {what} {relative}", away)
