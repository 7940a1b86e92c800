"""The super-changelog on storage: published once and in order, found fast, whole or refused, on disks that fill up."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.errors import CorruptSegment, SegmentTaken, StagingError, StagingUnavailable
from dblog_core.staging import Staging, segment
from dblog_core.staging.manifest import FORMAT, Manifest
from tests.unit.staged import chunk, creates, log_rows, manifest, publish, root_of, table
from tests.waiting import PATIENCE_SECONDS

ORDERS = table()


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path / "staging"), source="shop")


def again(staging: Staging) -> Staging:
    """The same directory as another process sees it."""
    return Staging(str(root_of(staging).parent), source="shop")


def test_constructing_it_makes_nothing(staging: Staging) -> None:
    assert staging.head() is None
    assert list(staging.manifests()) == []
    assert not root_of(staging).exists()


@pytest.mark.parametrize("root", ["gs://bucket/prefix", "hdfs://x/y", "file:///tmp/x"])
def test_storage_of_an_unknown_kind_is_refused_by_name(root: str) -> None:
    with pytest.raises(StagingError, match="not supported") as caught:
        Staging(root, source="shop")
    assert caught.value.fix and not caught.value.transient


def test_what_is_published_is_read_back_by_others(staging: Staging) -> None:
    manifests = [publish(staging, n, n * 10, n * 10 + 4, (ORDERS, creates(ORDERS, n * 10, 5))) for n in (1, 2, 3)]
    assert again(staging).head() == manifests[-1]
    assert list(again(staging).manifests()) == manifests
    assert list(again(staging).manifests(after=2)) == manifests[2:]
    assert again(staging).manifest(2) == manifests[1]
    (file,) = manifests[0].files
    assert [len(batch) for batch in again(staging).log_batches(file)] == [5]
    assert again(staging).schema(file.schema) == ORDERS


def test_files_are_for_their_owner_alone(staging: Staging) -> None:
    placed = chunk(staging, ORDERS, 1, {"id": 1})
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 2, 1)), chunks=(placed,))
    modes = {stat.S_IMODE(p.stat().st_mode) for p in root_of(staging).rglob("*") if p.is_file()}
    folders = {stat.S_IMODE(p.stat().st_mode) for p in [root_of(staging), *root_of(staging).rglob("*")] if p.is_dir()}
    assert (modes, folders) == ({0o600}, {0o700})


def test_a_number_that_another_capture_took_fences_us(staging: Staging) -> None:
    staging.publish(manifest(1, 1, 0, epoch=1))
    with pytest.raises(SegmentTaken):
        again(staging).publish(manifest(1, 1, 0, epoch=2))
    assert staging.manifest(1).epoch == 1


def test_of_many_publishers_of_one_number_exactly_one_wins(staging: Staging) -> None:
    def attempt(epoch: int) -> bool:
        try:
            again(staging).publish(manifest(1, 1, 0, epoch=epoch))
        except SegmentTaken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [epoch for epoch, wins in enumerate(pool.map(attempt, range(32))) if wins]
    assert won == [staging.manifest(1).epoch]


def test_publishing_the_same_again_is_no_error(staging: Staging) -> None:
    staging.publish(manifest(1, 1, 0))
    staging.publish(manifest(1, 1, 0))
    again(staging).publish(manifest(1, 1, 0))


def test_a_publication_of_unknown_outcome_can_be_repeated(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblog_core.storage.local._sync_directory", _failing_for("manifests"))
    staging.storage.replace("schemas/x.json", b"")  # other directories work
    with pytest.raises(StagingUnavailable):
        staging.publish(manifest(1, 1, 0))
    monkeypatch.undo()
    staging.publish(manifest(1, 1, 0))
    assert again(staging).head() == manifest(1, 1, 0)


def _failing_for(name: str) -> object:
    from dblog_core.storage import local as storage

    real = storage._sync_directory

    def sync(path: Path) -> None:
        if path.name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path)

    return sync


def test_no_segment_is_published_above_a_gap(staging: Staging) -> None:
    publish(staging, 1, 1, 0)
    with pytest.raises(StagingError, match="segment 2 is missing"):
        staging.publish(manifest(3, 1, 0))


def test_the_first_number_stays_taken_after_retention_removed_it(staging: Staging) -> None:
    for number in (1, 2, 3):
        publish(staging, number, 1, 0)
    for number in (1, 2):
        (root_of(staging) / f"manifests/{number:020d}.json").unlink()
    with pytest.raises(SegmentTaken):
        again(staging).publish(manifest(1, 1, 0, epoch=9))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 64, 100])
@pytest.mark.parametrize("removed", [0, 1, 50])
def test_the_head_is_found_from_any_remembered_place(staging: Staging, count: int, removed: int) -> None:
    early = again(staging)
    for number in range(1, count + 1):
        publish(staging, number, 1, 0)
        if number == count // 2:
            early.head()
    for number in range(1, min(removed, count - 1) + 1):
        (root_of(staging) / f"manifests/{number:020d}.json").unlink()
    for reader in (staging, early, again(staging)):
        assert reader.head_number() == count
    assert again(staging).first_number() == min(removed, count - 1) + 1


def test_a_missing_segment_is_an_error_and_never_the_end(staging: Staging) -> None:
    for number in (1, 2, 3):
        publish(staging, number, 1, 0)
    (root_of(staging) / f"manifests/{2:020d}.json").unlink()
    with pytest.raises(CorruptSegment, match="segment 2 is missing"):
        list(staging.manifests())
    (root_of(staging) / f"manifests/{1:020d}.json").unlink()
    with pytest.raises(CorruptSegment, match="segment 1 is missing"):
        list(again(staging).manifests())


def test_a_reader_beside_a_publisher_sees_whole_manifests_in_order(staging: Staging) -> None:
    seen: list[int] = []
    last = 150

    def follow() -> None:
        reader = again(staging)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < last and time.monotonic() < deadline:
            seen.extend(m.segment for m in reader.manifests(after=len(seen)))

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(1, last + 1):
        staging.publish(manifest(number, 1, 0))
    thread.join()
    assert seen == list(range(1, last + 1))


def test_every_flipped_bit_and_every_cut_of_a_manifest_is_found(staging: Staging) -> None:
    publish(staging, 1, 1, 1, (ORDERS, creates(ORDERS, 1, 1)))
    path = root_of(staging) / f"manifests/{1:020d}.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        for damaged in (whole[:place], bytes([*whole[:place], whole[place] ^ 1, *whole[place + 1 :]])):
            path.write_bytes(damaged)
            with pytest.raises(CorruptSegment) as caught:
                staging.manifest(1)
            assert str(path) in str(caught.value)


def test_a_newer_format_and_a_manifest_of_another_place_are_refused(staging: Staging) -> None:
    class Newer(Manifest):
        def to_json(self) -> dict[str, object]:
            return {**super().to_json(), "format": FORMAT + 1}

    new_manifest = manifest(1, 1, 0)
    staging.publish(Newer(**{name: getattr(new_manifest, name) for name in Manifest.__slots__}))
    with pytest.raises(CorruptSegment, match="newer"):
        staging.manifest(1)
    (root_of(staging) / f"manifests/{1:020d}.json").unlink()
    other = again(staging)
    other.publish(new_manifest)
    os.link(root_of(staging) / f"manifests/{1:020d}.json", root_of(staging) / f"manifests/{2:020d}.json")
    with pytest.raises(CorruptSegment, match="holds segment 1"):
        other.manifest(2)


def test_schemas_are_stored_once_and_compared(staging: Staging) -> None:
    staging.put_schema(ORDERS)
    staging.put_schema(ORDERS)
    again(staging).put_schema(table("shop.third"), ORDERS)
    assert again(staging).schema(ORDERS.fingerprint) == ORDERS
    assert again(staging).schema(table("shop.third").fingerprint) == table("shop.third")
    other = table("shop.other")
    with pytest.raises(CorruptSegment, match="missing"):
        staging.schema(other.fingerprint)
    os.link(
        root_of(staging) / f"schemas/{ORDERS.fingerprint}.json",
        root_of(staging) / f"schemas/{other.fingerprint}.json",
    )
    with pytest.raises(CorruptSegment, match=ORDERS.fingerprint):
        staging.schema(other.fingerprint)


def test_a_chunk_file_reads_back_whole_or_by_column(staging: Staging) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": n, "name": f"n{n}"} for n in range(3)], schema=ORDERS.arrow)
    file = staging.write_chunk("d1/0", "00000000-w", rows)
    assert file.path == "chunks/d1/0/00000000-w.parquet"
    assert (file.rows, file.bytes) == (3, (root_of(staging) / file.path).stat().st_size)
    assert staging.read_chunk(file.path, checksum=file.checksum).to_batches() == [rows]
    assert staging.read_chunk(file.path, columns=["name"]).to_pydict() == {"name": ["n0", "n1", "n2"]}
    with pytest.raises(CorruptSegment, match="checksum"):
        staging.read_chunk(file.path, checksum="0" * 32)
    with pytest.raises(CorruptSegment, match="missing"):
        staging.read_chunk("chunks/d1/0/none.parquet")


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "chunks/../../x", "chunks/\0"])
def test_no_path_leads_out_of_the_directory(staging: Staging, path: str) -> None:
    with pytest.raises(CorruptSegment, match="not a file below this"):
        staging.read_chunk(path)


@pytest.mark.parametrize("name", ["shop./../../x", "_hidden.t", "s.%41 *?[]{}", "s." + "ü" * 300, "s.a\nb"])
def test_any_table_name_makes_a_file_that_spark_sees(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    schema = table(name)
    new_manifest = publish(staging, 1, 1, 1, (schema, creates(schema, 1, 1)))
    path = root_of(staging) / new_manifest.files[0].path
    assert path.is_file() and path.parent.parent == root_of(staging) / "log"
    assert path.name[0] not in "._" and path.name.isascii() and path.name.isprintable() and len(path.name) < 255


def test_a_segment_writer_tells_what_it_holds(staging: Staging) -> None:
    bare = table("shop.bare", key=(), a=pa.int64())
    writer = staging.open_segment(1, 7)
    assert (writer.bytes, writer.rows, writer.write()) == (0, 0, ())
    writer.add(ORDERS, creates(ORDERS, 1, 10))
    writer.add(bare, log_rows(bare, {"offset": 11, "op": "c", "after": {"a": 1}}))
    move = {"offset": 12, "op": "c", "after": {"id": 2}, "moved_from": {"id": 1}, "unchanged": ["big"]}
    writer.add(ORDERS, log_rows(ORDERS, move))
    assert writer.rows == 12 and writer.bytes > creates(ORDERS, 1, 10).nbytes
    orders, other = writer.write()
    assert (orders.rows, orders.first_offset, orders.last_offset) == (11, 1, 12)
    assert (orders.has_unchanged, orders.has_moves, other.has_unchanged, other.has_moves) == (True, True, False, False)
    assert writer.write() == (orders, other)


def test_leftovers_of_killed_processes_are_swept_and_those_in_use_are_not(staging: Staging) -> None:
    staging.publish(manifest(1, 1, 0))
    old = root_of(staging) / "tmp" / "old"
    new = root_of(staging) / "tmp" / "new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    again(staging).publish(manifest(2, 1, 0))
    assert [p.name for p in (root_of(staging) / "tmp").iterdir()] == ["new"]


def test_leftovers_in_a_directory_of_their_own_are_swept_and_stop_nobody(staging: Staging) -> None:
    """One that is still written to is old and has new files."""
    for name in ("dead", "living"):
        staging.storage.replace(f"tmp/work-{name}/hashes/1.parquet", b"keys of rows")
    root = root_of(staging) / "tmp"
    long_ago = time.time() - 2 * 86_400
    for path in {*root.rglob("*")} - {root / "work-living" / "hashes" / "1.parquet"}:
        os.utime(path, (long_ago, long_ago))
    again(staging).publish(manifest(1, 1, 0))
    assert [p.name for p in root.rglob("*")] == ["work-living", "hashes", "1.parquet"]


_KILLED = """
import os, signal, sys
from dblog_core.staging import Staging, segment
from dblog_core.storage import local as storage
from tests.unit.staged import creates, manifest, table
calls, limit = 0, int(sys.argv[2])
def counted(real):
    def call(*arguments, **named):
        global calls
        calls += 1
        if calls > limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return call
for name in ("fsync", "link", "open", "replace", "unlink"):
    setattr(os, name, counted(getattr(os, name)))
staging, ORDERS = Staging(sys.argv[1], source="shop"), table()
segment.INLINE_BYTES = int(sys.argv[3])
writer = staging.open_segment(2, 1)
staging.put_schema(ORDERS)
writer.add(ORDERS, creates(ORDERS, 2, 1))
staging.publish(manifest(2, 2, 2, files=writer.write()))
print("published")
"""


@pytest.mark.parametrize("inline", [0, segment.INLINE_BYTES])
@pytest.mark.thorough
def test_a_kill_at_any_step_leaves_all_of_a_segment_or_nothing(staging: Staging, inline: int) -> None:
    publish(staging, 1, 1, 1, (ORDERS, creates(ORDERS, 1, 1)))
    outcomes = []
    for step in range(0, 60, 3):
        command = [sys.executable, "-c", _KILLED, str(root_of(staging).parent), str(step), str(inline)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        reader = again(staging)
        segments = list(reader.manifests())
        outcomes.append(len(segments))
        for manifest_read in segments:
            for file in manifest_read.files:
                assert sum(len(batch) for batch in reader.log_batches(file)) == file.rows
        if "published" in done.stdout:
            break
        if len(segments) == 2:
            (root_of(staging) / f"manifests/{2:020d}.json").unlink()
    assert outcomes[0] == 1 and outcomes[-1] == 2


_FULL = """
import resource, sys
from dblog_core.errors import StagingUnavailable
from dblog_core.staging import Staging
from tests.unit.staged import chunk, creates, manifest, table
staging, ORDERS = Staging(sys.argv[1], source="shop"), table()
writer = staging.open_segment(1, 1)
staging.put_schema(ORDERS)
writer.add(ORDERS, creates(ORDERS, 1, 20000))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
for step in (writer.write, lambda: chunk(staging, ORDERS, 1, *({"id": n * n, "name": str(n)} for n in range(9000)))):
    try:
        step()
    except StagingUnavailable as error:
        print("full:", error.transient, bool(error.where), bool(error.fix))
print("files:", sum(p.is_file() for p in staging.storage.root.rglob("*") if "schemas" not in p.parts))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
staging.publish(manifest(1, 1, 20000, files=writer.write()))
print("rows:", sum(f.rows for f in staging.head().files))
"""


def test_without_room_nothing_half_written_stays_and_it_goes_on_when_there_is_room(staging: Staging) -> None:
    """The system's own refusal to write more, as any user can have it: a limit on the size of files."""
    command = [sys.executable, "-c", _FULL, str(root_of(staging).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["full: True True True"] * 2 + ["files: 0", "rows: 20000"], done.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, StagingUnavailable), (errno.EDQUOT, StagingUnavailable), (errno.EIO, StagingUnavailable),
        (errno.ESTALE, StagingUnavailable), (errno.EROFS, StagingUnavailable), (errno.EACCES, StagingError),
        (errno.ENOTDIR, StagingError),
    ],
)  # fmt: skip
def test_system_errors_say_where_and_what_to_do(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[StagingError]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    staging.publish(manifest(1, 1, 0))
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StagingError) as caught:
        staging.publish(manifest(2, 1, 0))
    assert type(caught.value) is expected
    assert os.strerror(code) in str(caught.value) and str(root_of(staging)) in caught.value.where and caught.value.fix
    assert isinstance(caught.value.__cause__, OSError)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("")
    with pytest.raises(StagingError) as caught:
        Staging(str(tmp_path), source="shop").publish(manifest(1, 1, 0))
    assert str(tmp_path / "shop") in str(caught.value)
