"""The index finds every row of a key, by the key itself or by its hash; and what is damaged is seen."""

from __future__ import annotations

import datetime as dt
import random
import struct
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.delta_writer.keys import key_index, key_runs
from dblog_core.delta_writer.keys.key_hash import chain, hash_keys
from dblog_core.delta_writer.keys.key_index import KeyIndex
from dblog_core.delta_writer.keys.key_runs import IndexDamaged
from dblog_core.errors import LakeError

SECRET = bytes(range(16))


def siphash_128(secret: bytes, message: bytes) -> bytes:
    """SipHash-2-4 with 128 bits, as its paper tells it."""
    full = (1 << 64) - 1
    k0, k1 = struct.unpack("<QQ", secret)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & full

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & full
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & full
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & full
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & full
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    padded = message + b"\0" * (7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def test_the_hash_is_siphash() -> None:
    assert siphash_128(SECRET, b"").hex() == "a3817f04ba25a8e66df67214c7550293", "of its reference code"
    assert siphash_128(SECRET, b"\0").hex() == "da87c1d86b99af44347659119b22fc45"
    values = [bytes(range(n)) for n in range(40)] + [b"\xff" * 300]
    edges = np.cumsum([0, *map(len, values)]).astype(np.int64)
    first = np.arange(len(values), dtype=np.uint64)
    second = np.full(len(values), 2**64 - 1, np.uint64)
    expected_hashes = [siphash_128(SECRET, struct.pack("<QQ", i, 2**64 - 1) + value) for i, value in enumerate(values)]
    chain(edges, np.frombuffer(b"".join(values), np.uint8), SECRET, first, second)
    assert [struct.pack("<QQ", a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)] == expected_hashes


def test_a_value_beyond_its_bytes_is_no_read_beyond_them() -> None:
    with pytest.raises(ValueError, match="outside"):
        chain(np.array([0, 9]), np.zeros(8, np.uint8), SECRET, *np.zeros((2, 1), np.uint64))


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["", "a", "b", "ab", "a\0", "ä", "😀" * 9]),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff" * 17]),
    "decimals": (pa.decimal128(38, 2), [Decimal(-(10**30)), Decimal("-0.01"), Decimal(0), Decimal(10**30)]),
    "dates": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "times": (pa.timestamp("us"), [dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1)]),  # noqa: DTZ001
    "booleans": (pa.bool_(), [False, True]),
    "small integers": (pa.int16(), [-32768, -1, 0, 1, 32767]),
    "floats": (pa.float64(), [-1.5, 0.0, 1.5, float("inf")]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_keys_have_equal_hashes_and_others_have_not(kind: str) -> None:
    arrow, values = KINDS[kind]
    two = pa.array([3] * len(values), pa.int32())
    whole = hash_keys([pa.array(values, arrow), two], SECRET)
    assert len({*zip(whole.first.tolist(), whole.second.tolist(), strict=True)}) == len(values)  # type: ignore[union-attr]
    sliced = hash_keys([pa.array([values[0], *values], arrow).slice(1), two], SECRET)
    assert sliced.first.tolist() == whole.first.tolist(), "wherever in its buffers a value lies"


def test_columns_are_kept_apart() -> None:
    texts = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("c", "ab")]
    keys = hash_keys([pa.array([t[i] for t in texts]) for i in (0, 1)], SECRET)
    assert len(set(keys.first.tolist())) == len(texts)


def test_floats_are_equal_as_they_are_in_sql() -> None:
    first = hash_keys([pa.array([0.0, float("nan")]), pa.array([1, 1])], SECRET).first
    other = hash_keys([pa.array([-0.0, -float("nan")]), pa.array([1, 1])], SECRET).first
    assert first.tolist() == other.tolist()


def test_one_integer_is_its_own_number_in_order() -> None:
    values = [-(2**63), -1, 0, 1, 2**63 - 1]
    keys = hash_keys([pa.array(values)], SECRET)
    assert keys.second is None and keys.first.tolist() == sorted(keys.first.tolist())


def places(index: KeyIndex, columns: list[pa.Array]) -> set[tuple[int, str, int]]:
    rows_found = index.find(columns)
    return {
        (int(a), path, int(r))
        for path, at in rows_found.files
        for a, r in zip(rows_found.key_numbers[at], rows_found.rows[at], strict=True)
    }


def column(keys: list[int], text: bool) -> list[pa.Array]:
    return [pa.array([f"key {k}" for k in keys])] if text else [pa.array(keys, pa.int64())]


def new(directory: Path | None = None, *, text: bool = False, memory: int = key_index.MEMORY) -> KeyIndex:
    kind = pa.string() if text else pa.int64()
    return KeyIndex("table", ("id",), (kind,), directory, memory)


@pytest.mark.parametrize("text", [False, True], ids=["integers", "text"])
@pytest.mark.parametrize("seed", range(4))
def test_all_places_of_a_key_are_found(tmp_path: Path, seed: int, text: bool) -> None:
    """Files come and go, runs are joined, moved to disk, saved and mapped again; keys may be there many times."""
    dice = random.Random(seed)
    index = new(tmp_path, text=text, memory=dice.choice([0, 20_000, 1 << 30]))
    files: dict[str, list[int]] = {}
    for step in range(25):
        keys = [dice.randrange(5000) for _ in range(dice.choice([1, 30, 2000]))] + [7] * dice.choice([0, 600])
        path = f"file {step}"
        half = len(keys) // 2
        stretches = [(0, column(keys[:half], text)), (half, column(keys[half:], text))]
        index.add(path, len(keys), stretches)
        files[path] = keys
        if dice.random() < 0.4:
            files.pop(dice.choice(list(files)))
            index.keep({p: len(k) for p, k in files.items()})
        if dice.random() < 0.2:
            index.save()
            index = key_index.load(tmp_path, "table", ["id"], index.kinds, memory=index.memory)
        keys_asked = dice.sample(range(5000), 200) + [7] * (dice.random() < 0.5)
        keys_asked = list(dict.fromkeys(keys_asked))
        numbers = {key: number for number, key in enumerate(keys_asked)}
        expected_rows = {
            (numbers[k], p, row)
            for p, keys_of_file in files.items()
            for row, k in enumerate(keys_of_file)
            if k in numbers
        }
        assert places(index, column(keys_asked, text)) == expected_rows
        assert all(index.covers(p, len(k)) for p, k in files.items())
        assert len(index._runs) < 12


def test_a_file_of_the_same_name_and_another_size_is_not_covered(tmp_path: Path) -> None:
    index = new()
    index.add("file", 10, [(0, column([1, 2], False))])
    assert index.covers("file", 10) and not index.covers("file", 11) and not index.covers("other", 10)
    index.keep({"file": 11})
    assert not index.covers("file", 10) and places(index, column([1], False)) == set()


def test_a_file_that_comes_back_is_read_again() -> None:
    index = new()
    index.add("file", 10, [(0, column([1, 2], False))])
    index.keep({})
    index.add("file", 10, [(0, column([1, 2], False))])
    assert places(index, column([2], False)) == {(0, "file", 1)}


def test_what_the_index_holds_is_bounded_by_the_files_of_the_table(tmp_path: Path) -> None:
    """Merges and the upkeep make thousands of files a day, and take them away again."""
    index = new(tmp_path)
    index.add("large", 3000, [(0, column(list(range(3000)), False))])
    sizes = []
    for step in range(400):
        index.add(f"{step}", 20, [(0, column(list(range(step, step + 20)), False))])
        index.keep({"large": 3000, f"{step}": 20})
        if step in (199, 399):
            index.save()
            record = (tmp_path / "index.json").stat().st_size
            sizes.append((len(index._files), len(index._numbers), len(index) < 2 * 3020, record // 100))
    assert sizes[0] == sizes[1] and sizes[0][:3] == (2, 2, True)
    index = key_index.load(tmp_path, "table", ["id"], index.kinds)
    index.add("another", 1, [(0, column([5], False))])
    assert places(index, column([5, 399], False)) == {
        (0, "large", 5),
        (0, "another", 0),
        (1, "large", 399),
        (1, "399", 0),
    }
    assert all(index.covers(*file) for file in (("large", 3000), ("399", 20), ("another", 1)))


def test_a_file_that_cannot_be_read_to_its_end_is_not_covered() -> None:
    index = new()

    def stretches() -> Any:
        yield 0, column([1], False)
        raise LakeError("cut short")

    with pytest.raises(LakeError):
        index.add("file", 10, stretches())
    assert not index.covers("file", 10)


def test_entries_of_a_file_that_was_read_in_part_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_runs, "LARGE", 100)
    index = new(tmp_path, memory=0)
    keys = list(range(500))
    stretches = [(at, column(keys[at : at + 50], False)) for at in range(0, 500, 50)]

    def cut_short() -> Any:
        yield from stretches[:7]
        raise LakeError("cut short")

    with pytest.raises(LakeError, match="cut short"):
        index.add("file", 10, cut_short())
    assert len(index) > 0, "some stretches were runs by then"
    assert not index.covers("file", 10) and places(index, column(keys, False)) == set()
    index.save()
    index = key_index.load(tmp_path, "table", ["id"], index.kinds, memory=0)
    assert not index.covers("file", 10)
    index.add("file", 10, stretches)
    assert places(index, column(keys, False)) == {(key, "file", key) for key in keys}


def test_rows_without_a_key_have_no_entry() -> None:
    index = new()
    index.add("file", 10, [(0, [pa.array([None, 0, None, 5], pa.int64())])])
    assert len(index) == 2 and places(index, column([0, 5], False)) == {(0, "file", 1), (1, "file", 3)}


def save_index(directory: Path) -> None:
    index = new(directory)
    index.add("file", 10, [(0, column(list(range(5000)), False))])
    index.save()


@pytest.mark.parametrize(
    ("table", "keys", "kind"),
    [("other", ["id"], pa.int64()), ("table", ["no"], pa.int64()), ("table", ["id"], pa.int32())],
)
def test_another_tables_index_is_not_used(tmp_path: Path, table: str, keys: list[str], kind: pa.DataType) -> None:
    save_index(tmp_path)
    assert key_index.load(tmp_path, "table", ["id"], [pa.int64()]).covers("file", 10)
    assert not key_index.load(tmp_path, table, keys, [kind]).covers("file", 10)


@pytest.mark.parametrize("name", ["index.json", "*.heads", "*.run"])
@pytest.mark.parametrize("how", ["gone", "short", "long", "flipped", "empty"])
def test_a_damaged_index_is_seen_before_it_is_believed(tmp_path: Path, name: str, how: str) -> None:
    save_index(tmp_path)
    (path,) = tmp_path.glob(name)
    data = path.read_bytes()
    middle = len(data) // 2
    damaged = {
        "short": data[:-9],
        "long": data + b"\0" * 8,
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
    }
    path.unlink()
    if how != "gone":
        path.write_bytes(damaged[how])
    index = key_index.load(tmp_path, "table", ["id"], [pa.int64()])
    if index.covers("file", 10):
        assert (name, how) == ("*.run", "flipped")
        with pytest.raises(IndexDamaged):
            index.find(column(list(range(5000)), False))
        with pytest.raises(IndexDamaged):
            key_runs.join_runs(index._runs, index._live())


def test_a_full_disk_keeps_the_index_in_memory(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.write_text("a file where the directory would be")
    index = new(full, memory=0)
    index.add("file", 10, [(0, column([1, 2], False))])
    index.save()
    assert places(index, column([2], False)) == {(0, "file", 1)}


def test_what_is_saved_leaves_nothing_else_behind(tmp_path: Path) -> None:
    index = new(tmp_path, memory=0)
    for i in range(10):
        index.add(f"file {i}", 10, [(0, column(list(range(i * 100, i * 100 + 100)), False))])
        index.save()
    assert len(list(tmp_path.glob("*.run"))) == len(index._runs) and len(list(tmp_path.glob("*.heads"))) == 1
    assert (tmp_path / "index.json").stat().st_mode & 0o777 == 0o600, "it holds the secret of the hash"


def test_memory_is_bounded_where_there_is_a_disk(tmp_path: Path) -> None:
    index = new(tmp_path, memory=50_000)
    for i in range(20):
        index.add(f"file {i}", 10, [(0, column(list(range(i * 1000, i * 1000 + 1000)), False))])
    assert sum(run.bytes_in_memory for run in index._runs) <= 50_000
    assert places(index, column([15_003], False)) == {(0, "file 15", 3)}


@pytest.mark.parametrize("text", [False, True], ids=["integers", "text"])
def test_one_large_file_takes_the_memory_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool) -> None:
    monkeypatch.setattr(key_runs, "LARGE", 2_000)
    index = new(tmp_path, text=text, memory=50_000)
    rows_in_no_run: list[int] = []  # of those that were read
    bytes_in_memory: list[int] = []

    def stretches() -> Any:
        for first in range(0, 40_000, 1_000):
            rows_in_no_run.append(first - len(index))
            bytes_in_memory.append(index.bytes_in_memory)
            yield first, column(list(range(first, first + 1_000)), text)

    index.add("file", 10, stretches())
    assert max(rows_in_no_run) <= 2_000 and max(bytes_in_memory) <= 50_000
    assert index.covers("file", 10) and len(index) == 40_000
    few_keys = [0, 1_999, 2_000, 39_999]
    assert places(index, column(few_keys, text)) == {(n, "file", row) for n, row in enumerate(few_keys)}


def test_two_runs_are_joined_in_little_more_memory_than_three_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 200_000
    monkeypatch.setattr(key_runs, "LARGE", rows)
    monkeypatch.setattr(key_runs, "_STRETCH", 10_000)
    index = new(tmp_path, text=True)
    stretches = [(at, column(list(range(at, at + 10_000)), True)) for at in range(0, rows, 10_000)]
    index.add("file 0", 10, stretches[:10])
    tracemalloc.start()
    try:
        index.add("file 1", 10, stretches[10:])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index._runs) == 1
    # Half of the entries were there before; the other half, all of them together, and the order of these are new.
    assert most / index.bytes_in_memory < 2.4
