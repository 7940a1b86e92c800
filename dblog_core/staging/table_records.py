"""What is known of tables beside their rows, as one record that a manifest carries: it counts from that manifest on, or
not at all, and a leader that was overtaken changes nothing of it.

    tables, shown                which tables the log was read of, and how (`settings_in_force`)
    stopped, owed                tables of which rows were passed over, or that still lack a dump
    accepted/NN                  what was accepted of them, where columns are hidden (`accepted_shapes`)
    stamps/NN, stamped_offset    what the source's catalogue said of them last (`unlogged_rewrites`)

A manifest holds the name of an index (`records/SEGMENT-EPOCH-TOKEN.json`), which names a file for each entry; what has
not changed stays where it is. So a manifest is as small for 30,000 tables as for one. `retention` removes the files
that the newest manifest no longer names.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dblog_core.errors import CorruptSegment, VersionConflict
from dblog_core.interfaces import Entry, StateStore
from dblog_core.staging.changelog import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.sealed_json import seal, unseal
from dblog_core.storage import Bytes, Storage

FORMAT = 1
DIRECTORY = "records"
STAMPED_OFFSET = "stamped_offset"
"""Changes all the time, and says nothing of a table: it lies in the manifest, and is no reason to publish one."""
STAMP_NODES = tuple(f"stamps/{place:02}" for place in range(64))
ACCEPTED_NODES = tuple(f"accepted/{place:02}" for place in range(64))
NODES = ("tables", "shown", "stopped", "owed", *ACCEPTED_NODES, *STAMP_NODES, STAMPED_OFFSET)
_INDEX = "index"
_FILE = re.compile(r"records/(\d{20})-")
_FIX = "restore it from a backup; or `dblog capture --fresh-start`, which dumps all tables"


@dataclass(frozen=True, slots=True)
class _Part:
    """The file of an entry, relative to the staging root, and its checksum."""

    file: str
    checksum: str


class TableRecords:
    """The entries, by the interface of nodes. What changes counts once a manifest carries it (`write`)."""

    def __init__(self, entries: Mapping[str, bytes] | None = None, *, parts: Mapping[str, _Part] | None = None) -> None:
        """`parts`: where entries lie that a manifest carries."""
        self._lock = threading.Lock()  # one thread looks at the catalogue, another one follows the log
        self._entries = {path: Entry(data, 0) for path, data in (entries or {}).items()}
        self._parts = dict(parts or {})
        self._changed = self._entries.keys() - self._parts.keys() - {STAMPED_OFFSET}
        self._index = ""
        self._offset = b""  # STAMPED_OFFSET, as a manifest carries it

    @classmethod
    def load(cls, staging: Staging, manifest: Manifest, only: Collection[str] = NODES) -> TableRecords:
        """What this manifest carries. Raises CorruptSegment where a file of it is missing or altered."""
        index = manifest.records.get(_INDEX, "")
        parts = _read_index(staging.storage, index) if index else {}
        entries = {path: _read(staging.storage, part) for path, part in parts.items() if path in only}
        if (offset := manifest.records.get(STAMPED_OFFSET)) is not None:
            entries[STAMPED_OFFSET] = offset.encode()
        records = cls(entries, parts=parts)
        records._index = index
        records._offset = entries.get(STAMPED_OFFSET, b"")
        return records

    @classmethod
    def of_former_version(cls, state: StateStore) -> TableRecords:
        """What a version before this one has kept in the state store. It is removed by `forget_former_version`."""
        entries = zip(NODES, state.get_all(NODES), strict=True)
        return cls({path: entry.data for path, entry in entries if entry is not None})

    @property
    def has_news(self) -> bool:
        """Whether something has changed that no manifest carries."""
        with self._lock:
            return bool(self._changed)

    @property
    def is_carried(self) -> bool:
        """Whether a manifest carries all of it, also the offset."""
        offset = self.get(STAMPED_OFFSET)
        return not self.has_news and (offset is None or offset.data == self._offset)

    def get(self, path: str) -> Entry | None:
        """An entry; None where there is none."""
        with self._lock:
            return self._entries.get(path)

    def create(self, path: str, data: bytes) -> None:
        """Makes an entry. Raises VersionConflict if it exists."""
        with self._lock:
            if path in self._entries:
                raise VersionConflict("the entry exists already", where=path)
            self._put(path, Entry(data, 0))

    def update(self, path: str, data: bytes, version: int) -> int:
        """Replaces an entry; its new version. Raises VersionConflict unless it has `version`."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None or entry.version != version:
                raise VersionConflict("the entry was changed by another", where=path)
            self._put(path, Entry(data, version + 1))
            return version + 1

    def _put(self, path: str, entry: Entry) -> None:
        assert path in NODES, path
        before = self._entries.get(path)
        self._entries[path] = entry
        if path != STAMPED_OFFSET and (before is None or before.data != entry.data):
            self._changed = self._changed | {path}

    def write(self, storage: Storage, *, segment: int, epoch: int) -> dict[str, str]:
        """What the manifest of this segment carries; the files that it names are durable then."""
        with self._lock:
            changed = {path: self._entries[path] for path in self._changed}
            offset = self._entries.get(STAMPED_OFFSET)
        if changed:
            stem = f"{DIRECTORY}/{segment:020}-{epoch}-{secrets.token_hex(8)}"
            files: dict[str, Bytes] = {}
            parts = dict(self._parts)
            for number, (path, entry) in enumerate(sorted(changed.items())):
                part = parts[path] = _Part(f"{stem}-{number}", _checksum(entry.data))
                files[part.file] = entry.data
            index = f"{stem}.json"
            files[index] = seal(orjson.dumps({"format": FORMAT, "parts": parts}))
            storage.create_missing(files)
            # Not before: where that fails, the next manifest has to write them.
            with self._lock:
                self._parts = parts
                self._index = index
                self._changed = {path for path in self._changed if self._entries[path] != changed.get(path)}
        self._offset = b"" if offset is None else offset.data
        return {
            **({_INDEX: self._index} if self._index else {}),
            **({} if offset is None else {STAMPED_OFFSET: offset.data.decode()}),
        }


def read_newest(staging: Staging, *paths: str) -> TableRecords:
    """These entries, as the newest manifest carries them; none before the first one. Raises CorruptSegment."""
    while True:
        if (head := staging.head()) is None:
            return TableRecords()
        try:
            return TableRecords.load(staging, head, paths)
        except CorruptSegment:
            if staging.head_number() == head.segment:
                raise
            # Retention has removed a file since: a newer manifest has others.


def forget_former_version(state: StateStore) -> None:
    """A manifest carries what was kept in the state store, which is not to be taken for newer later."""
    for path in NODES:
        state.delete(path)


def find_unused(staging: Staging, *, before: float) -> Iterator[str]:
    """Files that no reader will ask for: of a segment that is published, last written `before` (seconds UTC), and not
    named by the newest manifest."""
    if (head := staging.head()) is None:
        return
    index = head.records.get(_INDEX, "")
    used = {index, *(part.file for part in _read_index(staging.storage, index).values())} if index else set()
    for file in staging.storage.files(DIRECTORY):
        name = _FILE.match(file.path)
        if name and int(name[1]) <= head.segment and file.modified < before and file.path not in used:
            yield file.path


def _read_index(storage: Storage, file: str) -> dict[str, _Part]:
    if (data := storage.read(file)) is None:
        raise CorruptSegment("is missing, and says what is known of tables", where=storage.url(file), fix=_FIX)
    where = storage.url(file)
    try:
        record: dict[str, Any] = orjson.loads(unseal(data, where))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']} is newer than {FORMAT}")
        return {path: _Part(**part) for path, part in record["parts"].items()}
    except (CorruptSegment, KeyError, TypeError, ValueError) as error:
        what = error.message if isinstance(error, CorruptSegment) else str(error)
        raise CorruptSegment(f"does not say what is known of tables: {what}", where=where, fix=_FIX) from error


def _read(storage: Storage, part: _Part) -> bytes:
    data = storage.read(part.file)
    if data is None or _checksum(data) != part.checksum:
        what = "is missing" if data is None else "was cut short or altered"
        raise CorruptSegment(f"{what}, and says what is known of tables", where=storage.url(part.file), fix=_FIX)
    return data


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
