"""One behaviour of all storages: a directory, an S3-compatible server, and the simulation's disk in memory."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.errors import CorruptSegment, StagingUnavailable
from dblog_core.storage import Bytes, Storage
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.s3 import S3Storage
from tests.fix_s3 import Bucket
from tests.simulation.storage import Disk, MemoryStorage

Open = Callable[[], Storage]


@pytest.fixture(params=["directory", "s3", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_storage(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    """Handles of one storage, as several processes have them."""
    if kind == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        return lambda: bucket.storage("staging/shop")
    disk = Disk()
    return lambda: MemoryStorage(disk) if kind == "memory" else LocalStorage(tmp_path / "staging")


@pytest.fixture
def storage(open_storage: Open) -> Storage:
    return open_storage()


@pytest.fixture
def fail_at(kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The n-th file that is written from now on fails, once, after its bytes are there."""

    def arm(number: int) -> None:
        count = 0

        def is_reached() -> bool:
            nonlocal count
            count += 1
            return count == number

        fsync = os.fsync

        def full(descriptor: int) -> None:
            if is_reached():
                raise OSError(28, "No space left on device")
            fsync(descriptor)

        def after(self: MemoryStorage, what: str, relative: str) -> None:
            if is_reached():
                raise StagingUnavailable("there is no room", where=relative)

        put = S3Storage._put

        def put_unanswered(self: S3Storage, key: str, data: Bytes, **options: Any) -> None:
            put(self, key, data, **options)
            after(MemoryStorage(Disk()), "put", key)

        if kind == "memory":
            monkeypatch.setattr(MemoryStorage, "_after", after)
        elif kind == "s3":
            monkeypatch.setattr(S3Storage, "_put", put_unanswered)
        else:
            monkeypatch.setattr(os, "fsync", full)

    return arm


def test_what_is_created_is_there_for_all(storage: Storage, open_storage: Open) -> None:
    assert storage.create("manifests/1.json", b"one") is True
    other = open_storage()
    assert other.exists("manifests/1.json") and other.read("manifests/1.json") == b"one"


def test_a_name_is_created_once(storage: Storage, open_storage: Open) -> None:
    assert storage.create("manifests/1.json", b"one")
    assert open_storage().create("manifests/1.json", b"two") is False
    assert storage.create("manifests/1.json", b"one") is False
    assert storage.read("manifests/1.json") == b"one"
    storage.settle("manifests/1.json")
    assert storage.read("manifests/1.json") == b"one"


def test_files_that_are_missing_are_made_and_others_stay(storage: Storage, open_storage: Open) -> None:
    storage.create("schemas/b", b"before")
    files: dict[str, Bytes] = {f"schemas/{name}": name.encode() for name in "abc"} | {"other/d": pa.py_buffer(b"d")}
    storage.create_missing(files)
    other = open_storage()
    assert {path: other.read(path) for path in files} == {
        "schemas/a": b"a", "schemas/b": b"before", "schemas/c": b"c", "other/d": b"d"
    }  # fmt: skip
    assert set(other.names("schemas")) == {*"abc"} and list(other.names("tmp")) == []
    storage.create_missing({})


def test_files_that_could_not_all_be_made_are_made_by_the_next_try(
    storage: Storage, open_storage: Open, fail_at: Callable[[int], None]
) -> None:
    storage.create_missing({"schemas/before": b"x"})  # directories are made by now
    files: dict[str, Bytes] = {f"schemas/{name}": name.encode() * 100 for name in "abc"}
    fail_at(2)
    with pytest.raises(StagingUnavailable):
        storage.create_missing(files)
    assert all(storage.read(path) in (None, data) for path, data in files.items())
    storage.create_missing(files)
    assert {path: open_storage().read(path) for path in files} == files
    assert list(storage.names("tmp")) == []


def test_files_are_flushed_at_the_same_time_and_before_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.create_missing({"schemas/before": b"x"})
    fsync, link = os.fsync, os.link
    both = threading.Barrier(2, timeout=30)
    steps: list[str] = []

    def meet(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            both.wait()
        fsync(descriptor)
        steps.append("file" if stat.S_ISREG(os.fstat(descriptor).st_mode) else "directory")

    def name(*paths: Any) -> None:
        link(*paths)
        steps.append("name")

    monkeypatch.setattr(os, "fsync", meet)
    monkeypatch.setattr(os, "link", name)
    storage.create_missing({"schemas/a": b"a", "schemas/b": b"b"})
    assert steps == ["file", "file", "name", "name", "directory"]


def test_a_link_whose_answer_is_lost_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS sends the request again, which then finds the link that the first has made."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    storage = LocalStorage(tmp_path / "staging")
    assert storage.create("manifests/1.json", b"ours") is True
    assert storage.create("manifests/1.json", b"ours") is False, "the same bytes are not the same file"
    assert storage.read("manifests/1.json") == b"ours"


def test_what_is_missing_is_no_error(storage: Storage) -> None:
    assert storage.read("manifests/1.json") is None and not storage.exists("manifests/1.json")
    assert list(storage.names("manifests")) == []


def test_a_part_is_read_by_its_place(storage: Storage) -> None:
    storage.create("lake/data", b"0123456789")
    assert storage.read_part("lake/data", 3, 4) == b"3456"
    assert storage.read_part("lake/data", 8, 4) == b"89", "the file ends before"
    assert storage.read_part("lake/data", 10, 4) == b"" and storage.read_part("lake/data", 2, 0) == b""
    assert storage.read_part("lake/none", 0, 4) is None and storage.read_part("lake/none", 0, 0) is None


def test_what_is_shared_is_others_to_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        local_storage = LocalStorage(tmp_path / "lake")
        local_storage.readable_by_others().create("table/data", b"")
        local_storage.create("table/own", b"")
    finally:
        os.umask(before)
    modes = {name: (tmp_path / "lake" / name).stat().st_mode & 0o777 for name in ("table", "table/data", "table/own")}
    assert modes == {"table": 0o755, "table/data": 0o644, "table/own": 0o600}


def test_names_are_those_of_one_directory(storage: Storage) -> None:
    for path in ("a/1", "a/2", "a/b/3", "c/4"):
        storage.create(path, b"")
    assert set(storage.names("a")) - {"b"} == {"1", "2"}
    assert set(storage.names("c")) == {"4"}


def test_files_are_those_below_at_any_depth(storage: Storage) -> None:
    for path in ("a/1", "a/b/2", "a/b/c/3", "d/4"):
        storage.replace(path, path.encode())
    files_by_path = {file.path: (file.bytes, file.modified > 0) for file in storage.files("a")}
    assert files_by_path == {"a/1": (3, True), "a/b/2": (5, True), "a/b/c/3": (7, True)}
    assert list(storage.files("nowhere")) == []


def test_replace_makes_and_overwrites(storage: Storage) -> None:
    storage.replace("chunks/d/0/x", b"one")
    assert storage.read("chunks/d/0/x") == b"one"
    storage.replace("chunks/d/0/x", pa.py_buffer(b"two"))
    assert storage.read("chunks/d/0/x") == b"two"
    assert set(storage.names("chunks/d/0")) == {"x"}


def test_files_that_go_while_they_are_listed_are_no_fault(storage: Storage) -> None:
    names = [f"a/{number}" for number in range(3)]
    for name in names:
        storage.create(name, b"x")
    listed = storage.files("a")
    first = next(listed).path
    for name in names:
        storage.remove(name)
    assert first in names and {file.path for file in listed} <= {*names} - {first}


def test_a_directory_comes_with_its_files(storage: Storage, open_storage: Open) -> None:
    storage.write_directory("log/1-1-a", {"x.parquet": b"one", "y.parquet": pa.py_buffer(b"two")})
    other = open_storage()
    assert set(other.names("log/1-1-a")) == {"x.parquet", "y.parquet"}
    assert (other.read("log/1-1-a/x.parquet"), other.read("log/1-1-a/y.parquet")) == (b"one", b"two")


def test_a_directory_that_cannot_be_finished_leaves_nothing(
    storage: Storage, fail_at: Callable[[int], None], kind: str
) -> None:
    storage.write_directory("log/1-1-a", {"x": b"before"})  # directories above it are made by now
    fail_at(3 if kind == "directory" else 2)  # on disk the new directory's own name is made durable first
    with pytest.raises(StagingUnavailable):
        storage.write_directory("log/2-1-b", {"x": b"one", "y": b"two"})
    assert list(storage.names("log/2-1-b")) == [] and not storage.exists("log/2-1-b/x")
    storage.write_directory("log/2-1-b", {"x": b"one", "y": b"two"})
    assert set(storage.names("log/2-1-b")) == {"x", "y"}
    assert storage.read("log/1-1-a/x") == b"before"


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", "a\0b"])
def test_no_name_leads_out(storage: Storage, path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: storage.exists(path),
        lambda: storage.read(path),
        lambda: list(storage.names(path)),
        lambda: list(storage.files(path)),
        lambda: storage.url(path),
        lambda: storage.create(path, b""),
        lambda: storage.create_missing({path: b""}),
        lambda: storage.settle(path),
        lambda: storage.replace(path, b""),
        lambda: storage.write_directory(path, {"x": b""}),
    ]
    for call in calls:
        with pytest.raises(CorruptSegment):
            call()
