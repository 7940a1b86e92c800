"""Numbers that wait on the local disk."""

from __future__ import annotations

import errno
import gc
import os

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.errors import LakeError
from dblog_core.rows import disk_spool
from dblog_core.rows.disk_spool import SpooledRows, SpoolFile, TableSpool, spooled_array


@pytest.mark.parametrize("in_memory", [0, 1 << 20])
def test_an_array_of_numbers_is_zeros_and_keeps_what_is_written(
    monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(disk_spool, "_IN_MEMORY", in_memory)
    numbers = spooled_array(10_000, np.int64)
    assert not numbers.any() and len(numbers) == 10_000
    numbers[::7] = 3
    assert numbers.sum() == 3 * 1429
    assert len(spooled_array(0, np.uint8)) == 0


def test_an_array_that_the_disk_has_no_room_for_is_an_error_that_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(LakeError, match="No space left on device; 763M are needed, and") as error_info:
        spooled_array(100_000_000, np.int64)
    assert "TMPDIR" in error_info.value.fix and error_info.value.where


def test_parts_of_a_file_are_read_in_any_order() -> None:
    spool = SpoolFile()
    places = [spool.append(bytes([number]) * 5) for number in range(3)]
    assert [spool.read(place, 5) for place in reversed(places)] == [b"\2" * 5, b"\1" * 5, b"\0" * 5]
    assert spool.size == 15


def test_the_file_of_spooled_rows_is_closed_with_the_last_of_them() -> None:
    spool = TableSpool()
    first, second = (SpooledRows(spool, spool.write(pa.table({"n": [number]}))) for number in (1, 2))
    file = spool._file.file
    del spool, first
    assert len(second) == 1 and second.read()["n"].to_pylist() == [2] and not file.closed
    del second
    gc.collect()
    assert file.closed
