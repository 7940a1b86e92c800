"""What a reader has acted on survives a loss of power."""

from __future__ import annotations

import pytest

from dblog_core.staging import Staging
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit.staged import manifest


@pytest.mark.parametrize("how", ["head", "manifest", "manifests"])
def test_a_manifest_that_was_read_is_there_after_a_loss_of_power(how: str) -> None:
    """Its leader stands still right after others could see the file, and before its name was durable."""
    disk = Disk()
    written = Staging("/simulated", source="shop", storage=MemoryStorage(disk))
    written.publish(manifest(1, 1, 0))
    path = next(iter(disk.files))
    disk.unsettled[path] = None
    reader = Staging("/simulated", source="shop", storage=MemoryStorage(disk))
    reads = {"head": reader.head, "manifest": lambda: reader.manifest(1), "manifests": lambda: next(reader.manifests())}
    assert reads[how]() == manifest(1, 1, 0)
    assert disk.power_cut(lambda: True) == 0
    assert written.manifest(1) == manifest(1, 1, 0)


@pytest.mark.parametrize("lost", [True, False])
def test_a_file_that_was_replaced_and_not_made_durable_is_the_new_one_or_the_old(lost: bool) -> None:
    disk = Disk()
    disk.put("beginning.json", b"old", durable=True)
    disk.put("beginning.json", b"new", durable=False)
    disk.put("beginning.json", b"newest", durable=False)
    disk.power_cut(lambda: lost)
    assert disk.files == {"beginning.json": b"old" if lost else b"newest"}
