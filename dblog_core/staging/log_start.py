"""Which super-changelog it is (`identity.json`), and where it begins once old segments were removed
(`beginning.json`)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from dblog_core.errors import CorruptSegment
from dblog_core.staging.sealed_json import seal, unseal
from dblog_core.storage import Storage

FORMAT = 1
_FILE = "beginning.json"
_IDENTITY_FILE = "identity.json"
"""A file for itself: it is created once, by any process, while retention replaces the beginning."""


@dataclass(frozen=True, slots=True)
class Need:
    """Why segments from `segment` on must stay, in an operator's words."""

    segment: int
    why: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first segment that counts, and its first offset. `sealed_at` (microseconds UTC): when it was sealed.

    `looked_at` (microseconds UTC; None: never) is when retention last looked, and `held` why it then kept segments that
    were old enough to go.
    """

    segment: int = 1
    offset: int = 1
    sealed_at: int | None = None
    looked_at: int | None = None
    held: tuple[Need, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Beginning:
        """Raises KeyError, TypeError or ValueError on anything but a record of this format."""
        fields = dict(data)
        if fields.pop("format") != FORMAT:
            raise ValueError(f"format {data['format']} is newer than {FORMAT}")
        return cls(**{**fields, "held": tuple(Need(**need) for need in data["held"])})

    def removal_error(self, what: str, where: str) -> CorruptSegment:
        """Says that what somebody asks for stood before this beginning."""
        return CorruptSegment(
            f"{what} has been removed by retention: the super-changelog begins at segment {self.segment}, "
            f"offset {self.offset}",
            where=where,
            fix=f"read from offset {self.offset} on; a lake that stands before it takes a dump of all tables",
        )


def read_beginning(storage: Storage) -> Beginning:
    """Where the super-changelog begins, as retention has recorded it. Raises CorruptSegment if that is altered."""
    if (data := storage.read(_FILE)) is None:
        return Beginning()
    where = storage.url(_FILE)
    try:
        return Beginning.from_json(orjson.loads(unseal(data, where)))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptSegment(
            f"does not tell where the super-changelog begins: {error}",
            where=where,
            fix="upgrade dblog, or restore the file from a backup",
        ) from error


def write_beginning(storage: Storage, beginning: Beginning) -> None:
    """Records what retention has decided, durably: from now on nothing before it counts."""
    storage.replace(_FILE, seal(orjson.dumps(beginning.to_json())))


def read_identity(storage: Storage) -> str | None:
    """The random name that this super-changelog has got once; None: it has none yet. A copy has the same.

    Raises CorruptSegment if the file is altered."""
    if (data := storage.read(_IDENTITY_FILE)) is None:
        return None
    where = storage.url(_IDENTITY_FILE)
    try:
        record = orjson.loads(unseal(data, where))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']} is newer than {FORMAT}")
        return str(record["identity"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptSegment(
            f"does not tell which super-changelog this is: {error}",
            where=where,
            fix="upgrade dblog, or restore the file from a backup",
        ) from error


def create_identity(storage: Storage, new_id: Callable[[], str] = lambda: secrets.token_hex(16)) -> str:
    """Its identity, durably; it gets one if it has none. Of several processes that give it one, the first counts."""
    if (identity := read_identity(storage)) is not None:
        return identity
    identity = new_id()
    if not storage.create(_IDENTITY_FILE, seal(orjson.dumps({"format": FORMAT, "identity": identity}))):
        storage.settle(_IDENTITY_FILE)
        return read_identity(storage) or identity
    return identity
