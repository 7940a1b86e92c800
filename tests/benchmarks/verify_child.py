"""A comparison in a process of its own, whose memory is measured: python -m tests.benchmarks.verify_child DIRECTORY

The directory has a lake, a staged log and `world.json` (`test_verify_staged`). Prints seconds and bytes as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.rows.disk_spool import SpooledRows, TableSpool
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from tests.benchmarks.peak import peak_memory
from tests.spark.segments import table

T = table("t", id=pa.int64(), amount=pa.decimal128(12, 2), city=pa.string(), note=pa.string(), n=pa.int32())
WINDOW = 50_000  # rows
CHOSEN = 1_000  # keys
ANSWERS = 3

Keys = npt.NDArray[np.int64]


def image(keys: Keys, versions: Keys) -> dict[str, pa.Array]:
    """Rows as they are after the events at these offsets."""
    text = pa.array(versions).cast(pa.string())
    columns = {
        "id": pa.array(keys),
        "amount": pa.array(versions % 1_000_000).cast(pa.decimal128(21, 2)),
        "city": pa.array(np.array(["Berlin", "Lagos", "Paris"])[versions % 3]),
        "note": pc.binary_join_element_wise("leave it with the neighbours if nobody opens", text, " "),
        "n": pa.array((versions % 1000).astype(np.int32)),
    }
    return {c.name: columns[c.name].cast(c.type) for c in T.columns}


def readings(directory: Path, windows: Iterable[Keys]) -> Iterator[SpooledRows]:
    """The source is as all that is staged says."""
    spool = TableSpool()
    for keys in windows:
        # Mapped anew each time: what was read of the file would count as memory of this process.
        versions = np.array(np.load(directory / "versions.npy", mmap_mode="r")[keys])
        hashes = hash_rows(image(keys, versions), T)
        yield SpooledRows(spool, spool.write(pa.table({"id": pa.array(keys), HASH: pa.array(hashes)})))


def main(directory: Path) -> None:
    world = json.loads((directory / "world.json").read_text())
    rows = len(np.load(directory / "versions.npy", mmap_mode="r"))
    staging = Staging(str(directory / "staging"), source="shop")
    lake = Location(LocalStorage(directory / "lake", temporary="_dblog/tmp"))
    judge = Judge(staging, lake)
    pin = Pin(1, 0, 0, world["upto"])
    seconds = []
    chosen = np.random.default_rng(1).choice(rows, CHOSEN, replace=False)
    for number in range(1 + ANSWERS):
        every = (np.arange(start, min(start + WINDOW, rows)) for start in range(0, rows, WINDOW))
        rows_read = tuple(readings(directory, [chosen] if number else every))
        comparison = Comparison(T, pin, rows_read, world["upto"], world["upto"], for_chosen_keys=bool(number))
        began = time.monotonic()
        answer = judge.compare(comparison)
        seconds.append(time.monotonic() - began)
        assert not (answer.missing or answer.extra or answer.different or answer.undecided), answer
        assert answer.rows == answer.lake_rows == (CHOSEN if number else rows) and answer.staged == world["staged"], (
            answer
        )
    print(json.dumps({"first": seconds[0], "later": seconds[1:], "peak": peak_memory()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
