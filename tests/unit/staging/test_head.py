"""The newest segment is found by as few looks with a million segments as with a hundred, joined or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog_core.staging import Staging, compaction_blocks
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.manifest_file import encode_manifest
from dblog_core.storage.local import LocalStorage
from tests.unit.staged import manifest

MILLION = 1_000_000


class Counted(LocalStorage):
    """Segments `first` to `last`, empty ones, made when they are read; those up to `joined` lie in blocks alone."""

    def __init__(self, first: int, last: int, joined: int = 0) -> None:
        super().__init__(Path("/none"))
        self._first = first
        self._last = last
        self._joined = (
            joined // compaction_blocks.FAN**compaction_blocks.LEVELS * compaction_blocks.FAN**compaction_blocks.LEVELS
        )
        self.looks = 0

    def _has(self, relative: str) -> bool:
        name = relative.rpartition("/")[2]
        if "/" not in relative:
            return False
        if relative.startswith("compacted/"):
            block = compaction_blocks.parse_name(name)
            return (
                block is not None
                and block.level == compaction_blocks.LEVELS
                and self._first <= block.first <= block.last <= self._joined
            )
        return self._first <= int(name[:20]) <= self._last and int(name[:20]) > self._joined

    def exists(self, relative: str) -> bool:
        self.looks += 1
        return self._has(relative)

    def read(self, relative: str) -> bytes | None:
        self.looks += 1
        if not self._has(relative) or relative.startswith("compacted/"):
            return None
        return encode_manifest(manifest(int(relative.rpartition("/")[2][:20]), 1, 0))

    def settle(self, relative: str) -> None:
        self.looks += 1

    def names(self, directory: str) -> Iterator[str]:
        size = compaction_blocks.FAN**compaction_blocks.LEVELS
        if directory == "compacted":
            for last in range(size, self._joined + 1, size):
                if last - size + 1 >= self._first:
                    self.looks += 1
                    yield Block(last - size + 1, last).path.rpartition("/")[2]
        elif directory == "manifests":
            raise AssertionError("a directory of a million names is listed")


@pytest.mark.parametrize(
    ("first", "last", "joined", "most"),
    [
        (1, 100, 0, 100),
        (1, MILLION, 0, 200),
        (1, MILLION, MILLION - 100, 200),
        (compaction_blocks.FAN**compaction_blocks.LEVELS * 100 + 1, MILLION, MILLION - 100, 500),
    ],
)
def test_the_head_is_found_by_few_looks(first: int, last: int, joined: int, most: int) -> None:
    storage = Counted(first, last, joined)
    staging = Staging("/none", source="shop", storage=storage)
    head = staging.head()
    assert head is not None and head.segment == last
    assert storage.looks <= most
    storage.looks = 0
    assert staging.first_number() == first and storage.looks <= most
    storage.looks = 0
    assert staging.head_number() == last and storage.looks < 20, "what is known already is where the search begins"
