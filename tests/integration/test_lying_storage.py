"""Compaction on real storage that lies: an object that it has made was there already, or comes when nobody waits any
more. Nothing that anybody reads changes by that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dblog_core.errors import StagingUnavailable
from dblog_core.staging import Staging
from dblog_core.staging.compaction import Compactor
from dblog_core.storage import Bytes, Storage
from dblog_core.storage import s3 as s3_storage
from dblog_core.storage.local import LocalStorage
from tests.fix_s3 import Bucket
from tests.lying_proxy import lying_proxy
from tests.unit.compaction_world import GRACE, World

STEPS_OF_REQUESTS = 50
STEPS_OF_FILES = 150


class RealWorld(World):
    """The world of compaction on a storage of its own: `open_storage` opens it as it is, `open_liar` as the compactor
    sees it; `land` has it carry out one of the puts that are late."""

    def __init__(
        self, seed: int, open_storage: Callable[[], Storage], open_liar: Callable[[], Storage], land: Callable[[], int]
    ) -> None:
        self._open_storage, self._open_liar, self._land = open_storage, open_liar, land
        super().__init__(seed)

    def open(self) -> Staging:
        return Staging("staging", source="shop", storage=self._open_storage())

    def compact(self) -> None:
        if self.compactor is None or self.dice.random() < 0.1:  # it ends between two steps, and another one begins
            staging = Staging("staging", source="shop", storage=self._open_liar())
            self.compactor = self._run(Compactor(staging, self.clock, grace=GRACE))
        if next(self.compactor, "its end") == "its end":
            self.compactor = None

    def land(self) -> None:
        self.landed += self._land() in (1, 200)

    def doings(self) -> tuple[Callable[[], None], ...]:
        """No loss of power; fewer looks, each of which costs requests."""
        return (self.publish, self.publish, self.compact, self.compact, self.compact, self.follow, self.span,
                self.wait, self.wake, self.land)  # fmt: skip

    def judge(self) -> None:
        while self._land():
            pass
        super().judge()

    def count(self, directory: str) -> int:
        return sum(1 for _ in self._open_storage().files(directory))


def run(world: RealWorld, steps: int) -> None:
    world.run(steps)
    assert world.count("compacted"), "nothing was joined"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_object_store_that_lies_loses_nothing(bucket: Bucket, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_storage, "_ATTEMPTS", 2)  # between attempts the client waits
    with lying_proxy(bucket.settings.endpoint, seed) as proxy:
        settings = bucket.settings.model_copy(update={"endpoint": proxy.url})

        def open_liar() -> Storage:
            return s3_storage.S3Storage(bucket.name, "staging", settings=settings)

        run(RealWorld(seed, lambda: bucket.storage("staging"), open_liar, proxy.land), STEPS_OF_REQUESTS)
        assert all(proxy.lies.values()), proxy.lies


class LyingDirectory(LocalStorage):
    """As a network's file system may be."""

    dice: random.Random
    late: list[tuple[str, bytes]]

    def create(self, relative: str, data: Bytes) -> bool:
        lie = self.dice.random()
        if lie < 0.2:
            self.late.append((relative, bytes(data)))
            raise StagingUnavailable("the server does not answer", where=relative, fix="it is tried again")
        return super().create(relative, data) and lie > 0.4


@pytest.mark.parametrize("seed", [1, 6, 10])
def test_a_directory_that_lies_loses_nothing(tmp_path: Path, seed: int) -> None:
    late: list[tuple[str, bytes]] = []
    dice = random.Random(seed)

    def open_liar() -> Storage:
        storage = LyingDirectory(tmp_path)
        storage.dice, storage.late = dice, late
        return storage

    def land() -> int:
        return LocalStorage(tmp_path).create(*late.pop(dice.randrange(len(late)))) + 1 if late else 0

    run(RealWorld(seed, lambda: LocalStorage(tmp_path), open_liar, land), STEPS_OF_FILES)
